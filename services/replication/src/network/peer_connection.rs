//! The client side of a connection to one peer node, maintained in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::raft_frame::Body;
use holdfast_proto::internal::raft_service_client::RaftServiceClient;
use holdfast_proto::internal::{Hello, Kind, RaftFrame};
use holdfast_supervise::{TaskOwner, TaskSet, spawn_temporary};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout};
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;
use tonic::{Request, Streaming};

use super::exchange::{ByteBudget, OutboundRequest, PeerRequest, ResponseSender, exchange};
use super::send_queue::SendQueue;
use super::{Credentials, DialError, DialFn, MAX_FRAME_BYTES};
use crate::handshake::{PeerRegistry, lease_of};
use crate::timing::DEFAULT_PEER_LEASE;

/// Unanswered bytes of appends to one peer; further appends fail at once, and openraft retries. This limits the memory
/// that a slow peer takes up on both nodes; no group can exhaust it alone.
const MAX_UNANSWERED_BYTES: usize = 64 * 1024 * 1024;
/// Frames buffered ahead of the transport. Urgent messages can't overtake a buffered frame.
const FRAMES_AHEAD: usize = 1;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
/// Delay after a lasting connection ended. A killed process may still accept connections while the system frees its
/// resources; its death is known only when its address refuses one.
const FAST_RETRY_DELAY: Duration = Duration::from_millis(2);
/// Delay after a connection that ended as soon as it was made.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(20);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RpcError {
    #[error("node {0} is not connected")]
    NotConnected(String),
    #[error("too many messages wait for node {0}")]
    QueueFull(String),
    #[error("the connection to node {0} broke")]
    ConnectionLost(String),
    #[error("node {0} refused: {1}")]
    Rejected(String, String),
}

pub(crate) struct PeerConnectionOptions {
    /// The peer's node id.
    pub(crate) node: String,
    /// Its address, `host:port`.
    pub(crate) address: String,
    pub(crate) dialer: DialFn,
    pub(crate) credentials: Arc<dyn Credentials>,
    pub(crate) peer_registry: Arc<PeerRegistry>,
}

/// A connection to one peer node.
pub(crate) struct PeerConnection {
    node: String,
    address: String,
    queue: Arc<SendQueue>,
    channel: watch::Receiver<Option<Channel>>,
    refused: watch::Receiver<Option<u64>>,
    /// The latest run of the peer that was found dead.
    dead_run: watch::Sender<Option<u64>>,
    credentials: Arc<dyn Credentials>,
    peer_registry: Arc<PeerRegistry>,
    streams: AtomicU64,
    /// Whether the peer's disk is nearly full, as last reported.
    is_disk_full: Arc<AtomicBool>,
    /// The data directory of the peer, while it is connected.
    store_id: Arc<Mutex<Option<String>>>,
    /// As the peer reported at its last connection.
    lease: watch::Receiver<Duration>,
    unanswered_bytes: Arc<AtomicUsize>,
    tasks: TaskSet,
}

impl PeerConnection {
    /// Starts connecting; retries as long as the value exists.
    pub(crate) fn start(options: PeerConnectionOptions) -> Arc<Self> {
        let queue = Arc::<SendQueue>::default();
        let questions = Arc::clone(&queue);
        let (connected, channel) = watch::channel(None);
        let (refuses, refused) = watch::channel(None);
        let (node, address) = (options.node.clone(), options.address.clone());
        let credentials = Arc::clone(&options.credentials);
        let peer_registry = Arc::clone(&options.peer_registry);
        let is_disk_full = Arc::<AtomicBool>::default();
        let store_id = Arc::<Mutex<Option<String>>>::default();
        let told_store = Arc::clone(&store_id);
        let (tell_lease, lease) = watch::channel(DEFAULT_PEER_LEASE);
        let dead_run = watch::Sender::new(None);
        let state = StatePublisher {
            connected,
            refused: refuses,
            is_disk_full: Arc::clone(&is_disk_full),
            store_id: told_store,
            lease: tell_lease,
            dead_run: dead_run.clone(),
        };
        let kept = Arc::new(ConnectionTask { options, state, queue: questions });
        let tasks = TaskSet::new(TaskOwner::process());
        tasks.spawn_restarting("peer_connection", move || {
            let kept = Arc::clone(&kept);
            async move { run(&kept).await }
        });
        let (streams, unanswered_bytes) = (AtomicU64::new(1), Arc::default());
        Arc::new(Self {
            node,
            address,
            queue,
            channel,
            refused,
            dead_run,
            credentials,
            peer_registry,
            streams,
            is_disk_full,
            store_id,
            lease,
            unanswered_bytes,
            tasks,
        })
    }

    /// Returns the connection's tasks, which end with it.
    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Queues a request, in order. The receiver gets the response, or an error when the connection breaks.
    pub(crate) fn send(&self, question: PeerRequest) -> oneshot::Receiver<Result<Bytes, RpcError>> {
        let (answer, receiver) = oneshot::channel();
        let connected = self.channel.borrow().is_some();
        let refused = if !connected {
            Err((RpcError::NotConnected(self.node.clone()), answer))
        } else {
            self.enqueue(question, answer).map_err(|answer| (RpcError::QueueFull(self.node.clone()), answer))
        };
        if let Err((reason, answer)) = refused {
            // This function still owns the receiver.
            let _ = answer.send(Err(reason));
        }
        receiver
    }

