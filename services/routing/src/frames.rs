//! Outbound frames to a node: all calls queued when the transport has capacity share one.

use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use futures::Stream;
use holdfast_proto::internal::{Call, CallFrame, call};
use parking_lot::Mutex;
use tokio::task::yield_now;
use tokio::time::Instant;

use crate::channel::{CallBody, CallReply, ChannelState, QueuedCall};

/// Calls in one frame.
const MAX_FRAME_CALLS: usize = 256;
/// Bytes of bodies after which a frame is full: far below the receiver's limit.
const FULL_FRAME_BYTES: usize = 1 << 20;

/// Whether the stream of one connection accepts calls. It does not before the node accepted the stream, so that no call
/// is lost to a node that rejects it, nor after the connection ended.
#[derive(Default)]
pub(super) struct Gate(Mutex<GateState>);

#[derive(Default)]
struct GateState {
    is_open: bool,
    is_closed: bool,
    waker: Option<Waker>,
}

impl Gate {
    pub(super) fn open(&self) {
        let mut state = self.0.lock();
        state.is_open = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Closes the stream: it accepts no further call, even if it is still polled.
    pub(super) fn close(&self, shared: &ChannelState) {
        // The stream takes calls under this lock, so it has either finished with one or sees that it is closed.
        let _waiting = shared.waiting.lock();
        let mut state = self.0.lock();
        state.is_closed = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

/// The stream of frames of one connection.
pub(super) struct FrameStream {
    shared: Arc<ChannelState>,
    gate: Arc<Gate>,
    /// True after the tasks that were ready at its wakeup have run.
    has_yielded: bool,
}

impl FrameStream {
    pub(super) fn new(shared: Arc<ChannelState>, gate: Arc<Gate>) -> Self {
        Self { shared, gate, has_yielded: false }
    }
}

impl Stream for FrameStream {
    type Item = CallFrame;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<CallFrame>> {
        let Self { shared, gate, has_yielded } = self.get_mut();
        let mut waiting = shared.waiting.lock();
        {
            let mut gate = gate.0.lock();
            if gate.is_closed {
                return Poll::Ready(None);
            }
            // Kept while open as well: closing must end the stream even if no further call arrives.
            gate.waker = Some(context.waker().clone());
            if !gate.is_open {
                return Poll::Pending;
            }
        }
        if !std::mem::take(has_yielded) && (1..MAX_FRAME_CALLS).contains(&waiting.len()) && coalesce(context) {
            *has_yielded = true;
            return Poll::Pending;
        }
        let given_up = take_cancellations(shared, context);
        let mut calls = Vec::new();
        let mut bytes = 0;
        while calls.len() < MAX_FRAME_CALLS && bytes < FULL_FRAME_BYTES {
            match waiting.poll_recv(context) {
                Poll::Ready(Some(queued)) => {
                    if let Some(call) = move_to_in_flight(shared, queued) {
                        bytes += body_len(&call);
                        calls.push(call);
                    }
                }
                Poll::Ready(None) => break,
                Poll::Pending if calls.is_empty() && given_up.is_empty() => return Poll::Pending,
                Poll::Pending => break,
            }
        }
        if calls.is_empty() && given_up.is_empty() {
            Poll::Ready(None)
        } else {
            Poll::Ready(Some(CallFrame { calls, given_up }))
        }
    }
}

/// Yields to the ready tasks of this thread: they may be about to call as well, and a frame costs much the same with
/// one call as with many. The task is woken once they have run.
fn coalesce(context: &mut Context<'_>) -> bool {
    // The runtime has the waker after the first poll, so the future can be dropped.
    pin!(yield_now()).poll(context).is_pending()
}

/// Takes the calls to cancel; further ones wake the stream.
fn take_cancellations(shared: &ChannelState, context: &Context<'_>) -> Vec<u64> {
    let mut given_up = shared.given_up.lock();
    given_up.waker = Some(context.waker().clone());
    std::mem::take(&mut given_up.ids)
}

/// Moves a queued call to in flight; returns `None` if its caller cancelled or its deadline passed.
fn move_to_in_flight(shared: &ChannelState, queued: QueuedCall) -> Option<Call> {
    let left = queued.deadline.saturating_duration_since(Instant::now()).as_millis();
    let deadline_ms = u32::try_from(left).unwrap_or(u32::MAX);
    if deadline_ms == 0 {
        queued.sink.finish(CallReply::NotSent("its deadline ended before it could be sent".to_owned()));
        return None;
    }
    if !queued.send_state.try_mark_sent() {
        return None;
    }
    shared.in_flight.lock().insert(queued.id, (queued.sink, queued.rules));
    let (body, hold) = match queued.body {
        CallBody::Command(bytes) => (call::Body::Command(bytes), Duration::ZERO),
        CallBody::Query(bytes) => (call::Body::Query(bytes), Duration::ZERO),
        CallBody::Acquire(bytes, hold) => (call::Body::Command(bytes), hold),
        CallBody::LongPoll(bytes, hold) => (call::Body::Query(bytes), hold),
        CallBody::Subscribe(bytes) => (call::Body::Follow(bytes), Duration::ZERO),
    };
    let hold_ms = u32::try_from(hold.as_millis()).unwrap_or(u32::MAX);
    Some(Call {
        id: queued.id,
        replica: queued.replica,
        term: queued.term,
        deadline_ms,
        hold_ms,
        body: Some(body),
        request_id: queued.request_id.as_deref().unwrap_or_default().to_owned(),
        trace_parent: queued.trace_parent.unwrap_or_default(),
    })
}

fn body_len(call: &Call) -> usize {
    match &call.body {
        Some(call::Body::Command(bytes) | call::Body::Query(bytes) | call::Body::Follow(bytes)) => bytes.len(),
        None => 0,
    }
}
