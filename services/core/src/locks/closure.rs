//! Who waits for whom, found out once and asked by all.
//!
//! Only some owners are told apart: those that wait and are waited for. Whoever else waits has one request, which nobody
//! overtakes and which overtakes nobody; it is known by whom of those it waits for, directly or through others like it.
//! So however many wait for one lock, they cost nothing.

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

/// Who waits for whom.
#[derive(Clone, Debug, Default)]
pub(super) struct Closure {
    /// Those that are told apart, each with a number.
    pub(super) owners: BTreeMap<OwnerId, usize>,
    /// By number: itself, and whom it waits for.
    pub(super) blockers: Vec<BitSet>,
    /// By number: itself, and who of them waits for it.
    pub(super) dependents: Vec<BitSet>,
    /// The requests of these in the lines that matter to them, in order.
    pub(super) queues: BTreeMap<ClaimQueueKey, Vec<(QueuePosition, usize)>>,
    /// Whom the requests of all others wait for, by their claims, each from one place on to the next.
    pub(super) untangled: BTreeMap<ClaimSet, Vec<(QueuePosition, BitSet)>>,
    /// How much was looked at besides what the owners hold.
    pub(super) visits: u64,
    /// How much was looked at in all.
    pub(super) cost: u64,
}

impl Closure {
    pub(super) fn of(namespace: &Namespace) -> Self {
        ClosureBuilder::build(namespace, None)
    }

    /// With the owner of a request that comes now, so that it can be asked who is before that.
    pub(super) fn with_request<'a>(namespace: &'a Namespace, asked: &'a Evaluation<'a>) -> Self {
        ClosureBuilder::build(namespace, Some(asked))
    }

    pub(super) fn number(&self, owner: OwnerId) -> Option<usize> {
        self.owners.get(&owner).copied()
    }

    /// Whether the owner of the request waits for the owner of that number, or is it.
    pub(super) fn waits_for(&self, namespace: &Namespace, place: QueuePosition, number: usize) -> bool {
        let (waiting, behind) = (namespace.waiting(place), &self.dependents[number]);
        match self.number(waiting.owner) {
            Some(other) => behind.contains(other),
            None => self.dependents_start(&waiting.claim_set, number).is_some_and(|cut| cut <= place),
        }
    }

    /// From where on the requests of those claims, as far as they are not told apart, wait for the owner.
    fn dependents_start(&self, kind: &ClaimSet, number: usize) -> Option<QueuePosition> {
        let mut sets = self.untangled.get(kind)?.iter();
        sets.find(|(_, ahead)| ahead.intersects(&self.dependents[number])).map(|(place, _)| *place)
    }

    /// The last request of a line before that place whose owner does not wait for the owner of that number.
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

    /// The first of them, at most `max` and in order.
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
            let places = namespace.by_claim_set[kind].range(..end).copied();
            found.extend(places.filter(|place| self.is_untangled(namespace, *place)).take(max));
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
        let entries = &entries[..entries.partition_point(|(place, _)| *place < before)];
        let behind = &self.dependents[number];
        entries.iter().filter(|(_, other)| !behind.contains(*other)).map(|(place, _)| *place)
    }

    pub(super) fn is_untangled(&self, namespace: &Namespace, place: QueuePosition) -> bool {
        !self.owners.contains_key(&namespace.waiting(place).owner)
    }

    /// The first request of a line after that place for whose owner the one of that number waits; of those told apart.
    pub(super) fn first_blocker_after(
        &self,
        key: ClaimQueueKey,
        number: usize,
        after: QueuePosition,
    ) -> Option<QueuePosition> {
        let entries = self.queues.get(&key)?;
        let entries = &entries[entries.partition_point(|(place, _)| *place <= after)..];
        let is_ahead =
            |(_, other): &&(QueuePosition, usize)| *other != number && self.blockers[number].contains(*other);
        entries.iter().find(is_ahead).map(|(place, _)| *place)
    }

    /// Whether somebody else's request there is known to wait for more from there on, so that all changes without it.
    pub(super) fn has_boundary_at(&self, kind: &ClaimSet, place: QueuePosition) -> bool {
        self.untangled.get(kind).is_some_and(|sets| sets.iter().any(|(from, _)| *from == place))
    }

    /// For which of the requests that are not told apart the owner waits. Of those with the same claims it waits for all
    /// before one, if for that one: each waits for no less than the one before it.
    pub(super) fn untangled_blockers(&self, namespace: &Namespace, number: usize) -> UntangledBlockers {
        let mut ahead = UntangledBlockers::default();
        let mut open: BTreeSet<QueuePosition> = BTreeSet::new();
        let lines_of = |kind: &ClaimSet| -> Vec<&ClaimQueue> {
            kind.iter()
                .flat_map(|(node, mode)| namespace.conflicting_queues_of(*node, *mode).map(|(_, line)| line))
                .collect()
        };
        for (owner, other) in self.owners.iter().filter(|(_, other)| self.blockers[number].contains(**other)) {
            for place in namespace.owners.get(*owner).queue_positions() {
                for line in lines_of(&namespace.waiting(place).claim_set) {
                    open.extend(self.last_untangled_before(namespace, line, place, Some(*other)));
                }
            }
        }
        while let Some(place) = open.pop_last() {
            let kind = &namespace.waiting(place).claim_set;
            namespace.spend(kind.len());
            if ahead.last.contains_key(kind) {
                continue;
            }
            ahead.last.insert(Arc::clone(kind), place);
            for line in lines_of(kind) {
                open.extend(self.last_untangled_before(namespace, line, place, None));
            }
        }
        ahead
    }

    /// The last request of each kind in a line before that place, of those not told apart; those that wait for the owner
    /// of that number left aside.
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
            namespace.by_claim_set[kind].range(..end).rev().copied().find(|place| self.is_untangled(namespace, *place))
        })
    }
}

/// Requests that are not told apart and that somebody waits for: of those with the same claims, the last one.
#[derive(Debug, Default)]
pub(super) struct UntangledBlockers {
    last: BTreeMap<ClaimSet, QueuePosition>,
}

impl UntangledBlockers {
    /// The first of them in a line after that place.
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
            let mut places = namespace.by_claim_set[kind].range(after..).take_while(|place| **place <= last);
            places.find(|place| closure.is_untangled(namespace, **place)).copied()
        });
        firsts.min()
    }
}
