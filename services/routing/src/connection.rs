//! The calls to one node that are queued or in flight, and the connection that carries them.

use std::future::ready;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures::FutureExt;
use holdfast_fair_queue::{Decision, FairQueue, Full, QueueLimits};
use holdfast_proto::internal::{Answer, AnswerFrame, Call, CallFrame, call};
use holdfast_rpc::{Calls, ClientConnection, ConnectError, Event, InFlight, Link, Waiter};
use holdfast_supervise::YieldToReady;
use holdfast_types::limit::{self, Reached};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::channel::{CallReply, ObservedRules, ReplySink, SendState};

/// Bytes of the bodies of queued calls: of all, and of one account. Its urgent ones go first and have as much again.
const QUEUE_LIMITS: QueueLimits = QueueLimits { total: 64 << 20, lane: 16 << 20 };
/// The units in which limits of calls count their bytes.
const UNIT_OF_ACCOUNT: usize = 4 << 10;
const UNIT_OF_NODE: usize = 2 << 10;
/// Minimum bytes that a call counts for in the queue.
const MIN_CALL_BYTES: usize = 256;
/// Bytes of one body; a full frame with one more is below the frame limit.
const MAX_CALL_BYTES: usize = 8 << 20;
/// Calls in one frame.
const MAX_FRAME_CALLS: usize = 256;
/// Bytes of bodies after which a frame is full.
const FULL_FRAME_BYTES: usize = 1 << 20;

/// Returns the refusal of a call that finds the queue full, by its bytes in the units of the limits.
fn refusal(full: Full) -> CallReply {
    let (limit, max) = match full {
        Full::Lane => (&limit::CALLS_OF_ACCOUNT, QUEUE_LIMITS.lane / UNIT_OF_ACCOUNT),
        Full::Queue => (&limit::CALLS_TO_NODE, QUEUE_LIMITS.total / UNIT_OF_NODE),
    };
    CallReply::Limited(Reached { limit, max: max as u64 })
}

/// A call that waits to be sent.
pub(super) struct QueuedCall {
    /// Its id and deadline are set when it is queued and sent.
    pub(super) call: Call,
    pub(super) deadline: Instant,
    pub(super) send_state: Arc<SendState>,
    pub(super) sink: ReplySink,
    pub(super) rules: ObservedRules,
}

/// The waiter for the replies of a call that was sent.
struct SentCall {
    sink: ReplySink,
    rules: ObservedRules,
}

impl Waiter for SentCall {
    fn is_closed(&self) -> bool {
        self.sink.is_closed()
    }
}

struct SendQueue {
    /// A lane for each account, and one for all calls that are of none.
    calls: FairQueue<u64, QueuedCall>,
    /// Calls of which the node must learn that they were cancelled.
    cancelled: Vec<u64>,
    /// Subscriptions of which the node must send the next page.
    credits: Vec<u64>,
    /// Why the node can't be reached; `None` while connected, and at first.
    down: Option<String>,
}

impl SendQueue {
    fn new(down: Option<String>) -> Self {
        Self { calls: FairQueue::new(QUEUE_LIMITS), cancelled: Vec::new(), credits: Vec::new(), down }
    }
}

/// Returns the gauge of whether a router is connected to a node.
pub(super) fn connected_gauge(node_id: String, router: &'static str) -> metrics::Gauge {
    metrics::gauge!("holdfast_routing_node_connected", "node" => node_id, "router" => router)
}

/// State shared by the callers and the connection.
pub(super) struct ChannelState {
    pub(super) node_id: String,
    /// The name of the router in metrics.
    router: &'static str,
    queue: Mutex<SendQueue>,
    filled: Notify,
    in_flight: InFlight<SentCall>,
    next_id: AtomicU64,
}

impl ChannelState {
    pub(super) fn new(node_id: &str, router: &'static str) -> Self {
        Self {
            node_id: node_id.to_owned(),
            router,
            queue: Mutex::new(SendQueue::new(None)),
            filled: Notify::new(),
            in_flight: InFlight::default(),
            next_id: AtomicU64::new(1),
        }
    }

