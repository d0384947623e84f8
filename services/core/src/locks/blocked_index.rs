//! Indexes what each waiting request is blocked on, and which requests to evaluate again because their blocker ended.
//!
//! Up to 100,000 requests may have been blocked on the same blocker. They are found one by one, as they are evaluated.
//! Meanwhile an equal blocker may appear and block other requests; a generation tells the two groups apart.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::queue::QueuePosition;
use super::waiting::BlockedOn;

/// Groups the requests that were blocked before the blocker ended and have not all been evaluated.
type Generation = u32;

/// What each request is blocked on, and which requests to evaluate.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockedIndex {
    entries: BTreeSet<(BlockedOn, Generation, QueuePosition)>,
    /// The generations of requests that are not in generation 0.
    generations: BTreeMap<QueuePosition, Generation>,
    /// Requests to evaluate, whatever they are blocked on.
    to_reevaluate: BTreeSet<QueuePosition>,
    /// Ended blockers, each with the position of the next request to evaluate.
    unblocked: BTreeMap<(BlockedOn, Generation), QueuePosition>,
    /// The same entries in order of position.
    next: BTreeSet<(QueuePosition, BlockedOn, Generation)>,
}

impl BlockedIndex {
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn contains(&self, watch: BlockedOn, place: QueuePosition) -> bool {
        self.entries.contains(&(watch, self.generation_of(place), place))
    }

    /// Returns whether any request is blocked on `watch`.
    pub(super) fn is_blocking(&self, watch: BlockedOn) -> bool {
        self.first_generation(watch, 0).is_some()
    }

    pub(super) fn insert(&mut self, watch: BlockedOn, place: QueuePosition) {
        let last_gone = self.unblocked.range((watch, 0)..=(watch, Generation::MAX)).next_back();
        let generation = last_gone.map_or(0, |((_, generation), _)| generation.saturating_add(1));
        if generation > 0 {
            self.generations.insert(place, generation);
        }
        self.entries.insert((watch, generation, place));
    }

    /// Removes the request, which is not evaluated any more.
    pub(super) fn remove(&mut self, watch: BlockedOn, place: QueuePosition) {
        let generation = self.generations.remove(&place).unwrap_or(0);
        self.to_reevaluate.remove(&place);
        if self.unblocked.get(&(watch, generation)) == Some(&place) {
            self.advance(watch, generation, Bound::Excluded(place));
        }
        self.entries.remove(&(watch, generation, place));
    }

    /// Schedules all requests that are blocked on `watch`.
    pub(super) fn unblock(&mut self, watch: BlockedOn) {
        let mut next = self.first_generation(watch, 0);
        while let Some(generation) = next {
            self.advance(watch, generation, Bound::Included(QueuePosition::FIRST));
            next = generation.checked_add(1).and_then(|from| self.first_generation(watch, from));
        }
    }

    pub(super) fn schedule(&mut self, place: QueuePosition) {
        self.to_reevaluate.insert(place);
    }

    /// Returns the first request to evaluate. It remains the first until it is blocked on something else or removed.
    pub(super) fn first_to_reevaluate(&self) -> Option<QueuePosition> {
        let (woken, next) = (self.to_reevaluate.first(), self.next.first().map(|(place, ..)| place));
        woken.into_iter().chain(next).min().copied()
    }

    pub(super) fn must_reevaluate(&self, watch: BlockedOn, place: QueuePosition) -> bool {
        let from = self.unblocked.get(&(watch, self.generation_of(place)));
        self.to_reevaluate.contains(&place) || from.is_some_and(|from| *from <= place)
    }

    /// Returns all requests to evaluate, in order.
    pub(super) fn all_to_reevaluate(&self) -> BTreeSet<QueuePosition> {
        let gone = self.unblocked.iter().flat_map(|((watch, generation), from)| {
            self.entries.range((*watch, *generation, *from)..=(*watch, *generation, QueuePosition::LAST))
        });
        self.to_reevaluate.iter().copied().chain(gone.map(|(.., place)| *place)).collect()
    }

    fn generation_of(&self, place: QueuePosition) -> Generation {
        self.generations.get(&place).copied().unwrap_or(0)
    }

    /// Returns the first generation, starting at `from`, with a request that is blocked on `watch`.
    fn first_generation(&self, watch: BlockedOn, from: Generation) -> Option<Generation> {
        let all =
            self.entries.range((watch, from, QueuePosition::FIRST)..=(watch, Generation::MAX, QueuePosition::LAST));
        all.map(|(_, generation, _)| *generation).next()
    }

    /// Moves the next request to evaluate to the first one at or after `from`.
    fn advance(&mut self, watch: BlockedOn, generation: Generation, from: Bound<QueuePosition>) {
        let from = match from {
            Bound::Included(place) => Bound::Included((watch, generation, place)),
            Bound::Excluded(place) => Bound::Excluded((watch, generation, place)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let until = Bound::Included((watch, generation, QueuePosition::LAST));
        let next = self.entries.range((from, until)).next().map(|(.., place)| *place);
        let before = match next {
            Some(place) => self.unblocked.insert((watch, generation), place),
            None => self.unblocked.remove(&(watch, generation)),
        };
        if let Some(place) = before {
            self.next.remove(&(place, watch, generation));
        }
        self.next.extend(next.map(|place| (place, watch, generation)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::OwnerId;
    use super::super::tree::NodeId;
    use super::*;
    use crate::WaitId;

    fn position(wait: u64) -> QueuePosition {
        QueuePosition::of(WaitId(wait), false)
    }

    #[test]
    fn those_who_watched_what_is_gone_are_looked_at_in_order_once() {
        let (one, other) = (BlockedOn::Hold(NodeId(1), OwnerId(1)), BlockedOn::Hold(NodeId(2), OwnerId(1)));
        let mut watchers = BlockedIndex::default();
        for wait in 1..=6 {
            watchers.insert(if wait % 2 == 0 { one } else { other }, position(wait));
        }
        watchers.unblock(one);
        watchers.unblock(other);
        watchers.schedule(position(6));
        assert_eq!(watchers.all_to_reevaluate().len(), 6);
        let mut seen = Vec::new();
        while let Some(first) = watchers.first_to_reevaluate() {
            seen.push(first);
            let watch = if watchers.contains(one, first) { one } else { other };
            assert!(watchers.must_reevaluate(watch, first));
            // The blocker exists again: a request that is blocked on it from now on must not be evaluated.
            watchers.remove(watch, first);
            watchers.insert(one, first);
            assert!(!watchers.must_reevaluate(one, first) && watchers.contains(one, first));
        }
        assert_eq!(seen, (1..=6).map(position).collect::<Vec<QueuePosition>>());
        watchers.unblock(one);
        assert_eq!(watchers.all_to_reevaluate().len(), 6, "what is gone again wakes all again");
        (1..=6).for_each(|wait| watchers.remove(one, position(wait)));
        assert_eq!((watchers.first_to_reevaluate(), watchers.len()), (None, 0));
    }
}
