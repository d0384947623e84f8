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
const HELD_CALLS: usize = 300_000;

/// Who waits for the answer to one call.
pub(crate) struct Caller {
    pub(crate) call: u64,
    pub(crate) answers: mpsc::Sender<Answer>,
    /// Cancelled when the caller no longer waits.
    pub(crate) gone: CancellationToken,
    /// Cancelled when the connection has ended: the caller may come back over another one.
    pub(crate) cut_off: CancellationToken,
}

impl Caller {
    /// Says that the answer comes later.
    pub(crate) async fn held(&self) {
        self.say(Outcome::Held(Held {})).await;
    }

    /// Says what happened to the session that is followed; false when nobody hears it.
    pub(crate) async fn notice(&self, notice: Bytes) -> bool {
        self.say(Outcome::Notice(notice)).await
    }

    pub(crate) fn is_cut_off(&self) -> bool {
        self.cut_off.is_cancelled() || self.answers.is_closed()
    }

    async fn say(&self, outcome: Outcome) -> bool {
        let answer = Answer { id: self.call, outcome: Some(outcome), ..Answer::default() };
        self.answers.send(answer).await.is_ok()
    }
}

/// The calls of one connection whose answers are held back, so that their callers can give them up.
#[derive(Clone, Default)]
pub(crate) struct HeldCalls(Arc<Mutex<HashMap<u64, CancellationToken>>>);

impl HeldCalls {
    /// What tells that the caller gave up; nothing when too many are held back already.
    pub(crate) fn begin(&self, call: u64) -> Option<CancellationToken> {
        let mut calls = self.0.lock();
        if calls.len() >= HELD_CALLS {
            return None;
        }
        let gone = CancellationToken::new();
        calls.insert(call, gone.clone());
        Some(gone)
    }

    pub(crate) fn give_up(&self, call: u64) {
        if let Some(gone) = self.0.lock().remove(&call) {
            gone.cancel();
        }
    }

    pub(crate) fn end(&self, call: u64) {
        self.0.lock().remove(&call);
    }
}
