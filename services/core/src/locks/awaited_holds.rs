//! Which of some owners hold what is in the way of a claim.

use std::collections::BTreeMap;

use super::bit_set::BitSet;
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::tree::{ClaimQueueKey, NodeId};
use crate::Mode;

/// What others wait for of what one owner holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Awaited {
    /// How many of its holds.
    pub(super) holds: u64,
    /// Where they are, as the lines of claims are named.
    queue_keys: Vec<ClaimQueueKey>,
}

/// What others wait for of what owners hold. Kept for owners that wait, as long as neither their holds change nor the
/// claims that conflict with them; only saves looking at the holds again, so a replica may have less of it than another.
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
    /// Looks at all that the owner holds.
    pub(super) fn find_awaited(&self, owner: OwnerId) -> Awaited {
        let holds = &self.owners.get(owner).holds;
        self.spend(holds.len());
        let mut awaited = Awaited::default();
        for node in holds.iter() {
            let Some(hold) = self.hold(node, owner) else { continue };
            if self.is_awaited(node, hold.mode, owner) {
                awaited.holds += 1;
                awaited.queue_keys.extend(self.tree.own_queue_keys(node, hold.mode));
            }
        }
        awaited
    }

    /// Keeps what others wait for of what those who are tangled hold.
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

    /// A claim of the request at that place comes, or goes. Where several others wait before and after, nobody's holds
    /// begin or cease to be awaited.
    pub(super) fn invalidate_awaited(&mut self, node: NodeId, mode: Mode, place: QueuePosition) {
        if self.awaited.0.is_empty()
            || self.tree.own_queue_keys(node, mode).all(|key| self.has_several_without(key, place))
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

    /// Whether the first and the last in a line are of different owners, one request left aside.
    fn has_several_without(&self, key: ClaimQueueKey, place: QueuePosition) -> bool {
        let Some(line) = self.tree.claim_queue(key) else { return false };
        let first = line.iter().find(|(at, _)| **at != place);
        let last = line.iter().rev().find(|(at, _)| **at != place);
        first.zip(last).is_some_and(|((_, first), (_, last))| first.owner != last.owner)
    }
}

/// Some owners with numbers, and what they hold that others wait for. Found out once for all of them, so that a claim is
/// looked up by its path.
#[derive(Clone, Debug, Default)]
pub(super) struct AwaitedHolds {
    pub(super) owners: BTreeMap<OwnerId, usize>,
    /// By where a hold is, as the lines of claims are named.
    by_queue: BTreeMap<ClaimQueueKey, BitSet>,
    /// How many awaited holds there are.
    pub(super) awaited: u64,
    /// How many owners and holds there were to look at.
    pub(super) cost: u64,
}

impl AwaitedHolds {
    pub(super) fn of(namespace: &Namespace, owners: impl IntoIterator<Item = OwnerId>) -> Self {
        let mut held = Self::default();
        for owner in owners {
            let next = held.owners.len();
            let number = *held.owners.entry(owner).or_insert(next);
            // As if nothing were known before: every replica counts the same.
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

    /// Adds those whose awaited holds are in the way of the claims.
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

    /// Whose awaited holds are in the way of what the owner waits for; it may be among them itself.
    pub(super) fn blockers_of(&self, namespace: &Namespace, owner: OwnerId) -> BitSet {
        let mut ahead = BitSet::default();
        let mut before = None;
        for place in namespace.owners.get(owner).queue_positions() {
            let kind = &namespace.waiting(place).claim_set;
            if before != Some(kind) {
                self.add_blockers(namespace, kind.iter(), &mut ahead);
            }
            before = Some(kind);
        }
        ahead
    }
}