    /// Enqueues a request; returns the sender if the byte budget or the queue is exhausted.
    fn enqueue(&self, request: PeerRequest, responder: ResponseSender) -> Result<(), ResponseSender> {
        let budget = match request.kind {
            Kind::Append => {
                match ByteBudget::acquire(&self.unanswered_bytes, request.body.len(), MAX_UNANSWERED_BYTES) {
                    None => return Err(responder),
                    budget => budget,
                }
            }
            _ => None,
        };
        self.queue.push(OutboundRequest { request, responder, budget }).map_err(|asked| asked.responder)
    }

    /// Returns a number for a new append stream, unique on this connection.
    pub(crate) fn new_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Yields an item for each new connection, and one now if it is connected.
    pub(crate) fn connected_events(&self) -> impl Fn() -> BoxStream<'static, ()> + Send + 'static {
        let channel = self.channel.clone();
        move || WatchStream::new(channel.clone()).filter_map(|channel| async move { channel.map(|_| ()) }).boxed()
    }

    /// Yields the run last connected there, whenever the peer's address refuses a connection.
    pub(crate) fn refusals(&self) -> impl Fn() -> BoxStream<'static, u64> + Send + 'static {
        let refused = self.refused.clone();
        move || {
            let mut refused = refused.clone();
            // An earlier refusal was already delivered.
            refused.mark_unchanged();
            WatchStream::from_changes(refused).filter_map(|refused| async move { refused }).boxed()
        }
    }

    /// Records that this run of the peer is dead, unless it connects again.
    pub(crate) fn mark_dead(&self, run: u64) {
        self.dead_run.send_replace(Some(run));
    }

    /// Records that this run of the peer is alive, because it connected.
    pub(crate) fn mark_alive(&self, run: u64) {
        clear_dead_run(&self.dead_run, run);
    }

    /// Returns the latest run of the peer that was found dead.
    pub(crate) fn dead_run(&self) -> Option<u64> {
        *self.dead_run.borrow()
    }

    /// Returns true if this run of the peer was found dead.
    pub(crate) fn is_dead(&self, run: u64) -> bool {
        matches_run(self.dead_run(), run)
    }

    /// Waits until this run of the peer is found dead.
    pub(crate) async fn wait_dead(&self, run: u64) {
        // The sender lives as long as this value.
        let _ = self.dead_run.subscribe().wait_for(|gone| matches_run(*gone, run)).await;
    }

    /// Returns the channel of the current connection, for a separate call (snapshots).
    pub(crate) fn client(&self) -> Result<RaftServiceClient<Channel>, RpcError> {
        let channel = self.channel.borrow().clone();
        channel.map(raft_client).ok_or_else(|| RpcError::NotConnected(self.node.clone()))
    }

    /// Returns this node's identity.
    pub(crate) fn hello(&self) -> Result<Hello, String> {
        self.peer_registry.hello()
    }

    /// Adds this node's credentials.
    pub(crate) fn request<T>(&self, message: T) -> Request<T> {
        authorized(message, self.credentials.as_ref())
    }

    /// Returns true if the peer last reported disk space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        !self.is_disk_full.load(Ordering::Relaxed)
    }

    /// Rejects a replica of the peer whose data is older than what it acknowledged.
    pub(crate) fn reject_rolled_back(&self, replica: u64, index: u64) {
        let (node, introductions) = (self.node.clone(), Arc::clone(&self.peer_registry));
        spawn_temporary("refusal", async move { introductions.reject_rolled_back(&node, replica, index).await });
    }

    /// Returns the peer's data directory, while it is connected.
    pub(crate) fn store_id(&self) -> Option<String> {
        self.store_id.lock().clone()
    }

    /// Returns how long a replica of the peer, after it acknowledged a leader, votes for no other.
    pub(crate) fn lease(&self) -> Duration {
        *self.lease.borrow()
    }

    /// Returns the peer's address.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    /// Returns the peer's node id.
    pub(crate) fn node(&self) -> &str {
        &self.node
    }
}

fn raft_client(channel: Channel) -> RaftServiceClient<Channel> {
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

/// Publishes the connection's state.
struct StatePublisher {
    connected: watch::Sender<Option<Channel>>,
    refused: watch::Sender<Option<u64>>,
    dead_run: watch::Sender<Option<u64>>,
    is_disk_full: Arc<AtomicBool>,
    store_id: Arc<Mutex<Option<String>>>,
    lease: watch::Sender<Duration>,
}

/// The state of the task that maintains the connection.
struct ConnectionTask {
    options: PeerConnectionOptions,
    state: StatePublisher,
    queue: Arc<SendQueue>,
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        // No task sends any more: the queued requests fail.
        self.queue.close();
    }
}

