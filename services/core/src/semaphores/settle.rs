//! Grants what can be granted, and refuses what waits for more than there is.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::end::WaitEnd;
use super::item::{PermitWait, QueueRank};
use super::many::item_of;
use super::{HoldOrWait, Semaphores};
use crate::kit::{Kit, Notice, SweepMark};
use crate::{Path, Reason};

impl Semaphores {
    /// Settles the queues that changed. What exceeds the slice, or is frozen, is left for the next one.
    pub(crate) fn settle(&mut self, kit: &mut Kit<'_>) {
        let mut next = self.unsettled.first().map(Arc::clone);
        while let Some(path) = next {
            if kit.is_frozen || !self.settle_one(kit, &path) {
                return;
            }
            self.unsettled.remove(&path);
            next = self.unsettled.first().map(Arc::clone);
        }
    }

    /// Runs one slice of unfinished work.
    pub(crate) fn run_jobs(&mut self, kit: &mut Kit<'_>) {
        while let Some(began) = self.deleting.first_key_value().map(|(began, _)| *began) {
            if !self.continue_deletion(kit, began) {
                return;
            }
            kit.notify(Notice::Finished(began));
        }
        self.settle(kit);
    }

    /// Settles one queue. Returns whether it is done. Each grant and each refusal counts as a grant of the slice.
    fn settle_one(&mut self, kit: &mut Kit<'_>, path: &Path) -> bool {
        while let Some((rank, end)) = self.next_to_end(kit, path) {
            if kit.budget.grants == 0 {
                return false;
            }
            kit.budget.grants -= 1;
            let has_ended = matches!(end, WaitEnd::Refused(Reason::Ended));
            let swept = self.wait(path, rank).filter(|_| has_ended).and_then(|wait| sweep_of(kit, wait, rank));
            swept.into_iter().for_each(|mark| kit.notify(Notice::SweptWait(mark.began)));
            self.end_wait(kit, path, rank, end);
        }
        true
    }

    /// Returns the next waiting request of a queue to end, and how.
    fn next_to_end(&self, kit: &Kit<'_>, path: &Path) -> Option<(QueueRank, WaitEnd)> {
        let semaphore = self.by_path.get(path).filter(|semaphore| semaphore.deleting.is_none())?;
        let heaviest = semaphore.weights.last().filter(|_| !is_enabled(Mutation::SemShrinkStuck));
        if let Some((_, rank)) = heaviest.filter(|(weight, _)| semaphore.is_too_large(*weight)) {
            return Some((*rank, WaitEnd::Refused(Reason::TooLarge)));
        }
        let (rank, wait) = semaphore.queue.first_key_value()?;
        let is_ending = wait.key.session().is_some_and(|number| self.ending.contains_key(&number))
            || sweep_of(kit, wait, *rank).is_some();
        let is_late = wait.ends_at_ms.is_some_and(|at_ms| at_ms <= kit.sight.visible_ms);
        match (is_ending, is_late) {
            (true, _) => Some((*rank, WaitEnd::Refused(Reason::Ended))),
            (_, true) => Some((*rank, WaitEnd::Refused(Reason::TimedOut))),
            _ => semaphore.fits(wait.weight).then_some((*rank, WaitEnd::Granted)),
        }
    }
}

/// Returns the unfinished sweep that will end a wait.
fn sweep_of(kit: &Kit<'_>, wait: &PermitWait, rank: QueueRank) -> Option<SweepMark> {
    (kit.sight.sweep_of)(&item_of(&wait.key, HoldOrWait::Wait(rank)))
}
