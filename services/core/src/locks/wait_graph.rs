//! Who waits for whom.
//!
//! An owner waits for another when one of its waiting requests conflicts with a hold of the other, or with a claim of an
//! earlier waiting request of the other that it may not overtake. It may overtake whoever waits, directly or through
//! others, for it. That is a circle, and it is cut in the order of the queue: whether a request overtakes an earlier one
//! is decided by the holds of all and by the waits of the requests before it. So nobody ever waits for somebody who
//! waits for them, and the first to wait have the say. Since an owner is one thread of control, it waits for everything
//! that any of its requests waits for.
//!
//! What is found out once for all of them is kept (`closure`), until something changes that it depends on.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::closure::Closure;
use super::evaluate::Evaluation;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::{ClaimQueue, QueuePosition};
use super::tree::{ClaimQueueKey, NodeId};
use super::waiting::BlockedOn;
use crate::Mode;

/// What is known of who waits for whom.
pub(super) struct WaitGraphCheckpoint {
    closure: Arc<Closure>,
    tangled: BTreeSet<OwnerId>,
    is_stale: bool,
}

/// Who waits for the owner of a request, found out when it is first asked.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// Nothing within when nobody can wait for it.
    resolved: Option<Option<(Arc<Closure>, usize)>>,
}

impl Dependents {
    /// Who waits for whom, and the number of the owner there; nothing when nobody can wait for it.
    pub(super) fn of(&mut self, namespace: &Namespace, asked: &Evaluation<'_>) -> Option<(&Closure, usize)> {
        let known = self.resolved.get_or_insert_with(|| {
            let closure = match asked.is_waiting {
                true => namespace.closure(),
                false if namespace.may_overtake(asked.owner) => Arc::new(Closure::with_request(namespace, asked)),
                false => return None,
            };
            let number = closure.number(asked.owner)?;
            Some((closure, number))
        });
        known.as_ref().map(|(closure, number)| (&**closure, *number))
    }
}

impl Namespace {
    /// Who waits for whom.
    pub(super) fn closure(&self) -> Arc<Closure> {
        if self.closure_is_stale { Arc::new(Closure::of(self)) } else { Arc::clone(&self.closure) }
    }

    /// Whether a request of the owner that comes now may overtake others: somebody waits for the owner. One that holds so
    /// much that it may not wait overtakes nobody.
    fn may_overtake(&self, owner: OwnerId) -> bool {
        if owner == NO_OWNER || self.waits.is_empty() {
            return false;
        }
        let record = self.owners.get(owner);
        let is_small = record.holds.len() as u64 <= self.max_holds_of_waiting_owner();
        record.wait_count() > 0 || (is_small && self.has_awaited_hold(owner))
    }

    pub(super) fn has_awaited_hold(&self, owner: OwnerId) -> bool {
        if let Some(awaited) = self.awaited.get(owner) {
            self.spend(1);
            return awaited.holds > 0;
        }
        self.owners.get(owner).holds.iter().any(|node| {
            self.spend(1);
            let Some(hold) = self.hold(node, owner) else { return false };
            self.is_awaited(node, hold.mode, owner)
        })
    }

    /// Whether others wait for a hold of the owner.
    pub(super) fn is_awaited(&self, node: NodeId, mode: Mode, owner: OwnerId) -> bool {
        self.conflicting_queues_of(node, mode).any(|(_, line)| line.values().any(|entry| entry.owner != owner))
    }

    /// The lines of claims that conflict with a hold or a claim at a path of the tree.
    pub(super) fn conflicting_queues_of(
        &self,
        node: NodeId,
        mode: Mode,
    ) -> impl Iterator<Item = (ClaimQueueKey, &ClaimQueue)> {
        self.tree.conflicting_queues(self.tree.self_and_ancestors(node), Some(node), mode)
    }

    /// What is known of who waits for whom, to be known again once a change is undone.
    pub(super) fn checkpoint(&self) -> WaitGraphCheckpoint {
        WaitGraphCheckpoint {
            closure: Arc::clone(&self.closure),
            tangled: self.tangled.clone(),
            is_stale: self.closure_is_stale,
        }
    }

    pub(super) fn roll_back(&mut self, known: WaitGraphCheckpoint) {
        WaitGraphCheckpoint { closure: self.closure, tangled: self.tangled, is_stale: self.closure_is_stale } = known;
    }

    /// Finds out anew who waits for whom, if that may have changed, and wakes whoever watches a request that is no longer
    /// in its way. Whether it was found out anew.
    pub(super) fn refresh(&mut self) -> bool {
        if !std::mem::take(&mut self.closure_is_stale) {
            return false;
        }
        let tangled = std::mem::take(&mut self.tangled);
        let is_tangled = |owner: &OwnerId| self.owners.get(*owner).wait_count() > 1 || self.has_awaited_hold(*owner);
        self.tangled = tangled.into_iter().filter(is_tangled).collect();
        self.cache_awaited();
        let closure = Arc::new(Closure::of(self));
        let before = std::mem::replace(&mut self.closure, closure);
        let owners = before.owners.keys().chain(&self.tangled).filter(|owner| self.owners.contains(**owner));
        let places = owners.flat_map(|owner| self.owners.get(*owner).queue_positions());
        let moved = places.filter(|place| match self.waiting(*place).blocked_on {
            BlockedOn::Request(other) => !self.must_wait_for(*place, other),
            _ => false,
        });
        let moved: Vec<QueuePosition> = moved.collect();
        moved.into_iter().for_each(|place| self.blocked_index.schedule(place));
        true
    }

    /// Whether a waiting request has to let another one go first: an earlier one whose owner does not wait for its own, or
    /// a later one for whose owner its own waits.
    pub(super) fn must_wait_for(&self, place: QueuePosition, other: QueuePosition) -> bool {
        let number = self.closure.number(self.waiting(place).owner);
        match (number, self.waits.get(&other)) {
            (_, None) => false,
            (Some(number), Some(_)) if other < place => !self.closure.waits_for(self, other, number),
            (None, Some(_)) => other < place,
            (Some(number), Some(waiting)) => {
                self.closure.number(waiting.owner).is_some_and(|other| self.closure.blockers[number].contains(other))
            }
        }
    }
}
