//! Serves the connection of a caller: many calls in flight, several in a frame.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use holdfast_fair_queue::KeyMap;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, AnswerFrame, Call, CallFrame};
use holdfast_supervise::{GroupRegistry, SharedGroup, YieldToReady, spawn_temporary, survive_panic};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::AbortOnDropHandle;

use crate::acceptor::Server;
use crate::call_count::{CallCount, CallLimit, CountedCall};
use crate::call_handler::{CallControl, CallHandler, ReplyHandle, may_be_deferred};
use crate::callers::CallerId;
use crate::connection::{Event, ServerConnection};
use crate::lane_budget::QueryPermit;
use crate::protocol::Calls;
use crate::reply_queue::{QueuedReplies, ReplyQueue};

/// Calls in flight on one connection that are not deferred. Further ones are rejected, and the node reads on. A quarter
/// of each limit is for urgent calls only.
const MAX_CALLS: CallCount = CallCount { calls: 131_072, bytes: 256 << 20 };
/// Those of one account, so that it leaves the connection to the others.
pub(crate) const MAX_CALLS_OF_ACCOUNT: CallCount = CallCount { calls: 4_096, bytes: 16 << 20 };
/// Deferred calls of one connection.
const MAX_DEFERRED_CALLS: usize = 300_000;
/// What the calls of a connection are refused at: those of an account, all, and deferred ones. The numbers are those of
/// urgent calls.
pub const CALL_LIMITS: [CallLimit; 3] = [OF_ACCOUNT, OF_CONNECTION, DEFERRED];
const OF_ACCOUNT: CallLimit = CallLimit {
    what: "the number of calls of an account of one gateway in progress at a node, and their size in units of 4 KiB,",
    max: MAX_CALLS_OF_ACCOUNT.calls,
};
const OF_CONNECTION: CallLimit = CallLimit {
    what: "the number of calls of one gateway in progress at a node, and their size in units of 2 KiB,",
    max: MAX_CALLS.calls,
};
const DEFERRED: CallLimit =
    CallLimit { what: "the number of calls of one gateway that wait at a node", max: MAX_DEFERRED_CALLS };
/// Calls that are refused and whose refusal has no room yet, after which the node reads no further ones.
const MAX_REFUSED: usize = 4_096;
/// Deferred calls that are cancelled before the connection does anything else: thousands of callers may leave together.
const MAX_CANCELLED_AT_ONCE: usize = 64;
/// Bytes from which on a command takes as long as dozens of others to read.
const LARGE_COMMAND_BYTES: usize = 16 << 10;
/// Accounts after which those that have no calls are forgotten.
const MIN_SWEEP: usize = 1_024;
/// Replies in one frame.
const MAX_FRAME_ANSWERS: usize = 256;
/// Bytes of replies after which a frame is full.
const FULL_FRAME_BYTES: usize = 1 << 20;

/// Passes the calls of all connections to one handler.
pub struct Responder {
    handler: Arc<dyn CallHandler>,
    groups: Arc<GroupRegistry>,
}

impl Responder {
    /// Creates a server for the handler.
    pub fn new(handler: Arc<dyn CallHandler>) -> Self {
        Self { handler, groups: Arc::default() }
    }
}

impl Server<Calls> for Responder {
    async fn admit(&self, _: &CallerId, (): &()) -> Result<(), String> {
        Ok(())
    }

