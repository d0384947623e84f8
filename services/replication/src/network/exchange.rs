//! The requests to a peer node: many in flight on one connection.

use holdfast_proto::internal::{Kind, RaftMessage};
use holdfast_rpc::{ClientConnection, Event, InFlight, Reservation, Waiter};
use tokio::task::yield_now;

use super::Raft;
use super::outbound_frame::{OutboundFrame, OutboundMessage};
use super::request::{OutboundRequest, PeerRequest, ResponseSender, RpcError};
use super::send_queue::SendQueue;
use crate::handshake::PeerRegistry;
use crate::shard_failures::PeerReport;

/// Messages in one frame.
const MAX_FRAME_MESSAGES: usize = 128;
/// Bytes after which a frame is sent. Urgent messages wait for the frame that is being sent.
const FRAME_TARGET_BYTES: usize = 256 * 1024;

struct SentRequest {
    responder: ResponseSender,
    _budget: Option<Reservation>,
}

impl Waiter for SentRequest {
    fn is_closed(&self) -> bool {
        self.responder.is_closed()
    }
}

/// Sends requests and dispatches responses until the connection ends; returns the reason. The receivers of unanswered
/// requests close then.
pub(crate) async fn exchange(
    node: &str,
    own: &PeerRegistry,
    report: &PeerReport,
    queue: &SendQueue,
    mut connection: ClientConnection<Raft>,
) -> String {
    let (in_flight, mut number) = (InFlight::default(), 0);
    loop {
        let done = tokio::select! {
            biased;
            // Messages are selected when the connection has room, so that urgent ones go first.
            () = queue.wait_nonempty(), if connection.is_flushed() => {
                // Requests that are about to be queued join the frame.
                yield_now().await;
                let messages = take_messages(queue, &in_flight, &mut number);
                connection.send(OutboundFrame { messages, disk_is_full: !own.has_disk_space() })
            }
            event = connection.next(true) => event.map(|event| if let Event::Received(frame) = event {
                report.record(&frame);
                frame.messages.into_iter().for_each(|message| dispatch(node, &in_flight, message));
            }),
        };
        if let Err(error) = done {
            return error.to_string();
        }
    }
}

fn take_messages(queue: &SendQueue, in_flight: &InFlight<SentRequest>, number: &mut u64) -> Vec<OutboundMessage> {
    let taken = queue.take_batch(MAX_FRAME_MESSAGES, FRAME_TARGET_BYTES).into_iter();
    taken
        .map(|OutboundRequest { request, responder, budget }| {
            *number += 1;
            in_flight.insert(*number, SentRequest { responder, _budget: budget });
            let PeerRequest { from, to, kind, stream, clock_ms, body } = request;
            let (call, kind) = (*number, kind.into());
            let head = RaftMessage { from, to, call, kind, stream, clock_ms, ..RaftMessage::default() };
            OutboundMessage { head, body }
        })
        .collect()
}

fn dispatch(node: &str, in_flight: &InFlight<SentRequest>, message: RaftMessage) {
    let Some(sent) = in_flight.remove(message.call) else { return };
    let result = match message.kind() {
        Kind::Answer => Ok(message.body),
        _ => Err(RpcError::Rejected(node.to_owned(), String::from_utf8_lossy(&message.body).into_owned())),
    };
    // The caller may have cancelled.
    let _ = sent.responder.send(result);
}