async fn run(ConnectionTask { options, state, queue }: &ConnectionTask) {
    // The last connected run, if its release reports one.
    let mut last_met = None;
    let mut pause = MIN_RETRY_DELAY;
    let mut last_error = String::new();
    let mut met = options.peer_registry.admissions();
    // If this task was restarted while connected, the published state is stale.
    state.connected.send_replace(None);
    *state.store_id.lock() = None;
    fail_queued(&options.node, queue);
    loop {
        match timeout(CONNECT_TIMEOUT, connect(options)).await {
            Ok(Ok(connection)) => {
                tracing::info!(node = options.node, address = options.address, "connected to peer");
                let since = Instant::now();
                last_error.clear();
                last_met = Some(connection.run).filter(|run| *run != 0);
                clear_dead_run(&state.dead_run, connection.run);
                *state.store_id.lock() = Some(connection.store_id.clone());
                // Published before any request is sent, so that no response counts for the lease of an earlier process.
                state.lease.send_replace(connection.lease);
                state.connected.send_replace(Some(connection.channel));
                let (own, frames) = (&options.peer_registry, connection.frames);
                tokio::select! {
                    () = exchange(&options.node, own, &state.is_disk_full, queue, frames, connection.answers) => {}
                    () = options.peer_registry.wait_rejected(&connection.store_id) => {}
                }
                state.connected.send_replace(None);
                *state.store_id.lock() = None;
                tracing::info!(node = options.node, "connection to peer ended");
                // The death of the peer's process must be noticed at once. A process that closes connections as soon as
                // they open is not retried at that rate.
                pause = if since.elapsed() >= MAX_RETRY_DELAY { Duration::ZERO } else { MIN_RETRY_DELAY };
            }
            Ok(Err(error)) => {
                if error.is_refused && last_met.is_some() {
                    state.refused.send_replace(last_met);
                }
                report(options, &mut last_error, error.reason);
            }
            Err(_) => report(options, &mut last_error, format!("no answer within {CONNECT_TIMEOUT:?}")),
        }
        fail_queued(&options.node, queue);
        if pause.is_zero() {
            // Even a zero timer would take up to two milliseconds.
            pause = FAST_RETRY_DELAY;
            continue;
        }
        // A returning peer connects to this node, which ends the delay.
        met.mark_unchanged();
        tokio::select! {
            () = tokio::time::sleep(pause) => pause = (pause * 2).min(MAX_RETRY_DELAY),
            _ = met.changed() => {}
        }
    }
}

/// Clears the mark only if it concerns this run; another run stays dead.
fn clear_dead_run(gone: &watch::Sender<Option<u64>>, run: u64) {
    gone.send_if_modified(|gone| {
        let was_wrong = *gone == Some(run);
        if was_wrong {
            *gone = None;
        }
        was_wrong
    });
}

/// Returns true if the dead run is this run, and not another one at the same address.
fn matches_run(gone: Option<u64>, run: u64) -> bool {
    gone == Some(run) || (gone.is_some() && is_enabled(Mutation::DeathByAddress))
}

/// Fails queued requests while there is no connection.
fn fail_queued(node: &str, questions: &SendQueue) {
    for asked in questions.take_batch(usize::MAX, usize::MAX) {
        let _ = asked.responder.send(Err(RpcError::NotConnected(node.to_owned())));
    }
}

/// Logs an error once per series of identical errors.
fn report(options: &PeerConnectionOptions, last_error: &mut String, error: String) {
    if *last_error != error {
        tracing::warn!(node = options.node, address = options.address, error, "can't connect to peer; trying again");
        *last_error = error;
    }
}

struct EstablishedConnection {
    channel: Channel,
    /// The data directory of the peer.
    store_id: String,
    lease: Duration,
    run: u64,
    frames: mpsc::Sender<RaftFrame>,
    answers: Streaming<RaftFrame>,
}

async fn connect(options: &PeerConnectionOptions) -> Result<EstablishedConnection, DialError> {
    let channel = (options.dialer)(options.address.clone()).await?;
    handshake(options, channel).await.map_err(DialError::from)
}

async fn handshake(options: &PeerConnectionOptions, channel: Channel) -> Result<EstablishedConnection, String> {
    let (frames, outgoing) = mpsc::channel(FRAMES_AHEAD);
    let hello = RaftFrame { body: Some(Body::Hello(options.peer_registry.hello()?)) };
    frames.send(hello).await.map_err(|_| "the stream closed at once")?;
    let request = authorized(ReceiverStream::new(outgoing), options.credentials.as_ref());
    let response =
        raft_client(channel.clone()).exchange(request).await.map_err(|status| status.message().to_owned())?;
    let mut answers = response.into_inner();
    let first = answers.message().await.map_err(|status| status.message().to_owned())?;
    let theirs: Hello = match first.and_then(|frame| frame.body) {
        Some(Body::Hello(hello)) => hello,
        _ => return Err("the peer did not introduce itself".into()),
    };
    options.peer_registry.check(&theirs, Some(&options.node)).await?;
    let lease = lease_of(&theirs);
    let Hello { store_id, run, .. } = theirs;
    Ok(EstablishedConnection { channel, store_id, lease, run, frames, answers })
}
