//! The beginning of a connection: until its session is open.

use std::sync::Arc;
use std::time::Duration;

use holdfast_core::Scopes;
use holdfast_supervise::brief;
use metrics::gauge;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::channel::{Ending, FromSession, Incoming, Outgoing, ToSession, queues};
use super::checks::{Order, malformed};
use super::live::Live;
use super::message::{ClientSays, Open, ServerMessage};
use super::place::Place;
use crate::error::{ApiError, ApiResult, Code};
use crate::service::{CallContext, Caller, CreateSession, Service, Standing, is_definite, session_ttl_ms};
use crate::validate;

/// How long a client may take to open its session.
const OPEN_WITHIN: Duration = Duration::from_secs(30);

/// What a door may change about a connection.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rules {
    /// Whether the session's time to live may be outside the account's limits. It is at least 1 ms.
    pub(crate) any_ttl: bool,
    /// Whether the gateway keeps the session alive as long as the connection is open.
    pub(crate) keep_alive: bool,
}

impl Service {
    /// Begins a connection of a caller who was let in. It lives until both ends are dropped, or until [`FromSession`] says that it ended; the
    /// session then lives on for its time to live, unless it was closed.
    pub(crate) fn connect(&self, caller: Caller, rules: Rules) -> (ToSession, FromSession) {
        let (door, (incoming, outgoing)) = queues();
        let opening = Opening { service: self.clone(), caller, rules };
        brief("session", async move {
            let _counted = Counted::begin();
            let ending = opening.run(incoming, &outgoing).await;
            outgoing.end(ending);
        });
        door
    }
}

/// A connection in the figures, however it ends.
struct Counted;

impl Counted {
    fn begin() -> Self {
        gauge!("holdfast_session_connections").increment(1.0);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        gauge!("holdfast_session_connections").decrement(1.0);
    }
}

/// Where the session is, the caller when it was opened, and whether it was resumed.
type Opened = (Place, Caller, bool);

/// A connection whose session is not open.
struct Opening {
    service: Service,
    caller: Caller,
    rules: Rules,
}

impl Opening {
    async fn run(self, mut incoming: mpsc::Receiver<Incoming>, outgoing: &Outgoing) -> Ending {
        let stopping = self.service.stopping();
        let opened = tokio::select! {
            () = stopping.cancelled() => Err(Ending::Failed(stopped())),
            error = self.standing().refused() => Err(Ending::Failed(error)),
            opened = self.until_open(&mut incoming, outgoing) => opened,
        };
        let ((place, caller, resumed), seq) = match opened {
            Ok(opened) => opened,
            Err(ending) => return ending,
        };
        let opened = ServerMessage::Opened {
            session_id: place.session_id.clone(),
            epoch: place.epoch,
            ttl_ms: place.ttl_ms,
            resumed,
        };
        let order = Order::after_open(seq, resumed);
        let live = Live::new(Arc::new(place), self.standing(), caller, self.rules, order, incoming, outgoing);
        live.run(opened).await
    }

    /// What is noticed of the caller from now on.
    fn standing(&self) -> Standing {
        Standing::new(self.service.clone(), self.caller.clone())
    }

    /// The session, with the number of the message that opened it.
    async fn until_open(
        &self,
        incoming: &mut mpsc::Receiver<Incoming>,
        outgoing: &Outgoing,
    ) -> Result<(Opened, u64), Ending> {
        let open_by = Instant::now() + OPEN_WITHIN;
        loop {
            let message = match timeout_at(open_by, incoming.recv()).await {
                Err(_) => return Err(Ending::Failed(no_session())),
                Ok(None) => return Err(Ending::Done),
                Ok(Some(Incoming::Malformed(error))) => return Err(Ending::Malformed(error)),
                Ok(Some(Incoming::Message(message))) => message,
            };
            let ClientSays::Open(open) = message.said else {
                return Err(Ending::Malformed(malformed("open has to come first")));
            };
            match self.open(&open).await {
                Ok(opened) => return Ok((opened, message.seq)),
                Err(error) if is_definite(&error) => return Err(Ending::Failed(error)),
                // The client may open another one.
                Err(error) => {
                    if !outgoing.send(ServerMessage::Error { error, request_id: None }).await {
                        return Err(Ending::Done);
                    }
                }
            }
        }
    }

    async fn open(&self, open: &Open) -> ApiResult<Opened> {
        let caller = self.standing().look().await?;
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", &open.namespace)?;
        let request = CreateSession {
            namespace: open.namespace.clone(),
            process_id: open.process_id.clone(),
            ttl_ms: open.ttl_ms,
            metadata: open.metadata.clone(),
        };
        if !self.rules.any_ttl {
            let limits = match open.session_id {
                Some(_) => &validate::known(tenant.limits()),
                None => tenant.limits(),
            };
            session_ttl_ms(open.ttl_ms, limits)?;
        } else if open.ttl_ms == 0 {
            return Err(ApiError::invalid("ttl_ms", "ttl_ms: must be at least 1"));
        }
        let context = CallContext::new("session connection");
        let opened = self.service.open_session(tenant, &context, &request, open.session_id.as_deref()).await?;
        let place = Place {
            service: self.service.clone(),
            key: opened.key,
            namespace: opened.namespace,
            session_id: opened.session.session_id,
            epoch: opened.session.epoch,
            ttl_ms: opened.session.ttl_ms,
        };
        Ok((place, caller, opened.resumed))
    }
}

/// The error for clients of a process that stops.
pub(super) fn stopped() -> ApiError {
    ApiError::new(Code::Unavailable, "this gateway stops; connect to another one and resume the session")
}

fn no_session() -> ApiError {
    let seconds = OPEN_WITHIN.as_secs();
    ApiError::new(Code::DeadlineExceeded, format!("no session was opened within {seconds} s; connect again"))
}
