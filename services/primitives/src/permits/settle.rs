//! Grants what can be granted, and refuses what waits for more than there is.

use std::sync::Arc;

use super::item::{PermitWait, QueueRank};
use super::key::Name;
use super::key::WaitEnd;
use super::many::item_of;
use super::{HoldOrWait, PermitTable};
use crate::Reason;
use crate::kit::{Kit, Notice, SweepMark};

impl PermitTable {
    /// Settles the queues that changed. What exceeds the slice, or is frozen, is left for the next one.
    pub fn settle(&mut self, kit: &mut Kit<'_>) {
        let mut next = self.unsettled.first().map(Arc::clone);
        while let Some(name) = next {
            if kit.is_frozen || !self.settle_one(kit, &name) {
                return;
            }
            self.unsettled.remove(&name);
            next = self.unsettled.first().map(Arc::clone);
        }
    }

    /// Runs one slice of unfinished work.
    pub fn run_jobs(&mut self, kit: &mut Kit<'_>) {
        while let Some(began) = self.deleting.first_key_value().map(|(began, _)| *began) {
            if !self.continue_deletion(kit, began) {
                return;
            }
            kit.notify(Notice::Finished(began));
        }
        self.settle(kit);
    }

    /// Settles one queue. Returns whether it is done. Each grant and each refusal counts as a grant of the slice,
    /// and that of many members as some.
    fn settle_one(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>) -> bool {
        while let Some((rank, end)) = self.next_to_end(kit, name) {
            if kit.budget.grants == 0 {
                return false;
            }
            let grants = self.wait(name, rank).map_or(1, PermitWait::grants);
            kit.budget.grants = kit.budget.grants.saturating_sub(grants);
            let has_ended = matches!(end, WaitEnd::Refused(Reason::Ended));
            let swept = self.wait(name, rank).filter(|_| has_ended).and_then(|wait| sweep_of(kit, wait, rank));
            swept.into_iter().for_each(|mark| kit.notify(Notice::SweptWait(mark.began)));
            self.end_wait(kit, name, rank, end);
        }
        true
    }

    /// Returns the next waiting request of a queue to end, and how.
    fn next_to_end(&self, kit: &Kit<'_>, name: &Name) -> Option<(QueueRank, WaitEnd)> {
        let source = self.by_name.get(name).filter(|source| source.deleting.is_none())?;
        if let Some((rank, reason)) = source.first_impossible() {
            return Some((rank, WaitEnd::Refused(reason)));
        }
        source.candidates().find_map(|(rank, wait, fits)| {
            let is_ending = wait.key.session().is_some_and(|number| self.ending.contains_key(&number))
                || sweep_of(kit, wait, rank).is_some();
            let is_late = wait.ends_at_ms.is_some_and(|at_ms| at_ms <= kit.sight.visible_ms);
            let end = match (is_ending, is_late) {
                (true, _) => Some(WaitEnd::Refused(Reason::Ended)),
                (_, true) => Some(WaitEnd::Refused(Reason::TimedOut)),
                _ => fits.then_some(WaitEnd::Granted),
            };
            end.map(|end| (rank, end))
        })
    }
}

/// Returns the unfinished sweep that will end a wait.
fn sweep_of(kit: &Kit<'_>, wait: &PermitWait, rank: QueueRank) -> Option<SweepMark> {
    (kit.sight.sweep_of)(&item_of(&wait.key, HoldOrWait::Wait(rank)))
}
