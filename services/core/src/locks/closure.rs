//! The transitive closure of the wait-for graph, computed once and shared by all queries.
//!
//! Only tangled owners, which wait and are waited for, have nodes of their own. Any other waiting owner has one
//! request, which overtakes no request and is overtaken by none. It is represented by the set of tangled owners that it
//! waits for, directly or through other such requests. So any number of requests that wait for one lock cost nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::bit_set::BitSet;
use super::closure_builder::ClosureBuilder;
use super::evaluate::Evaluation;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::{ClaimQueue, QueuePosition};
use super::tree::ClaimQueueKey;
use super::waiting::ClaimSet;

/// Which owners wait for which.
#[derive(Clone, Debug, Default)]
pub(super) struct Closure {
    /// The tangled owners, each with a number.
    pub(super) owners: BTreeMap<OwnerId, usize>,
    /// By number: the owner itself and the owners that it waits for.
    pub(super) blockers: Vec<BitSet>,
    /// By number: the owner itself and the tangled owners that wait for it.
    pub(super) dependents: Vec<BitSet>,
    /// The requests of tangled owners in the claim queues that matter to them, in order.
    pub(super) queues: BTreeMap<ClaimQueueKey, Vec<(QueuePosition, usize)>>,
    /// The owners that all other requests wait for, by claim set. Each set of owners applies from its position to the
    /// next.
    pub(super) untangled: BTreeMap<ClaimSet, Vec<(QueuePosition, BitSet)>>,
    /// The number of visits, without the visits of the owners' holds.
    pub(super) visits: u64,
    /// The number of visits in total.
    pub(super) cost: u64,
}

impl Closure {
    pub(super) fn of(namespace: &Namespace) -> Self {
        ClosureBuilder::build(namespace, None)
    }

