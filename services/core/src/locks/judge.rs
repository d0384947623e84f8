//! What becomes of a request: granted, in the way of somebody, or never to be granted.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::namespace::Namespace;
use super::owner::{NOBODY, OwnerId};
use super::queue::Place;
use super::reach::{Behind, Order, Step};
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

/// Who waits for the owner of a request, found out when it is first asked.
pub(super) struct Waiters {
    owner: OwnerId,
    limit: Place,
    awaited: Option<bool>,
    behind: Option<Behind>,
}

impl Waiters {
    pub(super) fn of(owner: OwnerId, limit: Place) -> Self {
        Self { owner, limit, awaited: None, behind: None }
    }

    /// Whether that one waits for the owner, so that the owner overtakes it.
    pub(super) fn include(&mut self, namespace: &Namespace, other: OwnerId) -> bool {
        let (owner, limit) = (self.owner, self.limit);
        if !*self.awaited.get_or_insert_with(|| namespace.may_be_awaited(owner, limit)) {
            return false;
        }
        if self.behind.is_none() && !namespace.may_reach(&[other], owner, limit) {
            return false;
        }
        self.behind.get_or_insert_with(|| namespace.behind(owner, limit)).contains(other)
    }
}

impl Namespace {
    pub(super) fn standing(&self, asked: &Asked<'_>, index: usize) -> Standing {
        let claim = &asked.claims[index];
        let own = asked.spots[index].node().and_then(|node| self.hold(node, asked.owner));
        match (own, asked.token) {
            (None, Some(_)) => Standing::NotHeld,
            (None, None) => Standing::New,
            (Some(hold), Some(token)) if hold.token != token => Standing::NotHeld,
            (Some(hold), _) if self.is_over(hold) => Standing::NotHeld,
            (Some(hold), _) if hold.mode == claim.mode => Standing::Extends,
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
        match self.yields(asked) {
            Some((index, _)) => Verdict::Blocked(index, Reason::Queued),
            None => Verdict::Granted,
        }
    }

    /// Looks at a waiting request again: what it has to watch, or nothing when it can be granted.
    pub(super) fn look_again(&self, place: Place) -> Option<Watch> {
        let asked = self.asked_by(place);
        let mut waiters = Waiters::of(asked.owner, place);
        let quick = !self.may_be_awaited(asked.owner, place);
        waiters.awaited = Some(!quick);
        // Who stands before it in the queue is watched rather than a hold, so that the end of a hold wakes the head of
        // the queue and not all of it.
        if quick && let Some(before) = self.not_overtaken(&asked, &mut waiters) {
            return Some(Watch::Wait(before));
        }
        if let Some(watch) = self.hold_in_the_way(&asked) {
            let before = (!quick).then(|| self.surely_not_overtaken(&asked)).flatten();
            return Some(before.map_or(watch, Watch::Wait));
        }
        if let Some(before) = self.not_overtaken(&asked, &mut waiters) {
            return Some(Watch::Wait(before));
        }
        self.yields(&asked).map(|_| Watch::Yields)
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
            _ => self.held_by_others(asked.owner, claim.mode, spot).or_else(|| {
                let before =
                    self.before(asked, waiters, index, |namespace, waiters, other| !waiters.include(namespace, other));
                before.map(|_| Reason::Queued)
            }),
        }
    }

