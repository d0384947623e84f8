//! Replies that wait until their caller reads them: a lane for each account, and bytes for each of them, so that the
//! replies of one account delay those of no other.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use futures::task::AtomicWaker;
use holdfast_fair_queue::{Decision, FairQueue, QueueLimits};
use holdfast_proto::internal::Answer;
use holdfast_proto::internal::answer::Outcome;
use parking_lot::Mutex;

use crate::budget::ByteBudget;
use crate::lane_budget::{LaneBudget, LaneReservation, QueryPermit};

/// Bytes of replies that wait for one caller, without those that are guaranteed to each lane.
const MAX_QUEUED_BYTES: u32 = 64 << 20;
/// Minimum bytes that a reply counts for.
const MIN_REPLY_BYTES: usize = 256;
/// Bytes of one reply; a full frame with one more is below the frame limit.
const MAX_REPLY_BYTES: usize = 8 << 20;
/// The lanes are bounded by what is reserved for their replies.
const RESERVED: QueueLimits = QueueLimits { total: usize::MAX, lane: usize::MAX };
/// Budgets of accounts after which those that are not in use are dropped.
const MIN_SWEEP: usize = 1_024;

/// Returns the bytes of a reply's content.
fn reply_bytes(answer: &Answer) -> usize {
    match &answer.outcome {
        Some(Outcome::Reply(bytes)) => bytes.len(),
        Some(Outcome::Update(update)) => update.items.len(),
        Some(Outcome::NotProposed(reason) | Outcome::Unknown(reason)) => reason.len(),
        _ => 0,
    }
}

/// Replaces a reply that exceeds the limit with an error. It must not end the connection, which carries the calls of
/// every tenant.
fn limit_reply(answer: Answer) -> Answer {
    let bytes = reply_bytes(&answer);
    if bytes <= MAX_REPLY_BYTES {
        return answer;
    }
    let reason = format!("the reply has {bytes} bytes and may have {MAX_REPLY_BYTES}; ask for less");
    Answer { outcome: Some(Outcome::Unknown(reason)), ..answer }
}

/// A reply, and its share of the memory for replies that wait to be read.
struct QueuedReply {
    answer: Answer,
    bytes: usize,
    _reserved: LaneReservation,
}

/// The lanes of the replies to one caller.
enum Lanes {
    OfAccounts(Box<FairQueue<u64, QueuedReply>>),
    /// Tens of thousands of them are idle at a time, so that they keep no memory then.
    OfOneCall(VecDeque<QueuedReply>),
}

impl Lanes {
    fn is_empty(&self) -> bool {
        match self {
            Self::OfAccounts(lanes) => lanes.is_empty(),
            Self::OfOneCall(lane) => lane.is_empty(),
        }
    }

    fn push(&mut self, account: u64, is_urgent: bool, reply: QueuedReply) -> bool {
        let bytes = reply.bytes;
        match self {
            Self::OfAccounts(lanes) if is_urgent => lanes.push_urgent(account, bytes, reply).is_ok(),
            Self::OfAccounts(lanes) => lanes.push(account, bytes, reply).is_ok(),
            Self::OfOneCall(lane) => {
                lane.push_back(reply);
                true
            }
        }
    }

    /// Takes replies, as [`QueuedReplies::take`].
    fn take(&mut self, at_most: usize, full: usize) -> Vec<QueuedReply> {
        let (mut count, mut bytes) = (0, 0);
        let mut takes = |next: &QueuedReply| {
            let takes = count < at_most && bytes < full;
            (count, bytes) = (count + 1, bytes + next.bytes);
            takes
        };
        match self {
            Self::OfAccounts(lanes) => lanes.serve(|_, next| match takes(next) {
                true => Decision::Serve(next.bytes as u64),
                false => Decision::Stop,
            }),
            Self::OfOneCall(lane) => {
                let taken = lane.iter().take_while(|next| takes(next)).count();
                let taken = lane.drain(..taken).collect();
                if lane.is_empty() {
                    *lane = VecDeque::new();
                }
                taken
            }
        }
    }
}

/// The replies to one caller.
struct Replies {
    lanes: Mutex<Lanes>,
    /// Set before the lanes are emptied for good.
    is_closed: AtomicBool,
    /// Of the caller's connection.
    filled: AtomicWaker,
    all: ByteBudget,
    budgets: Mutex<Budgets>,
}

/// What the lanes may take, by account and whether the calls are urgent.
struct Budgets {
    of_lanes: HashMap<(u64, bool), Arc<LaneBudget>>,
    sweep_at: usize,
}

impl Replies {
    fn new(lanes: Lanes) -> Self {
        Self {
            lanes: Mutex::new(lanes),
            is_closed: AtomicBool::new(false),
            filled: AtomicWaker::new(),
            all: ByteBudget::new(MAX_QUEUED_BYTES),
            budgets: Mutex::new(Budgets { of_lanes: HashMap::new(), sweep_at: MIN_SWEEP }),
        }
    }

