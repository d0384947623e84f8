//! What becomes of a request: granted, in the way of somebody, or never to be granted.

use std::collections::BTreeSet;

use super::namespace::Namespace;
use super::owner::{NOBODY, OwnerId};
use super::queue::Place;
use super::reach::Waiters;
use super::tree::Spot;
use super::waiting::Watch;
use crate::{Claim, FencingToken, Mode, Reason};

/// A request as it is judged.
pub(super) struct Asked<'a> {
    pub(super) owner: OwnerId,
    /// Each path once.
    pub(super) claims: &'a [Claim],
    /// Where the tree has each of the paths.
    pub(super) spots: Vec<Spot>,
    /// Where it waits, or would wait.
    pub(super) place: Place,
    /// Whether it waits already.
    pub(super) is_waiting: bool,
    pub(super) allow_upgrade: bool,
    pub(super) token: Option<FencingToken>,
}

/// What a claim is about, for what the owner holds at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// A new hold.
    New,
    /// The owner's hold goes on.
    Extends,
    /// The owner's hold gets the other mode.
    Changes,
    /// The owner holds it in the other mode, which stays.
    OtherMode,
    /// The hold to be extended is gone.
    NotHeld,
}

/// What a request comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Granted,
    /// The claim of that index fails now.
    Blocked(usize, Reason),
    /// The claim of that index fails, whatever others do.
    Never(usize, Reason),
}

impl Namespace {
    pub(super) fn standing(&self, asked: &Asked<'_>, index: usize) -> Standing {
        let claim = &asked.claims[index];
        let own = asked.spots[index].node().and_then(|node| Some((node, self.hold(node, asked.owner)?)));
        match (own, asked.token) {
            (None, Some(_)) => Standing::NotHeld,
            (None, None) => Standing::New,
            (Some((_, hold)), Some(token)) if hold.token != token => Standing::NotHeld,
            (Some((node, hold)), _) if self.is_over(node, hold) => Standing::NotHeld,
            (Some((_, hold)), _) if hold.mode == claim.mode => Standing::Extends,
            (Some(_), None) if asked.allow_upgrade => Standing::Changes,
            (Some(_), _) => Standing::OtherMode,
        }
    }

    /// Judges a request that comes now. The first claim that fails decides; but one that `would_wait` is told of a
    /// claim that fails for good, wherever it stands.
    pub(super) fn judge(&self, asked: &Asked<'_>, waiters: &mut Waiters, would_wait: bool) -> Verdict {
        let mut first: Option<(usize, Reason)> = None;
        for index in 0..asked.claims.len() {
            let never = self.fails_for_good(asked, index);
            match (never, first) {
                (Some(reason), None) => return Verdict::Never(index, reason),
                (Some(reason), Some(_)) if would_wait => return Verdict::Never(index, reason),
                (None, None) => first = self.fails_now(asked, waiters, index).map(|reason| (index, reason)),
                _ => {}
            }
        }
        if let Some((index, reason)) = first {
            return Verdict::Blocked(index, reason);
        }
        match self.yields(asked, waiters) {
            Some((index, _)) => Verdict::Blocked(index, Reason::Queued),
            None => Verdict::Granted,
        }
    }

    /// Looks at a waiting request again: what it has to watch, or nothing when it can be granted. Who stands before it in
    /// the queue is watched rather than a hold, so that the end of a hold wakes the head of the queue and not all of it.
    pub(super) fn look_again(&self, place: Place) -> Option<Watch> {
        let asked = self.asked_by(place);
        let mut waiters = Waiters::default();
        let before = (0..asked.claims.len()).filter_map(|index| self.last_before(&asked, &mut waiters, index)).max();
        let watch = before.map(Watch::Wait).or_else(|| self.hold_in_the_way(&asked));
        watch.or_else(|| self.yields(&asked, &mut waiters).map(|(_, place)| Watch::Wait(place)))
    }

    /// Finds out anew what everybody watches.
    pub(super) fn watch_anew(&mut self) {
        self.watch_rightly(false);
    }

    /// The same of those only who watch nothing that keeps them waiting, if that `is_known`. Whoever is to be looked at is
    /// looked at in its turn.
    pub(super) fn watch_rightly(&mut self, is_known: bool) {
        for place in self.waits.keys().copied().collect::<Vec<Place>>() {
            let kept = self.waiting(place).watch;
            if self.watchers.is_woken(kept, place) {
                continue;
            }
            match self.look_again(place) {
                Some(_) if is_known && self.is_watched_rightly(place, kept) => {}
                Some(watch) => self.set_watch(place, watch),
                None => self.watchers.wake_one(place),
            }
        }
    }

    /// Whether what a request watches keeps it waiting.
    pub(super) fn is_watched_rightly(&self, place: Place, watch: Watch) -> bool {
        match watch {
            Watch::Unknown => false,
            Watch::Hold(node, owner) => self.hold(node, owner).is_some(),
            Watch::Wait(other) => self.stands_behind(place, other),
            Watch::Below(node, mode) => self.held_below(node, self.waiting(place).owner, mode).is_some(),
        }
    }

