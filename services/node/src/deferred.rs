//! Reply handles of calls whose replies may be deferred.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Answer, Held};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Deferred calls of one connection.
const MAX_DEFERRED_CALLS: usize = 300_000;

/// Sends replies to the caller of one call.
pub(crate) struct ReplyHandle {
    pub(crate) call: u64,
    pub(crate) answers: mpsc::Sender<Answer>,
    /// Cancelled when the caller cancels the call.
    pub(crate) cancelled: CancellationToken,
    /// Cancelled when the connection ends; the caller may return over another one.
    pub(crate) disconnected: CancellationToken,
}

impl ReplyHandle {
    /// Notifies the caller that the reply is deferred.
    pub(crate) async fn defer(&self) {
        self.send(Outcome::Held(Held {})).await;
    }

    /// Sends an update of the subscribed session. Returns false if the connection has ended.
    pub(crate) async fn send_update(&self, notice: Bytes) -> bool {
        self.send(Outcome::Notice(notice)).await
    }

    pub(crate) fn is_disconnected(&self) -> bool {
        self.disconnected.is_cancelled() || self.answers.is_closed()
    }

    async fn send(&self, outcome: Outcome) -> bool {
        let answer = Answer { id: self.call, outcome: Some(outcome), ..Answer::default() };
        self.answers.send(answer).await.is_ok()
    }
}

/// The deferred calls of one connection, so that callers can cancel them.
#[derive(Clone, Default)]
pub(crate) struct DeferredCalls(Arc<Mutex<HashMap<u64, CancellationToken>>>);

impl DeferredCalls {
    /// Registers a call and returns its cancellation token, or `None` if too many calls are deferred.
    pub(crate) fn register(&self, call: u64) -> Option<CancellationToken> {
        let mut calls = self.0.lock();
        if calls.len() >= MAX_DEFERRED_CALLS {
            return None;
        }
        let gone = CancellationToken::new();
        calls.insert(call, gone.clone());
        Some(gone)
    }

    pub(crate) fn cancel(&self, call: u64) {
        if let Some(gone) = self.0.lock().remove(&call) {
            gone.cancel();
        }
    }

    pub(crate) fn remove(&self, call: u64) {
        self.0.lock().remove(&call);
    }
}
