//! What a node does with calls, whether they come over a connection or from its own process.

use std::sync::Arc;

use futures::future::BoxFuture;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::call::Body;
use holdfast_proto::internal::{Answer, Call, Deferred, StatusAnswer, Update};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::reply_queue::ReplyQueue;

/// Handles calls to the replicas of a node.
pub trait CallHandler: Send + Sync + 'static {
    /// Handles a call that has one reply. The outcome is not known if the future is dropped.
    fn call(&self, call: Call) -> BoxFuture<'static, Answer>;

    /// Handles a call whose reply [may be deferred](may_be_deferred). Returns its last reply, or `None` if the caller
    /// has disconnected.
    fn call_deferrable(&self, call: Call, caller: ReplyHandle) -> BoxFuture<'static, Option<Answer>>;

    /// Returns the status of the node and its replicas.
    fn status(&self) -> StatusAnswer;

    /// Returns the reason why the node can't serve, if any.
    fn not_ready(&self) -> Option<String>;

    /// Returns what is wrong with a task of the node without which it serves, if anything.
    fn failing_task(&self) -> Option<String> {
        None
    }
}

/// Returns true if other replies may precede the last one.
pub fn may_be_deferred(call: &Call) -> bool {
    call.max_wait_ms > 0 || matches!(call.body, Some(Body::Subscribe(_)))
}

/// What the caller of a deferred call tells its handler. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct CallControl {
    /// Cancelled when the caller cancels the call.
    pub cancelled: CancellationToken,
    /// Notified when a subscriber asks for the next page.
    pub credit: Arc<Notify>,
}

/// The caller of one call whose reply may be deferred.
pub struct ReplyHandle {
    /// The number of the call.
    pub call: u64,
    /// Where its replies go.
    pub replies: ReplyQueue,
    /// What the caller tells about it.
    pub control: CallControl,
    /// Cancelled when the connection ends; the caller may return over another one.
    pub disconnected: CancellationToken,
}

impl ReplyHandle {
    /// Tells the caller that the reply is deferred.
    pub async fn defer(&self) {
        self.send(Outcome::Deferred(Deferred {})).await;
    }

    /// Sends an update of a subscription. Returns false if the connection has ended.
    pub async fn send_update(&self, update: Update) -> bool {
        self.send(Outcome::Update(update)).await
    }

    /// Waits until the caller has cancelled the call or disconnected.
    pub async fn left(&self) {
        tokio::select! {
            () = self.control.cancelled.cancelled() => {}
            () = self.disconnected.cancelled() => {}
        }
    }

    /// Returns true if the connection has ended.
    pub fn is_disconnected(&self) -> bool {
        self.disconnected.is_cancelled() || self.replies.is_closed()
    }

    async fn send(&self, outcome: Outcome) -> bool {
        self.replies.send(Answer { id: self.call, outcome: Some(outcome), ..Answer::default() }).await
    }
}
