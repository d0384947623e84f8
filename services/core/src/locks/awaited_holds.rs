//! Finds which of a set of owners have holds that block a claim.

use std::collections::BTreeMap;

use super::bit_set::BitSet;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::tree::{ClaimQueueKey, NodeId};
use crate::Mode;

/// Which holds of one owner other owners wait for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    /// The number of these holds.
    pub(super) holds: u64,
    /// The locations of these holds, as keys of claim queues.
    queue_keys: Vec<ClaimQueueKey>,
}

/// Cached [`Awaited`] data of waiting owners, valid as long as neither their holds nor the conflicting claims change.
/// The cache only saves inspecting the holds again, so replicas may differ in it.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedCache(BTreeMap<OwnerId, Awaited>);

impl AwaitedCache {
    pub(super) fn get(&self, owner: OwnerId) -> Option<&Awaited> {
        self.0.get(&owner)
    }

    pub(super) fn remove(&mut self, owner: OwnerId) {
        self.0.remove(&owner);
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (OwnerId, &Awaited)> {
        self.0.iter().map(|(owner, awaited)| (*owner, awaited))
    }
}

impl Namespace {
    /// Inspects all holds of the owner.
    pub(super) fn find_awaited(&self, owner: OwnerId) -> Awaited {
        let holds = &self.owners.get(owner).holds;
        self.spend(holds.len());
        let mut awaited = Awaited::default();
        for node in holds.iter() {
            let Some(hold) = self.hold(node, owner).filter(|hold| !hold.is_kept()) else { continue };
            if self.is_awaited(node, hold.mode, owner) {
                awaited.holds += 1;
                awaited.queue_keys.extend(self.tree.own_queue_keys(node, hold.mode));
            }
        }
        awaited
    }

    /// Caches the awaited holds of tangled owners.
    pub(super) fn cache_awaited(&mut self) {
        let is_new = |owner: &OwnerId| self.awaited.get(*owner).is_none() && self.owners.get(*owner).wait_count() > 0;
        let found: Vec<(OwnerId, Awaited)> = self
            .tangled
            .iter()
            .filter(|owner| is_new(owner))
            .map(|owner| (*owner, self.find_awaited(*owner)))
            .collect();
        self.awaited.0.extend(found);
    }

    /// Invalidates the cache when a claim of the request at `place` is added or removed. If requests of several other
    /// owners remain in the queues, no hold starts or stops being awaited.
    pub(super) fn invalidate_awaited(&mut self, node: NodeId, mode: Mode, position: QueuePosition) {
        if self.awaited.0.is_empty()
            || self.tree.own_queue_keys(node, mode).all(|key| self.has_several_without(key, position))
        {
            return;
        }
        if self.tree.subtree(node).is_some() {
            self.awaited.0.clear();
            return;
        }
        let spot = self.tree.lookup_node(node);
        for (owner, _) in self.blocking_waiting_holders((NO_OWNER, mode, &spot)) {
            self.awaited.remove(owner);
        }
    }

    /// Returns whether the first and the last entry of a claim queue belong to different owners, ignoring one request.
    fn has_several_without(&self, key: ClaimQueueKey, position: QueuePosition) -> bool {
        let Some(line) = self.tree.claim_queue(key) else { return false };
        let first = line.iter().find(|entry| entry.position != position);
        let last = line.iter().rev().find(|entry| entry.position != position);
        first.zip(last).is_some_and(|(first, last)| first.owner != last.owner)
    }
}

/// A numbered set of owners and the holds of theirs that others wait for. Built once for all of them, so that a claim
/// needs one lookup by path.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedHolds {
    pub(super) owners: BTreeMap<OwnerId, usize>,
    /// The owners by the location of their holds, as keys of claim queues.
    by_queue: BTreeMap<ClaimQueueKey, BitSet>,
    /// The number of awaited holds.
    pub(super) awaited: u64,
    /// The number of owners and holds to inspect.
    pub(super) cost: u64,
}

impl AwaitedHolds {
    pub(super) fn of(namespace: &Namespace, owners: impl IntoIterator<Item = OwnerId>) -> Self {
        let mut held = Self::default();
        for owner in owners {
            let next = held.owners.len();
            let number = *held.owners.entry(owner).or_insert(next);
            // Counted as if the cache were empty, so that every replica counts the same.
            held.cost += 1 + namespace.owners.get(owner).holds.len() as u64;
            let found;
            let awaited = match namespace.awaited.get(owner) {
                Some(known) => known,
                None => {
                    found = namespace.find_awaited(owner);
                    &found
                }
            };
            namespace.spend(1 + awaited.queue_keys.len());
            held.awaited += awaited.holds;
            for key in &awaited.queue_keys {
                held.by_queue.entry(*key).or_default().insert(number);
            }
        }
        held
    }

    /// Adds the owners whose awaited holds block the claims.
    pub(super) fn add_blockers<'a>(
        &self,
        namespace: &Namespace,
        claims: impl IntoIterator<Item = &'a (NodeId, Mode)>,
        to: &mut BitSet,
    ) {
        for (node, mode) in claims {
            namespace.spend(1);
            for key in namespace.tree.conflicting_queue_keys(*node, *mode) {
                if let Some(owners) = self.by_queue.get(&key) {
                    to.union_with(owners);
                }
            }
        }
    }

    /// Returns the owners whose awaited holds block the requests of `owner`. The owner itself may be among them.
    pub(super) fn blockers_of(&self, namespace: &Namespace, owner: OwnerId) -> BitSet {
        let mut ahead = BitSet::default();
        let mut before = None;
        for position in namespace.owners.get(owner).queue_positions() {
            let kind = &namespace.waiting(position).claim_set;
            if before != Some(kind) {
                self.add_blockers(namespace, kind.iter(), &mut ahead);
            }
            before = Some(kind);
        }
        ahead
    }
}
