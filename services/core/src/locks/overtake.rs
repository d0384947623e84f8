//! Keeping track of who may overtake whom while who waits for whom changes.
//!
//! Whoever waits for more than before may let others overtake it. And whoever waits for less may: a request that overtook
//! an earlier one, because that one waited for its owner, stands behind it again once it no longer does, and so waits for
//! more than before. Therefore requests that overtake somebody are remembered while they wait. There are hardly ever any:
//! it takes owners that hold, or await, one thing that others wait for, and wait for another.

use std::collections::BTreeSet;

use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::Place;
use super::reach::Behind;
use super::waiting::Watch;
use super::work::Work;

impl Work<'_> {
    /// An owner waits for more than before: whoever it now waits for, directly or through others, may overtake it and
    /// those who wait for it.
    pub(super) fn reconsider(&mut self, owner: OwnerId) {
        for place in self.ns.may_overtake_more(owner) {
            if matches!(self.ns.waiting(place).watch, Watch::Wait(_)) {
                self.ns.woken.insert(place);
            }
            if self.ns.overtakes(place) && self.ns.overtaking.insert(place) {
                // It no longer waits for whom it overtakes.
                self.ns.waits_less = true;
                self.ns.wake(Watch::Yields);
            }
        }
    }

    /// Somebody waits for less than before: whoever overtook others may stand behind them again.
    pub(super) fn look_at_overtaking(&mut self) {
        // One that begins to overtake waits for less. It ends: from the second time on the set only grows.
        while std::mem::take(&mut self.ns.waits_less) && !self.ns.overtaking.is_empty() {
            let places: Vec<Place> = self.ns.overtaking.iter().copied().collect();
            let owners: BTreeSet<OwnerId> = places.iter().map(|place| self.ns.waiting(*place).owner).collect();
            self.ns.overtaking = places.into_iter().filter(|place| self.ns.overtakes(*place)).collect();
            owners.into_iter().for_each(|owner| self.reconsider(owner));
        }
    }
}

impl Namespace {
    /// The waiting requests that may overtake more now that the owner waits for more: those of the owners that it waits
    /// for, or those behind the owners that wait for it, whichever are fewer.
    fn may_overtake_more(&self, owner: OwnerId) -> Vec<Place> {
        let few = self.few_behind(owner, Place::LAST);
        if let Some(later) = few.and_then(|few| self.later_than(owner, &few, self.bounds.searches.later)) {
            return later;
        }
        if let Some(ahead) = self.ahead_of([owner], self.bounds.searches.blockers) {
            return ahead.into_iter().flat_map(|owner| self.owners.get(owner).places()).collect();
        }
        let behind = self.behind(owner, Place::LAST);
        self.later_than(owner, &behind, usize::MAX).unwrap_or_default()
    }

    /// The requests behind those of an owner and of those who wait for it; nothing when there are more than `max`.
    fn later_than(&self, owner: OwnerId, behind: &Behind, max: usize) -> Option<Vec<Place>> {
        let mut later = BTreeSet::new();
        for place in behind.owners.keys().chain([&owner]).flat_map(|owner| self.owners.get(*owner).places()) {
            let waiting = self.waiting(place);
            for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
                for (_, line) in self.tree.lines(self.tree.upward(*node), Some(*node), claim.mode) {
                    later.extend(line.range(place..).map(|(place, _)| *place).take(max.saturating_add(1)));
                    if later.len() > max {
                        return None;
                    }
                }
            }
        }
        Some(later.into_iter().collect())
    }

    /// Whether a waiting request overtakes one that began to wait before it.
    pub(super) fn overtakes(&self, place: Place) -> bool {
        let waiting = self.waiting(place);
        if place.is_upgrade() || !self.may_be_awaited(waiting.owner, place) {
            return false;
        }
        let (mut earlier, mut are_all) = (BTreeSet::new(), true);
        for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
            for (_, line) in self.tree.lines(self.tree.upward(*node), Some(*node), claim.mode) {
                let others = line.range(..place).map(|(_, entry)| entry.owner);
                let mut others = others.filter(|owner| *owner != waiting.owner);
                earlier.extend(others.by_ref().take(self.bounds.searches.earlier));
                are_all &= others.next().is_none();
            }
        }
        let earlier = Vec::from_iter(earlier);
        if earlier.is_empty() || (are_all && !self.may_reach(&earlier, waiting.owner, place)) {
            return false;
        }
        let behind = self.behind(waiting.owner, place);
        if are_all {
            return earlier.iter().any(|owner| behind.contains(*owner));
        }
        let mut places = behind.owners.keys().flat_map(|owner| self.owners.get(*owner).places());
        places.any(|other| other < place && self.waiting(other).conflicts_with(waiting))
    }
}
