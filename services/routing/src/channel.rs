//! The calls to one node that are queued or in flight, and the task that maintains its connection.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU64, AtomicUsize, Ordering};
use std::task::Waker;
use std::time::Duration;

use bytes::Bytes;
use holdfast_core::Rules;
use holdfast_supervise::{TaskOwner, TaskSet};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use crate::RoutingOptions;
use crate::connection::{self, ClientIdentity};
use crate::leader_cache::Leader;
use crate::request_context;

/// Calls to one node that may be queued or in flight; further ones fail at once, without being sent.
const MAX_OUTSTANDING: usize = 32_768;
/// Deferred calls to one node; they take memory, but no capacity from other calls.
const MAX_DEFERRED: usize = 262_144;
/// Buffered replies of a multi-reply call; a slower reader is dropped.
const MAX_BUFFERED_REPLIES: usize = 1_024;
/// Why a channel that was shut down can't reach its node.
const STOPPING_REASON: &str = "this gateway is stopping";

/// The body of a call.
#[derive(Clone, Debug)]
pub(super) enum CallBody {
    /// An encoded command.
    Command(Bytes),
    /// An encoded query.
    Query(Bytes),
    /// An encoded acquire, and how long its reply may be deferred.
    Acquire(Bytes, Duration),
    /// An encoded query of events, and how long its reply may be deferred.
    LongPoll(Bytes, Duration),
    /// An encoded subscription.
    Subscribe(Bytes),
}

impl CallBody {
    /// Returns true if other replies may precede the last one.
    fn may_be_deferred(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Query(_))
    }

    /// Returns true if the call changes nothing and may be retried freely.
    pub(super) fn is_query(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Acquire(..))
    }

    /// Returns the same call without deferral.
    pub(super) fn to_immediate(&self) -> Self {
        match self {
            Self::Acquire(bytes, _) => Self::Command(bytes.clone()),
            Self::LongPoll(bytes, _) => Self::Query(bytes.clone()),
            other => other.clone(),
        }
    }
}

/// The highest rules observed from a replica of a shard; 0 before the first observation. Rules never decrease. Clones
/// share the value.
#[derive(Clone, Debug, Default)]
pub(super) struct ObservedRules(Arc<AtomicU16>);

impl ObservedRules {
    pub(super) fn observe(&self, rules: u32) {
        self.0.fetch_max(u16::try_from(rules).unwrap_or(u16::MAX), Ordering::Relaxed);
    }

    pub(super) fn get(&self) -> Rules {
        Rules(self.0.load(Ordering::Relaxed))
    }
}

/// The outcome of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallReply {
    /// An encoded reply; for an acquire that may wait, with the attempt number.
    Reply(Bytes, u64),
    /// The node leads and defers the reply.
    Deferred,
    /// An encoded effect on the subscribed session.
    Update(Bytes),
    /// Nothing was done; names the leader if known.
    NotLeader(Option<Leader>),
    /// Nothing was done, by the node's report.
    NotProposed(String),
    /// Nothing was done: the call never left this process.
    NotSent(String),
    /// The call may have been applied.
    Unknown(String),
}

/// A call that waits to be sent.
pub(super) struct QueuedCall {
    pub(super) id: u64,
    pub(super) replica: u64,
    pub(super) term: u64,
    pub(super) deadline: Instant,
    pub(super) body: CallBody,
    pub(super) send_state: Arc<SendState>,
    pub(super) sink: ReplySink,
    pub(super) rules: ObservedRules,
    /// The request id of the client's call.
    pub(super) request_id: Option<Arc<str>>,
    pub(super) trace_parent: Option<String>,
}

/// The receiver of a call's replies.
pub(super) enum ReplySink {
    /// Accepts one reply.
    Once(oneshot::Sender<CallReply>),
    /// Accepts any number of replies.
    Many(mpsc::Sender<CallReply>),
}

impl ReplySink {
    /// Delivers the last reply. A caller that has cancelled needs none.
    pub(super) fn finish(self, outcome: CallReply) {
        match self {
            Self::Once(sender) => drop(sender.send(outcome)),
            Self::Many(sender) => drop(sender.try_send(outcome)),
        }
    }

    /// Delivers an intermediate reply; returns false if the receiver is closed or full.
    pub(super) fn send(&self, outcome: CallReply) -> bool {
        match self {
            Self::Once(_) => true,
            Self::Many(sender) => sender.try_send(outcome).is_ok(),
        }
    }
}

