//! Sends calls to one node and returns their outcomes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};

use bytes::Bytes;
use holdfast_proto::internal::{Answer, Call, Update, answer};
use holdfast_rpc::ChannelOptions;
use holdfast_supervise::{TaskOwner, TaskSet};
use holdfast_types::limit::Reached;
use holdfast_types::{AccountId, Rules};
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::RoutingOptions;
use crate::call_body::{CallAddress, CallBody};
use crate::call_load::{AccountCalls, CallLoad, CountedCall};
use crate::connection::{ChannelState, QueuedCall};
use crate::http::HttpCaller;
use crate::leader_cache::Leader;
use crate::local_call::{LocalCall, LocalNode};

/// Buffered replies of a multi-reply call; a slower reader is dropped.
const MAX_BUFFERED_REPLIES: usize = 1_024;
/// Why a channel that was shut down can't reach its node.
const STOPPING_REASON: &str = "this gateway is stopping";

/// The highest rules observed from a replica of a group; 0 before the first observation. Rules never decrease. Clones
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
    /// A page of the subscribed topic.
    Update(Update),
    /// The subscription has ended, and updates may be missing.
    Lagged,
    /// Nothing was done; names the leader if known.
    NotLeader(Option<Leader>),
    /// Nothing was done, by the node's report.
    NotProposed(String),
    /// Nothing was done: the call never left this process.
    NotSent(String),
    /// Nothing was done: this limit of calls in progress is reached.
    Limited(Reached),
    /// The call may have been applied.
    Unknown(String),
}

impl From<Answer> for CallReply {
    fn from(answer: Answer) -> Self {
        match answer.outcome {
            Some(answer::Outcome::Reply(bytes)) => Self::Reply(bytes, answer.attempt),
            Some(answer::Outcome::Deferred(_)) => Self::Deferred,
            Some(answer::Outcome::Update(update)) => Self::Update(update),
            Some(answer::Outcome::Lagged(_)) => Self::Lagged,
            Some(answer::Outcome::NotLeader(hint)) => {
                metrics::counter!("holdfast_routing_not_leader_total").increment(1);
                let leader = Leader { replica: hint.leader, term: hint.term };
                Self::NotLeader((hint.leader != 0 && hint.term != 0).then_some(leader))
            }
            Some(answer::Outcome::NotProposed(reason)) => Self::NotProposed(reason),
            Some(answer::Outcome::Unknown(reason)) => Self::Unknown(reason),
            None => Self::Unknown("the node's answer has no outcome that this gateway knows".to_owned()),
        }
    }
}

impl CallReply {
    /// Returns true if no other reply follows.
    pub(super) fn is_last(&self) -> bool {
        !matches!(self, Self::Deferred | Self::Update(_))
    }
}

/// The receiver of a call's replies.
pub(super) enum ReplySink {
    /// Accepts one reply.
    Once(oneshot::Sender<CallReply>),
    /// Accepts one reply, and before it the notice that it is deferred, which cancels the token. A queue would reserve
    /// 2 KiB for each call that waits.
    Deferrable(oneshot::Sender<CallReply>, CancellationToken),
    /// Accepts any number of replies.
    Many(mpsc::Sender<CallReply>),
}

impl ReplySink {
    /// Delivers the last reply. A caller that has cancelled needs none.
    pub(super) fn finish(self, outcome: CallReply) {
        match self {
            Self::Once(sender) | Self::Deferrable(sender, _) => drop(sender.send(outcome)),
            Self::Many(sender) => drop(sender.try_send(outcome)),
        }
    }

    /// Delivers an intermediate reply; returns false if the receiver is closed or full.
    pub(super) fn send(&self, outcome: CallReply) -> bool {
        match self {
            Self::Once(_) => true,
            Self::Deferrable(sender, deferred) => {
                if outcome == CallReply::Deferred {
                    deferred.cancel();
                }
                !sender.is_closed()
            }
            Self::Many(sender) => sender.try_send(outcome).is_ok(),
        }
    }

    pub(super) fn is_closed(&self) -> bool {
        match self {
            Self::Once(sender) | Self::Deferrable(sender, _) => sender.is_closed(),
            Self::Many(sender) => sender.is_closed(),
        }
    }
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

    /// Returns whether the caller has cancelled the call before it was sent.
    pub(super) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }

    /// Cancels the call; returns false if it was already sent.
    pub(super) fn try_cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire) != Err(SENT)
    }
}

