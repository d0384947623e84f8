//! The calls to one node that are queued or in flight, and the connection that carries them.

use std::collections::VecDeque;
use std::future::ready;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use holdfast_proto::internal::{Answer, Call, CallFrame, call};
use holdfast_rpc::{Calls, ClientConnection, ConnectError, Event, InFlight, Link, Waiter};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::channel::{CallReply, ObservedRules, ReplySink, SendState};

/// Calls to one node that may be queued or in flight; further ones fail at once, without being sent.
const MAX_OUTSTANDING: usize = 32_768;
/// Deferred calls to one node; they take memory, but no capacity from other calls.
const MAX_DEFERRED: usize = 262_144;
/// Bytes of the bodies of queued calls.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Bytes of one body; a full frame with one more is below the frame limit.
const MAX_CALL_BYTES: usize = 8 << 20;
/// Calls in one frame.
const MAX_FRAME_CALLS: usize = 256;
/// Bytes of bodies after which a frame is full.
const FULL_FRAME_BYTES: usize = 1 << 20;

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

/// Numbers of calls to one node that have not ended.
#[derive(Default)]
pub(super) struct CallLoad {
    outstanding: AtomicUsize,
    deferred: AtomicUsize,
}

impl CallLoad {
    /// Counts a call; returns false if there are too many.
    pub(super) fn try_add(&self) -> bool {
        let is_full = self.outstanding.fetch_add(1, Ordering::Relaxed) >= MAX_OUTSTANDING
            || self.deferred.load(Ordering::Relaxed) >= MAX_DEFERRED;
        if is_full {
            self.remove(false);
        }
        !is_full
    }

    /// Notes that the reply of a call is deferred.
    pub(super) fn defer(&self) {
        self.outstanding.fetch_sub(1, Ordering::Relaxed);
        self.deferred.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes the end of a call.
    pub(super) fn remove(&self, is_deferred: bool) {
        let counted = if is_deferred { &self.deferred } else { &self.outstanding };
        counted.fetch_sub(1, Ordering::Relaxed);
    }
}

#[derive(Default)]
struct SendQueue {
    calls: VecDeque<QueuedCall>,
    bytes: usize,
    /// Calls of which the node must learn that they were cancelled.
    cancelled: Vec<u64>,
    /// Subscriptions of which the node must send the next page.
    credits: Vec<u64>,
    /// Why the node can't be reached; `None` while connected, and at first.
    down: Option<String>,
}

/// State shared by the callers and the connection.
pub(super) struct ChannelState {
    pub(super) node_id: String,
    pub(super) load: CallLoad,
    queue: Mutex<SendQueue>,
    filled: Notify,
    in_flight: InFlight<SentCall>,
    next_id: AtomicU64,
}

impl ChannelState {
    pub(super) fn new(node_id: &str) -> Self {
        Self {
            node_id: node_id.to_owned(),
            load: CallLoad::default(),
            queue: Mutex::default(),
            filled: Notify::new(),
            in_flight: InFlight::default(),
            next_id: AtomicU64::new(1),
        }
    }

    /// Queues a call and returns its id, or the reason why it is not sent.
    pub(super) fn enqueue(&self, mut queued: QueuedCall) -> Result<u64, String> {
        let (node, bytes) = (&self.node_id, body_len(&queued.call));
        if bytes > MAX_CALL_BYTES {
            return Err(format!("the call has {bytes} bytes and may have {MAX_CALL_BYTES}"));
        }
        let mut queue = self.queue.lock();
        if let Some(reason) = &queue.down {
            return Err(format!("node {node} cannot be reached: {reason}"));
        }
        if queue.bytes + bytes > MAX_QUEUED_BYTES || !self.load.try_add() {
            return Err(format!("too many calls to node {node} are in flight"));
        }
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        queued.call.id = id;
        queue.bytes += bytes;
        queue.calls.push_back(queued);
        drop(queue);
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
        metrics::gauge!("holdfast_routing_node_connected", "node" => self.node_id.clone()).set(0.0);
        let before = std::mem::replace(
            &mut *self.queue.lock(),
            SendQueue { down: Some(reason.to_owned()), ..SendQueue::default() },
        );
        for queued in before.calls {
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

    /// Takes the next frame.
    fn take_frame(&self) -> CallFrame {
        let mut queue = self.queue.lock();
        let (given_up, credits) = (std::mem::take(&mut queue.cancelled), std::mem::take(&mut queue.credits));
        let (mut calls, mut bytes) = (Vec::new(), 0);
        while calls.len() < MAX_FRAME_CALLS && bytes < FULL_FRAME_BYTES {
            let Some(queued) = queue.calls.pop_front() else { break };
            let call_bytes = body_len(&queued.call);
            queue.bytes -= call_bytes;
            if let Some(call) = self.move_to_in_flight(queued) {
                bytes += call_bytes;
                calls.push(call);
            }
        }
        CallFrame { calls, given_up, credits }
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
        metrics::gauge!("holdfast_routing_node_connected", "node" => self.node_id.clone()).set(1.0);
        loop {
            let done = tokio::select! {
                biased;
                () = self.wait_filled(), if connection.has_room() => {
                    // Ready tasks may be about to call as well, and a frame costs much the same with one call as with
                    // many.
                    yield_now().await;
                    connection.send(self.take_frame())
                }
                event = connection.next(true) => event.map(|event| match event {
                    Event::Received(frame) => frame.answers.into_iter().for_each(|answer| self.dispatch(answer)),
                    Event::Flushed => {}
                }),
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
