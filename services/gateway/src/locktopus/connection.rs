//! One connection of a Locktopus client: its one lock, and the session behind it.

use std::net::SocketAddr;
use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket};
use holdfast_core::{AccountId, Metadata};
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};
use uuid::Uuid;

use super::leaving::Leaving;
use super::message::{Request, State, read, told};
use crate::error::{ApiError, Code};
use crate::service::{CallContext, Service};
use crate::session::{
    ClientMessage, ClientSays, Ending, FromSession, Lock, Open, RefusedFor, Release, Rules, ServerMessage, ToSession,
    Told,
};

/// What a client did that it may not.
const BAD_INPUT: u16 = 3000;
/// The service cannot go on with the connection.
const FAILED: u16 = 1011;
const NORMAL: u16 = 1000;
/// How long the session of an open connection lives without a sign of life, in milliseconds, however soon it is to be
/// given up afterwards: longer than a failover takes.
const LEAST_TTL_MS: u64 = 10_000;
/// A peer that is silent is asked whether it is still there, and taken for gone when it does not say so.
const PING_EVERY: Duration = Duration::from_secs(15);
const SILENT_FOR: Duration = Duration::from_secs(45);
/// How long a client may take for one message.
const TAKE_WITHIN: Duration = Duration::from_secs(10);

/// A client that is connected.
pub(super) struct Connection {
    pub(super) service: Service,
    pub(super) account: AccountId,
    pub(super) namespace: String,
    pub(super) abandon_ms: u64,
    pub(super) peer: SocketAddr,
}

/// Why a connection is over.
enum Over {
    /// The client went away.
    Gone,
    /// It did what it may not, which it is told.
    BadInput(String),
    /// The service cannot go on, which the client is told.
    Failed(String),
}

impl From<ApiError> for Over {
    fn from(error: ApiError) -> Self {
        match error.code {
            Code::InvalidArgument => Self::BadInput(error.detail),
            _ => Self::Failed(error.to_string()),
        }
    }
}

impl Connection {
    pub(super) async fn run(self, mut socket: WebSocket) {
        let process_id = format!("locktopus {}", self.peer);
        let caller = match self.service.trust_account(&self.account.to_string(), &CallContext::new("locktopus")).await {
            Ok(caller) => caller,
            Err(error) => return end(socket, Over::from(error)).await,
        };
        let (to_session, from_session) = self.service.connect(caller, Rules { any_ttl: true, keep_alive: true });
        let mut client = Client { to_session, from_session, seq: 0, state: State::Ready, asked: None, pending: None };
        let over = match client.open(&self.namespace, &process_id, self.abandon_ms.max(LEAST_TTL_MS)).await {
            Ok(session_id) => {
                let over = client.converse(&mut socket).await;
                let leaving = Leaving { connection: &self, process_id, session_id };
                // What was asked for may be granted any moment: it counts as wanted.
                let wants = client.state != State::Ready || matches!(client.asked, Some(Asked::Lock(_)));
                let released = matches!(client.asked, Some(Asked::Release(_)));
                tokio::join!(end(socket, over), leaving.leave(client, wants && !released));
                return;
            }
            Err(over) => over,
        };
        end(socket, over).await;
    }
}

/// Says the last word and closes.
async fn end(mut socket: WebSocket, over: Over) {
    let (text, code) = match over {
        Over::Gone => (None, NORMAL),
        Over::BadInput(text) => (Some(text), BAD_INPUT),
        Over::Failed(text) => (Some(text), FAILED),
    };
    let closing = async {
        if let Some(text) = text {
            socket.send(Message::text(text)).await?;
        }
        // It can't be sent when the other side closed first, which is answered by reading on.
        let _ = socket.send(Message::Close(Some(CloseFrame { code, reason: "".into() }))).await;
        // The other side closes too; what it still says no longer counts.
        while let Some(Ok(_)) = socket.recv().await {}
        Ok::<(), axum::Error>(())
    };
    // Whoever is gone need not be told.
    let _ = timeout(TAKE_WITHIN, closing).await;
}

/// What the shard was asked and has not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Lock(u64),
    Release(u64),
}

/// The state of a conversation.
pub(super) struct Client {
    to_session: ToSession,
    from_session: FromSession,
    seq: u64,
    state: State,
    asked: Option<Asked>,
    /// A message that came while the shard was being asked.
    pending: Option<Request>,
}

impl Client {
    /// Opens the session; its id.
    async fn open(&mut self, namespace: &str, process_id: &str, ttl_ms: u64) -> Result<String, Over> {
        let open = Open {
            namespace: namespace.to_owned(),
            session_id: None,
            process_id: process_id.to_owned(),
            ttl_ms,
            metadata: Metadata::new(),
        };
        self.say(ClientSays::Open(open)).await;
        match self.from_session.next().await {
            Told::Message(ServerMessage::Opened { session_id, .. }) => Ok(session_id),
            Told::Message(ServerMessage::Error { error, .. }) => Err(error.into()),
            Told::Message(_) => Err(Over::Failed("the session could not be opened".to_owned())),
            Told::End(ending) => Err(ended(ending)),
        }
    }

    /// A session that is over takes nothing, and says so by itself.
    pub(super) async fn say(&mut self, said: ClientSays) {
        self.seq += 1;
        let _ = self.to_session.send(ClientMessage { seq: self.seq, said }).await;
    }

    /// Waits until the session has said its last word.
    pub(super) async fn until_ended(&mut self) {
        while let Told::Message(_) = self.from_session.next().await {}
    }

