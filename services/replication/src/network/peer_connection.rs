//! The client side of a connection to one peer node, maintained in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{BoxStream, StreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::{Hello, Kind};
use holdfast_rpc::{ByteBudget, ChannelOptions, ClientConnection, ConnectError, Dialer, Identity, Link};
use holdfast_supervise::{TaskOwner, TaskSet, spawn_temporary};
use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_stream::wrappers::WatchStream;

use super::exchange::exchange;
use super::request::{OutboundRequest, PeerRequest, ResponseSender, RpcError};
use super::send_queue::SendQueue;
use super::{Raft, SnapshotTransfers};
use crate::handshake::{PeerRegistry, lease_of};
use crate::shard_failures::{PeerReport, ReplicaReport};
use crate::timing::DEFAULT_PEER_LEASE;

/// Unanswered bytes of appends to one peer; further appends fail at once, and openraft retries. This limits the memory
/// that a slow peer takes up on both nodes; no group can exhaust it alone.
const MAX_UNANSWERED_BYTES: u32 = 64 * 1024 * 1024;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_RETRY_DELAY: Duration = Duration::from_millis(500);

pub(crate) struct PeerConnectionOptions {
    /// The peer's node id.
    pub(crate) node: String,
    /// Its address, `host:port`.
    pub(crate) address: String,
    pub(crate) dialer: Arc<dyn Dialer>,
    pub(crate) identity: Arc<Identity>,
    pub(crate) peer_registry: Arc<PeerRegistry>,
}

/// A connection to one peer node.
pub(crate) struct PeerConnection {
    options: ChannelOptions,
    state: Arc<PeerState>,
    streams: AtomicU64,
    unanswered: ByteBudget,
    tasks: TaskSet,
}

impl PeerConnection {
    /// Starts connecting; retries as long as the value exists.
    pub(crate) fn start(options: PeerConnectionOptions) -> Arc<Self> {
        let PeerConnectionOptions { node, address, dialer, identity, peer_registry } = options;
        let state = Arc::new(PeerState {
            node: node.clone(),
            peer_registry,
            queue: SendQueue::default(),
            connected: watch::Sender::new(false),
            refused: watch::Sender::new(None),
            dead_run: watch::Sender::new(None),
            last_met: AtomicU64::new(0),
            report: PeerReport::default(),
            store_id: Mutex::default(),
            lease: watch::Sender::new(DEFAULT_PEER_LEASE),
        });
        let (connect_timeout, max_backoff) = (CONNECT_TIMEOUT, MAX_RETRY_DELAY);
        let options = ChannelOptions { node, address, dialer, identity, connect_timeout, max_backoff };
        let tasks = TaskSet::new(TaskOwner::process());
        let kept = Arc::new(ConnectionTask { options: options.clone(), state: Arc::clone(&state) });
        tasks.spawn_restarting("peer_connection", move || {
            let kept = Arc::clone(&kept);
            async move { holdfast_rpc::run::<Raft>(&kept.options, &*kept.state).await }
        });
        let (streams, unanswered) = (AtomicU64::new(1), ByteBudget::new(MAX_UNANSWERED_BYTES));
        Arc::new(Self { options, state, streams, unanswered, tasks })
    }

    /// Returns the connection's tasks, which end with it.
    pub(crate) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Queues a request, in order. The receiver gets the response, or closes when the connection breaks.
    pub(crate) fn send(&self, question: PeerRequest) -> oneshot::Receiver<Result<Bytes, RpcError>> {
        let (answer, receiver) = oneshot::channel();
        let node = || self.options.node.clone();
        let refused = if !*self.state.connected.borrow() {
            Err((RpcError::NotConnected(node()), answer))
        } else {
            self.enqueue(question, answer).map_err(|answer| (RpcError::QueueFull(node()), answer))
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
            Kind::Append => match self.unanswered.try_reserve(request.body.len()) {
                None => return Err(responder),
                budget => budget,
            },
            _ => None,
        };
        self.state.queue.push(OutboundRequest { request, responder, budget }).map_err(|asked| asked.responder)
    }

    /// Returns a number for a new append stream, unique on this connection.
    pub(crate) fn new_stream(&self) -> u64 {
        self.streams.fetch_add(1, Ordering::Relaxed)
    }

    /// Yields an item for each new connection, and one now if it is connected.
    pub(crate) fn connected_events(&self) -> impl Fn() -> BoxStream<'static, ()> + Send + 'static {
        let connected = self.state.connected.subscribe();
        move || {
            WatchStream::new(connected.clone())
                .filter_map(|is_connected| async move { is_connected.then_some(()) })
                .boxed()
        }
    }

    /// Yields the run last connected there, whenever the peer's address refuses a connection.
    pub(crate) fn refusals(&self) -> impl Fn() -> BoxStream<'static, u64> + Send + 'static {
        let refused = self.state.refused.subscribe();
        move || {
            let mut refused = refused.clone();
            // An earlier refusal was already delivered.
            refused.mark_unchanged();
            WatchStream::from_changes(refused).filter_map(|refused| async move { refused }).boxed()
        }
    }

    /// Returns the run of the peer that was connected last; 0 if there was none.
    pub(crate) fn latest_run(&self) -> u64 {
        self.state.last_met.load(Ordering::Relaxed)
    }

    /// Records that this run of the peer is dead, unless it connects again.
    pub(crate) fn mark_dead(&self, run: u64) {
        self.state.dead_run.send_replace(Some(run));
    }

