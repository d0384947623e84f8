//! Purges a namespace in one step, however much it contains.
//!
//! From then on no command or query finds it. Waiters and sessions are notified afterwards, in batches. Remaining
//! entries in the shard's indexes resolve to nothing and are removed in batches too.

use std::sync::Arc;

use super::effects::{BufferedEffect, ResolvedAwait, ResolvedWait};
use super::namespace::Namespace;
use super::{LocksState, NamespaceKey};
use crate::{NamespaceRef, Path, Reason, SessionEnd, SessionNumber};

/// Memory of purged namespaces. Freeing it takes long if much was held, so a caller with a spare thread frees it there.
/// Not part of the state.
#[derive(Clone, Debug, Default)]
pub struct Purged(Vec<ClosedNamespace>);

impl Purged {
    /// Returns whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn append(&mut self, other: Self) {
        self.0.extend(other.0);
    }
}

/// A closed namespace, until its waiters and sessions are notified and the shard's indexes no longer refer to it.
#[derive(Clone, Debug)]
pub(super) struct ClosedNamespace(Box<Namespace>);

impl ClosedNamespace {
    /// Returns the next notice to publish; `None` once all are published.
    pub(super) fn next_notice(&mut self) -> Option<BufferedEffect> {
        let id = Arc::clone(&self.0.id);
        if let Some((position, waiting)) = self.0.waits.pop_first() {
            let waiting = Arc::unwrap_or_clone(waiting);
            let owner = self.0.owners.name(waiting.owner).to_owner();
            let settled = ResolvedWait::new(position.wait(), owner, waiting, Err(Reason::Ended));
            return Some(match settled.into_await() {
                Ok(resolved) => BufferedEffect::AwaitResolved { namespace: id, resolved: Box::new(resolved) },
                Err(settled) => BufferedEffect::WaitResolved { namespace: id, wait: settled },
            });
        }
        if let Some((wait, awaits)) = self.0.conditions.pop() {
            let resolved = ResolvedAwait {
                wait,
                attempt: awaits.attempts.highest(),
                owner: self.0.owners.name(awaits.owner).to_owner(),
                request_id: awaits.request_id.clone(),
                path: Path::clone(&awaits.path),
                from_token: awaits.from_token,
                woken: None,
                outcome: Err(Reason::Ended),
            };
            return Some(BufferedEffect::AwaitResolved { namespace: id, resolved: Box::new(resolved) });
        }
        if let Some(settled) = self.0.permits.pop_wait() {
            return Some(BufferedEffect::PermitsResolved { namespace: id, wait: Box::new(settled) });
        }
        let (session_id, number) = self.next_session()?;
        Some(BufferedEffect::Ended { namespace: id, number, session_id, reason: SessionEnd::NamespaceDeleted })
    }

    pub(super) fn id(&self) -> NamespaceRef {
        NamespaceRef::clone(&self.0.id)
    }

    fn next_session(&mut self) -> Option<(Arc<str>, SessionNumber)> {
        let (session_id, session) = self.0.sessions.pop_first()?;
        Some((session_id, session.facts.number))
    }
}

impl LocksState {
    /// Purges that incarnation, if it is the open one, and ends its quarantine.
    pub(super) fn purge(&mut self, purged: &NamespaceRef) {
        self.quarantined.remove(purged);
        if self.open_incarnation(purged) != Some(purged.incarnation) {
            return;
        }
        self.names.remove(&(purged.account, purged.name.clone()));
        let slot = self.slots.remove(&NamespaceKey::of(purged)).expect("every open incarnation has its locks");
        self.update_charges();
        let namespace = self.namespaces.remove(slot);
        self.release_charges(&namespace);
        self.retain_usage(purged.account, &namespace);
        namespace.sweeps.iter().for_each(|(began, sweep)| self.finished.push(*began, sweep.finished_state()));
        namespace.permits.deletions().for_each(|began| self.finished.push_deletion(began));
        if let Some(first) = namespace.first_due {
            self.due.remove(&first);
        }
        self.jobs.remove(&NamespaceKey::of(purged));
        self.session_durable.remove(&NamespaceKey::of(purged));
        self.common.raise_revision(namespace.hold_count + namespace.permits.holds() + namespace.barriers.arrivals());
        self.effects.closed(ClosedNamespace(Box::new(namespace)));
    }

    /// Removes entries of closed namespaces from the shard's indexes, at most `at_most`. Returns whether entries
    /// remain. Remaining entries resolve to nothing.
    pub(crate) fn purge_indexes(&mut self, at_most: usize) -> bool {
        let mut left = at_most;
        while let Some(closed) = self.closed.last_mut() {
            let Some((_, number)) = closed.next_session() else {
                self.purged.0.extend(self.closed.pop());
                continue;
            };
            self.sessions.remove(&number);
            left -= 1;
            if left == 0 {
                return !self.closed.is_empty();
            }
        }
        false
    }

    /// Returns the number of sessions in the shard's index that belong to closed namespaces.
    pub(super) fn stale_sessions(&self) -> usize {
        let all = self.closed.iter().chain(self.effects.closed_namespaces());
        all.map(|closed| closed.0.sessions.len()).sum()
    }

    /// Returns whether closed namespaces have notices to publish, or are still in the shard's indexes.
    pub(super) fn has_closed(&self) -> bool {
        !self.closed.is_empty() || self.effects.closed_namespaces().next().is_some()
    }

    /// Takes the memory of purged namespaces.
    pub(crate) fn take_purged(&mut self) -> Purged {
        std::mem::take(&mut self.purged)
    }
}
