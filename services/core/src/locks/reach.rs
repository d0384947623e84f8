//! Who waits for whom.
//!
//! An owner waits for another when one of its waiting requests conflicts with a hold of the other, or with a claim of an
//! earlier waiting request of the other that it may not overtake. It may overtake whoever waits, directly or through
//! others, for it. That is a circle, and it is cut in the order of the queue: whether a request overtakes an earlier one
//! is decided by the holds of all and by the waits of the requests before it. So nobody ever waits for somebody who
//! waits for them, and the first to wait have the say. Since an owner is one thread of control, it waits for everything
//! that any of its requests waits for.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::{Bound, ControlFlow};

use super::namespace::Namespace;
use super::owner::{NOBODY, OwnerId};
use super::queue::{Line, Place};
use super::tree::NodeId;
use crate::Mode;

/// The owners that wait for one, each with the next step towards it.
#[derive(Clone, Debug, Default)]
pub(super) struct Behind {
    pub(super) owners: BTreeMap<OwnerId, Step>,
}

/// What an owner waits for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// Whom.
    pub(super) to: OwnerId,
    /// What that one holds or claims.
    pub(super) node: NodeId,
    /// Whether it only claims it.
    pub(super) waiting: bool,
}

/// In which order the holds of an owner are gone through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// Whichever is quick. It is another one in a replica that was restored from a snapshot, so nothing that is shown may
    /// depend on it: who is reached does not, by which way does.
    Any,
    /// By path.
    Paths,
}

impl Behind {
    pub(super) fn contains(&self, owner: OwnerId) -> bool {
        self.owners.contains_key(&owner)
    }
}

/// Who waits for the owners of the requests that may overtake, of those who wait for one owner: a bit for each of them,
/// since both may be many.
#[derive(Default)]
struct Decided {
    owners: Vec<OwnerId>,
    behind: BTreeMap<Place, Box<[u64]>>,
}

impl Decided {
    fn among(owner: OwnerId, behind: &Behind) -> Self {
        let mut owners: Vec<OwnerId> = behind.owners.keys().copied().chain([owner]).collect();
        owners.sort_unstable();
        Self { owners, behind: BTreeMap::new() }
    }

    fn add(&mut self, place: Place, behind: &Behind) {
        let mut bits = vec![0_u64; self.owners.len().div_ceil(64)];
        for (index, owner) in self.owners.iter().enumerate() {
            if behind.contains(*owner)
                && let Some(word) = bits.get_mut(index / 64)
            {
                *word |= 1 << (index % 64);
            }
        }
        self.behind.insert(place, bits.into_boxed_slice());
    }

    fn is_behind(&self, place: Place, owner: OwnerId) -> bool {
        let Some(bits) = self.behind.get(&place) else { return false };
        let Ok(index) = self.owners.binary_search(&owner) else { return false };
        bits.get(index / 64).is_some_and(|word| word & (1 << (index % 64)) != 0)
    }
}

/// How far a line of waiting claims was gone through.
struct Swept {
    /// By a hold: all of it.
    all: bool,
    /// By waiting requests: from behind this place on.
    from: Place,
    /// Those that overtake whoever they were found behind; they may not overtake the next.
    overtaking: Vec<(Place, OwnerId)>,
}

impl Namespace {
    /// Whether anybody may wait for the owner, for what it holds or because it began to wait before `limit`. False is
    /// certain.
    pub(super) fn may_be_awaited(&self, owner: OwnerId, limit: Place) -> bool {
        if owner == NOBODY || self.waits.is_empty() {
            return false;
        }
        let record = self.owners.get(owner);
        if record.places().next().is_some_and(|first| first < limit)
            || record.holds.len() > self.bounds.searches.holds_of_one
        {
            return true;
        }
        record.holds.iter().any(|node| {
            let Some(hold) = self.hold(node, owner) else { return false };
            self.is_awaited(node, hold.mode, owner)
        })
    }

    /// Whether others wait for a hold of the owner.
    pub(super) fn is_awaited(&self, node: NodeId, mode: Mode, owner: OwnerId) -> bool {
        self.lines_of(node, mode).any(|(_, line)| line.values().any(|entry| entry.owner != owner))
    }

