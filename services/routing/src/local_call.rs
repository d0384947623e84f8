//! Calls to a node of the same process: values in memory, without frames, sockets or tasks.

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Call};
use holdfast_rpc::{CallControl, CallHandler, QueuedReplies, ReplyHandle, ReplyQueue, may_be_deferred};
use holdfast_supervise::{spawn_alongside, survive_panic};
use tokio_util::sync::CancellationToken;

/// A node in the same process.
#[derive(Clone)]
pub struct LocalNode {
    /// The node's id in the cluster config.
    pub node_id: String,
    /// Handles its calls.
    pub handler: Arc<dyn CallHandler>,
}

impl fmt::Debug for LocalNode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("LocalNode").field("node_id", &self.node_id).finish_non_exhaustive()
    }
}

/// A call in progress. It advances while its caller waits for a reply.
pub(super) struct LocalCall {
    /// `None` once the last reply is there.
    calling: Option<BoxFuture<'static, Option<Answer>>>,
    /// Replies before the last one; `None` for a call with one reply. While its caller reads none, the node waits for room.
    replies: Option<QueuedReplies>,
    last: Option<Answer>,
    control: CallControl,
    /// Whether the node may have begun what it has to withdraw if the call is cancelled.
    leaves_traces: bool,
    /// Whether a call like this leaves any. A query does not, however long its reply is held back.
    may_leave_traces: bool,
}

impl LocalCall {
    pub(super) fn new(node: &LocalNode, call: Call) -> Self {
        let control = CallControl::default();
        let (id, is_deferrable) = (call.id, may_be_deferred(&call));
        let may_leave_traces = is_deferrable && !matches!(call.body, Some(Body::Query(_)));
        let (calling, replies) = if is_deferrable {
            let (queue, replies) = ReplyQueue::of_one_call();
            let caller = ReplyHandle {
                call: id,
                replies: queue,
                control: control.clone(),
                disconnected: CancellationToken::new(),
            };
            (node.handler.call_deferrable(call, caller), Some(replies))
        } else {
            (node.handler.call(call).map(Some).boxed(), None)
        };
        let calling = survive_panic("call", calling).map(move |answer| answer.unwrap_or_else(|| Some(failure(id))));
        Self { calling: Some(calling.boxed()), replies, last: None, control, leaves_traces: false, may_leave_traces }
    }

    /// Waits for the next reply; `None` after the last one. Cancellation-safe.
    pub(super) async fn next_reply(&mut self) -> Option<Answer> {
        poll_fn(|context| self.poll_reply(context)).await
    }

    fn poll_reply(&mut self, context: &mut Context<'_>) -> Poll<Option<Answer>> {
        if let Some(calling) = &mut self.calling {
            self.leaves_traces = self.may_leave_traces;
            if let Poll::Ready(last) = calling.poll_unpin(context) {
                (self.calling, self.last) = (None, last);
            }
        }
        if self.calling.is_none() {
            // All replies are there.
            let next = self.replies.as_mut().and_then(QueuedReplies::try_next);
            return Poll::Ready(next.or_else(|| self.last.take()));
        }
        match &mut self.replies {
            Some(replies) => replies.poll_next(context).map(Some),
            // The last reply is on its way.
            None => Poll::Pending,
        }
    }

    /// Tells the node that the caller has cancelled; the outcome can still be awaited.
    pub(super) fn cancel(&self) {
        self.control.cancelled.cancel();
    }

    /// Asks the node for the next page of a subscription.
    pub(super) fn request_page(&self) {
        self.control.credit.notify_one();
    }
}

/// A node withdraws what a cancelled call has begun.
impl Drop for LocalCall {
    fn drop(&mut self) {
        self.control.cancelled.cancel();
        // Nobody reads any more.
        self.replies = None;
        if let Some(calling) = self.calling.take().filter(|_| self.leaves_traces)
            && tokio::runtime::Handle::try_current().is_ok()
        {
            spawn_alongside("call", calling);
        }
    }
}

fn failure(id: u64) -> Answer {
    let outcome = Outcome::Unknown("the node failed to handle the call".to_owned());
    Answer { id, outcome: Some(outcome), ..Answer::default() }
}

#[cfg(test)]
#[path = "local_call_tests.rs"]
mod tests;
