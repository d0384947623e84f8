//! Serves the connection of a caller: many calls in flight, several in a frame.

use std::collections::HashMap;
use std::sync::Arc;

use futures::stream::FuturesUnordered;
use futures::{FutureExt, StreamExt};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, AnswerFrame, Call, CallFrame};
use holdfast_supervise::{spawn_temporary, survive_panic};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio::task::yield_now;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::acceptor::{CallerId, Server};
use crate::call_handler::{
    CallControl, CallHandler, QueuedReply, ReplyHandle, ReplyQueue, limit_reply, may_be_deferred, reply_bytes,
};
use crate::connection::{Event, ServerConnection};
use crate::protocol::Calls;

/// Calls in flight on one connection that are not deferred. Further ones are rejected, and the node reads on. A quarter
/// of each limit is for urgent calls only.
const MAX_CALLS: CallCount = CallCount { calls: 131_072, bytes: 256 << 20 };
/// Those of one account, so that it leaves the connection to the others.
pub(crate) const MAX_CALLS_OF_ACCOUNT: CallCount = CallCount { calls: 4_096, bytes: 16 << 20 };
/// Deferred calls of one connection.
const MAX_DEFERRED_CALLS: usize = 300_000;
/// Replies of deferred calls that wait for the connection.
const MAX_QUEUED_REPLIES: usize = 16_384;
/// Replies in one frame.
const MAX_FRAME_ANSWERS: usize = 256;
/// Bytes of replies after which a frame is full.
const FULL_FRAME_BYTES: usize = 1 << 20;

/// Passes the calls of all connections to one handler.
pub struct Responder(Arc<dyn CallHandler>);

impl Responder {
    /// Creates a server for the handler.
    pub fn new(handler: Arc<dyn CallHandler>) -> Self {
        Self(handler)
    }
}

impl Server<Calls> for Responder {
    async fn admit(&self, _: &CallerId, (): &()) -> Result<(), String> {
        Ok(())
    }

