//! The start of a connection, until its session is open.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use holdfast_api::session_message::{ClientMessage, ClientPayload, Open, ServerMessage};
use holdfast_api::{ApiError, ApiResult, Code, CreateSession, validate};
use holdfast_clock::BootInstant;
use holdfast_supervise::spawn_alongside;
use holdfast_types::{Durability, Scopes};
use metrics::gauge;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use super::channel::{CloseReason, Inbound, OutboundQueue, SessionReceiver, SessionSender, queues, stopping_error};
use super::connection::SessionConnection;
use super::handle::SessionHandle;
use super::life::SessionLife;
use super::protocol::{MessageSequence, protocol_error};
use crate::access_watch::{AccessWatch, is_final};
use crate::admission::DeferredCall;
use crate::ops::OpenTerms;
use crate::{AuthContext, CallContext, Service};

/// How long a client may take to open its session.
const OPEN_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of a connection that a frontend sets.
#[derive(Clone, Copy, Debug, Default)]
pub struct ConnectionOptions {
    /// Whether the session's time to live may be outside the account's limits. It is at least 1 ms. Where the locks are
    /// in the memory of a leader, it is adjusted to the nearest allowed value.
    pub allow_any_ttl: bool,
    /// Whether the gateway keeps the session alive as long as the connection is open, which ends when the session may
    /// have ended: the client counts nothing.
    pub keep_alive: bool,
}

impl Service {
    /// Starts a connection of an authenticated caller. It ends when both ends are dropped, or when [`SessionReceiver`]
    /// reports its end. The session then continues for its time to live, unless it was closed.
    pub fn connect(&self, caller: AuthContext, options: ConnectionOptions) -> (SessionSender, SessionReceiver) {
        let (frontend, (incoming, outgoing)) = queues(self.account_buffers(&caller));
        let opening = Handshake { service: self.clone(), caller, options };
        spawn_alongside("session", async move {
            let _counted = ConnectionGauge::start();
            let ending = opening.run(incoming, &outgoing).await;
            outgoing.close(ending);
        });
        frontend
    }
}

/// Counts a connection in the metrics, however it ends.
struct ConnectionGauge;

impl ConnectionGauge {
    fn start() -> Self {
        gauge!("holdfast_session_connections").increment(1.0);
        Self
    }
}

impl Drop for ConnectionGauge {
    fn drop(&mut self) {
        gauge!("holdfast_session_connections").decrement(1.0);
    }
}

/// A session that was opened or resumed on the connection.
struct OpenedSession {
    session: SessionHandle,
    /// When the opening was sent.
    asked_at: BootInstant,
    /// Counts the connection for as long as it is open.
    held: DeferredCall,
    /// The caller when it was opened.
    caller: AuthContext,
    /// The address of the gateway in the leader's node.
    leader: Option<Arc<str>>,
}

impl OpenedSession {
    /// Returns the message that tells the client.
    fn message(&self) -> ServerMessage {
        ServerMessage::Opened {
            session_id: self.session.session_id.clone(),
            epoch: self.session.epoch,
            ttl_ms: self.session.ttl_ms,
            resumed: self.session.is_resumed,
            leader: self.leader.as_deref().map(str::to_owned),
            durability: if self.session.table_epoch.is_some() { Durability::Session } else { Durability::Full },
            table_epoch: self.session.table_epoch,
        }
    }
}

/// A connection without an open session.
struct Handshake {
    service: Service,
    caller: AuthContext,
    options: ConnectionOptions,
}

impl Handshake {
    async fn run(self, mut incoming: mpsc::Receiver<Inbound>, outgoing: &OutboundQueue) -> CloseReason {
        let stopping = self.service.stopping();
        let opened = tokio::select! {
            () = stopping.cancelled() => Err(CloseReason::Failed(stopping_error())),
            error = self.access_watch().wait_revoked() => Err(CloseReason::Failed(error)),
            opened = self.wait_for_open(&mut incoming, outgoing) => opened,
        };
        let (opened, seq) = match opened {
            Ok(opened) => opened,
            Err(ending) => return ending,
        };
        let message = opened.message();
        let order = MessageSequence::after_open(seq, opened.session.is_resumed);
        let _held = opened.held;
        let life = self.options.keep_alive.then(|| {
            let ttl = Duration::from_millis(opened.session.ttl_ms);
            SessionLife::new(self.service.inner.clocks.clone(), opened.asked_at, ttl)
        });
        let live = SessionConnection::new(
            Arc::new(opened.session),
            self.access_watch(),
            opened.caller,
            life,
            order,
            incoming,
            outgoing,
        );
        live.run(message).await
    }

