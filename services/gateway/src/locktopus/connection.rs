//! One connection of a Locktopus client: its one lock, and the session behind it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use holdfast_api::session_message::{ClientMessage, ClientPayload, Lock, Open, RefusalCause, Release, ServerMessage};
use holdfast_api::{ApiError, Code, CreateSession};
use holdfast_backend::session::{CloseReason, ConnectionOptions, Outbound, SessionReceiver, SessionSender};
use holdfast_backend::{CallContext, Service};
use holdfast_types::{AccountId, Metadata};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use uuid::Uuid;

use super::cleanup;
use super::message::{LockState, Request, decode, encode};
use crate::connection_limiter::ActivityGuard;

/// The gateway needs the connection for others: the client may reconnect.
const GOING_AWAY: u16 = 1001;
/// The client sent an invalid message.
const BAD_INPUT: u16 = 3000;
/// The service cannot continue the connection.
const INTERNAL_ERROR: u16 = 1011;
const NORMAL: u16 = 1000;
/// How long the session of an open connection lives without a keep-alive, in milliseconds, however short its abandon
/// timeout: longer than a failover takes.
const MIN_TTL_MS: u64 = 10_000;
/// The gateway pings an idle peer, and closes the connection if the peer does not reply.
const PING_INTERVAL: Duration = Duration::from_secs(15);
const IDLE_TIMEOUT: Duration = Duration::from_secs(45);
/// How long ending a session may take before it is left to its time to live.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client may take for one message.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// A connected client.
pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) account: AccountId,
    pub(super) namespace: String,
    pub(super) abandon_ms: u64,
    pub(super) peer: SocketAddr,
}

/// The reason why a connection ends.
enum CloseCause {
    /// The client disconnected.
    ClientGone,
    /// The client sent an invalid message, and is notified.
    BadInput(String),
    /// The service cannot continue, and the client is notified.
    Failed(String),
    /// The connection must close for others, and the client is notified.
    Evicted,
}

