//! Serves one connection of a gateway: many calls in flight, several per frame.

use std::sync::Arc;

use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Answer, AnswerFrame, Call, CallFrame};
use holdfast_replication::coalesce;
use holdfast_supervise::spawn_temporary;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::{Status, Streaming};
use tracing::{Instrument, Span, info_span};

use crate::call_handler::{handle_call, may_be_deferred};
use crate::deferred::{DeferredCalls, ReplyHandle};
use crate::node::NodeInner;
use crate::replica::Replica;

/// Calls in flight on one connection. At the limit the node reads no further frames.
const MAX_CALLS: usize = 16_384;
/// Replies in one frame.
const MAX_FRAME_ANSWERS: usize = 256;
/// Bytes of replies in one frame with several.
const MAX_FRAME_BYTES: usize = 1024 * 1024;
/// Bytes of one reply; below the gateways' frame limit.
const MAX_REPLY_BYTES: usize = 8 * 1024 * 1024;

/// Reads frames until the connection ends or a newer connection of the same caller supersedes it.
pub(crate) async fn serve_connection(
    shared: Arc<NodeInner>,
    mut frames: Streaming<CallFrame>,
    out: mpsc::Sender<Result<AnswerFrame, Status>>,
    superseded: CancellationToken,
) {
    let (answers, collected) = mpsc::channel(MAX_CALLS);
    spawn_temporary("answers", send_answers(collected, out));
    let room = Arc::new(Semaphore::new(MAX_CALLS));
    let held = DeferredCalls::default();
    let cut_off = CancellationToken::new();
    let _ends = cut_off.clone().drop_guard();
    loop {
        let frame = tokio::select! {
            biased;
            () = superseded.cancelled() => return,
            frame = frames.message() => frame,
        };
        let Ok(Some(frame)) = frame else { return };
        for call in frame.calls {
            let permit = tokio::select! {
                biased;
                // Calls that were read but not started are dropped too: their retries may have arrived over the newer
                // connection.
                () = superseded.cancelled() => return,
                permit = Arc::clone(&room).acquire_owned() => permit,
            };
            // The semaphore is never closed.
            let Ok(permit) = permit else { return };
            let shared = Arc::clone(&shared);
            let answers = answers.clone();
            let received = Instant::now();
            if may_be_deferred(&call) {
                let Some(cancelled) = held.register(call.id) else {
                    let outcome = Outcome::NotProposed("too many calls of this connection are held back".into());
                    let _ = answers.send(Answer { id: call.id, outcome: Some(outcome), ..Answer::default() }).await;
                    continue;
                };
                let caller = ReplyHandle { call: call.id, answers, cancelled, disconnected: cut_off.clone() };
                spawn_temporary("call", handle_deferred(shared, call, caller, held.clone(), permit));
                continue;
            }
            spawn_temporary("call", async move {
                let answer = handle_one(&shared, call, received, None).await;
                // The caller may have disconnected; it then treats the outcome as unknown.
                if let Some(answer) = answer {
                    let _ = answers.send(answer).await;
                }
                drop(permit);
            });
        }
        for call in frame.given_up {
            held.cancel(call);
        }
    }
}

async fn handle_one(shared: &NodeInner, call: Call, received: Instant, caller: Option<&ReplyHandle>) -> Option<Answer> {
    let replica = shared.replica(call.replica);
    let span = call_span(&call, replica.as_deref());
    handle_call(replica.as_deref(), call, received, caller).instrument(span).await
}

/// Creates the span that carries the client's request id. Calls without a request id, by far the most, get no span.
fn call_span(call: &Call, replica: Option<&Replica>) -> Span {
    if call.request_id.is_empty() {
        return Span::none();
    }
    let shard = replica.map_or("", |replica| replica.group.shard());
    let span = info_span!("node call", request_id = call.request_id, shard);
    if !call.trace_parent.is_empty() {
        holdfast_telemetry::continue_trace(&span, &call.trace_parent);
    }
    span
}

/// Handles a call that may be deferred. It releases its permit, so that deferred calls take no capacity from others.
async fn handle_deferred(
    shared: Arc<NodeInner>,
    call: Call,
    caller: ReplyHandle,
    held: DeferredCalls,
    permit: OwnedSemaphorePermit,
) {
    drop(permit);
    let answer = handle_one(&shared, call, Instant::now(), Some(&caller)).await;
    held.remove(caller.call);
    if let Some(answer) = answer {
        let _ = caller.answers.send(answer).await;
    }
}

/// Coalesces ready replies into one frame, or into several if they are large.
async fn send_answers(mut collected: mpsc::Receiver<Answer>, out: mpsc::Sender<Result<AnswerFrame, Status>>) {
    let mut ready = Vec::with_capacity(MAX_FRAME_ANSWERS);
    while collected.recv_many(&mut ready, MAX_FRAME_ANSWERS).await > 0 {
        coalesce(&mut collected, &mut ready, MAX_FRAME_ANSWERS).await;
        let mut answers = Vec::with_capacity(ready.len());
        let mut bytes = 0;
        for answer in ready.drain(..).map(limit_reply_size) {
            let size = reply_bytes(&answer);
            if bytes + size > MAX_FRAME_BYTES && !answers.is_empty() {
                if out.send(Ok(AnswerFrame { answers: std::mem::take(&mut answers) })).await.is_err() {
                    return;
                }
                bytes = 0;
            }
            bytes += size;
            answers.push(answer);
        }
        if out.send(Ok(AnswerFrame { answers })).await.is_err() {
            return;
        }
    }
}

fn reply_bytes(answer: &Answer) -> usize {
    match &answer.outcome {
        Some(Outcome::Reply(bytes) | Outcome::Notice(bytes)) => bytes.len(),
        _ => 0,
    }
}

/// Replaces a reply that exceeds the frame limit with an error. It must not end the connection, which carries the calls
/// of every tenant.
fn limit_reply_size(answer: Answer) -> Answer {
    let bytes = reply_bytes(&answer);
    if bytes <= MAX_REPLY_BYTES {
        return answer;
    }
    let reason = format!("the reply has {bytes} bytes and may have {MAX_REPLY_BYTES}; ask for less");
    Answer { outcome: Some(Outcome::Unknown(reason)), ..answer }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn reply(id: u64, bytes: usize) -> Answer {
        Answer { id, outcome: Some(Outcome::Reply(Bytes::from(vec![0; bytes]))), ..Answer::default() }
    }

    #[tokio::test]
    async fn large_answers_go_in_frames_of_their_own_and_a_too_large_one_harms_nobody() {
        let (answers, collected) = mpsc::channel(8);
        let (out, mut frames) = mpsc::channel(8);
        for answer in [reply(1, 10), reply(2, MAX_FRAME_BYTES), reply(3, MAX_REPLY_BYTES + 1), reply(4, 10)] {
            answers.send(answer).await.unwrap();
        }
        drop(answers);
        send_answers(collected, out).await;
        let mut ids = Vec::new();
        while let Some(frame) = frames.recv().await {
            let answers = frame.unwrap().answers;
            let bytes: usize = answers.iter().map(reply_bytes).sum();
            assert!(bytes <= MAX_FRAME_BYTES, "a frame of {bytes} bytes");
            assert!(answers.iter().all(|answer| answer.id != 3 || matches!(answer.outcome, Some(Outcome::Unknown(_)))));
            ids.push(answers.iter().map(|answer| answer.id).collect::<Vec<_>>());
        }
        assert_eq!(ids, [vec![1], vec![2, 3], vec![4]]);
    }
}