    async fn serve(&self, mut connection: ServerConnection<Calls>, (): ()) {
        let (mut calls, mut replies) = CallsInFlight::new(Arc::clone(&self.handler), Arc::clone(&self.groups));
        loop {
            // A caller that does not read its replies can't call either.
            let (is_flushed, may_read) = (connection.is_flushed(), calls.may_read());
            let has_cancelled = calls.cancel_some();
            let done = tokio::select! {
                biased;
                Some(counted) = calls.running.next() => {
                    calls.uncount(counted);
                    calls.uncount_done();
                    Ok(())
                }
                () = replies.wait_filled(), if is_flushed => {
                    // Ready tasks may be about to reply as well, and a frame costs much the same with one reply as with
                    // many.
                    let mut ready = YieldToReady::default();
                    while ready.again().await {
                        calls.uncount_done();
                    }
                    // However many replies wait, each frame lets one frame of calls in.
                    let received = connection.next(may_read).now_or_never().transpose();
                    received.and_then(|event| {
                        calls.on_event(event);
                        calls.uncount_done();
                        let answers = replies.take(MAX_FRAME_ANSWERS, FULL_FRAME_BYTES);
                        connection.send(AnswerFrame { answers })
                    })
                }
                event = connection.next(is_flushed && may_read) => event.map(|event| calls.on_event(Some(event))),
                () = yield_now(), if has_cancelled => Ok(()),
            };
            if let Err(error) = done {
                tracing::debug!(%error, "caller connection ended");
                return;
            }
        }
    }
}

/// The calls of one account, and the lanes of its replies, by whether these are urgent.
#[derive(Default)]
struct AccountCalls {
    count: CallCount,
    lanes: [Option<ReplyQueue>; 2],
    /// The groups of the tasks of its calls, of all connections, by whether these are urgent.
    groups: [Option<SharedGroup>; 2],
}

impl AccountCalls {
    fn lane(&mut self, replies: &ReplyQueue, account: u64, is_urgent: bool) -> ReplyQueue {
        let lane = &mut self.lanes[usize::from(is_urgent)];
        lane.get_or_insert_with(|| replies.of_account(account, is_urgent)).clone()
    }
}

/// The calls of one connection. Those that are not deferred run in the task of the connection, except for queries, which
/// may take long to compute, and for large commands.
struct CallsInFlight {
    handler: Arc<dyn CallHandler>,
    groups: Arc<GroupRegistry>,
    /// Each ends when its reply is queued, with what the call counted for; `None` for a call that was rejected.
    running: FuturesUnordered<BoxFuture<'static, Option<CountedCall>>>,
    /// Those of them that were rejected.
    refused: usize,
    total: CallCount,
    accounts: KeyMap<u64, AccountCalls>,
    /// With so many accounts, those that have no calls are forgotten.
    sweep_at: usize,
    /// Those that have not ended, also after they are cancelled.
    deferred: Arc<Mutex<HashMap<u64, CallControl>>>,
    /// Deferred calls that are still to be cancelled.
    cancelled: VecDeque<u64>,
    /// The lane of what is of no account.
    replies: ReplyQueue,
    disconnected: CancellationToken,
    _ends: DropGuard,
}

impl CallsInFlight {
    fn new(handler: Arc<dyn CallHandler>, groups: Arc<GroupRegistry>) -> (Self, QueuedReplies) {
        let (replies, queued) = ReplyQueue::new();
        let disconnected = CancellationToken::new();
        let _ends = disconnected.clone().drop_guard();
        let (running, deferred) = (FuturesUnordered::new(), Arc::default());
        let (total, accounts, refused, sweep_at) = (CallCount::default(), KeyMap::default(), 0, MIN_SWEEP);
        let cancelled = VecDeque::new();
        let calls = Self {
            handler,
            groups,
            running,
            refused,
            total,
            accounts,
            sweep_at,
            deferred,
            cancelled,
            replies,
            disconnected,
            _ends,
        };
        (calls, queued)
    }

    /// Forgets the accounts that have no calls, each time there are twice as many as were left the time before.
    fn remove_idle_accounts(&mut self) {
        if self.accounts.len() >= self.sweep_at {
            self.accounts.retain(|_, of_account| of_account.count.calls > 0);
            self.sweep_at = MIN_SWEEP.max(2 * self.accounts.len());
        }
    }

    /// Returns the lane of the replies to a call.
    fn lane(&mut self, call: &Call) -> ReplyQueue {
        self.remove_idle_accounts();
        self.accounts.entry(call.account).or_default().lane(&self.replies, call.account, call.is_urgent)
    }

    /// Returns the scheduling group of an account's calls, urgent or not: thousands can become ready at once.
    fn group(&mut self, account: u64, is_urgent: bool) -> SharedGroup {
        let group = &mut self.accounts.entry(account).or_default().groups[usize::from(is_urgent)];
        group.get_or_insert_with(|| self.groups.group(account, is_urgent).into()).clone()
    }

