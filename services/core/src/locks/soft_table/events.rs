//! The events of a namespace whose lock table is in the leader's memory: those of its locks, and those that the log has
//! of its sessions and latches.
//!
//! Revisions of the log lie above those of the block in use. So the events of the log are copied here, each under the
//! next revision of the block: there is one order, and one revision tells a reader where it is. An epoch begins without
//! events, and a reader of an earlier one hears where it begins.

use holdfast_primitives::page::PageBudget;

use super::{SoftTable, busy};
use crate::locks::namespace::Namespace;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{
    BLOCK_REVISIONS, CommandError, Durability, Event, Limits, MAX_EVENT_BYTES_EXAMINED, NamespaceRef, Revision,
};

/// Maximum number of events that one step copies: reading one and adding it take some 2 µs.
const MAX_STEP_EVENTS: usize = 512;
/// Maximum number of namespaces where one step looks for them.
const MAX_STEP_NAMESPACES: usize = 1_024;

impl SoftTable {
    /// Copies the events that have come to the log, once what ended with them has ended here, as far as there are
    /// revisions, and no more than one step may. Later steps go on with the rest, before anything else is decided.
    pub fn copy_events(&mut self, log: &ShardState) {
        if let Some(log) = log.locks() {
            self.copy_events_of_log(log);
        }
    }

    pub(super) fn copy_events_of_log(&mut self, log: &LocksState) {
        let was_copying = self.is_copying;
        let mut budget = PageBudget::new(MAX_STEP_EVENTS, MAX_EVENT_BYTES_EXAMINED);
        let (mut namespaces, mut has_copied) = (0, false);
        while let Some(key) = self.uncopied.first().copied() {
            if self.check_settled().is_err() {
                break;
            }
            let copied = if namespaces < MAX_STEP_NAMESPACES {
                self.copy_events_of(log, key, &mut budget)
            } else {
                Copied::Part
            };
            has_copied |= copied != Copied::Nothing;
            self.is_copying = copied == Copied::Part;
            if self.is_copying {
                break;
            }
            self.uncopied.remove(&key);
            namespaces += 1;
        }
        self.completed |= was_copying && !self.is_copying;
        if has_copied {
            self.core.enforce_byte_limits();
            self.collect_effects();
        }
    }

    /// Checks that no step has left events of the log for others: what is decided now comes after all of them.
    pub(super) fn check_copied(&self) -> Result<(), CommandError> {
        if self.is_copying { Err(busy("the leader copies events of the log")) } else { Ok(()) }
    }

    /// Copies the events of a namespace, as far as there is budget.
    fn copy_events_of(&mut self, log: &LocksState, key: NamespaceKey, budget: &mut PageBudget) -> Copied {
        let slot = log.slots.get(&key).filter(|_| log.session_durable.contains(&key));
        let Some(of_log) = slot.map(|slot| log.namespaces.get(*slot)) else { return Copied::Nothing };
        let there = self.core.slots.get(&key).and_then(|slot| self.core.namespaces.get(*slot).copied_to);
        let from = there.unwrap_or_else(|| before_events_of(self.epoch)).saturating_add(1);
        if of_log.history.last_revision() < from {
            return Copied::Nothing;
        }
        let Some(slot) = self.mirror_namespace(of_log) else { return Copied::Nothing };
        self.core.copy_events(slot, of_log, (from, log.common.revision), budget)
    }

    /// Checks that a reader begins at a place among these events. Revisions of the log, which a latch shows, lie above
    /// all of them or between two blocks. What happened since then can't be told from what happened before, so whoever
    /// begins there is told that it may have missed something.
    pub(super) fn check_start(&self, from_revision: Option<Revision>) -> Result<(), CommandError> {
        let (Some(from), next) = (from_revision, self.core.common.revision.saturating_add(1)) else { return Ok(()) };
        let gap = self.gaps.get(self.gaps.partition_point(|(_, first)| *first < from));
        if from > next || gap.is_some_and(|(last, _)| from > *last) {
            return Err(CommandError::RevisionCompacted { oldest: next });
        }
        Ok(())
    }
}

/// How many of the events of a namespace that were to be copied a step has copied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Copied {
    /// There were none.
    Nothing,
    /// There was no budget for the rest.
    Part,
    All,
}

impl LocksState {
    /// Opens a namespace as it is in the log, with the events of an epoch, or changes its limits.
    pub(super) fn open_mirrored_namespace(&mut self, id: &NamespaceRef, limits: &Limits, epoch: Revision) {
        let is_new = self.slot_of(id).is_none();
        self.open(id, limits, Durability::Full);
        if let Some(slot) = self.slot_of(id).filter(|_| is_new) {
            let namespace = self.namespaces.get_mut(slot);
            namespace.copied_to = Some(before_events_of(epoch));
            namespace.history.evict_up_to(epoch.saturating_sub(1));
        }
    }

    /// Copies events that the log has in these revisions, as far as there is budget.
    fn copy_events(
        &mut self,
        slot: u32,
        of_log: &Namespace,
        (from, to): (Revision, Revision),
        budget: &mut PageBudget,
    ) -> Copied {
        self.touched.push(slot);
        let before = self.common.revision;
        let namespace = self.namespaces.get_mut(slot);
        let (max, max_bytes) = (namespace.bounds.retained_events, namespace.limits.max_event_bytes);
        let forgotten = of_log.history.compacted_revision();
        if from <= forgotten {
            // The log has forgotten some. A reader hears of it only if its place is forgotten, too, and with it all
            // earlier events. What the log still has comes after that.
            namespace.history.evict_up_to(self.common.next_revision());
        }
        let (mut copied_to, mut copied) = (from.saturating_sub(1).max(forgotten), Copied::All);
        for (bytes, event) in of_log.history.since(copied_to.saturating_add(1)).into_iter().flatten() {
            if !budget.try_take(usize::try_from(bytes).unwrap_or(usize::MAX)) {
                copied = Copied::Part;
                break;
            }
            copied_to = event.revision;
            let event = Event { revision: self.common.next_revision(), ..event };
            namespace.history.push_event(&event, max, max_bytes);
        }
        namespace.copied_to = Some(if copied == Copied::All { to } else { copied_to });
        if self.common.revision > before {
            self.effects.event(&namespace.id, before + 1);
        }
        copied
    }
}

/// Returns the last revision of the log before the events of an epoch: that of its first block.
fn before_events_of(epoch: Revision) -> Revision {
    epoch.saturating_add(BLOCK_REVISIONS - 1)
}