/// Cancelled calls of which the node must be notified.
#[derive(Default)]
pub(super) struct Cancellations {
    pub(super) ids: Vec<u64>,
    pub(super) waker: Option<Waker>,
}

/// State of a call, shared by the caller, which may cancel it, and the connection, which may send it. The first
/// transition wins, so that "not sent" is always true.
#[derive(Default)]
pub(super) struct SendState(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const CANCELLED: u8 = 2;

impl SendState {
    /// Marks the call as sent, before it is put into a frame; returns false if the caller has cancelled.
    pub(super) fn try_mark_sent(&self) -> bool {
        self.0.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Cancels the call; returns false if it was already sent.
    fn try_cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire) != Err(SENT)
    }
}

/// State shared by the callers, the connection and its outbound stream.
pub(super) struct ChannelState {
    pub(super) node_id: String,
    queue: mpsc::Sender<QueuedCall>,
    pub(super) waiting: Mutex<mpsc::Receiver<QueuedCall>>,
    pub(super) in_flight: Mutex<HashMap<u64, (ReplySink, ObservedRules)>>,
    pub(super) given_up: Mutex<Cancellations>,
    outstanding: AtomicUsize,
    held: AtomicUsize,
    next_id: AtomicU64,
    /// Why the node can't be reached; `None` while connected, and at first.
    down: Mutex<Option<String>>,
}

/// The channel to one node.
pub(super) struct NodeChannel {
    shared: Arc<ChannelState>,
    tasks: TaskSet,
}

impl NodeChannel {
    /// Starts to connect.
    pub(super) fn start(node_id: &str, address: &str, caller: Arc<ClientIdentity>, options: &RoutingOptions) -> Self {
        let (queue, waiting) = mpsc::channel(MAX_OUTSTANDING);
        let shared = Arc::new(ChannelState {
            node_id: node_id.to_owned(),
            queue,
            waiting: Mutex::new(waiting),
            in_flight: Mutex::default(),
            given_up: Mutex::default(),
            outstanding: AtomicUsize::new(0),
            held: AtomicUsize::new(0),
            next_id: AtomicU64::new(1),
            down: Mutex::new(None),
        });
        let tasks = TaskSet::new(TaskOwner::process());
        let (kept, address, options) = (shared.clone(), address.to_owned(), options.clone());
        tasks.spawn_restarting("node_connection", move || {
            connection::run(kept.clone(), address.clone(), caller.clone(), options.clone())
        });
        Self { shared, tasks }
    }

    /// Sends a call to a replica of the node. The node receives the remaining time, and this process learns the shard's
    /// rules.
    pub(super) fn send(&self, to: Leader, body: CallBody, rules: &ObservedRules, deadline: Instant) -> PendingCall {
        let shared = &self.shared;
        if let Some(reason) = shared.down.lock().clone() {
            return PendingCall::not_sent(shared, format!("node {} cannot be reached: {reason}", shared.node_id));
        }
        let before = shared.outstanding.fetch_add(1, Ordering::Relaxed);
        let is_full = before >= MAX_OUTSTANDING || shared.held.load(Ordering::Relaxed) >= MAX_DEFERRED;
        let (sink, source) = if body.may_be_deferred() {
            let (sink, answered) = mpsc::channel(MAX_BUFFERED_REPLIES);
            (ReplySink::Many(sink), ReplySource::Many(answered))
        } else {
            let (sink, answered) = oneshot::channel();
            (ReplySink::Once(sink), ReplySource::Once(answered))
        };
        let id = shared.next_id.fetch_add(1, Ordering::Relaxed);
        let send_state = Arc::<SendState>::default();
        let queued = QueuedCall {
            id,
            replica: to.replica,
            term: to.term,
            deadline,
            body,
            send_state: send_state.clone(),
            sink,
            rules: rules.clone(),
            request_id: request_context::request_id(),
            trace_parent: holdfast_telemetry::trace_parent(),
        };
        let attempt =
            PendingCall { shared: shared.clone(), id, send_state, source, is_deferred: false, is_over: false };
        if is_full || shared.queue.try_send(queued).is_err() {
            drop(attempt);
            return PendingCall::not_sent(shared, format!("too many calls to node {} are in flight", shared.node_id));
        }
        attempt
    }