    async fn serve(&self, mut connection: ServerConnection<Calls>, (): ()) {
        let (mut calls, mut queued) = CallsInFlight::new(Arc::clone(&self.0));
        loop {
            // A caller that does not read its replies can't call either.
            let is_flushed = connection.is_flushed();
            let sent = tokio::select! {
                biased;
                Some(done) = calls.running.next(), if is_flushed => {
                    let first = calls.finish(done);
                    connection.send(fill_frame(first, &mut calls, &mut queued).await)
                }
                Some(reply) = queued.recv(), if is_flushed => {
                    connection.send(fill_frame(reply.answer, &mut calls, &mut queued).await)
                }
                event = connection.next(is_flushed) => match event {
                    Ok(Event::Received(frame)) => {
                        calls.start(frame);
                        Ok(())
                    }
                    Ok(Event::Flushed) => Ok(()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = sent {
                tracing::debug!(%error, "the connection of a caller ended");
                return;
            }
        }
    }
}

/// A reply, and what its call counted for; `None` for a call that was rejected.
type Done = (Answer, Option<CountedCall>);

/// A number of calls, and the bytes of their bodies.
#[derive(Clone, Copy, Default)]
pub(crate) struct CallCount {
    pub(crate) calls: usize,
    bytes: usize,
}

impl CallCount {
    /// What calls that are not urgent may take of this limit.
    pub(crate) const fn without_reserve(self) -> Self {
        Self { calls: self.calls / 4 * 3, bytes: self.bytes / 4 * 3 }
    }

    fn fits(self, bytes: usize, max: Self) -> bool {
        self.calls < max.calls && self.bytes + bytes <= max.bytes
    }

    fn add(&mut self, bytes: usize) {
        self.calls += 1;
        self.bytes += bytes;
    }

    fn remove(&mut self, bytes: usize) {
        self.calls -= 1;
        self.bytes -= bytes;
    }
}

/// A call that counts until it is answered.
#[derive(Clone, Copy)]
struct CountedCall {
    /// 0 if it is of none.
    account: u64,
    bytes: usize,
    is_urgent: bool,
}

/// The calls of one connection. Those that are not deferred run in the task of the connection, except for queries, which
/// may take long to compute.
struct CallsInFlight {
    handler: Arc<dyn CallHandler>,
    running: FuturesUnordered<futures::future::BoxFuture<'static, Done>>,
    total: CallCount,
    accounts: HashMap<u64, CallCount>,
    deferred: Arc<Mutex<HashMap<u64, CallControl>>>,
    replies: ReplyQueue,
    disconnected: CancellationToken,
    _ends: DropGuard,
}

impl CallsInFlight {
    fn new(handler: Arc<dyn CallHandler>) -> (Self, mpsc::Receiver<QueuedReply>) {
        let (replies, queued) = ReplyQueue::new(MAX_QUEUED_REPLIES);
        let disconnected = CancellationToken::new();
        let _ends = disconnected.clone().drop_guard();
        let (running, deferred) = (FuturesUnordered::new(), Arc::default());
        let (total, accounts) = (CallCount::default(), HashMap::new());
        (Self { handler, running, total, accounts, deferred, replies, disconnected, _ends }, queued)
    }

    /// Counts a call; returns why it is rejected if there are too many.
    fn count(&mut self, call: CountedCall) -> Result<(), &'static str> {
        let of_account = self.accounts.get(&call.account).copied().unwrap_or_default();
        let max = |limit: CallCount| if call.is_urgent { limit } else { limit.without_reserve() };
        if call.account != 0 && !of_account.fits(call.bytes, max(MAX_CALLS_OF_ACCOUNT)) {
            return Err("the calls of this account in progress at the node are too many or too large; try again later");
        }
        if !self.total.fits(call.bytes, max(MAX_CALLS)) {
            return Err("the calls in progress at the node are too many or too large; try again later");
        }
        self.total.add(call.bytes);
        self.accounts.entry(call.account).or_default().add(call.bytes);
        Ok(())
    }

    fn uncount(&mut self, call: CountedCall) {
        self.total.remove(call.bytes);
        if let Some(of_account) = self.accounts.get_mut(&call.account) {
            of_account.remove(call.bytes);
            if of_account.calls == 0 {
                self.accounts.remove(&call.account);
            }
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
        for call in frame.given_up {
            if let Some(control) = self.deferred.lock().remove(&call) {
                control.cancelled.cancel();
            }
        }
        for call in frame.credits {
            if let Some(control) = self.deferred.lock().get(&call) {
                // A second credit before the first one is used has no effect.
                control.credit.notify_one();
            }
        }
    }

    fn start_call(&mut self, call: Call) {
        let (id, is_urgent) = (call.id, call.is_urgent);
        let counted = CountedCall { account: call.account, bytes: call_bytes(&call), is_urgent };
        if let Err(reason) = self.count(counted) {
            let answer = failure(id, Outcome::NotProposed(reason.to_owned()));
            self.running.push(futures::future::ready((answer, None)).boxed());
            return;
        }
        let counted = Some(counted);
        let is_query = matches!(call.body, Some(Body::Query(_)));
        let calling = self.handler.call(call);
        self.running.push(match is_query {
            true => {
                let calling = spawn_temporary("call", calling);
                async move { (calling.await.unwrap_or_else(|_| failed(id)), counted) }.boxed()
            }
            false => survive_panic("call", calling)
                .map(move |answer| (answer.unwrap_or_else(|| failed(id)), counted))
                .boxed(),
        });
    }

    fn start_deferrable(&mut self, call: Call) {
        let id = call.id;
        if self.deferred.lock().len() >= MAX_DEFERRED_CALLS {
            let outcome = Outcome::NotProposed("too many calls of this connection are held back".to_owned());
            self.running.push(futures::future::ready((failure(id, outcome), None)).boxed());
            return;
        }
        let control = CallControl::default();
        self.deferred.lock().insert(id, control.clone());
        let replies = self.replies.clone();
        let caller =
            ReplyHandle { call: id, replies: replies.clone(), control, disconnected: self.disconnected.clone() };
        let (calling, deferred) = (self.handler.call_deferrable(call, caller), Arc::clone(&self.deferred));
        spawn_temporary("call", async move {
            let answer = survive_panic("call", calling).await.unwrap_or_else(|| Some(failed(id)));
            deferred.lock().remove(&id);
            if let Some(answer) = answer {
                replies.send(answer).await;
            }
        });
    }

    fn finish(&mut self, (answer, counted): Done) -> Answer {
        if let Some(counted) = counted {
            self.uncount(counted);
        }
        limit_reply(answer)
    }
}

/// Adds the replies that are ready to a frame, among them those that ready tasks are about to give: a frame costs much
/// the same with one reply as with many.
async fn fill_frame(first: Answer, calls: &mut CallsInFlight, queued: &mut mpsc::Receiver<QueuedReply>) -> AnswerFrame {
    yield_now().await;
    let mut bytes = reply_bytes(&first);
    let mut answers = vec![first];
    while answers.len() < MAX_FRAME_ANSWERS && bytes < FULL_FRAME_BYTES {
        let answer = match calls.running.next().now_or_never().flatten() {
            Some(done) => calls.finish(done),
            // Not `try_recv`, which would block the thread while a send on another thread is half done.
            None => match queued.recv().now_or_never().flatten() {
                Some(reply) => reply.answer,
                None => break,
            },
        };
        bytes += reply_bytes(&answer);
        answers.push(answer);
    }
    AnswerFrame { answers }
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