    /// The lines of claims that conflict with a hold or a claim at a path of the tree.
    pub(super) fn lines_of(&self, node: NodeId, mode: Mode) -> impl Iterator<Item = ((NodeId, u8), &Line)> {
        self.tree.lines(self.tree.upward(node), Some(node), mode)
    }

    /// Who waits for the owner, directly or through others; of the requests behind another one only those before
    /// `limit` count.
    pub(super) fn behind(&self, owner: OwnerId, limit: Place) -> Behind {
        let loose = self.sweep(owner, limit, (&Decided::default(), Order::Any));
        let deciding = |other: OwnerId| {
            let before = self.owners.get(other).places().filter(move |place| *place < limit);
            before.filter(move |place| self.may_be_awaited(other, *place)).map(move |place| (place, other))
        };
        let mut deciding_ones: Vec<(Place, OwnerId)> = loose.owners.keys().flat_map(|other| deciding(*other)).collect();
        let steps = deciding_ones.len().saturating_mul(loose.owners.len()) as u64;
        if deciding_ones.is_empty() || self.bounds.search_falls_back_after.is_some_and(|max| steps > max) {
            return loose;
        }
        deciding_ones.extend(deciding(owner));
        deciding_ones.sort_unstable();
        let mut decided = Decided::among(owner, &loose);
        for (place, other) in deciding_ones {
            let behind = self.sweep(other, place, (&decided, Order::Any));
            decided.add(place, &behind);
        }
        self.sweep(owner, limit, (&decided, Order::Any))
    }

    /// Who waits for the owner, directly or through others, because of what is held alone.
    pub(super) fn behind_by_holds(&self, owner: OwnerId, order: Order) -> Behind {
        self.sweep(owner, Place::FIRST, (&Decided::default(), order))
    }

    /// Goes from the owner to those who wait for it, from them to those who wait for them, and so on. `decided` knows
    /// who waits for the owner of a request; without it a request overtakes nobody.
    fn sweep(&self, target: OwnerId, limit: Place, decided: (&Decided, Order)) -> Behind {
        self.sweep_some(target, limit, decided, usize::MAX).expect("nobody has so many waiting claims")
    }

    /// Whoever may wait for the owner, if they are few; somebody who overtakes may be among them.
    pub(super) fn few_behind(&self, owner: OwnerId, limit: Place) -> Option<Behind> {
        self.sweep_some(owner, limit, (&Decided::default(), Order::Any), self.bounds.searches.few_steps)
    }