    /// Returns the channel's tasks, which end with it.
    pub(super) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Closes the connection. In-flight calls have an unknown outcome.
    pub(super) async fn shutdown(&self) {
        self.tasks.shutdown().await;
        self.shared.set_disconnected(STOPPING_REASON);
        self.shared.fail_in_flight(STOPPING_REASON);
    }
}

impl ChannelState {
    pub(super) fn set_connected(&self) {
        *self.down.lock() = None;
        metrics::gauge!("holdfast_routing_node_connected", "node" => self.node_id.clone()).set(1.0);
    }

    /// Fails queued calls, and further ones at once.
    pub(super) fn set_disconnected(&self, reason: &str) {
        *self.down.lock() = Some(reason.to_owned());
        metrics::gauge!("holdfast_routing_node_connected", "node" => self.node_id.clone()).set(0.0);
        let mut waiting = self.waiting.lock();
        while let Ok(queued) = waiting.try_recv() {
            queued.sink.finish(CallReply::NotSent(format!("node {} cannot be reached: {reason}", self.node_id)));
        }
    }

    /// Fails in-flight calls after the connection ended, since no reply can arrive.
    pub(super) fn fail_in_flight(&self, reason: &str) {
        let ended = std::mem::take(&mut *self.in_flight.lock());
        for (answer, _) in ended.into_values() {
            answer.finish(CallReply::Unknown(format!("the connection to node {} ended: {reason}", self.node_id)));
        }
    }

    /// Notifies the node that the call was cancelled.
    fn notify_cancelled(&self, id: u64) {
        let mut given_up = self.given_up.lock();
        given_up.ids.push(id);
        if let Some(waker) = given_up.waker.take() {
            waker.wake();
        }
    }
}

/// One attempt of a call. Dropping it discards the reply, though the call may be applied. If the reply may be deferred,
/// dropping it also cancels the call at the node.
pub(super) struct PendingCall {
    shared: Arc<ChannelState>,
    id: u64,
    send_state: Arc<SendState>,
    source: ReplySource,
    /// The node has deferred the reply.
    is_deferred: bool,
    /// The last reply was received.
    is_over: bool,
}

enum ReplySource {
    Once(oneshot::Receiver<CallReply>),
    Many(mpsc::Receiver<CallReply>),
    /// Never sent, for this reason.
    NotSent(String),
}

impl PendingCall {
    fn not_sent(shared: &Arc<ChannelState>, reason: String) -> Self {
        let (send_state, source) = (Arc::default(), ReplySource::NotSent(reason));
        Self { shared: shared.clone(), id: 0, send_state, source, is_deferred: false, is_over: true }
    }

    /// Waits for the outcome, or for the next one. Cancellation-safe.
    pub(super) async fn next_reply(&mut self) -> CallReply {
        let outcome = match &mut self.source {
            ReplySource::NotSent(reason) => return CallReply::NotSent(reason.clone()),
            ReplySource::Once(answered) => answered.await.ok(),
            ReplySource::Many(answered) => answered.recv().await,
        };
        let Some(outcome) = outcome else { return self.cancel("the call was dropped") };
        if outcome == CallReply::Deferred && !self.is_deferred {
            self.is_deferred = true;
            self.shared.outstanding.fetch_sub(1, Ordering::Relaxed);
            self.shared.held.fetch_add(1, Ordering::Relaxed);
        }
        self.is_over = !matches!(outcome, CallReply::Deferred | CallReply::Update(_));
        outcome
    }

    /// Notifies the node that the caller has cancelled; the outcome can still be awaited.
    pub(super) fn abandon(&self) {
        if !self.is_over && !self.send_state.try_cancel() {
            self.shared.notify_cancelled(self.id);
        }
    }

    /// Stops waiting, and returns whether the call was sent.
    pub(super) fn cancel(&self, reason: &str) -> CallReply {
        if self.send_state.try_cancel() {
            CallReply::NotSent(format!("not sent to node {}: {reason}", self.shared.node_id))
        } else {
            CallReply::Unknown(format!("node {} did not answer: {reason}", self.shared.node_id))
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        match self.source {
            ReplySource::NotSent(_) => return,
            ReplySource::Once(_) => {
                self.send_state.try_cancel();
            }
            ReplySource::Many(_) => self.abandon(),
        }
        self.shared.in_flight.lock().remove(&self.id);
        let counted = if self.is_deferred { &self.shared.held } else { &self.shared.outstanding };
        counted.fetch_sub(1, Ordering::Relaxed);
    }
}