    /// Queues a call and returns its id, or the outcome if it is not sent.
    pub(super) fn enqueue(&self, mut queued: QueuedCall) -> Result<u64, CallReply> {
        let (node, bytes) = (&self.node_id, body_len(&queued.call));
        if bytes > MAX_CALL_BYTES {
            let reason = format!("the call has {bytes} bytes and may have {MAX_CALL_BYTES}");
            return Err(CallReply::NotSent(reason));
        }
        let mut queue = self.queue.lock();
        if let Some(reason) = &queue.down {
            return Err(CallReply::NotSent(format!("node {node} cannot be reached: {reason}")));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        queued.call.id = id;
        let (account, size) = (queued.call.account, bytes.max(MIN_CALL_BYTES));
        let pushed = match queued.call.is_urgent {
            true => queue.calls.push_urgent(account, size, queued),
            false => queue.calls.push(account, size, queued),
        };
        drop(queue);
        // What made room is not sent either.
        for evicted in pushed.map_err(refusal)? {
            evicted.sink.finish(refusal(Full::Queue));
        }
        self.filled.notify_one();
        Ok(id)
    }

    /// Notifies the node that the call was cancelled.
    pub(super) fn notify_cancelled(&self, id: u64) {
        let mut queue = self.queue.lock();
        if queue.down.is_none() {
            queue.cancelled.push(id);
            self.filled.notify_one();
        }
    }

    /// Asks the node for the next page of a subscription.
    pub(super) fn notify_credit(&self, id: u64) {
        let mut queue = self.queue.lock();
        if queue.down.is_none() {
            queue.credits.push(id);
            self.filled.notify_one();
        }
    }

    /// Fails queued calls, further ones, and those in flight: no reply can arrive.
    pub(super) fn fail_all(&self, reason: &str) {
        connected_gauge(self.node_id.clone(), self.router).set(0.0);
        let mut before = std::mem::replace(&mut *self.queue.lock(), SendQueue::new(Some(reason.to_owned())));
        for queued in before.calls.serve(|_, _| Decision::Serve(0)) {
            queued.sink.finish(CallReply::NotSent(format!("node {} cannot be reached: {reason}", self.node_id)));
        }
        for sent in self.in_flight.take_all() {
            let reason = format!("the connection to node {} ended: {reason}", self.node_id);
            sent.sink.finish(CallReply::Unknown(reason));
        }
    }

    async fn wait_filled(&self) {
        let is_empty = || {
            let queue = self.queue.lock();
            queue.calls.is_empty() && queue.cancelled.is_empty() && queue.credits.is_empty()
        };
        while is_empty() {
            self.filled.notified().await;
        }
    }

    /// Takes the next frame: calls of all accounts, in equal shares of its bytes.
    fn take_frame(&self) -> CallFrame {
        let mut queue = self.queue.lock();
        let (cancelled, credits) = (std::mem::take(&mut queue.cancelled), std::mem::take(&mut queue.credits));
        let (mut count, mut bytes) = (0, 0);
        let served = queue.calls.serve(|_, next| {
            if next.send_state.is_cancelled() {
                return Decision::Drop;
            }
            if count >= MAX_FRAME_CALLS || bytes >= FULL_FRAME_BYTES {
                return Decision::Stop;
            }
            let call_bytes = body_len(&next.call);
            count += 1;
            bytes += call_bytes;
            Decision::Serve(call_bytes.max(MIN_CALL_BYTES) as u64)
        });
        // Under the lock: a call is either in the queue or in flight when the connection ends.
        let calls = served.into_iter().filter_map(|queued| self.move_to_in_flight(queued)).collect();
        CallFrame { calls, cancelled, credits }
    }

    /// Moves a queued call to in flight; returns `None` if its caller cancelled or its deadline passed.
    fn move_to_in_flight(&self, queued: QueuedCall) -> Option<Call> {
        let QueuedCall { mut call, deadline, send_state, sink, rules } = queued;
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        call.deadline_ms = u32::try_from(left).unwrap_or(u32::MAX);
        if call.deadline_ms == 0 {
            sink.finish(CallReply::NotSent("its deadline ended before it could be sent".to_owned()));
            return None;
        }
        if !send_state.try_mark_sent() {
            return None;
        }
        self.in_flight.insert(call.id, SentCall { sink, rules });
        Some(call)
    }

    /// Sends the next frame once ready tasks have run: they may be about to call as well, and a frame costs much the same
    /// with one call as with many. Meanwhile it goes on reading.
    async fn send_frame(&self, connection: &mut ClientConnection<Calls>) -> io::Result<()> {
        let mut ready = YieldToReady::default();
        while ready.again().await {
            if let Some(event) = connection.next(true).now_or_never() {
                self.on_event(event?);
            }
            if self.queue.lock().calls.len() >= MAX_FRAME_CALLS {
                break;
            }
        }
        connection.send(self.take_frame())
    }

    fn on_event(&self, event: Event<AnswerFrame>) {
        match event {
            Event::Received(frame) => frame.answers.into_iter().for_each(|answer| self.dispatch(answer)),
            Event::Flushed => {}
        }
    }

    /// Dispatches a reply. If its call is not found, no caller waits for it.
    fn dispatch(&self, answer: Answer) {
        let (id, rules) = (answer.id, answer.rules);
        let reply = CallReply::from(answer);
        if reply.is_last() {
            if let Some(sent) = self.in_flight.remove(id) {
                sent.rules.observe(rules);
                sent.sink.finish(reply);
            }
            return;
        }
        self.in_flight.deliver(id, |sent| {
            sent.rules.observe(rules);
            // A receiver that does not read its updates is dropped rather than awaited; it sees that its call has ended.
            sent.sink.send(reply)
        });
    }

    fn count_event(&self, event: &'static str) {
        let node = self.node_id.clone();
        metrics::counter!("holdfast_routing_node_connections_total", "node" => node, "event" => event).increment(1);
    }
}

impl Link<Calls> for ChannelState {
    fn handshake(&self) -> Result<(), String> {
        Ok(())
    }

