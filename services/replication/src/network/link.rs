//! The asking side: a connection to one peer node, kept up in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use holdfast_plant::{Plant, is_planted};
use holdfast_proto::internal::raft_frame::Body;
use holdfast_proto::internal::raft_service_client::RaftServiceClient;
use holdfast_proto::internal::{Hello, Kind, RaftFrame};
use holdfast_supervise::{Owner, TaskSet, brief};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::exchange::{AnswerSender, Asked, Question, Room, exchange};
use super::send_queue::SendQueue;
use super::{Credentials, DialError, Dialer, MAX_FRAME_BYTES};
use crate::introductions::{Introductions, lease_of};
use crate::timing::UNSAID_LEASE;

/// Bytes of appends to one peer that have no answer yet; more fail at once, and openraft tries again. It bounds what both
/// sides keep in memory for a peer that is slow; no group can use it up alone.
const UNANSWERED_BYTES: usize = 64 * 1024 * 1024;
/// Frames handed to the transport ahead of what it has sent: what goes first does not go before them.
const FRAMES_AHEAD: usize = 1;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// After a connection that had lasted. A process that was killed may still take connections in while it gives back what
/// it had, and that it is gone is known only once it refuses one.
const RETRY_SOON: Duration = Duration::from_millis(2);
/// After a connection that ended as soon as it was there.
const RETRY_FIRST: Duration = Duration::from_millis(20);
const RETRY_MOST: Duration = Duration::from_millis(500);

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum LinkError {
    #[error("node {0} is not connected")]
    NotConnected(String),
    #[error("too many messages wait for node {0}")]
    Full(String),
    #[error("the connection to node {0} broke")]
    Broken(String),
    #[error("node {0} refused: {1}")]
    Refused(String, String),
}

pub(crate) struct LinkOptions {
    /// The peer's node id.
    pub(crate) node: String,
    /// Its address, `host:port`.
    pub(crate) address: String,
    pub(crate) dialer: Dialer,
    pub(crate) credentials: Arc<dyn Credentials>,
    pub(crate) introductions: Arc<Introductions>,
}

/// A connection to one peer node.
pub(crate) struct Link {
    node: String,
    address: String,
    queue: Arc<SendQueue>,
    channel: watch::Receiver<Option<Channel>>,
    refused: watch::Receiver<Option<u64>>,
    /// The latest run of the peer that was found gone.
    gone: watch::Sender<Option<u64>>,
    credentials: Arc<dyn Credentials>,
    introductions: Arc<Introductions>,
    streams: AtomicU64,
    /// Whether the peer's disk is nearly full, as it said last.
    is_full: Arc<AtomicBool>,
    /// The data directory of the peer, while it is connected.
    store: Arc<Mutex<Option<String>>>,
    /// As the peer said when it was connected last.
    lease: watch::Receiver<Duration>,
    unanswered: Arc<AtomicUsize>,
    tasks: TaskSet,
}

impl Link {
    /// Starts connecting; never gives up while the link lives.
    pub(crate) fn start(options: LinkOptions) -> Arc<Self> {
        let queue = Arc::<SendQueue>::default();
        let questions = Arc::clone(&queue);
        let (connected, channel) = watch::channel(None);
        let (refuses, refused) = watch::channel(None);
        let (node, address) = (options.node.clone(), options.address.clone());
        let credentials = Arc::clone(&options.credentials);
        let introductions = Arc::clone(&options.introductions);
        let is_full = Arc::<AtomicBool>::default();
        let store = Arc::<Mutex<Option<String>>>::default();
        let told_store = Arc::clone(&store);
        let (tell_lease, lease) = watch::channel(UNSAID_LEASE);
        let gone = watch::Sender::new(None);
        let told = Told {
            connected,
            refused: refuses,
            is_full: Arc::clone(&is_full),
            store: told_store,
            lease: tell_lease,
            gone: gone.clone(),
        };
        let kept = Arc::new(Kept { options, told, questions });
        let tasks = TaskSet::new(Owner::process());
        tasks.keep("link", move || {
            let kept = Arc::clone(&kept);
            async move { keep_up(&kept).await }
        });
        let (streams, unanswered) = (AtomicU64::new(1), Arc::default());
        Arc::new(Self {
            node,
            address,
            queue,
            channel,
            refused,
            gone,
            credentials,
            introductions,
            streams,
            is_full,
            store,
            lease,
            unanswered,
            tasks,
        })
    }

    /// The tasks that go with the link: none outlives it.
    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Puts a question into the stream, in order. The answer comes later, or an error when the connection breaks.
    pub(crate) fn ask(&self, question: Question) -> oneshot::Receiver<Result<Bytes, LinkError>> {
        let (answer, receiver) = oneshot::channel();
        let connected = self.channel.borrow().is_some();
        let refused = if !connected {
            Err((LinkError::NotConnected(self.node.clone()), answer))
        } else {
            self.enqueue(question, answer).map_err(|answer| (LinkError::Full(self.node.clone()), answer))
        };
        if let Err((reason, answer)) = refused {
            // The receiver is in our hands still.
            let _ = answer.send(Err(reason));
        }
        receiver
    }

