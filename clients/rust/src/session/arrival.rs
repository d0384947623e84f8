//! An arrival at a barrier, for its caller.

use std::sync::Arc;

use holdfast_proto::v1::barrier_answer::Outcome;
use holdfast_proto::v1::server_message::Tripped;
use tokio::sync::watch;

use super::inner::SessionInner;
use super::table::{Meeting, RequestNo};
use crate::error::{EndReason, Error, Result};

/// An arrival, until it is dropped: then it leaves, without waiting for an answer.
pub(crate) struct ArrivalGuard {
    inner: Arc<SessionInner>,
    no: RequestNo,
    is_double: bool,
    meeting: watch::Receiver<Meeting>,
}

impl ArrivalGuard {
    pub(super) fn new(
        inner: Arc<SessionInner>,
        no: RequestNo,
        is_double: bool,
        meeting: watch::Receiver<Meeting>,
    ) -> Self {
        Self { inner, no, is_double, meeting }
    }

    /// Waits for the end of its generation.
    pub(crate) async fn met(&mut self) -> Result<Tripped> {
        self.wait(|meeting| *meeting != Meeting::Gathering).await
    }

    /// Leaves, and waits for what the service answers; after the trip of a double barrier: until all have left.
    pub(crate) async fn leave(mut self) -> Result<Tripped> {
        self.inner.leave(self.no);
        let is_double = self.is_double;
        let is_last = |meeting: &Meeting| match meeting {
            Meeting::Gathering => false,
            Meeting::Answered(answer) => !is_double || answer.outcome() != Outcome::Tripped,
            Meeting::Failed(_) => true,
        };
        self.wait(is_last).await
    }

    async fn wait(&mut self, is_enough: impl FnMut(&Meeting) -> bool) -> Result<Tripped> {
        // The sender is dropped only with the session, or after its last message.
        let gone = || Error::SessionEnded(EndReason::Closed);
        match &*self.meeting.wait_for(is_enough).await.map_err(|_| gone())? {
            Meeting::Answered(answer) => Ok(answer.clone()),
            Meeting::Failed(error) => Err(error.clone()),
            Meeting::Gathering => Err(gone()),
        }
    }
}

impl Drop for ArrivalGuard {
    fn drop(&mut self) {
        self.inner.leave(self.no);
    }
}