    fn admit(&self, (): &()) -> impl Future<Output = Result<(), String>> + Send {
        ready(Ok(()))
    }

    async fn serve(&self, mut connection: ClientConnection<Calls>, (): ()) -> String {
        self.count_event("opened");
        self.queue.lock().down = None;
        connected_gauge(self.node_id.clone(), self.router).set(1.0);
        loop {
            let done = tokio::select! {
                biased;
                () = self.wait_filled(), if connection.is_flushed() => self.send_frame(&mut connection).await,
                event = connection.next(true) => event.map(|event| self.on_event(event)),
            };
            if let Err(error) = done {
                return error.to_string();
            }
        }
    }

    fn disconnected(&self, error: &ConnectError, was_connected: bool) {
        self.count_event(match was_connected {
            true => "ended",
            false if error.is_timeout() => "timed_out",
            false => "refused",
        });
        self.fail_all(&error.to_string());
    }
}

fn body_len(call: &Call) -> usize {
    match &call.body {
        Some(call::Body::Command(bytes) | call::Body::Query(bytes) | call::Body::Subscribe(bytes)) => bytes.len(),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;

    /// A call whose caller waits for as long as the receiver lives.
    fn queued(account: u64, bytes: usize) -> (QueuedCall, Arc<SendState>, oneshot::Receiver<CallReply>) {
        let body = Some(call::Body::Command(Bytes::from(vec![1; bytes])));
        let call = Call { account, body, ..Call::default() };
        let ((sink, reply), send_state) = (oneshot::channel(), Arc::<SendState>::default());
        let deadline = Instant::now() + Duration::from_secs(60);
        let (sink, rules) = (ReplySink::Once(sink), ObservedRules::default());
        (QueuedCall { call, deadline, send_state: Arc::clone(&send_state), sink, rules }, send_state, reply)
    }

    fn accounts(frame: &CallFrame) -> Vec<u64> {
        frame.calls.iter().map(|call| call.account).collect()
    }

    #[test]
    fn frames_are_shared_by_bytes_however_much_of_an_account_waits() {
        let state = ChannelState::new("nd_1", "test");
        let mut waiting = Vec::new();
        for _ in 0..1_000 {
            let (call, _, reply) = queued(1, 8 << 10);
            state.enqueue(call).unwrap();
            waiting.push(reply);
        }
        for _ in 0..64 {
            let (call, _, reply) = queued(2, 1 << 10);
            state.enqueue(call).unwrap();
            waiting.push(reply);
        }
        let first = accounts(&state.take_frame());
        assert_eq!(first.iter().filter(|account| **account == 2).count(), 64, "64 KiB are less than half of a frame");
        let rest =
            std::iter::from_fn(|| Some(state.take_frame().calls.len()).filter(|calls| *calls > 0)).sum::<usize>();
        assert_eq!(first.len() + rest, 1_064);
    }

    #[test]
    fn cancelled_calls_are_not_sent_and_what_makes_room_is_told() {
        let state = ChannelState::new("nd_1", "test");
        let (call, send_state, _reply) = queued(1, 1);
        state.enqueue(call).unwrap();
        assert!(send_state.try_cancel());
        assert!(accounts(&state.take_frame()).is_empty());
        let mut waiting = Vec::new();
        for account in 1..=4 {
            for _ in 0..4 {
                let (call, _, reply) = queued(account, 4 << 20);
                state.enqueue(call).unwrap();
                waiting.push(reply);
            }
        }
        let (call, _, _reply) = queued(4, 1);
        let of_account = CallReply::Limited(Reached { limit: &limit::CALLS_OF_ACCOUNT, max: 4_096 });
        assert_eq!(state.enqueue(call), Err(of_account), "16 MiB of an account");
        let (call, _, _reply) = queued(5, 1);
        state.enqueue(call).unwrap();
        let evicted = waiting.iter_mut().filter_map(|reply| reply.try_recv().ok()).collect::<Vec<_>>();
        let of_all = CallReply::Limited(Reached { limit: &limit::CALLS_TO_NODE, max: 32_768 });
        assert_eq!(evicted, [of_all], "64 MiB of all");
        state.fail_all("it is gone");
        let failed = waiting.iter_mut().filter_map(|reply| reply.try_recv().ok()).count();
        assert_eq!(failed, 15);
    }
}
