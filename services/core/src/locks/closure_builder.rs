//! Builds the closure of the wait-for graph in one pass over the queue.
//!
//! The pass follows the queue order. Each claim queue accumulates its tangled owners so far, and the owners that its
//! untangled requests wait for. A request of a tangled owner waits for all of these, except those that wait for its
//! owner. An untangled request waits for all of them, and so for no less than its predecessor with the same claims. The
//! pass therefore visits it only if the queues that it reads grew since that predecessor.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::awaited_holds::AwaitedHolds;
use super::bit_set::BitSet;
use super::closure::Closure;
use super::evaluate::Evaluation;
use super::namespace::Namespace;
use super::owner::NO_OWNER;
use super::queue::{ClaimQueue, QueuePosition};
use super::tree::ClaimQueueKey;
use super::waiting::ClaimSet;

/// The state of the pass.
pub(super) struct ClosureBuilder<'a> {
    namespace: &'a Namespace,
    awaited_holds: AwaitedHolds,
    closure: Closure,
    /// Requests from this position on do not matter.
    end: QueuePosition,
    queues: BTreeMap<ClaimQueueKey, QueueSummary>,
    untangled: Vec<UntangledGroup<'a>>,
    seen: BTreeSet<&'a ClaimSet>,
    due: BTreeSet<(QueuePosition, Visit)>,
}

/// The entries of a claim queue so far.
#[derive(Default)]
struct QueueSummary {
    /// The tangled owners.
    owners: BitSet,
    /// The owners that each untangled request waits for.
    untangled: BTreeSet<BitSet>,
    all: BitSet,
    /// The untangled groups that may be behind an entry of the queue.
    readers: Vec<usize>,
}

/// Requests of untangled owners with the same claims.
struct UntangledGroup<'a> {
    claim_set: &'a ClaimSet,
    positions: &'a BTreeSet<QueuePosition>,
    next: QueuePosition,
    is_due: bool,
    blockers: BitSet,
    queue_keys: Vec<ClaimQueueKey>,
    sets: Vec<(QueuePosition, BitSet)>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Visit {
    Owner(usize),
    Untangled(usize),
}

impl<'a> ClosureBuilder<'a> {
    pub(super) fn build(namespace: &'a Namespace, asked: Option<&'a Evaluation<'a>>) -> Closure {
        let owner = asked.map(|asked| asked.owner).filter(|owner| *owner != NO_OWNER);
        if namespace.tangled.is_empty() && owner.is_none() {
            return Closure::default();
        }
        let mut pass =
            Self::new(namespace, AwaitedHolds::of(namespace, namespace.tangled.iter().copied().chain(owner)));
        pass.find_queues(asked);
        while let Some((position, turn)) = pass.due.pop_first() {
            match turn {
                Visit::Owner(number) => pass.visit_owner(position, number),
                Visit::Untangled(index) => pass.visit_untangled(position, index),
            }
        }
        let mut closure = pass.closure;
        closure.cost = pass.awaited_holds.cost + closure.visits;
        namespace.spend(usize::try_from(closure.visits).unwrap_or(usize::MAX));
        for others in pass.untangled {
            if !others.sets.is_empty() {
                closure.untangled.insert(others.claim_set.clone(), others.sets);
            }
        }
        closure
    }

    /// Starts with the edges that follow from holds alone.
    fn new(namespace: &'a Namespace, awaited_holds: AwaitedHolds) -> Self {
        let alone: Vec<BitSet> = (0..awaited_holds.owners.len()).map(BitSet::of).collect();
        let closure = Closure {
            owners: awaited_holds.owners.clone(),
            blockers: alone.clone(),
            dependents: alone,
            visits: awaited_holds.awaited,
            ..Closure::default()
        };
        let (queues, untangled, seen, due) = (BTreeMap::new(), Vec::new(), BTreeSet::new(), BTreeSet::new());
        let mut pass =
            Self { namespace, awaited_holds, closure, end: QueuePosition::FIRST, queues, untangled, seen, due };
        let owners: Vec<_> = pass.awaited_holds.owners.iter().map(|(owner, number)| (*owner, *number)).collect();
        for (owner, number) in owners {
            let ahead = pass.awaited_holds.blockers_of(namespace, owner);
            pass.add_edges(number, &ahead);
            let places = namespace.owners.get(owner).queue_positions();
            pass.due.extend(places.map(|position| (position, Visit::Owner(number))));
        }
        pass.end = pass.due.last().map_or(QueuePosition::FIRST, |(position, _)| *position);
        pass
    }

    /// Adds edges from the owner, and from all owners that wait for it, to `others` and to all owners that `others`
    /// wait for.
    fn add_edges(&mut self, number: usize, others: &BitSet) {
        // If an owner is a known blocker, so are all owners that it waits for.
        if others.is_subset(&self.closure.blockers[number]) {
            return;
        }
        let mut ahead = BitSet::default();
        for other in others.iter() {
            ahead.union_with(&self.closure.blockers[other]);
        }
        if ahead.is_subset(&self.closure.blockers[number]) {
            return;
        }
        let behind = self.closure.dependents[number].clone();
        for other in behind.iter() {
            self.closure.blockers[other].union_with(&ahead);
        }
        for other in ahead.iter() {
            self.closure.dependents[other].union_with(&behind);
        }
    }