    /// Watches the access of the caller from now on.
    fn access_watch(&self) -> AccessWatch {
        AccessWatch::new(self.service.clone(), self.caller.clone())
    }

    /// Returns the session, with the number of the message that opened it.
    async fn wait_for_open(
        &self,
        incoming: &mut mpsc::Receiver<Inbound>,
        outgoing: &OutboundQueue,
    ) -> Result<(OpenedSession, u64), CloseReason> {
        let open_by = Instant::now() + OPEN_TIMEOUT;
        loop {
            let message = match timeout_at(open_by, incoming.recv()).await {
                Err(_) => return Err(CloseReason::Failed(open_timeout_error())),
                Ok(None) => return Err(CloseReason::Done),
                Ok(Some(Inbound::Malformed(error))) => return Err(CloseReason::Malformed(*error)),
                Ok(Some(Inbound::Message(message, _))) => message,
            };
            let ClientMessage { seq, payload } = *message;
            let ClientPayload::Open(open) = payload else {
                return Err(CloseReason::Malformed(protocol_error("open: must be the first message")));
            };
            match self.open(&open).await {
                Ok(opened) => return Ok((opened, seq)),
                Err(error) if is_final(&error) => return Err(CloseReason::Failed(error)),
                // The client may open another session.
                Err(error) => {
                    if !outgoing.send(ServerMessage::Error { error, request_id: None }).await {
                        return Err(CloseReason::Done);
                    }
                }
            }
        }
    }

    async fn open(&self, open: &Open) -> ApiResult<OpenedSession> {
        let caller = self.access_watch().check().await?;
        let tenant = caller.require(Scopes::LOCKS_WRITE)?;
        tenant.check_namespace("namespace", &open.namespace)?;
        let request = CreateSession {
            namespace: open.namespace.clone(),
            process_id: open.process_id.clone(),
            ttl_ms: open.ttl_ms,
            metadata: open.metadata.clone(),
        };
        if !self.options.allow_any_ttl {
            let limits = match open.session_id {
                Some(_) => &validate::limits_for_existing(tenant.limits()),
                None => tenant.limits(),
            };
            validate::session_ttl_ms(open.ttl_ms, limits)?;
        } else if open.ttl_ms == 0 {
            return Err(ApiError::invalid("ttl_ms", "ttl_ms: must be at least 1"));
        }
        let held = self.service.inner.deferred_calls.connect(caller.share().sharer)?;
        let context = CallContext::new("session connection");
        let Open { keeps_table, transition_ms, .. } = *open;
        let fits_ttl = self.options.allow_any_ttl;
        let terms = OpenTerms { resume: open.session_id.as_deref(), keeps_table, transition_ms, fits_ttl };
        let asked_at = self.service.inner.clocks.now();
        let opened = self.service.open_session(tenant, &context, &request, terms).await?;
        let session = SessionHandle {
            service: self.service.clone(),
            key: opened.key,
            namespace: opened.namespace,
            session_id: opened.session.session_id,
            number: opened.session.number,
            epoch: opened.session.epoch,
            ttl_ms: opened.session.ttl_ms,
            is_resumed: opened.resumed,
            reported_in: AtomicU64::new(0),
            table_epoch: opened.table_epoch,
        };
        let leader = context.report.leader_gateway();
        Ok(OpenedSession { session, asked_at, held, caller, leader })
    }
}

fn open_timeout_error() -> ApiError {
    let seconds = OPEN_TIMEOUT.as_secs();
    ApiError::new(Code::DeadlineExceeded, format!("no session was opened within {seconds} s; connect again"))
}