    /// Counts a call and returns the lane of its reply; returns why it is rejected if there are too many.
    fn count(&mut self, call: CountedCall) -> Result<ReplyQueue, CallLimit> {
        self.remove_idle_accounts();
        let of_account = self.accounts.entry(call.account).or_default();
        let max = |limit: CallCount| if call.is_urgent { limit } else { limit.without_reserve() };
        let (max_of_account, max_total) = (max(MAX_CALLS_OF_ACCOUNT), max(MAX_CALLS));
        if call.account != 0 && !of_account.count.fits(call.bytes, max_of_account) {
            return Err(CallLimit { max: max_of_account.calls, ..OF_ACCOUNT });
        }
        if !self.total.fits(call.bytes, max_total) {
            return Err(CallLimit { max: max_total.calls, ..OF_CONNECTION });
        }
        self.total.add(call.bytes);
        of_account.count.add(call.bytes);
        Ok(of_account.lane(&self.replies, call.account, call.is_urgent))
    }

    /// Ends a call whose reply is queued, or one that was rejected.
    fn uncount(&mut self, counted: Option<CountedCall>) {
        let Some(call) = counted else {
            self.refused -= 1;
            return;
        };
        self.total.remove(call.bytes);
        if let Some(of_account) = self.accounts.get_mut(&call.account) {
            of_account.count.remove(call.bytes);
        }
    }

    /// Ends the calls whose replies are ready, once these are queued.
    fn uncount_done(&mut self) {
        while let Some(counted) = self.running.next().now_or_never().flatten() {
            self.uncount(counted);
        }
    }

    /// Returns false while so many refusals wait for room, or cancels for their turn, that no call may be added.
    fn may_read(&self) -> bool {
        self.refused < MAX_REFUSED && self.cancelled.len() <= MAX_DEFERRED_CALLS
    }

    fn on_event(&mut self, event: Option<Event<CallFrame>>) {
        if let Some(Event::Received(frame)) = event {
            self.start(frame);
        }
    }

    fn start(&mut self, frame: CallFrame) {
        for call in frame.calls {
            if may_be_deferred(&call) {
                self.start_deferrable(call);
            } else {
                self.start_call(call);
            }
        }
        self.cancelled.extend(frame.cancelled);
        self.cancel_some();
        for call in frame.credits {
            if let Some(control) = self.deferred.lock().get(&call) {
                // A second credit before the first one is used has no effect.
                control.credit.notify_one();
            }
        }
    }

    /// Cancels the next deferred calls that are to be. Returns whether there are more.
    fn cancel_some(&mut self) -> bool {
        let count = self.cancelled.len().min(MAX_CANCELLED_AT_ONCE);
        for call in self.cancelled.drain(..count) {
            // Its task removes it, once its last reply is queued.
            let control = self.deferred.lock().get(&call).cloned();
            if let Some(control) = control {
                control.cancelled.cancel();
            }
        }
        !self.cancelled.is_empty()
    }

    fn start_call(&mut self, call: Call) {
        let (id, is_urgent) = (call.id, call.is_urgent);
        let counted = CountedCall { account: call.account, bytes: call_bytes(&call), is_urgent };
        let replies = match self.count(counted) {
            Ok(replies) => replies,
            Err(limit) => return self.refuse(&call, limit),
        };
        let is_query = matches!(call.body, Some(Body::Query(_)));
        let is_apart = is_query || counted.bytes >= LARGE_COMMAND_BYTES;
        let group = is_apart.then(|| self.group(call.account, is_urgent));
        let calling = self.handler.call(call);
        self.running.push(match group {
            Some(group) => {
                let lane = is_query.then(|| replies.clone());
                let calling = spawn_temporary("call", group.run(answer_apart(lane, calling)));
                // As in the task of the connection, it ends with the connection.
                let calling = AbortOnDropHandle::new(calling);
                async move {
                    let (answer, _turn) = match calling.await {
                        Ok(Some((answer, turn))) => (answer, turn),
                        // Nobody reads any more.
                        Ok(None) => return Some(counted),
                        Err(_) => (failed(id), None),
                    };
                    replies.send(answer).await;
                    Some(counted)
                }
                .boxed()
            }
            None => async move {
                replies.send(survive_panic("call", calling).await.unwrap_or_else(|| failed(id))).await;
                Some(counted)
            }
            .boxed(),
        });
    }

