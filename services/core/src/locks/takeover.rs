//! What a new leader takes over of a locks shard, with no more of it than the leader needs, and from a place on.

use std::ops::Bound;

use super::namespace::Namespace;
use super::{LocksState, NamespaceKey};
use crate::{AccountId, AdoptedWait, Incarnation, NamespaceRef, SessionNumber};

impl LocksState {
    /// Returns the sessions after a given one, in order of opening, each with its account and its time to live in
    /// milliseconds. Sessions of namespaces in quarantine are left out.
    pub(crate) fn session_times(
        &self,
        after: Option<SessionNumber>,
    ) -> impl Iterator<Item = (SessionNumber, AccountId, u64)> {
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.sessions.range((after, Bound::Unbounded)).filter_map(|(number, (slot, session_id))| {
            let namespace = self.namespaces.find(*slot).filter(|namespace| !self.is_quarantined(&namespace.id))?;
            let session = namespace.sessions.get(session_id).filter(|session| session.facts.number == *number)?;
            Some((*number, namespace.id.account, session.facts.ttl_ms))
        })
    }

    /// Returns the namespaces after a given one, and the waits in each that may have callers. A namespace in quarantine
    /// has none.
    pub(crate) fn adopted_waits(
        &self,
        after: Option<(AccountId, Incarnation)>,
    ) -> impl Iterator<Item = ((AccountId, Incarnation), Vec<AdoptedWait>)> {
        let key = |(account, incarnation)| NamespaceKey { account, incarnation };
        let after = after.map_or(Bound::Unbounded, |after| Bound::Excluded(key(after)));
        self.slots.range((after, Bound::Unbounded)).map(|(key, slot)| {
            let namespace = self.namespaces.get(*slot);
            let waits = match self.is_quarantined(&namespace.id) {
                true => Vec::new(),
                false => namespace.adopted_waits(),
            };
            ((key.account, key.incarnation), waits)
        })
    }
}

impl Namespace {
    fn adopted_waits(&self) -> Vec<AdoptedWait> {
        let id = || NamespaceRef::clone(&self.id);
        // Those that wait for a lock that they gave up are with the awaits.
        let waiting = self.waits.iter().filter(|(_, waiting)| waiting.came_from.is_none());
        let locks = waiting.filter(|(_, waiting)| waiting.attempts.highest() > 0).map(|(position, waiting)| {
            let attempts = waiting.attempts.cancellable().collect();
            AdoptedWait { namespace: id(), wait: position.wait(), attempts, cancel: None }
        });
        let permits = self.permits.waits(&self.id).filter(|record| record.attempt > 0).map(|record| AdoptedWait {
            namespace: record.cancel.namespace,
            wait: record.wait,
            attempts: record.cancel.attempts,
            cancel: None,
        });
        let awaits = self.await_records().filter(|record| record.attempt > 0).map(|record| AdoptedWait {
            namespace: id(),
            wait: record.wait,
            attempts: record.cancel.attempts.clone(),
            cancel: Some(record.cancel),
        });
        locks.chain(permits).chain(awaits).collect()
    }
}
