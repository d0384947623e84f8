//! The other end of a call whose answer may be held back.

use std::collections::HashMap;
use std::sync::Arc;

use bytes::Bytes;
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Answer, Held};
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Calls of one connection whose answers are held back at a time.
const MAX_DEFERRED_CALLS: usize = 300_000;

/// Who waits for the answer to one call.
pub(crate) struct ReplyHandle {
    pub(crate) call: u64,
    pub(crate) answers: mpsc::Sender<Answer>,
    /// Cancelled when the caller no longer waits.
    pub(crate) cancelled: CancellationToken,
    /// Cancelled when the connection has ended: the caller may come back over another one.
    pub(crate) disconnected: CancellationToken,
}

impl ReplyHandle {
    /// Says that the answer comes later.
    pub(crate) async fn defer(&self) {
        self.send(Outcome::Held(Held {})).await;
    }

    /// Says what happened to the session that is followed; false when nobody hears it.
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

/// The calls of one connection whose answers are held back, so that their callers can give them up.
#[derive(Clone, Default)]
pub(crate) struct DeferredCalls(Arc<Mutex<HashMap<u64, CancellationToken>>>);

impl DeferredCalls {
    /// What tells that the caller gave up; nothing when too many are held back already.
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