    fn refuse(&mut self, call: &Call, limit: CallLimit) {
        let answer = failure(call.id, Outcome::NotProposed(limit.to_string()));
        let replies = self.lane(call);
        self.refused += 1;
        self.running.push(
            async move {
                replies.send(answer).await;
                None
            }
            .boxed(),
        );
    }

    fn start_deferrable(&mut self, call: Call) {
        let id = call.id;
        if self.deferred.lock().len() >= MAX_DEFERRED_CALLS {
            return self.refuse(&call, DEFERRED);
        }
        let control = CallControl::default();
        self.deferred.lock().insert(id, control.clone());
        let (replies, group) = (self.lane(&call), self.group(call.account, call.is_urgent));
        let caller =
            ReplyHandle { call: id, replies: replies.clone(), control, disconnected: self.disconnected.clone() };
        let (calling, deferred) = (self.handler.call_deferrable(call, caller), Arc::clone(&self.deferred));
        let calling = async move {
            let answer = survive_panic("call", calling).await.unwrap_or_else(|| Some(failed(id)));
            if let Some(answer) = answer {
                replies.send(answer).await;
            }
            deferred.lock().remove(&id);
        };
        spawn_temporary("call", group.run(calling));
    }
}

/// Computes the reply to a call; that to a query once its lane has room. Returns it with the turn that ends when it is
/// queued, or `None` if nobody reads any more.
async fn answer_apart(
    lane_of_query: Option<ReplyQueue>,
    mut calling: BoxFuture<'static, Answer>,
) -> Option<(Answer, Option<QueryPermit>)> {
    let Some(lane) = lane_of_query else { return Some((calling.await, None)) };
    let turn = lane.wait_for_capacity().await?;
    if let Some(answer) = (&mut calling).now_or_never() {
        return Some((answer, Some(turn)));
    }
    // It waits for something, of a shard that may be stuck: it must not hold up the queries of others.
    drop(turn);
    Some((calling.await, None))
}

fn call_bytes(call: &Call) -> usize {
    match &call.body {
        Some(Body::Command(bytes) | Body::Query(bytes) | Body::Subscribe(bytes)) => bytes.len(),
        None => 0,
    }
}

fn failed(id: u64) -> Answer {
    failure(id, Outcome::Unknown("the node failed to handle the call".to_owned()))
}

fn failure(id: u64, outcome: Outcome) -> Answer {
    Answer { id, outcome: Some(outcome), ..Answer::default() }
}

#[cfg(test)]
mod tests {
    use futures::future::{pending, ready};
    use holdfast_proto::internal::StatusAnswer;

    use super::*;

    /// Answers calls with so many bytes, or never.
    struct Fixed(Option<usize>);

    impl CallHandler for Fixed {
        fn call(&self, call: Call) -> BoxFuture<'static, Answer> {
            match self.0 {
                Some(bytes) => ready(failure(call.id, Outcome::Reply(vec![7; bytes].into()))).boxed(),
                None => pending().boxed(),
            }
        }

