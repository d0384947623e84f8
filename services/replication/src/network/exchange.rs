//! Request/response multiplexing over one connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use holdfast_proto::internal::raft_frame::Body;
use holdfast_proto::internal::{Kind, RaftFrame, RaftMessage, RaftMessages};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};
use tokio::task::yield_now;
use tokio::time::{Instant, interval};
use tonic::Streaming;

use super::peer_connection::RpcError;
use super::send_queue::SendQueue;
use crate::handshake::PeerRegistry;

/// Messages in one frame.
const MAX_FRAME_MESSAGES: usize = 128;
/// Bytes after which a frame is sent. Urgent messages wait for the frame that is being sent.
const FRAME_TARGET_BYTES: usize = 256 * 1024;
/// In-flight calls after which abandoned calls are removed.
const SWEEP_THRESHOLD: usize = 1_024;
/// A peer that owes responses and sends nothing for this long is unreachable, and its connection is closed: TCP alone
/// would notice only after minutes.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(3);
/// How often that silence is checked.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// A request to a replica on the peer node.
pub(crate) struct PeerRequest {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) kind: Kind,
    pub(crate) stream: u64,
    pub(crate) clock_ms: u64,
    pub(crate) body: Bytes,
}

pub(crate) type ResponseSender = oneshot::Sender<Result<Bytes, RpcError>>;

/// A request to send, and the byte budget that it holds until it is answered.
pub(crate) struct OutboundRequest {
    pub(crate) request: PeerRequest,
    pub(crate) responder: ResponseSender,
    /// `None` for heartbeats, votes and transfers, which are small.
    pub(crate) budget: Option<ByteBudget>,
}

/// Byte budget of one request, released on drop.
pub(crate) struct ByteBudget {
    used: Arc<AtomicUsize>,
    bytes: usize,
}

impl ByteBudget {
    /// Reserves this many bytes; returns `None` if that would exceed the limit.
    pub(crate) fn acquire(used: &Arc<AtomicUsize>, bytes: usize, limit: usize) -> Option<Self> {
        let before = used.fetch_add(bytes, Ordering::Relaxed);
        let room = Self { used: Arc::clone(used), bytes };
        (before == 0 || before.saturating_add(bytes) <= limit).then_some(room)
    }
}

impl Drop for ByteBudget {
    fn drop(&mut self) {
        self.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

struct InFlightCall {
    responder: ResponseSender,
    asked: Instant,
    _budget: Option<ByteBudget>,
}

/// Unanswered calls, in the order of their requests.
struct InFlightTable {
    calls: BTreeMap<u64, InFlightCall>,
    last_received_at: Instant,
    sweep_at: usize,
}

impl InFlightTable {
    fn add(&mut self, number: u64, call: InFlightCall) {
        if self.calls.len() >= self.sweep_at {
            self.calls.retain(|_, call| !call.responder.is_closed());
            // As many calls again may be added before the next sweep.
            self.sweep_at = SWEEP_THRESHOLD.max(2 * self.calls.len());
        }
        self.calls.insert(number, call);
    }

    fn is_silent(&self) -> bool {
        let owed = self.calls.first_key_value().is_some_and(|(_, call)| call.asked.elapsed() > SILENCE_TIMEOUT);
        owed && self.last_received_at.elapsed() > SILENCE_TIMEOUT
    }
}

/// Sends requests and dispatches responses until either direction ends or the peer stops responding.
pub(crate) async fn exchange(
    node: &str,
    own: &PeerRegistry,
    is_full: &AtomicBool,
    questions: &SendQueue,
    frames: mpsc::Sender<RaftFrame>,
    mut answers: Streaming<RaftFrame>,
) {
    let pending = Mutex::new(InFlightTable {
        calls: BTreeMap::new(),
        last_received_at: Instant::now(),
        sweep_at: SWEEP_THRESHOLD,
    });
    tokio::select! {
        () = send_requests(own, questions, &frames, &pending) => {}
        () = receive_responses(node, is_full, &mut answers, &pending) => {}
        () = wait_silent(&pending) => tracing::warn!(node, "the peer does not answer; connecting again"),
    }
    for call in pending.into_inner().calls.into_values() {
        // The caller may have cancelled.
        let _ = call.responder.send(Err(RpcError::ConnectionLost(node.to_owned())));
    }
}

async fn wait_silent(pending: &Mutex<InFlightTable>) {
    let mut looks = interval(POLL_INTERVAL);
    loop {
        looks.tick().await;
        if pending.lock().is_silent() {
            return;
        }
    }
}

async fn send_requests(
    own: &PeerRegistry,
    questions: &SendQueue,
    frames: &mpsc::Sender<RaftFrame>,
    pending: &Mutex<InFlightTable>,
) {
    let mut number = 0;
    loop {
        questions.wait_nonempty().await;
        // As in `coalesce`: requests that are about to be queued join the frame.
        yield_now().await;
        // Messages are selected when the frame can be sent, so that urgent ones go first.
        let Ok(permit) = frames.reserve().await else { return };
        let taken = questions.take_batch(MAX_FRAME_MESSAGES, FRAME_TARGET_BYTES);
        let mut messages = Vec::with_capacity(taken.len());
        for OutboundRequest { request, responder, budget } in taken {
            number += 1;
            pending.lock().add(number, InFlightCall { responder, asked: Instant::now(), _budget: budget });
            messages.push(message(request, number));
        }
        let messages = RaftMessages { messages, disk_is_full: !own.has_disk_space() };
        permit.send(RaftFrame { body: Some(Body::Messages(messages)) });
    }
}

fn message(question: PeerRequest, call: u64) -> RaftMessage {
    RaftMessage {
        from: question.from,
        to: question.to,
        call,
        kind: question.kind.into(),
        body: question.body,
        stream: question.stream,
        clock_ms: question.clock_ms,
    }
}

async fn receive_responses(
    node: &str,
    is_full: &AtomicBool,
    answers: &mut Streaming<RaftFrame>,
    pending: &Mutex<InFlightTable>,
) {
    while let Ok(Some(frame)) = answers.message().await {
        pending.lock().last_received_at = Instant::now();
        let Some(Body::Messages(messages)) = frame.body else { continue };
        is_full.store(messages.disk_is_full, Ordering::Relaxed);
        for message in messages.messages {
            let Some(call) = pending.lock().calls.remove(&message.call) else { continue };
            let result = match message.kind() {
                Kind::Answer => Ok(message.body),
                _ => Err(RpcError::Rejected(node.to_owned(), String::from_utf8_lossy(&message.body).into_owned())),
            };
            // The caller may have cancelled.
            let _ = call.responder.send(result);
        }
    }
}