    pub(super) fn asked_by(&self, place: Place) -> Asked<'_> {
        let waiting = self.waiting(place);
        Asked {
            owner: waiting.owner,
            claims: &waiting.claims,
            spots: waiting.nodes.iter().map(|node| self.tree.spot_of(*node)).collect(),
            place,
            is_waiting: true,
            allow_upgrade: place.is_upgrade(),
            token: None,
        }
    }

    /// Section 4, which is judged first.
    fn fails_for_good(&self, asked: &Asked<'_>, index: usize) -> Option<Reason> {
        match self.standing(asked, index) {
            Standing::NotHeld => Some(Reason::NotHeld),
            Standing::OtherMode => Some(Reason::Upgrade),
            Standing::Changes if self.other_upgrade(asked, index).is_some() => Some(Reason::Upgrade),
            Standing::New | Standing::Extends | Standing::Changes => None,
        }
    }

    /// Another owner that waits to become the writer of this path, of an ancestor or of something under it.
    pub(super) fn other_upgrade(&self, asked: &Asked<'_>, index: usize) -> Option<Place> {
        let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
        if claim.mode == Mode::Read || asked.is_waiting {
            return None;
        }
        let lines = self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode);
        let mut upgrades = lines.flat_map(|(_, line)| line.range(..Place::AFTER_UPGRADES));
        upgrades.find(|(_, entry)| entry.owner != asked.owner).map(|(place, _)| *place)
    }

    /// Why a claim that does not fail for good fails now.
    fn fails_now(&self, asked: &Asked<'_>, waiters: &mut Waiters, index: usize) -> Option<Reason> {
        let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
        match self.standing(asked, index) {
            Standing::Extends => None,
            Standing::Changes if claim.mode == Mode::Read => None,
            Standing::Changes => self.held_by_others(asked.owner, claim.mode, spot),
            _ => self
                .held_by_others(asked.owner, claim.mode, spot)
                .or_else(|| self.last_before(asked, waiters, index).map(|_| Reason::Queued)),
        }
    }

    /// The last request before this one that a claim may not overtake.
    fn last_before(&self, asked: &Asked<'_>, waiters: &mut Waiters, index: usize) -> Option<Place> {
        let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
        if self.standing(asked, index) != Standing::New || self.is_covered(asked.owner, claim.mode, spot) {
            return None;
        }
        self.spend(spot.line.len());
        let lines = self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode);
        let lines = lines.filter(|(_, line)| line.first_key_value().is_some_and(|(first, _)| *first < asked.place));
        let last = lines.filter_map(|(key, line)| match waiters.of(self, asked) {
            Some((closure, number)) => closure.last_in_the_way(self, (key, line), number, asked.place),
            None => {
                let mut before = line.range(..asked.place).rev().filter(|(_, entry)| entry.owner != asked.owner);
                before.next().map(|(place, _)| *place)
            }
        });
        last.max()
    }

    /// The first requests before this one that a claim may not overtake, at most `max` and in order.
    pub(super) fn first_before(
        &self,
        asked: &Asked<'_>,
        waiters: &mut Waiters,
        index: usize,
        max: usize,
    ) -> BTreeSet<Place> {
        let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
        let mut found = BTreeSet::new();
        for (key, line) in self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode) {
            match waiters.of(self, asked) {
                Some((closure, number)) => {
                    found.extend(closure.first_in_the_way(self, (key, line), number, (asked.place, max)));
                }
                None => {
                    let before = line.range(..asked.place).filter(|(_, entry)| entry.owner != asked.owner);
                    found.extend(before.take(max).map(|(place, _)| *place));
                }
            }
        }
        found.into_iter().take(max).collect()
    }

    fn hold_in_the_way(&self, asked: &Asked<'_>) -> Option<Watch> {
        let indexes = 0..asked.claims.len();
        let mut watches = indexes.filter_map(|index| {
            match (self.standing(asked, index), asked.spots[index].node()) {
                (Standing::Extends, _) => return None,
                // Its own hold is over: it is another one that it waits for.
                (Standing::NotHeld, Some(node)) => return Some(Watch::Hold(node, asked.owner)),
                _ => {}
            }
            self.hold_to_watch(asked.owner, asked.claims[index].mode, &asked.spots[index])
        });
        watches.next()
    }

    /// A request behind this one that must go first, and the claim it is about: its owner is waited for by this owner
    /// because of another request, so that neither could go on if this one were granted.
    pub(super) fn yields(&self, asked: &Asked<'_>, waiters: &mut Waiters) -> Option<(usize, Place)> {
        let waits = |owner| self.owners.get(owner).waits() > usize::from(asked.is_waiting);
        if asked.owner == NOBODY || asked.place == Place::LAST || !waits(asked.owner) {
            return None;
        }
        let (closure, number) = waiters.of(self, asked)?;
        // Before it waits, its owner may wait for others too that stand behind its place.
        let others = (!asked.is_waiting).then(|| closure.others_ahead(self, number));
        let indexes = (0..asked.claims.len()).filter(|index| {
            let (claim, spot) = (&asked.claims[*index], &asked.spots[*index]);
            match self.standing(asked, *index) {
                Standing::New => !self.is_covered(asked.owner, claim.mode, spot),
                Standing::Changes => claim.mode == Mode::Write,
                _ => false,
            }
        });
        let mut yields = indexes.filter_map(|index| {
            let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
            let lines = self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode);
            let first = lines.flat_map(|(key, line)| {
                let other = others.as_ref().and_then(|others| others.first_in((closure, self), line, asked.place));
                closure.first_ahead(key, number, asked.place).into_iter().chain(other)
            });
            Some((index, first.min()?))
        });
        yields.next()
    }
}