    /// Gives the sender back when there is no room.
    fn enqueue(&self, question: Question, answer: AnswerSender) -> Result<(), AnswerSender> {
        let room = match question.kind {
            Kind::Append => match Room::take(&self.unanswered, question.body.len(), UNANSWERED_BYTES) {
                None => return Err(answer),
                room => room,
            },
            _ => None,
        };
        self.queue.push(Asked { question, answer, room }).map_err(|asked| asked.answer)
    }

    /// A number for a new append stream, unique on this link.
    pub(crate) fn new_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Gives an item whenever a connection has begun; now, when there is one.
    pub(crate) fn connections(&self) -> impl Fn() -> BoxStream<'static, ()> + Send + 'static {
        let channel = self.channel.clone();
        move || WatchStream::new(channel.clone()).filter_map(|channel| async move { channel.map(|_| ()) }).boxed()
    }

    /// Tells, whenever the peer's address refuses a connection, which run was met there last.
    pub(crate) fn refusals(&self) -> impl Fn() -> BoxStream<'static, u64> + Send + 'static {
        let refused = self.refused.clone();
        move || {
            let mut refused = refused.clone();
            // One that somebody has been told of is no news.
            refused.mark_unchanged();
            WatchStream::from_changes(refused).filter_map(|refused| async move { refused }).boxed()
        }
    }

    /// That run of the peer is taken for gone from now on, unless it is met again.
    pub(crate) fn find_gone(&self, run: u64) {
        self.gone.send_replace(Some(run));
    }

    /// That run of the peer lives: it was met.
    pub(crate) fn meet(&self, run: u64) {
        meet(&self.gone, run);
    }

    /// The latest run of the peer that was found gone.
    pub(crate) fn found_gone(&self) -> Option<u64> {
        *self.gone.borrow()
    }

    /// Whether that run of the peer was found gone.
    pub(crate) fn is_gone(&self, run: u64) -> bool {
        is_of(self.found_gone(), run)
    }

    /// Until that run of the peer is found gone.
    pub(crate) async fn until_gone(&self, run: u64) {
        // The sender lives as long as this value.
        let _ = self.gone.subscribe().wait_for(|gone| is_of(*gone, run)).await;
    }

    /// The channel of the present connection, for a call of its own (snapshots).
    pub(crate) fn client(&self) -> Result<RaftServiceClient<Channel>, LinkError> {
        let channel = self.channel.borrow().clone();
        channel.map(service).ok_or_else(|| LinkError::NotConnected(self.node.clone()))
    }

    /// What this node says of itself.
    pub(crate) fn hello(&self) -> Result<Hello, String> {
        self.introductions.hello()
    }

    /// Adds the proof of who calls.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        authorized(message, self.credentials.as_ref())
    }

    /// Whether the peer has room for data on its disk, as far as it has said.
    pub(crate) fn has_room(&self) -> bool {
        !self.is_full.load(Ordering::Relaxed)
    }

    /// The peer's data is older than what that replica there acknowledged.
    pub(crate) fn refuse_rolled_back(&self, replica: u64, index: u64) {
        let (node, introductions) = (self.node.clone(), Arc::clone(&self.introductions));
        brief("refusal", async move { introductions.refuse_rolled_back(&node, replica, index).await });
    }

    /// The data directory of the peer, while it is connected.
    pub(crate) fn store(&self) -> Option<String> {
        self.store.lock().clone()
    }

    /// For how long a replica of the peer that has acknowledged a leader votes for nobody else.
    pub(crate) fn lease(&self) -> Duration {
        *self.lease.borrow()
    }

    /// Where the peer is.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// The peer's node id.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }
}

fn service(channel: Channel) -> RaftServiceClient<Channel> {
    RaftServiceClient::new(channel)
        .max_decoding_message_size(MAX_FRAME_BYTES)
        .max_encoding_message_size(MAX_FRAME_BYTES)
}

fn authorized<T>(message: T, credentials: &dyn Credentials) -> Request<T> {
    let mut request = Request::new(message);
    if let Ok(value) = MetadataValue::try_from(credentials.authorization()) {
        request.metadata_mut().insert("authorization", value);
    }
    request
}

/// What the one that keeps a link up tells those who use it.
struct Told {
    connected: watch::Sender<Option<Channel>>,
    refused: watch::Sender<Option<u64>>,
    gone: watch::Sender<Option<u64>>,
    is_full: Arc<AtomicBool>,
    store: Arc<Mutex<Option<String>>>,
    lease: watch::Sender<Duration>,
}

/// What keeps a connection up works with.
struct Kept {
    options: LinkOptions,
    told: Told,
    questions: Arc<SendQueue>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        // Nobody sends any more: whoever waits is told so.
        self.questions.close();
    }
}