    /// As `sweep`; nothing when it takes more than `max` steps.
    fn sweep_some(
        &self,
        target: OwnerId,
        limit: Place,
        (decided, order): (&Decided, Order),
        max: usize,
    ) -> Option<Behind> {
        let open = VecDeque::from([target]);
        let mut search = Search { behind: Behind::default(), open, target, decided, left: max };
        let mut swept: BTreeMap<(NodeId, u8), Swept> = BTreeMap::new();
        let unswept = || Swept { all: false, from: limit, overtaking: Vec::new() };
        while let Some(owner) = search.open.pop_front() {
            let record = self.owners.get(owner);
            // Of one with very many no more than are looked at, and one, at which the search ends.
            let mut holds: Vec<NodeId> = record.holds.iter().take(search.left.saturating_add(1)).collect();
            if order == Order::Paths {
                holds.sort_by_cached_key(|node| self.tree.path_of(*node));
            }
            for node in holds {
                search.step(1)?;
                let Some(hold) = self.hold(node, owner) else { continue };
                for (key, line) in self.lines_of(node, hold.mode) {
                    let swept = swept.entry(key).or_insert_with(unswept);
                    if !std::mem::replace(&mut swept.all, true) {
                        search.step(line.len())?;
                        line.values().for_each(|entry| search.add(entry.owner, owner, node, false));
                    }
                }
            }
            for place in record.places().filter(|place| *place < limit) {
                let waiting = self.waiting(place);
                for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
                    for (key, line) in self.lines_of(*node, claim.mode) {
                        let swept = swept.entry(key).or_insert_with(unswept);
                        search.step(1)?;
                        if !swept.all {
                            search.go_behind(line, swept, place, owner, *node)?;
                        }
                    }
                }
            }
        }
        Some(search.behind)
    }

    /// Whether one of the owners may wait for the target, directly or through others; of the requests behind another
    /// one only those before `limit` count. False is certain. Looked for from the side on which there are few.
    pub(super) fn may_reach(&self, from: &[OwnerId], target: OwnerId, limit: Place) -> bool {
        if let Some(behind) = self.few_behind(target, limit) {
            return from.iter().any(|owner| *owner == target || behind.contains(*owner));
        }
        self.ahead_of(from.iter().copied(), self.bounds.searches.blockers).is_none_or(|ahead| ahead.contains(&target))
    }

    /// The owners and whoever they may wait for, directly or through others; nothing when more than `max` blockers have
    /// to be followed.
    pub(super) fn ahead_of(&self, from: impl IntoIterator<Item = OwnerId>, max: usize) -> Option<BTreeSet<OwnerId>> {
        let mut found: BTreeSet<OwnerId> = from.into_iter().collect();
        let mut open: VecDeque<OwnerId> = found.iter().copied().collect();
        // How far each line was gone through.
        let mut seen: BTreeMap<(NodeId, u8), Place> = BTreeMap::new();
        let mut left = max;
        while let Some(owner) = open.pop_front() {
            for place in self.owners.get(owner).places() {
                let waiting = self.waiting(place);
                for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
                    let mut blockers = self.owners_in_the_way(owner, claim.mode, *node, left)?;
                    for (key, line) in self.lines_of(*node, claim.mode) {
                        let seen = seen.entry(key).or_insert(Place::FIRST);
                        if place > *seen {
                            let before = line.range(*seen..place).map(|(_, entry)| entry.owner);
                            blockers.extend(before.take(left.saturating_add(1).saturating_sub(blockers.len())));
                            *seen = place;
                        }
                    }
                    left = left.checked_sub(blockers.len())?;
                    open.extend(blockers.into_iter().filter(|blocker| found.insert(*blocker)));
                }
            }
        }
        Some(found)
    }

    /// The owners of the holds in the way of a claim; nothing when there are more than `max`.
    fn owners_in_the_way(&self, owner: OwnerId, mode: Mode, node: NodeId, max: usize) -> Option<Vec<OwnerId>> {
        let mut found = Vec::new();
        let all = self.look_at_conflicts((owner, mode, &self.tree.spot_of(node)), max, |_, hold| {
            found.push(hold.owner);
            if found.len() > max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        (all == ControlFlow::Continue(true)).then_some(found)
    }
}

/// A search for those behind one owner.
struct Search<'a> {
    behind: Behind,
    open: VecDeque<OwnerId>,
    target: OwnerId,
    decided: &'a Decided,
    /// So many steps may still be taken.
    left: usize,
}

impl Search<'_> {
    /// Nothing when there are too many.
    fn step(&mut self, steps: usize) -> Option<()> {
        self.left = self.left.checked_sub(steps)?;
        Some(())
    }

    fn add(&mut self, owner: OwnerId, to: OwnerId, node: NodeId, waiting: bool) {
        if owner == to || owner == self.target || self.behind.contains(owner) {
            return;
        }
        self.behind.owners.insert(owner, Step { to, node, waiting });
        self.open.push_back(owner);
    }

    /// Those in a line behind a request, unless they overtake it.
    fn go_behind(&mut self, line: &Line, swept: &mut Swept, place: Place, owner: OwnerId, node: NodeId) -> Option<()> {
        let mut again = std::mem::take(&mut swept.overtaking);
        if place < swept.from {
            let bounds = (Bound::Excluded(place), Bound::Excluded(swept.from));
            again.extend(
                line.range(bounds).map(|(other, entry)| (*other, entry.owner)).take(self.left.saturating_add(1)),
            );
            swept.from = place;
        }
        self.step(again.len())?;
        for (other_place, other) in again {
            let overtakes = other_place > place && self.decided.is_behind(other_place, owner);
            if other_place < place || overtakes {
                swept.overtaking.push((other_place, other));
            } else {
                self.add(other, owner, node, true);
            }
        }
        Some(())
    }
}