    /// Records that this run of the peer is alive, because it connected.
    pub(crate) fn mark_alive(&self, run: u64) {
        clear_dead_run(&self.state.dead_run, run);
    }

    /// Returns the latest run of the peer that was found dead.
    pub(crate) fn dead_run(&self) -> Option<u64> {
        *self.state.dead_run.borrow()
    }

    /// Returns true if this run of the peer was found dead.
    pub(crate) fn is_dead(&self, run: u64) -> bool {
        matches_run(self.dead_run(), run)
    }

    /// Waits until this run of the peer is found dead.
    pub(crate) async fn wait_dead(&self, run: u64) {
        // The sender lives as long as this value.
        let _ = self.state.dead_run.subscribe().wait_for(|gone| matches_run(*gone, run)).await;
    }

    /// Opens a connection of its own for a snapshot, to the peer that is connected.
    pub(crate) async fn open_snapshot(&self) -> Result<ClientConnection<SnapshotTransfers>, RpcError> {
        let rejected = |reason: String| RpcError::Rejected(self.options.node.clone(), reason);
        let Some(store_id) = self.store_id() else { return Err(RpcError::NotConnected(self.options.node.clone())) };
        let ours = self.state.peer_registry.hello().map_err(rejected)?;
        let connected = holdfast_rpc::connect::<SnapshotTransfers>(&self.options, &ours).await;
        let (connection, theirs) = connected.map_err(|error| rejected(error.to_string()))?;
        if theirs.node_id != self.options.node || theirs.store_id != store_id {
            return Err(rejected("another node answers at its address".to_owned()));
        }
        Ok(connection)
    }

    /// Returns true if the peer last reported disk space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        self.state.report.has_disk_space()
    }

    /// Returns true while the peer is connected.
    pub(crate) fn is_connected(&self) -> bool {
        *self.state.connected.borrow()
    }

    /// Returns what a replica of the peer last said of itself on the connection.
    pub(crate) fn replica_report(&self, replica: u64) -> ReplicaReport {
        self.state.report.replica(replica)
    }

    /// Rejects a replica of the peer whose data is older than what it acknowledged.
    pub(crate) fn reject_rolled_back(&self, replica: u64, index: u64) {
        let (node, introductions) = (self.options.node.clone(), Arc::clone(&self.state.peer_registry));
        spawn_temporary("refusal", async move { introductions.reject_rolled_back(&node, replica, index).await });
    }

    /// Returns the peer's data directory, while it is connected.
    pub(crate) fn store_id(&self) -> Option<String> {
        self.state.store_id.lock().clone()
    }

    /// Returns how long a replica of the peer, after it acknowledged a leader, votes for no other.
    pub(crate) fn lease(&self) -> Duration {
        *self.state.lease.borrow()
    }

    /// Returns the peer's address.
    pub(crate) fn address(&self) -> &str {
        &self.options.address
    }

    /// Returns the peer's node id.
    pub(crate) fn node(&self) -> &str {
        &self.options.node
    }
}

/// The state of the peer, as its connection shows it.
struct PeerState {
    node: String,
    peer_registry: Arc<PeerRegistry>,
    queue: SendQueue,
    connected: watch::Sender<bool>,
    refused: watch::Sender<Option<u64>>,
    /// The latest run of the peer that was found dead.
    dead_run: watch::Sender<Option<u64>>,
    /// The last connected run, if its release reports one; else 0.
    last_met: AtomicU64,
    /// What the peer last said of itself.
    report: PeerReport,
    /// The data directory of the peer, while it is connected.
    store_id: Mutex<Option<String>>,
    /// As the peer reported at its last connection.
    lease: watch::Sender<Duration>,
}

/// The state of the task that maintains the connection.
struct ConnectionTask {
    options: ChannelOptions,
    state: Arc<PeerState>,
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        // No task sends any more: the queued requests fail.
        self.state.queue.close();
    }
}

impl Link<Raft> for PeerState {
    fn handshake(&self) -> Result<Hello, String> {
        self.peer_registry.hello()
    }

    async fn admit(&self, theirs: &Hello) -> Result<(), String> {
        self.peer_registry.check(theirs, Some(&self.node)).await
    }

    async fn serve(&self, connection: ClientConnection<Raft>, theirs: Hello) -> String {
        self.last_met.store(theirs.run, Ordering::Relaxed);
        clear_dead_run(&self.dead_run, theirs.run);
        self.report.reset();
        *self.store_id.lock() = Some(theirs.store_id.clone());
        // Published before any request is sent, so that no response counts for the lease of an earlier process.
        self.lease.send_replace(lease_of(&theirs));
        self.connected.send_replace(true);
        tracing::info!(node = self.node, "connected to peer");
        tokio::select! {
            reason = exchange(&self.node, &self.peer_registry, &self.report, &self.queue, connection) => reason,
            () = self.peer_registry.wait_rejected(&theirs.store_id) => "its data is rejected".to_owned(),
        }
    }

    fn disconnected(&self, error: &ConnectError, _was_connected: bool) {
        self.connected.send_replace(false);
        *self.store_id.lock() = None;
        let last_met = self.last_met.load(Ordering::Relaxed);
        if error.is_refused() && last_met != 0 {
            self.refused.send_replace(Some(last_met));
        }
        for asked in self.queue.take_batch(usize::MAX, usize::MAX) {
            let _ = asked.responder.send(Err(RpcError::NotConnected(self.node.clone())));
        }
    }

    /// A returning peer connects to this node.
    async fn retry_now(&self) {
        // The sender lives as long as the registry.
        let _ = self.peer_registry.admissions().changed().await;
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