    /// Builds the closure with the owner of a new request, so that the request's predecessors can be queried.
    pub(super) fn with_request<'a>(namespace: &'a Namespace, asked: &'a Evaluation<'a>) -> Self {
        ClosureBuilder::build(namespace, Some(asked))
    }

    pub(super) fn number(&self, owner: OwnerId) -> Option<usize> {
        self.owners.get(&owner).copied()
    }

    /// Returns whether the owner of the request at `place` is, or waits for, the owner with that number.
    pub(super) fn waits_for(&self, namespace: &Namespace, position: QueuePosition, number: usize) -> bool {
        let (waiting, behind) = (namespace.waiting(position), &self.dependents[number]);
        match self.number(waiting.owner) {
            Some(other) => behind.contains(other),
            None => self.dependents_start(&waiting.claim_set, number).is_some_and(|cut| cut <= position),
        }
    }

    /// Returns the position from which on untangled requests with these claims wait for the owner.
    fn dependents_start(&self, kind: &ClaimSet, number: usize) -> Option<QueuePosition> {
        let mut sets = self.untangled.get(kind)?.iter();
        sets.find(|(_, ahead)| ahead.intersects(&self.dependents[number])).map(|(position, _)| *position)
    }

    /// Returns the last request in a claim queue before `before` whose owner does not wait for the owner with that
    /// number.
    pub(super) fn last_blocker_before(
        &self,
        namespace: &Namespace,
        (key, line): (ClaimQueueKey, &ClaimQueue),
        number: usize,
        before: QueuePosition,
    ) -> Option<QueuePosition> {
        let told_apart = self.tangled_blockers_before(key, number, before).next_back();
        self.last_untangled_before(namespace, line, before, Some(number)).chain(told_apart).max()
    }

    /// Returns the first such requests, at most `max`, in order.
    pub(super) fn first_blockers_before(
        &self,
        namespace: &Namespace,
        (key, line): (ClaimQueueKey, &ClaimQueue),
        number: usize,
        (before, max): (QueuePosition, usize),
    ) -> Vec<QueuePosition> {
        let mut found: Vec<QueuePosition> = self.tangled_blockers_before(key, number, before).take(max).collect();
        for first in line.first_of_each_set(before) {
            let kind = &namespace.waiting(first).claim_set;
            let end = self.dependents_start(kind, number).map_or(before, |cut| cut.min(before));
            let positions = namespace.by_claim_set[kind].range(..end).copied();
            found.extend(positions.filter(|position| self.is_untangled(namespace, *position)).take(max));
        }
        found.sort_unstable();
        found.truncate(max);
        found
    }

    fn tangled_blockers_before(
        &self,
        key: ClaimQueueKey,
        number: usize,
        before: QueuePosition,
    ) -> impl DoubleEndedIterator<Item = QueuePosition> {
        let entries = self.queues.get(&key).map_or(&[][..], Vec::as_slice);
        let entries = &entries[..entries.partition_point(|(position, _)| *position < before)];
        let behind = &self.dependents[number];
        entries.iter().filter(|(_, other)| !behind.contains(*other)).map(|(position, _)| *position)
    }

    pub(super) fn is_untangled(&self, namespace: &Namespace, position: QueuePosition) -> bool {
        !self.owners.contains_key(&namespace.waiting(position).owner)
    }

    /// Returns the first request in a claim queue after `after` whose tangled owner the owner with that number waits
    /// for.
    pub(super) fn first_blocker_after(
        &self,
        key: ClaimQueueKey,
        number: usize,
        after: QueuePosition,
    ) -> Option<QueuePosition> {
        let entries = self.queues.get(&key)?;
        let entries = &entries[entries.partition_point(|(position, _)| *position <= after)..];
        let is_ahead =
            |(_, other): &&(QueuePosition, usize)| *other != number && self.blockers[number].contains(*other);
        entries.iter().find(is_ahead).map(|(position, _)| *position)
    }

    /// Returns whether the requests of untangled owners start to wait for more owners at that position, so that
    /// removing the request there changes the closure.
    pub(super) fn has_boundary_at(&self, kind: &ClaimSet, position: QueuePosition) -> bool {
        self.untangled.get(kind).is_some_and(|sets| sets.iter().any(|(from, _)| *from == position))
    }

    /// Returns the untangled requests that the owner waits for. If it waits for one, it also waits for all earlier ones
    /// with the same claims, because each waits for no less than its predecessor.
    pub(super) fn untangled_blockers(&self, namespace: &Namespace, number: usize) -> UntangledBlockers {
        let mut ahead = UntangledBlockers::default();
        let mut open: BTreeSet<QueuePosition> = BTreeSet::new();
        let lines_of = |kind: &ClaimSet| -> Vec<&ClaimQueue> {
            kind.iter()
                .flat_map(|(node, mode)| namespace.conflicting_queues_of(*node, *mode).map(|(_, line)| line))
                .collect()
        };
        for (owner, other) in self.owners.iter().filter(|(_, other)| self.blockers[number].contains(**other)) {
            for position in namespace.owners.get(*owner).queue_positions() {
                for line in lines_of(&namespace.waiting(position).claim_set) {
                    open.extend(self.last_untangled_before(namespace, line, position, Some(*other)));
                }
            }
        }
        while let Some(position) = open.pop_last() {
            let kind = &namespace.waiting(position).claim_set;
            namespace.spend(kind.len());
            if ahead.last.contains_key(kind) {
                continue;
            }
            ahead.last.insert(Arc::clone(kind), position);
            for line in lines_of(kind) {
                open.extend(self.last_untangled_before(namespace, line, position, None));
            }
        }
        ahead
    }

    /// Returns the last untangled request of each claim set in a claim queue before `before`. Leaves out the requests
    /// that wait for the owner with that number.
    fn last_untangled_before(
        &self,
        namespace: &Namespace,
        line: &ClaimQueue,
        before: QueuePosition,
        number: Option<usize>,
    ) -> impl Iterator<Item = QueuePosition> {
        line.first_of_each_set(before).filter_map(move |first| {
            let kind = &namespace.waiting(first).claim_set;
            let cut = number.and_then(|number| self.dependents_start(kind, number));
            let end = cut.map_or(before, |cut| cut.min(before));
            namespace.by_claim_set[kind]
                .range(..end)
                .rev()
                .copied()
                .find(|position| self.is_untangled(namespace, *position))
        })
    }
}

/// Untangled requests that an owner waits for: the last one of each claim set.
#[derive(Debug, Default)]
pub(super) struct UntangledBlockers {
    last: BTreeMap<ClaimSet, QueuePosition>,
}

impl UntangledBlockers {
    /// Returns the first of these requests in a claim queue after `after`.
    pub(super) fn first_after(
        &self,
        of: (&Closure, &Namespace),
        line: &ClaimQueue,
        after: QueuePosition,
    ) -> Option<QueuePosition> {
        let (closure, namespace) = of;
        namespace.spend(1);
        let kinds = line.first_of_each_set(QueuePosition::LAST).map(|first| &namespace.waiting(first).claim_set);
        let firsts = kinds.filter_map(|kind| {
            let last = *self.last.get(kind)?;
            let mut positions = namespace.by_claim_set[kind].range(after..).take_while(|position| **position <= last);
            positions.find(|position| closure.is_untangled(namespace, **position)).copied()
        });
        firsts.min()
    }
}