impl From<ApiError> for CloseCause {
    fn from(error: ApiError) -> Self {
        match error.code {
            Code::InvalidArgument => Self::BadInput(error.detail),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl Connection {
    pub(super) async fn run(self, mut socket: WebSocket, stay: &ActivityGuard) {
        let process_id = format!("locktopus {}", self.peer);
        let caller =
            match self.service.authenticate_trusted(&self.account.to_string(), &CallContext::new("locktopus")).await {
                Ok(caller) => caller,
                Err(error) => return close_socket(socket, CloseCause::from(error)).await,
            };
        let (to_session, from_session) =
            self.service.connect(caller, ConnectionOptions { allow_any_ttl: true, keep_alive: true });
        let mut client =
            SessionClient { to_session, from_session, seq: 0, state: LockState::Ready, in_flight: None, queued: None };
        let over = match client.open(&self.namespace, &process_id, self.abandon_ms.max(MIN_TTL_MS)).await {
            Ok(session_id) => {
                let over = tokio::select! {
                    over = client.run(&mut socket) => over,
                    () = stay.evicted() => CloseCause::Evicted,
                };
                tokio::join!(close_socket(socket, over), self.leave(client, process_id, &session_id));
                return;
            }
            Err(over) => over,
        };
        close_socket(socket, over).await;
    }

    /// Ends the session if its client neither holds nor requested the lock, or has no abandon timeout. Otherwise sets
    /// its time to live to the abandon timeout from now on.
    async fn leave(&self, client: SessionClient, process_id: String, session_id: &str) {
        let wants_lock = match client.in_flight {
            // The requested lock may be granted at any moment: it counts as wanted.
            Some(PendingRequest::Lock(_)) => true,
            Some(PendingRequest::Release(_)) => false,
            None => client.state != LockState::Ready,
        };
        if !wants_lock || self.abandon_ms == 0 {
            return client.close(session_id).await;
        }
        drop(client);
        let session = CreateSession {
            namespace: self.namespace.clone(),
            process_id,
            ttl_ms: self.abandon_ms,
            metadata: Metadata::new(),
        };
        cleanup::shorten_ttl(&self.service, self.account, session_id, &session).await;
    }
}

/// Sends the final messages and closes.
async fn close_socket(mut socket: WebSocket, over: CloseCause) {
    let (text, code) = match over {
        CloseCause::ClientGone => (None, NORMAL),
        CloseCause::BadInput(text) => (Some(text), BAD_INPUT),
        CloseCause::Failed(text) => (Some(text), INTERNAL_ERROR),
        CloseCause::Evicted => (Some("the gateway needs the connection for others; connect again".into()), GOING_AWAY),
    };
    let closing = async {
        if let Some(text) = text {
            socket.send(Message::text(text)).await?;
        }
        // Sending fails if the peer closed first; reading on completes the handshake.
        let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
        // The peer closes too; its remaining messages do not count.
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<(), axum::Error>(())
    };
    // A disconnected client needs no close message.
    let _ = timeout(SEND_TIMEOUT, closing).await;
}

/// The request that the shard has not answered yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingRequest {
    Lock(u64),
    Release(u64),
}

/// The state of a client's session.
struct SessionClient {
    to_session: SessionSender,
    from_session: SessionReceiver,
    seq: u64,
    state: LockState,
    in_flight: Option<PendingRequest>,
    /// A message that arrived while a request was in flight.
    queued: Option<Request>,
}

impl SessionClient {
    /// Opens the session and returns its id.
    async fn open(&mut self, namespace: &str, process_id: &str, ttl_ms: u64) -> Result<String, CloseCause> {
        let open = Open {
            namespace: namespace.to_owned(),
            session_id: None,
            process_id: process_id.to_owned(),
            ttl_ms,
            metadata: Metadata::new(),
            // Its client's connection ends with the session, so there is nothing to give back.
            keeps_table: true,
            transition_ms: 0,
        };
        self.send(ClientPayload::Open(open)).await;
        match self.from_session.next().await {
            Outbound::Message(ServerMessage::Opened { session_id, .. }) => Ok(session_id),
            Outbound::Message(ServerMessage::Error { error, .. }) => Err(error.into()),
            Outbound::Message(_) => Err(CloseCause::Failed("the session could not be opened".to_owned())),
            Outbound::End(ending) => Err(close_cause(ending)),
        }
    }

    /// An ended session accepts no message, and reports its end by itself.
    async fn send(&mut self, payload: ClientPayload) {
        self.seq += 1;
        let _ = self.to_session.send(ClientMessage { seq: self.seq, payload }).await;
    }

    /// Ends the session.
    async fn close(mut self, session_id: &str) {
        let closing = async {
            self.send(ClientPayload::Close).await;
            while let Outbound::Message(_) = self.from_session.next().await {}
        };
        if timeout(CLOSE_TIMEOUT, closing).await.is_err() {
            tracing::debug!(session = session_id, "session close timed out; left to expire");
        }
    }

    async fn run(&mut self, socket: &mut WebSocket) -> CloseCause {
        let mut lock_id = 0;
        let mut heard = Instant::now();
        let mut pings = interval(PING_INTERVAL);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.in_flight.is_none()
                && let Some(request) = self.queued.take()
                && let Err(over) = self.on_request(request, &mut lock_id).await
            {
                return over;
            }
            let done = tokio::select! {
                frame = socket.recv(), if self.queued.is_none() => {
                    heard = Instant::now();
                    self.on_frame(frame)
                }
                said = self.from_session.next() => match self.on_session_message(said, lock_id) {
                    Ok(Some(text)) => send(socket, Message::text(text)).await,
                    Ok(None) => Ok(()),
                    Err(over) => Err(over),
                },
                _ = pings.tick() => {
                    if heard.elapsed() >= IDLE_TIMEOUT && self.queued.is_none() {
                        return CloseCause::ClientGone;
                    }
                    send(socket, Message::Ping(Default::default())).await
                }
            };
            if let Err(over) = done {
                return over;
            }
        }
    }

    /// Handles a frame of the client.
    fn on_frame(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<(), CloseCause> {
        match frame {
            None | Some(Ok(Message::Close(_))) => Err(CloseCause::ClientGone),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            Some(Ok(Message::Text(text))) => {
                self.queued = Some(decode(&text).map_err(CloseCause::BadInput)?);
                Ok(())
            }
            Some(Ok(Message::Binary(bytes))) => {
                let text =
                    std::str::from_utf8(&bytes).map_err(|_| CloseCause::BadInput("not a message: not UTF-8".into()))?;
                self.queued = Some(decode(text).map_err(CloseCause::BadInput)?);
                Ok(())
            }
            Some(Err(error)) => Err(receive_error(&error)),
        }
    }

    /// Executes a request of the client, if it is valid in this state.
    async fn on_request(&mut self, request: Request, lock_id: &mut u64) -> Result<(), CloseCause> {
        match (request, self.state) {
            (Request::Lock(resources), LockState::Ready) => {
                *lock_id = new_lock_id();
                self.in_flight = Some(PendingRequest::Lock(*lock_id));
                let request_id = lock_id.to_string();
                let lock = Lock {
                    request_id,
                    resources,
                    holder: None,
                    transition_ms: 0,
                    at_least_ms: 0,
                    metadata: Metadata::new(),
                    allow_upgrade: false,
                    only_try: false,
                };
                self.send(ClientPayload::Lock(lock)).await;
                Ok(())
            }
            (Request::Release, LockState::Enqueued | LockState::Acquired) => {
                self.in_flight = Some(PendingRequest::Release(*lock_id));
                self.send(ClientPayload::Release(Release { request_id: lock_id.to_string(), unheard: false })).await;
                Ok(())
            }
            (Request::Lock(_), state) => Err(unexpected_request("lock", state)),
            (Request::Release, state) => Err(unexpected_request("release", state)),
        }
    }

    /// Handles a message of the session; returns a text for the client if there is something to notify it of.
    fn on_session_message(&mut self, said: Outbound, lock_id: u64) -> Result<Option<String>, CloseCause> {
        let message = match said {
            Outbound::Message(message) => message,
            Outbound::End(ending) => return Err(close_cause(ending)),
        };
        match message {
            // A grant that a release overtakes is not reported.
            ServerMessage::Acquired { .. } if matches!(self.in_flight, Some(PendingRequest::Release(_))) => Ok(None),
            ServerMessage::Acquired { .. } if self.state != LockState::Acquired => {
                (self.in_flight, self.state) = (None, LockState::Acquired);
                Ok(Some(encode(lock_id, "lock", self.state)))
            }
            ServerMessage::Enqueued { .. } if self.state == LockState::Ready => {
                (self.in_flight, self.state) = (None, LockState::Enqueued);
                Ok(Some(encode(lock_id, "lock", self.state)))
            }
            ServerMessage::Ready { .. } => {
                (self.in_flight, self.state) = (None, LockState::Ready);
                Ok(Some(encode(lock_id, "release", self.state)))
            }
            ServerMessage::Acquired { .. }
            | ServerMessage::Enqueued { .. }
            | ServerMessage::Arrived { .. }
            | ServerMessage::Counted { .. }
            | ServerMessage::Tripped { .. }
            | ServerMessage::ReleaseRequested { .. }
            | ServerMessage::Awaiting { .. }
            | ServerMessage::Signalled { .. }
            | ServerMessage::KeptAlive { .. }
            | ServerMessage::Opened { .. } => Ok(None),
            ServerMessage::Refused { why: RefusalCause::Fault(error), .. } | ServerMessage::Error { error, .. } => {
                Err(error.into())
            }
            ServerMessage::Refused { why: RefusalCause::Reason(reason), .. } => {
                Err(CloseCause::Failed(format!("the lock was refused: {}", reason.code.name())))
            }
            ServerMessage::Revoked { reason, path, .. } => {
                Err(CloseCause::Failed(format!("the lock of {path:?} was lost: {}", reason.name())))
            }
            ServerMessage::SessionEnded { reason } => {
                Err(CloseCause::Failed(format!("the lock was lost: the session ended ({})", reason.name())))
            }
        }
    }
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), CloseCause> {
    match timeout(SEND_TIMEOUT, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(CloseCause::ClientGone),
    }
}

/// Without an I/O error, the client sent a malformed or oversized message.
fn receive_error(error: &axum::Error) -> CloseCause {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return CloseCause::ClientGone;
        }
        cause = error.source();
    }
    CloseCause::BadInput(format!("not a message: {error}"))
}

fn unexpected_request(action: &str, state: LockState) -> CloseCause {
    CloseCause::BadInput(format!("the action {action} is not possible in the state {}", state.name()))
}

fn close_cause(ending: CloseReason) -> CloseCause {
    match ending {
        CloseReason::Done => CloseCause::Failed("the session ended".to_owned()),
        CloseReason::Malformed(error) | CloseReason::Failed(error) => error.into(),
    }
}

/// Ids are random and of 53 bits, so that clients that parse them as numbers lose no digits.
fn new_lock_id() -> u64 {
    Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1)
}
