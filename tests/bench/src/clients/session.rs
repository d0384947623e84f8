//! The session stream: sessions over connections that several of them share, and clients that share a session, each a
//! `holder` of it.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use holdfast_proto::v1::client_message::{AcquirePermits, KeepAlive, Lock, Message as Says, Open, Release};
use holdfast_proto::v1::server_message::Message as Told;
use holdfast_proto::v1::server_message::state::Value;
use holdfast_proto::v1::sessions_service_client::SessionsServiceClient;
use holdfast_proto::v1::{self, ClientMessage, ServerMessage};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::{LockName, Mode};

/// Messages that wait for the transport.
const QUEUE_CAPACITY: usize = 4_096;
const TTL_MS: u64 = 60_000;
/// Nothing is waited for any longer.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// A session: a stream of a connection.
pub(crate) struct Session {
    outbound: Mutex<Outbound>,
    pending: Mutex<PendingReplies>,
}

struct Outbound {
    seq: u64,
    messages: mpsc::Sender<ClientMessage>,
}

#[derive(Default)]
struct PendingReplies {
    requests: HashMap<String, oneshot::Sender<Told>>,
    keep_alives: VecDeque<oneshot::Sender<Told>>,
    /// Set once the connection has ended.
    closed: Option<String>,
}

impl Session {
    /// Opens a session in a namespace. It keeps its table if that of the namespace is in the leader's memory.
    pub(crate) async fn open(channel: Channel, key: &str, namespace: &str, keeps_table: bool) -> Result<Arc<Self>> {
        let (messages, outgoing) = mpsc::channel(QUEUE_CAPACITY);
        let mut request = Request::new(ReceiverStream::new(outgoing));
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse()?);
        let open = Open {
            namespace: namespace.to_owned(),
            process_id: "benchmark".to_owned(),
            ttl_ms: TTL_MS,
            keeps_table,
            ..Default::default()
        };
        messages.send(ClientMessage { seq: 1, message: Some(Says::Open(open)) }).await?;
        let answer = timeout(RESPONSE_TIMEOUT, SessionsServiceClient::new(channel).connect(request)).await??;
        let mut told = answer.into_inner();
        let first = timeout(RESPONSE_TIMEOUT, told.message()).await??.and_then(|message| message.message);
        if !matches!(first, Some(Told::Opened(_))) {
            bail!("the session was not opened: {first:?}");
        }
        let connection = Arc::new(Self {
            outbound: Mutex::new(Outbound { seq: 1, messages }),
            pending: Mutex::new(PendingReplies::default()),
        });
        let reader = Arc::downgrade(&connection);
        tokio::spawn(async move {
            let end = run_reader(&mut told, &reader).await;
            if let Some(connection) = reader.upgrade() {
                let mut waiting = connection.pending.lock();
                *waiting = PendingReplies { closed: Some(end), ..PendingReplies::default() };
            }
        });
        Ok(connection)
    }

    fn send(&self, says: Says) -> Result<()> {
        let mut out = self.outbound.lock();
        out.seq += 1;
        let message = ClientMessage { seq: out.seq, message: Some(says) };
        out.messages.try_send(message).context("the connection is full or closed")
    }

    async fn call(&self, request_id: String, says: Says) -> Result<Told> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.pending.lock();
            if let Some(end) = &waiting.closed {
                bail!("the connection has ended: {end}");
            }
            waiting.requests.insert(request_id, tell);
        }
        self.send(says)?;
        timeout(RESPONSE_TIMEOUT, told).await?.context("the connection ended")
    }

    /// Takes locks that nobody holds, with one request.
    pub(crate) async fn hold(&self, request_id: &str, paths: Vec<Vec<String>>) -> Result<()> {
        let mode = v1::Mode::Write.into();
        let resources = paths.into_iter().map(|path| v1::Resource { path, mode }).collect();
        let lock = Lock { request_id: request_id.to_owned(), resources, r#try: true, ..Lock::default() };
        match self.call(request_id.to_owned(), Says::Lock(lock)).await? {
            Told::State(state) if state.fencing_token.is_some() => Ok(()),
            other => bail!("not a grant: {other:?}"),
        }
    }

    /// Sends a keep-alive for all holds of the session. Returns whether it lives.
    pub(crate) async fn keep_alive(&self) -> Result<bool> {
        let (tell, told) = oneshot::channel();
        {
            let mut waiting = self.pending.lock();
            waiting.keep_alives.push_back(tell);
            // Under the same lock: answers come in the order of the messages.
            self.send(Says::Keepalive(KeepAlive {}))?;
        }
        let told = timeout(RESPONSE_TIMEOUT, told).await?.context("the connection ended")?;
        Ok(matches!(told, Told::KeptAlive(_)))
    }

    fn on_message(&self, message: ServerMessage) {
        let Some(told) = message.message else { return };
        let mut waiting = self.pending.lock();
        let asked = match &told {
            // It waits; the grant follows.
            Told::State(state) if state.state() == Value::Enqueued => None,
            Told::State(state) => state.request_id.as_ref().and_then(|id| waiting.requests.remove(id)),
            Told::Refused(refused) => waiting.requests.remove(&refused.request_id),
            Told::Error(error) => error.request_id.as_ref().and_then(|id| waiting.requests.remove(id)),
            Told::KeptAlive(_) => waiting.keep_alives.pop_front(),
            _ => None,
        };
        if let Some(asked) = asked {
            // The client may have cancelled.
            let _ = asked.send(told);
        }
    }
}