async fn keep_up(Kept { options, told, questions }: &Kept) {
    // The run that was met last, if its release says so.
    let mut last_met = None;
    let mut pause = RETRY_FIRST;
    let mut last_error = String::new();
    let mut met = options.introductions.met();
    // When this was begun anew in the middle of a connection.
    told.connected.send_replace(None);
    *told.store.lock() = None;
    refuse_waiting(&options.node, questions);
    loop {
        match timeout(CONNECT_TIMEOUT, connect(options)).await {
            Ok(Ok(connection)) => {
                tracing::info!(node = options.node, address = options.address, "connected to peer");
                let since = Instant::now();
                last_error.clear();
                last_met = Some(connection.run).filter(|run| *run != 0);
                meet(&told.gone, connection.run);
                *told.store.lock() = Some(connection.store_id.clone());
                // Before anything is asked, so that no answer counts for a lease of an earlier process.
                told.lease.send_replace(connection.lease);
                told.connected.send_replace(Some(connection.channel));
                let (own, frames) = (&options.introductions, connection.frames);
                tokio::select! {
                    () = exchange(&options.node, own, &told.is_full, questions, frames, connection.answers) => {}
                    () = options.introductions.until_refused(&connection.store_id) => {}
                }
                told.connected.send_replace(None);
                *told.store.lock() = None;
                tracing::info!(node = options.node, "connection to peer ended");
                // Whether the peer's process is gone is to be known at once. One that ends connections as soon as they are
                // there is not asked again and again.
                pause = if since.elapsed() >= RETRY_MOST { Duration::ZERO } else { RETRY_FIRST };
            }
            Ok(Err(error)) => {
                if error.is_refused && last_met.is_some() {
                    told.refused.send_replace(last_met);
                }
                report(options, &mut last_error, error.reason);
            }
            Err(_) => report(options, &mut last_error, format!("no answer within {CONNECT_TIMEOUT:?}")),
        }
        refuse_waiting(&options.node, questions);
        if pause.is_zero() {
            // A timer would take up to two milliseconds even so.
            pause = RETRY_SOON;
            continue;
        }
        // A peer that has come back introduces itself, and need not be waited for then.
        met.mark_unchanged();
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(RETRY_MOST),
            _ = met.changed() => {}
        }
    }
}

/// What was found out about another run stays: that one is gone.
fn meet(gone: &watch::Sender<Option<u64>>, run: u64) {
    gone.send_if_modified(|gone| {
        let was_wrong = *gone == Some(run);
        if was_wrong {
            *gone = None;
        }
        was_wrong
    });
}

/// Whether what was found out is about that run, and not about another one at the same address.
fn is_of(gone: Option<u64>, run: u64) -> bool {
    gone == Some(run) || (gone.is_some() && is_planted(Plant::DeathByAddress))
}

/// What is asked while there is no connection fails at once.
fn refuse_waiting(node: &str, questions: &SendQueue) {
    for asked in questions.take(usize::MAX, usize::MAX) {
        let _ = asked.answer.send(Err(LinkError::NotConnected(node.to_owned())));
    }
}

/// Logs an error once, however often it comes in a row.
fn report(options: &LinkOptions, last_error: &mut String, error: String) {
    if *last_error != error {
        tracing::warn!(node = options.node, address = options.address, error, "can't connect to peer; trying again");
        *last_error = error;
    }
}

struct Connection {
    channel: Channel,
    /// The data directory of the peer.
    store_id: String,
    lease: Duration,
    run: u64,
    frames: mpsc::Sender<RaftFrame>,
    answers: Streaming<RaftFrame>,
}

async fn connect(options: &LinkOptions) -> Result<Connection, DialError> {
    let channel = (options.dialer)(options.address.clone()).await?;
    introduce(options, channel).await.map_err(DialError::from)
}

async fn introduce(options: &LinkOptions, channel: Channel) -> Result<Connection, String> {
    let (frames, outgoing) = mpsc::channel(FRAMES_AHEAD);
    let hello = RaftFrame { body: Some(Body::Hello(options.introductions.hello()?)) };
    frames.send(hello).await.map_err(|_| "the stream closed at once")?;
    let request = authorized(ReceiverStream::new(outgoing), options.credentials.as_ref());
    let response = service(channel.clone()).exchange(request).await.map_err(|status| status.message().to_owned())?;
    let mut answers = response.into_inner();
    let first = answers.message().await.map_err(|status| status.message().to_owned())?;
    let theirs: Hello = match first.and_then(|frame| frame.body) {
        Some(Body::Hello(hello)) => hello,
        _ => return Err("the peer did not introduce itself".into()),
    };
    options.introductions.check(&theirs, Some(&options.node)).await?;
    let lease = lease_of(&theirs);
    let Hello { store_id, run, .. } = theirs;
    Ok(Connection { channel, store_id, lease, run, frames, answers })
}