/// The channel to one node.
pub(super) enum NodeChannel {
    /// To another process.
    Remote {
        /// The calls, and the connection that carries them.
        shared: Arc<ChannelState>,
        /// Counts the calls.
        load: Arc<CallLoad>,
        /// What keeps the connection open.
        tasks: TaskSet,
    },
    /// To a node of this process.
    Local(LocalNode, Arc<CallLoad>),
}

impl NodeChannel {
    /// Starts to connect, unless the node is of this process.
    pub(super) fn start(
        node_id: &str,
        address: &str,
        caller: &HttpCaller,
        options: &RoutingOptions,
        local: Option<&LocalNode>,
    ) -> Self {
        if let Some(local) = local.filter(|local| local.node_id == node_id) {
            return Self::Local(local.clone(), Arc::default());
        }
        let shared = Arc::new(ChannelState::new(node_id, options.router));
        let options = ChannelOptions {
            node: node_id.to_owned(),
            address: address.to_owned(),
            dialer: Arc::clone(&caller.dialer),
            identity: Arc::clone(&caller.identity),
            connect_timeout: options.connect_timeout,
            max_backoff: options.max_reconnect_backoff,
        };
        let tasks = TaskSet::new(TaskOwner::process());
        let kept = Arc::clone(&shared);
        tasks.spawn_restarting("node_connection", move || {
            let (kept, options) = (Arc::clone(&kept), options.clone());
            async move { holdfast_rpc::run(&options, &*kept).await }
        });
        Self::Remote { shared, load: Arc::default(), tasks }
    }

    /// Returns the calls of an account to the node, besides those that may be held.
    pub(super) fn calls_of(&self, account: AccountId) -> AccountCalls {
        let (Self::Remote { load, .. } | Self::Local(_, load)) = self;
        load.calls_of(account)
    }

    /// Sends a call to the node, or to one of its replicas. The node receives the remaining time, and this process
    /// learns the group's rules.
    pub(super) fn send(
        &self,
        to: CallAddress,
        body: CallBody,
        rules: &ObservedRules,
        deadline: Instant,
    ) -> PendingCall {
        let (Self::Remote { load, .. } | Self::Local(_, load)) = self;
        let counted = match load.add(to.load, body.len()) {
            Ok(counted) => counted,
            Err(reached) => return PendingCall::failed(CallReply::Limited(reached)),
        };
        let sent = match self {
            Self::Remote { shared, .. } => RemoteCall::send(shared, to, body, rules, deadline),
            Self::Local(node, _) => {
                let deadline_ms = deadline.saturating_duration_since(Instant::now()).as_millis();
                let deadline_ms = u32::try_from(deadline_ms).unwrap_or(u32::MAX);
                let call = LocalCall::new(node, Call { deadline_ms, ..body.into_call(to) });
                Ok(Replies::Local(call, rules.clone()))
            }
        };
        match sent {
            Ok(replies) => PendingCall { replies, counted, is_deferred: false, is_over: false },
            Err(reply) => PendingCall::failed(reply),
        }
    }

    /// Returns the channel's tasks, which end with it; `None` if it needs none.
    pub(super) fn tasks(&self) -> Option<&TaskSet> {
        match self {
            Self::Remote { tasks, .. } => Some(tasks),
            Self::Local(..) => None,
        }
    }

    /// Closes the connection. In-flight calls have an unknown outcome.
    pub(super) async fn shutdown(&self) {
        if let Self::Remote { shared, tasks, .. } = self {
            tasks.shutdown().await;
            shared.fail_all(STOPPING_REASON);
        }
    }
}

/// One attempt of a call. Dropping it discards the reply, though the call may be applied. If the reply may be deferred,
/// dropping it also cancels the call at the node.
pub(super) struct PendingCall {
    replies: Replies,
    /// `None` for a call that was never sent, or that never counts.
    counted: Option<CountedCall>,
    /// The node has deferred the reply.
    is_deferred: bool,
    /// The last reply was received.
    is_over: bool,
}

enum Replies {
    Once(RemoteCall, oneshot::Receiver<CallReply>),
    /// The token is cancelled once the reply is deferred.
    Deferrable(RemoteCall, oneshot::Receiver<CallReply>, CancellationToken),
    Many(RemoteCall, mpsc::Receiver<CallReply>),
    Local(LocalCall, ObservedRules),
    /// Never sent, with this outcome.
    Failed(CallReply),
}

/// A call in a queue or at another process.
struct RemoteCall {
    shared: Arc<ChannelState>,
    id: u64,
    send_state: Arc<SendState>,
}

