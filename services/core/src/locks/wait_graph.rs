//! The wait-for graph.
//!
//! An owner waits for another if one of its waiting requests conflicts with a hold of the other. It also waits if its
//! request conflicts with a claim of an earlier waiting request of the other that it must not overtake. A hold that its
//! owner has released, and that is only kept from others for a while, ends by itself: nobody waits for its owner. It
//! may overtake requests of owners that wait, directly or through others, for it. This definition is circular, and the
//! queue order resolves it: whether a request overtakes an earlier one depends on all holds and on the waits of the
//! requests before it. So no owner ever waits for an owner that waits for it, and earlier waits take precedence. An
//! owner is one thread of control, so it waits for everything that any of its requests waits for.
//!
//! The result for all owners is cached (`closure`) until something changes that it depends on.

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

/// The cached wait-for graph, to be restored if a change is undone.
pub(super) struct WaitGraphCheckpoint {
    closure: Arc<Closure>,
    tangled: BTreeSet<OwnerId>,
    is_stale: bool,
}

/// The owners that wait for the owner of a request, computed on first use.
#[derive(Debug, Default)]
pub(super) struct Dependents {
    /// The inner option is `None` if no owner can wait for it.
    resolved: Option<Option<(Arc<Closure>, usize)>>,
}

impl Dependents {
    /// Returns the closure and the owner's number in it; `None` if no owner can wait for it.
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
    /// Returns the current closure of the wait-for graph.
    pub(super) fn closure(&self) -> Arc<Closure> {
        if self.closure_is_stale { Arc::new(Closure::of(self)) } else { Arc::clone(&self.closure) }
    }

    /// Returns whether a new request of the owner may overtake others, because others wait for the owner. An owner that
    /// holds too much to wait overtakes none.
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
            let Some(hold) = self.hold(node, owner).filter(|hold| !hold.is_kept()) else { return false };
            self.is_awaited(node, hold.mode, owner)
        })
    }

    /// Returns whether others wait for a hold of the owner.
    pub(super) fn is_awaited(&self, node: NodeId, mode: Mode, owner: OwnerId) -> bool {
        self.conflicting_queues_of(node, mode).any(|(_, line)| line.iter().any(|entry| entry.owner != owner))
    }

    /// Returns the claim queues that conflict with a hold or a claim at a path of the tree.
    pub(super) fn conflicting_queues_of(
        &self,
        node: NodeId,
        mode: Mode,
    ) -> impl Iterator<Item = (ClaimQueueKey, &ClaimQueue)> {
        self.tree.conflicting_queues(self.tree.self_and_ancestors(node), Some(node), mode)
    }

    /// Saves the cached wait-for graph, to restore it if a change is undone.
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

    /// Rebuilds the closure if it may have changed, and schedules requests whose blocking request no longer blocks
    /// them. Returns whether it was rebuilt.
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
        let positions = owners.flat_map(|owner| self.owners.get(*owner).queue_positions());
        let moved = positions.filter(|position| match self.waiting(*position).blocked_on {
            BlockedOn::Request(other) => !self.must_wait_for(*position, other),
            _ => false,
        });
        let moved: Vec<QueuePosition> = moved.collect();
        moved.into_iter().for_each(|position| self.blocked_index.schedule(position));
        true
    }

    /// Returns whether a waiting request must let another one go first: an earlier one whose owner does not wait for
    /// this owner, or a later one whose owner this owner waits for.
    pub(super) fn must_wait_for(&self, position: QueuePosition, other: QueuePosition) -> bool {
        let number = self.closure.number(self.waiting(position).owner);
        match (number, self.waits.get(&other)) {
            (_, None) => false,
            (Some(number), Some(_)) if other < position => !self.closure.waits_for(self, other, number),
            (None, Some(_)) => other < position,
            (Some(number), Some(waiting)) => {
                self.closure.number(waiting.owner).is_some_and(|other| self.closure.blockers[number].contains(other))
            }
        }
    }
}