    async fn converse(&mut self, socket: &mut WebSocket) -> Over {
        let mut lock_id = 0;
        let mut heard = Instant::now();
        let mut pings = interval(PING_EVERY);
        pings.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if self.asked.is_none()
                && let Some(request) = self.pending.take()
                && let Err(over) = self.act(request, &mut lock_id).await
            {
                return over;
            }
            let done = tokio::select! {
                frame = socket.recv(), if self.pending.is_none() => {
                    heard = Instant::now();
                    self.hear(frame)
                }
                said = self.from_session.next() => match self.learn(said, lock_id) {
                    Ok(Some(text)) => send(socket, Message::text(text)).await,
                    Ok(None) => Ok(()),
                    Err(over) => Err(over),
                },
                _ = pings.tick() => {
                    if heard.elapsed() >= SILENT_FOR && self.pending.is_none() {
                        return Over::Gone;
                    }
                    send(socket, Message::Ping(Default::default())).await
                }
            };
            if let Err(over) = done {
                return over;
            }
        }
    }

    /// Takes in what the client sent.
    fn hear(&mut self, frame: Option<Result<Message, axum::Error>>) -> Result<(), Over> {
        match frame {
            None | Some(Ok(Message::Close(_))) => Err(Over::Gone),
            Some(Ok(Message::Ping(_) | Message::Pong(_))) => Ok(()),
            Some(Ok(Message::Text(text))) => {
                self.pending = Some(read(&text).map_err(Over::BadInput)?);
                Ok(())
            }
            Some(Ok(Message::Binary(bytes))) => {
                let text =
                    std::str::from_utf8(&bytes).map_err(|_| Over::BadInput("not a message: not UTF-8".into()))?;
                self.pending = Some(read(text).map_err(Over::BadInput)?);
                Ok(())
            }
            Some(Err(error)) => Err(broken(&error)),
        }
    }

    /// Does what the client asks, if it is the time for it.
    async fn act(&mut self, request: Request, lock_id: &mut u64) -> Result<(), Over> {
        match (request, self.state) {
            (Request::Lock(resources), State::Ready) => {
                *lock_id = new_id();
                self.asked = Some(Asked::Lock(*lock_id));
                let request_id = lock_id.to_string();
                let (holder, transition_ms, allow_upgrade, only_try) = (None, 0, false, false);
                let lock = Lock { request_id, resources, holder, transition_ms, allow_upgrade, only_try };
                self.say(ClientSays::Lock(lock)).await;
                Ok(())
            }
            (Request::Release, State::Enqueued | State::Acquired) => {
                self.asked = Some(Asked::Release(*lock_id));
                self.say(ClientSays::Release(Release { request_id: lock_id.to_string() })).await;
                Ok(())
            }
            (Request::Lock(_), state) => Err(out_of_turn("lock", state)),
            (Request::Release, state) => Err(out_of_turn("release", state)),
        }
    }

    /// Takes in what the session says; a text for the client, if it is to hear of it.
    fn learn(&mut self, said: Told, lock_id: u64) -> Result<Option<String>, Over> {
        let message = match said {
            Told::Message(message) => message,
            Told::End(ending) => return Err(ended(ending)),
        };
        match message {
            // A grant that a release overtakes needs no telling.
            ServerMessage::Acquired { .. } if matches!(self.asked, Some(Asked::Release(_))) => Ok(None),
            ServerMessage::Acquired { .. } if self.state != State::Acquired => {
                (self.asked, self.state) = (None, State::Acquired);
                Ok(Some(told(lock_id, "lock", self.state)))
            }
            ServerMessage::Enqueued { .. } if self.state == State::Ready => {
                (self.asked, self.state) = (None, State::Enqueued);
                Ok(Some(told(lock_id, "lock", self.state)))
            }
            ServerMessage::Ready { .. } => {
                (self.asked, self.state) = (None, State::Ready);
                Ok(Some(told(lock_id, "release", self.state)))
            }
            ServerMessage::Acquired { .. }
            | ServerMessage::Enqueued { .. }
            | ServerMessage::KeptAlive { .. }
            | ServerMessage::Opened { .. } => Ok(None),
            ServerMessage::Refused { why: RefusedFor::Fault(error), .. } | ServerMessage::Error { error, .. } => {
                Err(error.into())
            }
            ServerMessage::Refused { why: RefusedFor::Reason(reason), .. } => {
                Err(Over::Failed(format!("the lock was refused: {}", reason.code.name())))
            }
            ServerMessage::Revoked { reason, path, .. } => {
                Err(Over::Failed(format!("the lock of {path:?} was lost: {}", reason.name())))
            }
            ServerMessage::SessionEnded { reason } => {
                Err(Over::Failed(format!("the lock was lost: the session ended ({})", reason.name())))
            }
        }
    }
}

async fn send(socket: &mut WebSocket, message: Message) -> Result<(), Over> {
    match timeout(TAKE_WITHIN, socket.send(message)).await {
        Ok(Ok(())) => Ok(()),
        _ => Err(Over::Gone),
    }
}

/// Without an error of the system it is the client that sent what is no message, or too much.
fn broken(error: &axum::Error) -> Over {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<std::io::Error>() {
            return Over::Gone;
        }
        cause = error.source();
    }
    Over::BadInput(format!("not a message: {error}"))
}

fn out_of_turn(action: &str, state: State) -> Over {
    Over::BadInput(format!("the action {action} is not possible in the state {}", state.name()))
}

fn ended(ending: Ending) -> Over {
    match ending {
        Ending::Done => Over::Failed("the session ended".to_owned()),
        Ending::Malformed(error) | Ending::Failed(error) => error.into(),
    }
}

/// Ids are random and of 53 bits, so that programs that take them for numbers keep them whole.
fn new_id() -> u64 {
    Uuid::new_v4().as_u64_pair().1 & ((1 << 53) - 1)
}