        fn call_deferrable(&self, _: Call, _: ReplyHandle) -> BoxFuture<'static, Option<Answer>> {
            pending().boxed()
        }

        fn status(&self) -> StatusAnswer {
            StatusAnswer::default()
        }

        fn not_ready(&self) -> Option<String> {
            None
        }
    }

    fn connection() -> CallsInFlight {
        CallsInFlight::new(Arc::new(Fixed(None)), Arc::default()).0
    }

    #[test]
    fn a_reply_without_room_waits_and_its_call_counts_until_then() {
        let (mut calls, mut replies) = CallsInFlight::new(Arc::new(Fixed(Some(64 << 10))), Arc::default());
        let call = |id, account| Call { id, account, ..Call::default() };
        let of_both = (0..70).map(|id| call(id, 1)).chain([call(100, 2)]).collect();
        calls.start(CallFrame { calls: of_both, ..CallFrame::default() });
        calls.uncount_done();
        let waiting = |calls: &CallsInFlight, account: u64| calls.accounts[&account].count.calls;
        assert_eq!([1, 2].map(|account| waiting(&calls, account)), [6, 0], "64 replies of 64 KiB have room");
        let frame = replies.take(MAX_FRAME_ANSWERS, FULL_FRAME_BYTES);
        assert!(frame.len() == 16 && frame.iter().any(|answer| answer.id == 100));
        calls.uncount_done();
        assert_eq!((waiting(&calls, 1), calls.total.calls), (0, 0));
    }

    #[test]
    fn accounts_without_calls_are_forgotten() {
        let (mut calls, mut replies) = CallsInFlight::new(Arc::new(Fixed(Some(1))), Arc::default());
        for id in 1..=5_000 {
            calls.start(CallFrame { calls: vec![Call { id, account: id, ..Call::default() }], ..CallFrame::default() });
            calls.uncount_done();
            assert_eq!(replies.take(MAX_FRAME_ANSWERS, FULL_FRAME_BYTES).len(), 1);
        }
        assert!(calls.accounts.len() <= MIN_SWEEP);
    }

    #[test]
    fn no_call_is_read_while_so_many_refusals_have_no_room() {
        let (mut calls, mut replies) = CallsInFlight::new(Arc::new(Fixed(Some(8 << 20))), Arc::default());
        let call = Call { id: 1, account: 1, ..Call::default() };
        calls.start(CallFrame { calls: vec![call.clone()], ..CallFrame::default() });
        calls.uncount_done();
        (0..MAX_REFUSED).for_each(|_| {
            assert!(calls.may_read());
            calls.refuse(&call, OF_ACCOUNT);
        });
        calls.uncount_done();
        assert!(!calls.may_read(), "the lane is full");
        assert_eq!(replies.take(1, FULL_FRAME_BYTES).len(), 1);
        calls.uncount_done();
        assert!(calls.may_read() && calls.refused == 0);
    }

    #[test]
    fn a_connection_has_so_many_calls_of_all_accounts_and_another_has_its_own() {
        let (mut full, mut other) = (connection(), connection());
        let call = |account, is_urgent| CountedCall { account, bytes: 4 << 20, is_urgent };
        let mut fill = |is_urgent| {
            let mut account = 0;
            loop {
                account += 1;
                if let Err(limit) = full.count(call(account, is_urgent)) {
                    return (account - 1, limit);
                }
            }
        };
        assert_eq!(fill(false), (48, CallLimit { max: 98_304, ..OF_CONNECTION }), "192 MiB");
        assert_eq!(fill(true), (16, OF_CONNECTION), "as much as urgent calls have for themselves");
        assert_eq!(other.count(call(1, false)).map(drop), Ok(()));
    }

    #[tokio::test]
    async fn a_connection_has_so_many_calls_that_wait_and_another_has_its_own() {
        let ((mut full, mut replies), mut other) =
            (CallsInFlight::new(Arc::new(Fixed(None)), Arc::default()), connection());
        full.deferred.lock().extend((0..MAX_DEFERRED_CALLS as u64).map(|call| (call, CallControl::default())));
        let wait = Call { id: u64::MAX, max_wait_ms: 1, ..Call::default() };
        full.start_deferrable(wait.clone());
        other.start_deferrable(wait);
        assert!(full.running.next().await.expect("it is refused").is_none());
        let refused = replies.try_next().and_then(|refused| refused.outcome);
        assert_eq!(refused, Some(Outcome::NotProposed(DEFERRED.to_string())));
        assert!(other.running.is_empty());
        other.start(CallFrame { cancelled: vec![u64::MAX], ..CallFrame::default() });
        let cancelled = other.deferred.lock().values().filter(|call| call.cancelled.is_cancelled()).count();
        assert_eq!(cancelled, 1, "it counts until it has ended");
    }
}