    /// The last request before this one, of those for which `counts`, that a claim may be behind.
    fn before(
        &self,
        asked: &Asked<'_>,
        waiters: &mut Waiters,
        index: usize,
        counts: impl Fn(&Self, &mut Waiters, OwnerId) -> bool,
    ) -> Option<Place> {
        let (claim, spot) = (&asked.claims[index], &asked.spots[index]);
        if self.standing(asked, index) != Standing::New || self.is_covered(asked.owner, claim.mode, spot) {
            return None;
        }
        let lines = self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode);
        let last = lines.filter_map(|(_, line)| {
            let mut before = line.range(..asked.place).rev().filter(|(_, entry)| entry.owner != asked.owner);
            before.find(|(_, entry)| counts(self, waiters, entry.owner)).map(|(place, _)| *place)
        });
        last.max()
    }

    /// The last request before this one that it may not overtake.
    fn not_overtaken(&self, asked: &Asked<'_>, waiters: &mut Waiters) -> Option<Place> {
        let indexes = 0..asked.claims.len();
        let before = indexes.filter_map(|index| {
            self.before(asked, waiters, index, |namespace, waiters, other| !waiters.include(namespace, other))
        });
        before.max()
    }

    /// Like `not_overtaken`, as far as it can be told by a short search.
    fn surely_not_overtaken(&self, asked: &Asked<'_>) -> Option<Place> {
        let mut waiters = Waiters::of(asked.owner, asked.place);
        let indexes = 0..asked.claims.len();
        let nearest = indexes.filter_map(|index| self.before(asked, &mut waiters, index, |_, _, _| true)).max()?;
        (!self.may_reach(&[self.waiting(nearest).owner], asked.owner, asked.place)).then_some(nearest)
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
    pub(super) fn yields(&self, asked: &Asked<'_>) -> Option<(usize, Place)> {
        if asked.owner == NOBODY || self.owners.get(asked.owner).waits() <= usize::from(asked.is_waiting) {
            return None;
        }
        // Found out when somebody is behind this one at all.
        let mut ahead = None;
        for (index, claim) in asked.claims.iter().enumerate() {
            let spot = &asked.spots[index];
            let counts = match self.standing(asked, index) {
                Standing::New => !self.is_covered(asked.owner, claim.mode, spot),
                Standing::Changes => claim.mode == Mode::Write,
                _ => false,
            };
            let lines = self.tree.lines(spot.line.iter().copied(), spot.node(), claim.mode).filter(|_| counts);
            let behind = lines.flat_map(|(_, line)| line.range(asked.place..));
            let others = behind.filter(|(_, entry)| entry.owner != asked.owner);
            let mut others: BTreeMap<Place, OwnerId> = others.map(|(place, entry)| (*place, entry.owner)).collect();
            if others.is_empty() {
                continue;
            }
            let ahead = ahead.get_or_insert_with(|| self.ahead_of([asked.owner], usize::MAX));
            others.retain(|_, other| ahead.as_ref().is_none_or(|ahead| ahead.contains(other)));
            let mut first = others.into_iter();
            let first = first.find(|(_, other)| self.behind(*other, Place::LAST).contains(asked.owner));
            if let Some((place, _)) = first {
                return Some((index, place));
            }
        }
        None
    }

    /// The first hold in the way whose owner waits, directly or through others, for the owner of the request: waiting
    /// for it would close a cycle. Only holds count. A place in the queue closes none: of a circle of waits that goes
    /// through one, whoever stands there overtakes, since the one before it waits for it.
    pub(super) fn closes_cycle(&self, asked: &Asked<'_>) -> Option<Step> {
        if !self.may_be_awaited(asked.owner, Place::LAST) {
            return None;
        }
        let claims = || asked.claims.iter().zip(&asked.spots);
        let max = self.bounds.searches.holds_in_the_way;
        let mut some = Vec::new();
        let few = claims().try_for_each(|(claim, spot)| {
            let all = self.look_at_conflicts((asked.owner, claim.mode, spot), max, |_, hold| {
                some.push(hold.owner);
                if some.len() > max { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            if all == ControlFlow::Continue(true) { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        });
        if few.is_continue() && !self.may_reach(&some, asked.owner, Place::LAST) {
            return None;
        }
        let behind = self.behind_by_holds(asked.owner, Order::Any);
        claims().find_map(|(claim, spot)| {
            let conflict = self.look_at_conflicts((asked.owner, claim.mode, spot), usize::MAX, |node, hold| {
                if !behind.contains(hold.owner) {
                    return ControlFlow::Continue(());
                }
                ControlFlow::Break(Step { to: hold.owner, node, waiting: false })
            });
            conflict.break_value()
        })
    }
}
