//! Namespaces in quarantine: an operator set them aside because something in them made the state machine fail.
//!
//! Such a namespace stands still: no deadline ends anything in it, its waits, sessions and unfinished work rest, and all
//! commands and queries are refused. Only its deletion works. The rest of the shard goes on.

use super::{LocksState, NamespaceKey};
use crate::NamespaceRef;

impl LocksState {
    /// Sets a namespace aside before the entry that it must not take part in, whether or not it is open.
    pub(crate) fn quarantine(&mut self, namespace: &NamespaceRef) {
        // Nothing in it was evaluated at a later clock.
        self.quarantined.insert(namespace.clone(), self.visible_clock_ms);
        if let Some(slot) = self.slot_of(namespace) {
            self.suspend(slot);
        }
    }

    /// Returns true if the namespace is in quarantine.
    pub(super) fn is_quarantined(&self, namespace: &NamespaceRef) -> bool {
        !self.quarantined.is_empty() && self.quarantined.contains_key(namespace)
    }

    /// Returns the clock by which a namespace is evaluated.
    pub(super) fn clock_of(&self, namespace: &NamespaceRef) -> u64 {
        self.quarantined.get(namespace).copied().unwrap_or(self.visible_clock_ms)
    }

    /// Removes a namespace in quarantine from the indexes of scheduled work.
    pub(super) fn suspend(&mut self, slot: u32) {
        let namespace = self.namespaces.get_mut(slot);
        if let Some(first) = namespace.first_due.take() {
            self.due.remove(&first);
        }
        self.jobs.remove(&NamespaceKey::of(&namespace.id));
    }

    /// Returns the namespace that is being changed now, for the report of a panic.
    pub(crate) fn namespace_in_work(&self) -> Option<NamespaceRef> {
        let namespace = self.namespaces.find(*self.touched.last()?)?;
        Some(NamespaceRef::clone(&namespace.id))
    }
}