impl RemoteCall {
    /// Queues a call; returns the outcome if it is not sent.
    fn send(
        shared: &Arc<ChannelState>,
        to: CallAddress,
        body: CallBody,
        rules: &ObservedRules,
        deadline: Instant,
    ) -> Result<Replies, CallReply> {
        let send_state = Arc::<SendState>::default();
        let is_deferrable = body.is_deferrable();
        let is_subscription = matches!(body, CallBody::Subscribe(_));
        let (call, rules) = (body.into_call(to), rules.clone());
        let enqueue = |sink| {
            let send_state = Arc::clone(&send_state);
            shared.enqueue(QueuedCall { call, deadline, send_state, sink, rules })
        };
        if is_deferrable {
            let ((sink, reply), deferred) = (oneshot::channel(), CancellationToken::new());
            let id = enqueue(ReplySink::Deferrable(sink, deferred.clone()))?;
            return Ok(Replies::Deferrable(Self { shared: Arc::clone(shared), id, send_state }, reply, deferred));
        }
        if is_subscription {
            let (sink, replies) = mpsc::channel(MAX_BUFFERED_REPLIES);
            let id = enqueue(ReplySink::Many(sink))?;
            return Ok(Replies::Many(Self { shared: Arc::clone(shared), id, send_state }, replies));
        }
        let (sink, reply) = oneshot::channel();
        let id = enqueue(ReplySink::Once(sink))?;
        Ok(Replies::Once(Self { shared: Arc::clone(shared), id, send_state }, reply))
    }

    /// Notifies the node that the caller has cancelled, if the call was sent.
    fn abandon(&self) {
        if !self.send_state.try_cancel() {
            self.shared.notify_cancelled(self.id);
        }
    }
}

impl PendingCall {
    /// A call that was never sent.
    fn failed(reply: CallReply) -> Self {
        Self { replies: Replies::Failed(reply), counted: None, is_deferred: false, is_over: true }
    }

    /// Waits for the outcome, or for the next one. Cancellation-safe.
    pub(super) async fn next_reply(&mut self) -> CallReply {
        let outcome = match &mut self.replies {
            Replies::Failed(reply) => return reply.clone(),
            Replies::Deferrable(_, answered, deferred) if !self.is_deferred => tokio::select! {
                biased;
                () = deferred.cancelled() => Some(CallReply::Deferred),
                reply = answered => reply.ok(),
            },
            Replies::Once(_, answered) | Replies::Deferrable(_, answered, _) => answered.await.ok(),
            Replies::Many(_, answered) => answered.recv().await,
            Replies::Local(call, rules) => call.next_reply().await.map(|answer| {
                rules.observe(answer.rules);
                CallReply::from(answer)
            }),
        };
        let Some(outcome) = outcome else { return self.cancel("the call was dropped") };
        self.is_over = outcome.is_last();
        if !self.is_over && !self.is_deferred {
            self.is_deferred = true;
            self.counted.iter_mut().for_each(CountedCall::hold);
        }
        outcome
    }

    /// Asks the node for the next page of a subscription.
    pub(super) fn request_page(&self) {
        match &self.replies {
            Replies::Failed(_) | Replies::Once(..) | Replies::Deferrable(..) => {}
            Replies::Many(call, _) => call.shared.notify_credit(call.id),
            Replies::Local(call, ..) => call.request_page(),
        }
    }

    /// Notifies the node that the caller has cancelled; the outcome can still be awaited.
    pub(super) fn abandon(&self) {
        if self.is_over {
            return;
        }
        match &self.replies {
            Replies::Failed(_) => {}
            Replies::Once(call, _) | Replies::Deferrable(call, ..) | Replies::Many(call, _) => call.abandon(),
            Replies::Local(call, ..) => call.cancel(),
        }
    }

    /// Stops waiting, and returns whether the call was sent.
    pub(super) fn cancel(&self, reason: &str) -> CallReply {
        match &self.replies {
            Replies::Failed(reply) => reply.clone(),
            Replies::Once(call, _) | Replies::Deferrable(call, ..) | Replies::Many(call, _) => {
                let node = &call.shared.node_id;
                if call.send_state.try_cancel() {
                    CallReply::NotSent(format!("not sent to node {node}: {reason}"))
                } else {
                    CallReply::Unknown(format!("node {node} did not answer: {reason}"))
                }
            }
            Replies::Local(..) => CallReply::Unknown(format!("this node did not answer: {reason}")),
        }
    }
}

impl Drop for PendingCall {
    fn drop(&mut self) {
        match &self.replies {
            Replies::Once(call, _) => {
                call.send_state.try_cancel();
            }
            Replies::Deferrable(..) | Replies::Many(..) | Replies::Local(..) => self.abandon(),
            Replies::Failed(_) => {}
        }
    }
}