async fn run_reader(told: &mut Streaming<ServerMessage>, connection: &std::sync::Weak<Session>) -> String {
    loop {
        match told.message().await {
            Ok(Some(message)) => match connection.upgrade() {
                Some(connection) => connection.on_message(message),
                None => return "nobody uses it".to_owned(),
            },
            Ok(None) => return "the service ended it".to_owned(),
            Err(error) => return error.to_string(),
        }
    }
}

/// A client on a session's connection.
pub struct SessionClient {
    connection: Arc<Session>,
    owner: String,
    last_request: u64,
    /// The names of the requests that hold something, by token.
    held: HashMap<u64, String>,
}

impl SessionClient {
    pub(crate) fn new(connection: Arc<Session>, owner: String) -> Self {
        Self { connection, owner, last_request: 0, held: HashMap::new() }
    }

    /// Waits until the lock is granted, unless it only tries.
    pub(crate) async fn acquire(&mut self, lock: &LockName, mode: Mode, waits: bool) -> Result<Option<u64>> {
        self.last_request += 1;
        let request_id = format!("{}-{}", self.owner, self.last_request);
        let message = self.acquire_message(&request_id, lock, mode, waits);
        match self.connection.call(request_id.clone(), message).await? {
            Told::State(state) => {
                let token = state.fencing_token.context("a grant has a token")?;
                self.held.insert(token, request_id);
                Ok(Some(token))
            }
            Told::Refused(_) => Ok(None),
            other => bail!("not an answer to a lock: {other:?}"),
        }
    }

    fn acquire_message(&self, request_id: &str, lock: &LockName, mode: Mode, waits: bool) -> Says {
        let (request_id, holder) = (request_id.to_owned(), Some(self.owner.clone()));
        if lock.is_permit {
            let (path, permits) = (lock.path.clone(), Some(1));
            let rest = AcquirePermits::default();
            return Says::AcquirePermits(AcquirePermits { request_id, path, permits, holder, r#try: !waits, ..rest });
        }
        let mode = if mode == Mode::Read { v1::Mode::Read } else { v1::Mode::Write };
        let resources = vec![v1::Resource { path: lock.path.clone(), mode: mode.into() }];
        Says::Lock(Lock { request_id, resources, holder, r#try: !waits, ..Lock::default() })
    }

    pub(crate) async fn release(&mut self, token: u64) -> Result<bool> {
        let Some(request_id) = self.held.remove(&token) else { return Ok(false) };
        let message = Release { request_id: request_id.clone(), unheard: false };
        match self.connection.call(request_id, Says::Release(message)).await? {
            Told::State(state) => Ok(state.state() == Value::Ready),
            other => bail!("not an answer to a release: {other:?}"),
        }
    }

    /// Sends a keep-alive for all holds of the session.
    pub(crate) async fn keep_alive(&self) -> Result<bool> {
        self.connection.keep_alive().await
    }
}
