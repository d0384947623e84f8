//! Who watches what, and who has to be looked at again since what it watched is gone.
//!
//! What is gone may have been watched by 100,000 requests: they are found one by one, as they are looked at.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use super::queue::Place;
use super::waiting::Watch;

/// Who watches what, and who is to be looked at.
#[derive(Clone, Debug, Default)]
pub(super) struct Watchers {
    all: BTreeSet<(Watch, Place)>,
    /// Requests that are to be looked at, whatever they watch.
    woken: BTreeSet<Place>,
    /// What is gone, and from which place on its watchers are still to be looked at.
    gone: BTreeMap<Watch, Place>,
    /// The same in order of place.
    next: BTreeSet<(Place, Watch)>,
}

impl Watchers {
    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn contains(&self, watch: Watch, place: Place) -> bool {
        self.all.contains(&(watch, place))
    }

    pub(super) fn insert(&mut self, watch: Watch, place: Place) {
        self.all.insert((watch, place));
    }

    /// The request is looked at no more.
    pub(super) fn remove(&mut self, watch: Watch, place: Place) {
        self.woken.remove(&place);
        if self.gone.get(&watch) == Some(&place) {
            self.go_on(watch, Bound::Excluded(place));
        }
        self.all.remove(&(watch, place));
    }

    /// Whoever watches that has to be looked at.
    pub(super) fn wake(&mut self, watch: Watch) {
        self.go_on(watch, Bound::Included(Place::FIRST));
    }

    pub(super) fn wake_one(&mut self, place: Place) {
        self.woken.insert(place);
    }

    /// The first that is to be looked at. It stays so until it watches something else or is removed.
    pub(super) fn first_woken(&self) -> Option<Place> {
        let (woken, next) = (self.woken.first(), self.next.first().map(|(place, _)| place));
        woken.into_iter().chain(next).min().copied()
    }

    pub(super) fn is_woken(&self, watch: Watch, place: Place) -> bool {
        self.woken.contains(&place) || self.gone.get(&watch).is_some_and(|from| *from <= place)
    }

    /// The next of the watchers is the first one from there on.
    fn go_on(&mut self, watch: Watch, from: Bound<Place>) {
        let from = match from {
            Bound::Included(place) => Bound::Included((watch, place)),
            Bound::Excluded(place) => Bound::Excluded((watch, place)),
            Bound::Unbounded => Bound::Unbounded,
        };
        let next = self.all.range((from, Bound::Included((watch, Place::LAST)))).next().map(|(_, place)| *place);
        let before = match next {
            Some(place) => self.gone.insert(watch, place),
            None => self.gone.remove(&watch),
        };
        if let Some(place) = before {
            self.next.remove(&(place, watch));
        }
        self.next.extend(next.map(|place| (place, watch)));
    }
}

#[cfg(test)]
mod tests {
    use super::super::owner::OwnerId;
    use super::super::tree::NodeId;
    use super::*;
    use crate::WaitId;

    fn place(wait: u64) -> Place {
        Place::of(WaitId(wait), false)
    }

    #[test]
    fn those_who_watched_what_is_gone_are_looked_at_in_order_once() {
        let (one, other) = (Watch::Hold(NodeId(1), OwnerId(1)), Watch::Hold(NodeId(2), OwnerId(1)));
        let mut watchers = Watchers::default();
        for wait in 1..=6 {
            watchers.insert(if wait % 2 == 0 { one } else { other }, place(wait));
        }
        watchers.wake(one);
        watchers.wake(other);
        watchers.wake_one(place(6));
        let mut seen = Vec::new();
        while let Some(first) = watchers.first_woken() {
            seen.push(first);
            let watch = if watchers.contains(one, first) { one } else { other };
            assert!(watchers.is_woken(watch, first));
            // Whoever watches the same again comes behind what is looked at.
            watchers.remove(watch, first);
            watchers.insert(one, first);
        }
        assert_eq!(seen, (1..=6).map(place).collect::<Vec<Place>>());
        watchers.wake(one);
        assert_eq!(watchers.first_woken(), Some(place(1)), "what is gone again wakes all again");
        (1..=6).for_each(|wait| watchers.remove(one, place(wait)));
        assert_eq!((watchers.first_woken(), watchers.len()), (None, 0));
    }
}