    /// Returns what the replies of an account may take.
    fn budget(&self, account: u64, is_urgent: bool) -> Arc<LaneBudget> {
        let Budgets { of_lanes, sweep_at } = &mut *self.budgets.lock();
        if of_lanes.len() >= *sweep_at {
            of_lanes.retain(|_, budget| Arc::strong_count(budget) > 1 || budget.is_reserved());
            // As many again may be added before the next sweep.
            *sweep_at = MIN_SWEEP.max(2 * of_lanes.len());
        }
        let new = || Arc::new(LaneBudget::new(self.all.clone()));
        Arc::clone(of_lanes.entry((account, is_urgent)).or_insert_with(new))
    }
}

/// Queues the replies of one account to one caller. Clones share the lane.
#[derive(Clone)]
pub struct ReplyQueue {
    replies: Arc<Replies>,
    account: u64,
    is_urgent: bool,
    budget: Arc<LaneBudget>,
}

impl ReplyQueue {
    /// Creates the queue of a caller, with the lane of what is of no account.
    pub fn new() -> (Self, QueuedReplies) {
        let replies = Arc::new(Replies::new(Lanes::OfAccounts(Box::new(FairQueue::new(RESERVED)))));
        let budget = replies.budget(0, false);
        Self::with_budget(replies, budget)
    }

    /// Creates the queue of one call, which has one lane.
    pub fn of_one_call() -> (Self, QueuedReplies) {
        let replies = Arc::new(Replies::new(Lanes::OfOneCall(VecDeque::new())));
        let budget = Arc::new(LaneBudget::new(replies.all.clone()));
        Self::with_budget(replies, budget)
    }

    fn with_budget(replies: Arc<Replies>, budget: Arc<LaneBudget>) -> (Self, QueuedReplies) {
        (Self { replies: Arc::clone(&replies), account: 0, is_urgent: false, budget }, QueuedReplies(replies))
    }

    /// Returns the lane of an account for the same caller. Its urgent replies go before its others.
    #[must_use]
    pub fn of_account(&self, account: u64, is_urgent: bool) -> Self {
        let budget = self.replies.budget(account, is_urgent);
        Self { replies: Arc::clone(&self.replies), account, is_urgent, budget }
    }

    /// Waits until the lane has room for a reply, so that few are made that would only wait. Returns `None` if nobody
    /// reads any more.
    pub(crate) async fn wait_for_capacity(&self) -> Option<QueryPermit> {
        let turn = self.budget.query_permit(MIN_REPLY_BYTES).await;
        turn.filter(|_| !self.is_closed())
    }

    /// Queues a reply once there is room, after earlier ones of the lane. Returns false if nobody reads any more.
    pub async fn send(&self, answer: Answer) -> bool {
        let answer = limit_reply(answer);
        let bytes = reply_bytes(&answer).max(MIN_REPLY_BYTES);
        let reserved = match self.budget.try_reserve(bytes) {
            Some(reserved) => reserved,
            // Boxed, because almost always there is room.
            None => match Box::pin(self.budget.reserve(bytes)).await {
                Some(reserved) => reserved,
                None => return false,
            },
        };
        let reply = QueuedReply { answer, bytes, _reserved: reserved };
        let mut lanes = self.replies.lanes.lock();
        // Under the lock, so that none is added after they are emptied.
        if self.is_closed() {
            return false;
        }
        let is_pushed = lanes.push(self.account, self.is_urgent, reply);
        drop(lanes);
        self.replies.filled.wake();
        is_pushed
    }

    /// Returns true if nobody reads any more.
    pub fn is_closed(&self) -> bool {
        self.replies.is_closed.load(Ordering::Acquire)
    }
}

/// The replies that wait for one caller. When it is dropped, nobody reads any more.
pub struct QueuedReplies(Arc<Replies>);

impl QueuedReplies {
    /// Takes the next reply, if there is one.
    pub fn try_next(&mut self) -> Option<Answer> {
        self.take(1, usize::MAX).pop()
    }

    /// As [`Self::next`].
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        match self.poll_filled(context) {
            Poll::Ready(()) => self.try_next().map_or(Poll::Pending, Poll::Ready),
            Poll::Pending => Poll::Pending,
        }
    }

    /// Waits for the next reply. Cancellation-safe.
    pub async fn next(&mut self) -> Answer {
        poll_fn(|context| self.poll_next(context)).await
    }

    /// Waits until there are replies.
    pub(crate) async fn wait_filled(&mut self) {
        poll_fn(|context| self.poll_filled(context)).await;
    }

    fn poll_filled(&mut self, context: &mut Context<'_>) -> Poll<()> {
        // Before the look, so that none is missed in between.
        self.0.filled.register(context.waker());
        if self.0.lanes.lock().is_empty() { Poll::Pending } else { Poll::Ready(()) }
    }

    /// Takes at most so many replies, of all accounts in equal shares of their bytes, until there are `full` bytes.
    pub(crate) fn take(&mut self, at_most: usize, full: usize) -> Vec<Answer> {
        let served = self.0.lanes.lock().take(at_most, full);
        // Their bytes are given back without the lock.
        served.into_iter().map(|reply| reply.answer).collect()
    }
}

impl Drop for QueuedReplies {
    fn drop(&mut self) {
        self.0.is_closed.store(true, Ordering::Release);
        let dropped = self.0.lanes.lock().take(usize::MAX, usize::MAX);
        // Makes room, so that whoever waits for some learns that nobody reads.
        drop(dropped);
    }
}

#[cfg(test)]
#[path = "reply_queue_tests.rs"]
mod tests;