    /// Finds the claim queues in which tangled owners may be behind other requests, and all requests that matter there.
    fn find_queues(&mut self, asked: Option<&'a Evaluation<'a>>) {
        let (namespace, mut kinds) = (self.namespace, BTreeSet::new());
        for (position, _) in &self.due {
            kinds.insert(&namespace.waiting(*position).claim_set);
        }
        if let Some(asked) = asked {
            self.end = QueuePosition::LAST;
            for (claim, spot) in asked.claims.iter().zip(&asked.lookups) {
                self.open_queues(namespace.tree.conflicting_queues(
                    spot.ancestry.iter().copied(),
                    spot.node(),
                    claim.mode,
                ));
            }
        }
        kinds.into_iter().for_each(|kind| self.open_queues_of(kind));
        let mut index = 0;
        while let Some(others) = self.untangled.get(index) {
            self.open_queues_of(others.claim_set);
            index += 1;
        }
        for index in 0..self.untangled.len() {
            let others = &mut self.untangled[index];
            for (node, mode) in others.claim_set.iter() {
                others.queue_keys.extend(namespace.tree.conflicting_queue_keys(*node, *mode));
            }
            others.queue_keys.retain(|key| self.queues.contains_key(key));
            others.queue_keys.sort_unstable();
            others.queue_keys.dedup();
            for key in &others.queue_keys {
                self.queues.entry(*key).or_default().readers.push(index);
            }
            self.awaited_holds.add_blockers(namespace, others.claim_set.iter(), &mut others.blockers);
            if !others.blockers.is_empty() {
                others.is_due = true;
                self.due.insert((others.next, Visit::Untangled(index)));
            }
        }
    }

    fn open_queues_of(&mut self, kind: &'a ClaimSet) {
        let tree = &self.namespace.tree;
        self.closure.visits += kind.len() as u64;
        for (node, mode) in kind.iter() {
            self.open_queues(tree.conflicting_queues(tree.self_and_ancestors(*node), Some(*node), *mode));
        }
    }

    fn open_queues(&mut self, lines: impl Iterator<Item = (ClaimQueueKey, &'a ClaimQueue)>) {
        for (key, line) in lines {
            if self.queues.contains_key(&key) {
                continue;
            }
            self.queues.insert(key, QueueSummary::default());
            for first in line.first_of_each_set(self.end) {
                self.closure.visits += 1;
                let claim_set = &self.namespace.waiting(first).claim_set;
                if !self.seen.insert(claim_set) {
                    continue;
                }
                let positions = &self.namespace.by_claim_set[claim_set];
                let is_other = |position: &&QueuePosition| self.closure.is_untangled(self.namespace, **position);
                if let Some(next) = positions.range(..self.end).find(is_other).copied() {
                    let (blockers, queue_keys, sets) = (BitSet::default(), Vec::new(), Vec::new());
                    self.untangled.push(UntangledGroup {
                        claim_set,
                        positions,
                        next,
                        is_due: false,
                        blockers,
                        queue_keys,
                        sets,
                    });
                }
            }
        }
    }

    /// Adds the edges of a request of a tangled owner.
    fn visit_owner(&mut self, position: QueuePosition, number: usize) {
        let (namespace, mut ahead) = (self.namespace, BitSet::default());
        let kind = &namespace.waiting(position).claim_set;
        let is_cut = namespace.bounds.search_falls_back_after.is_some_and(|max| self.closure.visits > max);
        let behind = if is_cut { BitSet::default() } else { self.closure.dependents[number].clone() };
        for (node, mode) in kind.iter() {
            for key in namespace.tree.conflicting_queue_keys(*node, *mode) {
                let Some(line) = self.queues.get(&key) else { continue };
                self.closure.visits += 1 + line.untangled.len() as u64;
                ahead.union_difference(&line.owners, &behind);
                for other in line.untangled.iter().filter(|other| !other.intersects(&behind)) {
                    ahead.union_with(other);
                }
            }
        }
        self.add_edges(number, &ahead);
        for key in own_queue_keys(namespace, kind) {
            let Some(line) = self.queues.get_mut(&key) else { continue };
            line.owners.insert(number);
            let grew = line.all.insert(number);
            self.closure.queues.entry(key).or_default().push((position, number));
            if grew {
                self.schedule_readers(key, position);
            }
        }
    }

    /// Adds the edges of an untangled request.
    fn visit_untangled(&mut self, position: QueuePosition, index: usize) {
        let others = &mut self.untangled[index];
        others.is_due = false;
        self.closure.visits += 1 + others.queue_keys.len() as u64;
        for key in &others.queue_keys {
            if let Some(line) = self.queues.get(key) {
                others.blockers.union_with(&line.all);
            }
        }
        let (kind, ahead) = (others.claim_set, others.blockers.clone());
        others.sets.push((position, ahead.clone()));
        for key in own_queue_keys(self.namespace, kind) {
            let Some(line) = self.queues.get_mut(&key) else { continue };
            line.untangled.insert(ahead.clone());
            if line.all.union_with(&ahead) {
                self.schedule_readers(key, position);
            }
        }
    }

    /// Schedules the untangled groups that read a grown claim queue, each at its next position.
    fn schedule_readers(&mut self, key: ClaimQueueKey, after: QueuePosition) {
        let Some(line) = self.queues.get(&key) else { return };
        for index in &line.readers {
            self.closure.visits += 1;
            let others = &mut self.untangled[*index];
            if others.is_due || line.all.is_subset(&others.blockers) {
                continue;
            }
            if others.next <= after {
                let mut later = others.positions.range((Bound::Excluded(after), Bound::Unbounded));
                let next = later.find(|position| self.closure.is_untangled(self.namespace, **position));
                others.next = next.copied().unwrap_or(QueuePosition::LAST);
            }
            if others.next < self.end {
                others.is_due = true;
                self.due.insert((others.next, Visit::Untangled(*index)));
            }
        }
    }
}

/// Returns the keys of the queues that contain requests with these claims, each once.
fn own_queue_keys(namespace: &Namespace, kind: &ClaimSet) -> BTreeSet<ClaimQueueKey> {
    kind.iter().flat_map(|(node, mode)| namespace.tree.own_queue_keys(*node, *mode)).collect()
}
