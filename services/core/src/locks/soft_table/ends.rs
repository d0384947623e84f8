//! Ends in the tables what has ended in the log: namespaces, sessions, and locks that were opened by force. It takes a
//! slice at a time, and nothing is granted, and no event of the log is copied, before all of it has ended.

use super::SoftTable;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{Effect, EntryContext, SessionEnd};

impl SoftTable {
    /// Hears of what an entry of the log has done. It counts from the next step on: what ends there is not granted what
    /// others leave meanwhile.
    pub fn follow(&mut self, effect: &Effect) {
        match effect {
            Effect::SessionEnded { namespace, number, reason, .. } => {
                self.remove_report(NamespaceKey::of(namespace), *number);
                if *reason != SessionEnd::NamespaceDeleted && self.core.sessions.contains_key(number) {
                    self.ended.insert(*number, *reason);
                }
            }
            Effect::NamespaceClosed { namespace } => {
                let key = NamespaceKey::of(namespace);
                self.garbage.rebuilds.extend(self.rebuilds.remove(&key));
                self.entering.remove(&key);
                if self.core.slot_of(namespace).is_some() {
                    self.closed.push_back(namespace.clone());
                }
            }
            Effect::Events { namespace, .. } => _ = self.uncopied.insert(NamespaceKey::of(namespace)),
            _ => {}
        }
    }

    /// Hears of the ends of sessions whose effects nobody has taken from the log yet.
    pub fn catch_up(&mut self, log: &ShardState) {
        if let Some(log) = log.locks() {
            self.apply_ends(log);
        }
    }

    pub(super) fn apply_ends(&mut self, log: &LocksState) {
        for (number, why) in log.unreported_ends() {
            if let Some((slot, _)) = self.core.sessions.get(&number) {
                let key = NamespaceKey::of(&self.core.namespaces.get(*slot).id);
                self.remove_report(key, number);
                self.ended.insert(number, why);
            }
        }
    }

    /// Returns whether something has ended in the log that has not ended here.
    pub fn is_behind(&self) -> bool {
        let has_ends = !(self.closed.is_empty() && self.ended.is_empty() && self.forfeited.is_empty());
        has_ends || !self.freed.is_empty() || self.core.has_closed()
    }

    /// Ends what has ended in the log, a slice of it, as far as there are revisions. In each namespace grants follow
    /// once all of these sessions have ended, because waiters may belong to them.
    pub(super) fn settle(&mut self, context: &EntryContext) {
        if self.is_behind() && self.begin_end(context) {
            self.settle_some(context);
            self.core.enforce_byte_limits();
            self.collect_effects();
        }
        let is_behind = self.is_behind();
        self.completed |= self.was_behind && !is_behind;
        self.was_behind = is_behind;
    }

    fn settle_some(&mut self, context: &EntryContext) {
        if self.core.has_closed() {
            // It is taken over with the effects.
            return;
        }
        if let Some(namespace) = self.closed.pop_front() {
            return self.core.purge(&namespace);
        }
        while !self.ended.is_empty() {
            let Some((number, why)) = self.core.takes_end().then(|| self.ended.pop_first()).flatten() else { return };
            let Some((slot, _)) = self.core.sessions.get(&number) else { continue };
            self.freed.insert(NamespaceKey::of(&self.core.namespaces.get(*slot).id));
            self.core.end_mirrored(context, number, why);
        }
        while !self.freed.is_empty() {
            let Some(key) = self.core.takes_end().then(|| self.freed.pop_first()).flatten() else { return };
            if let Some(slot) = self.core.slots.get(&key).copied() {
                self.core.grant_freed(context, slot);
            }
        }
        while !self.forfeited.is_empty() {
            let Some(forfeit) = self.core.takes_end().then(|| self.forfeited.pop_front()).flatten() else { return };
            let Some(slot) = self.core.slot_of(&forfeit.namespace) else { continue };
            if !self.core.txn_in(slot, context).end_forfeited(&forfeit) {
                self.forfeited.push_front(forfeit);
            }
        }
    }

    /// Moves the clock for a slice of ends, for which nothing else may be done. Returns whether there are revisions for
    /// it.
    fn begin_end(&mut self, context: &EntryContext) -> bool {
        let is_ready = self.check_revisions().is_ok();
        if is_ready {
            self.core.common.advance(context);
            self.core.begin_slice();
        }
        is_ready
    }
}
