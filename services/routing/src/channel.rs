//! One node: the calls to it that wait or are in flight, and the task that keeps a connection.

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

/// Calls to one node that may wait or be in flight; more are refused at once, with nothing done.
const MAX_OUTSTANDING: usize = 32_768;
/// Calls to one node whose answers it holds back; they take memory, and no turn from others.
const MAX_DEFERRED: usize = 262_144;
/// Outcomes of a call with several that wait to be read; one that reads slower is given up.
const MAX_BUFFERED_REPLIES: usize = 1_024;
/// Why a node can't be reached whose connection is to end for good.
const STOPPING_REASON: &str = "this gateway is stopping";

/// What to send.
#[derive(Clone, Debug)]
pub(super) enum CallBody {
    /// An encoded command.
    Command(Bytes),
    /// An encoded query.
    Query(Bytes),
    /// An encoded acquire, whose answer may be held back for so long.
    Acquire(Bytes, Duration),
    /// An encoded query of events, whose answer may be held back for so long.
    LongPoll(Bytes, Duration),
    /// An encoded follow.
    Subscribe(Bytes),
}

impl CallBody {
    /// Whether other answers may come before the last one.
    fn may_be_deferred(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Query(_))
    }

    /// Whether it changes nothing, so that it may be sent again freely.
    pub(super) fn is_query(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Acquire(..))
    }

    /// What asks a replica the same without being held back.
    pub(super) fn to_immediate(&self) -> Self {
        match self {
            Self::Acquire(bytes, _) => Self::Command(bytes.clone()),
            Self::LongPoll(bytes, _) => Self::Query(bytes.clone()),
            other => other.clone(),
        }
    }
}

/// The highest rules that a replica of a shard was heard to go by; 0 before any was. Rules never go back. Clones share it.
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

/// What became of one attempt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum CallReply {
    /// An encoded reply; with the number of the attempt, when it was an acquire that might have waited.
    Reply(Bytes, u64),
    /// The node leads and holds the answer back.
    Deferred,
    /// Something happened to the session that is followed: an encoded effect.
    Update(Bytes),
    /// Nothing was done; that is the leader, if it is known.
    NotLeader(Option<Leader>),
    /// Nothing was done, as the node says.
    NotProposed(String),
    /// Nothing was done: it never left this process.
    NotSent(String),
    /// It may have been done.
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
    /// Of the client's call that this is part of.
    pub(super) request_id: Option<Arc<str>>,
    pub(super) trace_parent: Option<String>,
}

/// Who waits for what a node answers.
pub(super) enum ReplySink {
    /// For one outcome.
    Once(oneshot::Sender<CallReply>),
    /// For any number of them.
    Many(mpsc::Sender<CallReply>),
}

impl ReplySink {
    /// The last outcome. A caller that is gone needs none.
    pub(super) fn finish(self, outcome: CallReply) {
        match self {
            Self::Once(sender) => drop(sender.send(outcome)),
            Self::Many(sender) => drop(sender.try_send(outcome)),
        }
    }

    /// One of several; false when nobody takes it.
    pub(super) fn send(&self, outcome: CallReply) -> bool {
        match self {
            Self::Once(_) => true,
            Self::Many(sender) => sender.try_send(outcome).is_ok(),
        }
    }
}

/// Calls that were given up and that the node is to be told of.
#[derive(Default)]
pub(super) struct Cancellations {
    pub(super) ids: Vec<u64>,
    pub(super) waker: Option<Waker>,
}

/// Where a call is, between the caller that may give up and the connection that may send it: whoever moves first
/// decides, so that "not sent" is always true.
#[derive(Default)]
pub(super) struct SendState(AtomicU8);

const QUEUED: u8 = 0;
const SENT: u8 = 1;
const CANCELLED: u8 = 2;

impl SendState {
    /// Before it is put into a frame; false when the caller gave up.
    pub(super) fn try_mark_sent(&self) -> bool {
        self.0.compare_exchange(QUEUED, SENT, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// False when it was sent already.
    fn try_cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire) != Err(SENT)
    }
}

/// What the callers, the connection and its outgoing stream share.
pub(super) struct ChannelState {
    pub(super) node_id: String,
    queue: mpsc::Sender<QueuedCall>,
    pub(super) waiting: Mutex<mpsc::Receiver<QueuedCall>>,
    pub(super) in_flight: Mutex<HashMap<u64, (ReplySink, ObservedRules)>>,
    pub(super) given_up: Mutex<Cancellations>,
    outstanding: AtomicUsize,
    held: AtomicUsize,
    next_id: AtomicU64,
    /// Why the node cannot be reached; absent while connected, and at first.
    down: Mutex<Option<String>>,
}

/// The way to one node.
pub(super) struct NodeChannel {
    shared: Arc<ChannelState>,
    tasks: TaskSet,
}

impl NodeChannel {
    /// Begins to connect.
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

    /// Sends a call to a replica of the node. The node learns how much of the deadline is left, and this process by which
    /// rules the shard goes.
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

    /// The tasks that go with the link: none outlives it.
    pub(super) fn tasks(&self) -> &TaskSet {
        &self.tasks
    }

    /// Ends the connection. What is in flight has an unknown outcome.
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

    /// From now on calls are refused at once, and those that wait are too.
    pub(super) fn set_disconnected(&self, reason: &str) {
        *self.down.lock() = Some(reason.to_owned());
        metrics::gauge!("holdfast_routing_node_connected", "node" => self.node_id.clone()).set(0.0);
        let mut waiting = self.waiting.lock();
        while let Ok(queued) = waiting.try_recv() {
            queued.sink.finish(CallReply::NotSent(format!("node {} cannot be reached: {reason}", self.node_id)));
        }
    }

    /// The connection ended: nobody will answer what was sent on it.
    pub(super) fn fail_in_flight(&self, reason: &str) {
        let ended = std::mem::take(&mut *self.in_flight.lock());
        for (answer, _) in ended.into_values() {
            answer.finish(CallReply::Unknown(format!("the connection to node {} ended: {reason}", self.node_id)));
        }
    }

    /// Tells the node that nobody waits for that call any more.
    fn notify_cancelled(&self, id: u64) {
        let mut given_up = self.given_up.lock();
        given_up.ids.push(id);
        if let Some(waker) = given_up.waker.take() {
            waker.wake();
        }
    }
}

/// One sending of one call. Dropping it forgets the call, which may be done all the same; one whose answer may be held
/// back is given up at the node as well.
pub(super) struct PendingCall {
    shared: Arc<ChannelState>,
    id: u64,
    send_state: Arc<SendState>,
    source: ReplySource,
    /// The node said that it holds the answer back.
    is_deferred: bool,
    /// The last outcome was seen.
    is_over: bool,
}

enum ReplySource {
    Once(oneshot::Receiver<CallReply>),
    Many(mpsc::Receiver<CallReply>),
    /// Never sent, for that reason.
    NotSent(String),
}

impl PendingCall {
    fn not_sent(shared: &Arc<ChannelState>, reason: String) -> Self {
        let (send_state, source) = (Arc::default(), ReplySource::NotSent(reason));
        Self { shared: shared.clone(), id: 0, send_state, source, is_deferred: false, is_over: true }
    }

    /// Waits for the outcome, or the next one. May be called again when it was cancelled.
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

    /// Tells the node that the caller is gone; the outcome may be waited for all the same.
    pub(super) fn abandon(&self) {
        if !self.is_over && !self.send_state.try_cancel() {
            self.shared.notify_cancelled(self.id);
        }
    }

    /// Stops waiting, and says whether it was sent.
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
