//! Decides a request: granted, blocked, or impossible.

use std::collections::BTreeSet;

use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::tree::PathLookup;
use super::wait_graph::Dependents;
use super::waiting::BlockedOn;
use crate::{Claim, FencingToken, Mode, Reason};

/// A request to evaluate.
pub(super) struct Evaluation<'a> {
    pub(super) owner: OwnerId,
    /// The claims, each path once.
    pub(super) claims: &'a [Claim],
    /// The lookup of each path in the tree.
    pub(super) lookups: Vec<PathLookup>,
    /// The position at which it waits or would wait.
    pub(super) position: QueuePosition,
    /// Whether it already waits.
    pub(super) is_waiting: bool,
    pub(super) allow_upgrade: bool,
    pub(super) token: Option<FencingToken>,
}

/// What a claim does, given the owner's hold at its path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimKind {
    /// Creates a hold.
    New,
    /// Extends the owner's hold.
    Extends,
    /// Acquires again a hold that its owner has released and that is kept: a new hold.
    Retakes,
    /// Changes the mode of the owner's hold.
    Changes,
    /// The owner's hold has the other mode and keeps it.
    OtherMode,
    /// The hold to extend is gone.
    NotHeld,
}

/// The decision on a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    Granted,
    /// The claim with that index fails for now.
    Blocked(usize, Reason),
    /// The claim with that index fails, whatever other owners do.
    Impossible(usize, Reason),
}

impl Namespace {
    pub(super) fn claim_kind(&self, asked: &Evaluation<'_>, index: usize) -> ClaimKind {
        let claim = &asked.claims[index];
        let own = asked.lookups[index].node().and_then(|node| Some((node, self.hold(node, asked.owner)?)));
        match (own, asked.token) {
            (None, Some(_)) => ClaimKind::NotHeld,
            (None, None) => ClaimKind::New,
            (Some((_, hold)), Some(token)) if hold.token != token => ClaimKind::NotHeld,
            (Some((node, hold)), _) if self.is_over(node, hold) => ClaimKind::NotHeld,
            (Some((node, hold)), token) if self.is_relinquished(node, hold) => {
                if token.is_some() {
                    ClaimKind::NotHeld
                } else {
                    ClaimKind::Retakes
                }
            }
            (Some((_, hold)), _) if hold.mode == claim.mode => ClaimKind::Extends,
            (Some(_), None) if asked.allow_upgrade => ClaimKind::Changes,
            (Some(_), _) => ClaimKind::OtherMode,
        }
    }

    /// Returns true if a claim must not overtake others: it is for a new hold, and its owner's holds at the path or
    /// above do not cover it. An owner that waits for nothing may acquire its kept hold again before the requests that
    /// wait for that hold: they wait for this owner anyway, and it waits for no owner.
    fn must_queue(&self, asked: &Evaluation<'_>, index: usize) -> bool {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        let retakes = match self.claim_kind(asked, index) {
            ClaimKind::New => false,
            ClaimKind::Retakes => {
                let kept = spot.node().and_then(|node| self.hold(node, asked.owner));
                let covers = kept.is_some_and(|kept| kept.mode >= claim.mode);
                covers && !asked.is_waiting && self.owners.get(asked.owner).wait_count() == 0
            }
            _ => return false,
        };
        !retakes && !self.is_covered(asked.owner, claim.mode, spot)
    }

    /// Evaluates a new request. The first claim that fails decides. With `would_wait`, a claim that fails permanently
    /// takes precedence, whatever its index.
    pub(super) fn evaluate(&self, asked: &Evaluation<'_>, waiters: &mut Dependents, would_wait: bool) -> Decision {
        let mut first: Option<(usize, Reason)> = None;
        for index in 0..asked.claims.len() {
            let never = self.permanent_failure(asked, index);
            match (never, first) {
                (Some(reason), None) => return Decision::Impossible(index, reason),
                (Some(reason), Some(_)) if would_wait => return Decision::Impossible(index, reason),
                (None, None) => first = self.current_failure(asked, waiters, index).map(|reason| (index, reason)),
                _ => {}
            }
        }
        if let Some((index, reason)) = first {
            return Decision::Blocked(index, reason);
        }
        match self.must_yield(asked, waiters) {
            Some((index, _)) => Decision::Blocked(index, Reason::Queued),
            None => Decision::Granted,
        }
    }

    /// Evaluates a waiting request again. Returns what blocks it, or `None` if it can be granted. Prefers an earlier
    /// request over a hold as the blocker. So the end of a hold schedules the head of the queue and not all of it.
    pub(super) fn reevaluate(&self, place: QueuePosition) -> Option<BlockedOn> {
        let asked = self.evaluation_of(place);
        let mut waiters = Dependents::default();
        let before =
            (0..asked.claims.len()).filter_map(|index| self.last_blocking_request(&asked, &mut waiters, index)).max();
        let watch = before.map(BlockedOn::Request).or_else(|| self.blocking_hold(&asked));
        watch.or_else(|| self.must_yield(&asked, &mut waiters).map(|(_, place)| BlockedOn::Request(place)))
    }

    /// Recomputes what every waiting request is blocked on.
    pub(super) fn recompute_blocked_on(&mut self) {
        self.repair_blocked_on(false);
    }

    /// Recomputes what requests are blocked on. If `is_known`, keeps each blocker that still blocks its request. Skips
    /// requests that are scheduled for evaluation.
    pub(super) fn repair_blocked_on(&mut self, is_known: bool) {
        for place in self.waits.keys().copied().collect::<Vec<QueuePosition>>() {
            let kept = self.waiting(place).blocked_on;
            if self.blocked_index.must_reevaluate(kept, place) {
                continue;
            }
            match self.reevaluate(place) {
                Some(_) if is_known && self.is_blocked_on(place, kept) => {}
                Some(watch) => self.set_blocked_on(place, watch),
                None => self.blocked_index.schedule(place),
            }
        }
    }

    /// Returns whether the blocker still blocks the request.
    pub(super) fn is_blocked_on(&self, place: QueuePosition, watch: BlockedOn) -> bool {
        match watch {
            BlockedOn::Unknown => false,
            BlockedOn::Hold(node, owner) => self.hold(node, owner).is_some(),
            BlockedOn::Request(other) => self.must_wait_for(place, other),
            BlockedOn::Subtree(node, mode) => self.subtree_conflict(node, self.waiting(place).owner, mode).is_some(),
        }
    }

    pub(super) fn evaluation_of(&self, position: QueuePosition) -> Evaluation<'_> {
        let waiting = self.waiting(position);
        Evaluation {
            owner: waiting.owner,
            claims: &waiting.claims,
            lookups: waiting.nodes.iter().map(|node| self.tree.lookup_node(*node)).collect(),
            position,
            is_waiting: true,
            allow_upgrade: position.is_upgrade(),
            token: None,
        }
    }

    /// Returns why a claim fails permanently: its hold is gone, or it can't change the mode. Checked before temporary
    /// failures.
    fn permanent_failure(&self, asked: &Evaluation<'_>, index: usize) -> Option<Reason> {
        match self.claim_kind(asked, index) {
            ClaimKind::NotHeld => Some(Reason::NotHeld),
            ClaimKind::OtherMode => Some(Reason::Upgrade),
            ClaimKind::Changes if self.conflicting_upgrade(asked, index).is_some() => Some(Reason::Upgrade),
            ClaimKind::New | ClaimKind::Extends | ClaimKind::Retakes | ClaimKind::Changes => None,
        }
    }

    /// Returns another owner's waiting request to upgrade this path, an ancestor or a descendant to WRITE.
    pub(super) fn conflicting_upgrade(&self, asked: &Evaluation<'_>, index: usize) -> Option<QueuePosition> {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        if claim.mode == Mode::Read || asked.is_waiting {
            return None;
        }
        let lines = self.tree.conflicting_queues(spot.ancestry.iter().copied(), spot.node(), claim.mode);
        let mut upgrades = lines.flat_map(|(_, line)| line.before(QueuePosition::AFTER_UPGRADES));
        upgrades.find(|entry| entry.owner != asked.owner).map(|entry| entry.position)
    }

    /// Returns why a claim that does not fail permanently fails for now.
    fn current_failure(&self, asked: &Evaluation<'_>, waiters: &mut Dependents, index: usize) -> Option<Reason> {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        match self.claim_kind(asked, index) {
            ClaimKind::Extends => None,
            ClaimKind::Changes if claim.mode == Mode::Read => None,
            ClaimKind::Changes => self.conflict_reason(asked.owner, claim.mode, spot),
            _ => self
                .conflict_reason(asked.owner, claim.mode, spot)
                .or_else(|| self.last_blocking_request(asked, waiters, index).map(|_| Reason::Queued)),
        }
    }

    /// Returns the last earlier request that a claim must not overtake.
    fn last_blocking_request(
        &self,
        asked: &Evaluation<'_>,
        waiters: &mut Dependents,
        index: usize,
    ) -> Option<QueuePosition> {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        if !self.must_queue(asked, index) {
            return None;
        }
        self.spend(spot.ancestry.len());
        let lines = self.tree.conflicting_queues(spot.ancestry.iter().copied(), spot.node(), claim.mode);
        let lines = lines.filter(|(_, line)| line.first().is_some_and(|first| first < asked.position));
        let last = lines.filter_map(|(key, line)| match waiters.of(self, asked) {
            Some((closure, number)) => closure.last_blocker_before(self, (key, line), number, asked.position),
            None => {
                let mut before = line.before(asked.position).rev().filter(|entry| entry.owner != asked.owner);
                before.next().map(|entry| entry.position)
            }
        });
        last.max()
    }

    /// Returns the first earlier requests that a claim must not overtake, at most `max`, in order.
    pub(super) fn first_blocking_requests(
        &self,
        asked: &Evaluation<'_>,
        waiters: &mut Dependents,
        index: usize,
        max: usize,
    ) -> BTreeSet<QueuePosition> {
        let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
        let mut found = BTreeSet::new();
        for (key, line) in self.tree.conflicting_queues(spot.ancestry.iter().copied(), spot.node(), claim.mode) {
            match waiters.of(self, asked) {
                Some((closure, number)) => {
                    found.extend(closure.first_blockers_before(self, (key, line), number, (asked.position, max)));
                }
                None => {
                    let before = line.before(asked.position).filter(|entry| entry.owner != asked.owner);
                    found.extend(before.take(max).map(|entry| entry.position));
                }
            }
        }
        found.into_iter().take(max).collect()
    }

    fn blocking_hold(&self, asked: &Evaluation<'_>) -> Option<BlockedOn> {
        let indexes = 0..asked.claims.len();
        let mut watches = indexes.filter_map(|index| {
            match (self.claim_kind(asked, index), asked.lookups[index].node()) {
                (ClaimKind::Extends, _) => return None,
                // The owner's own hold is over; the request is blocked until it ends.
                (ClaimKind::NotHeld, Some(node)) => return Some(BlockedOn::Hold(node, asked.owner)),
                _ => {}
            }
            self.first_conflicting_hold(asked.owner, asked.claims[index].mode, &asked.lookups[index])
        });
        watches.next()
    }

    /// Returns a later request that must go first, and the index of the claim that it conflicts with. This owner waits
    /// for the later request's owner because of another request. If this request were granted, neither owner could
    /// proceed.
    pub(super) fn must_yield(
        &self,
        asked: &Evaluation<'_>,
        waiters: &mut Dependents,
    ) -> Option<(usize, QueuePosition)> {
        let waits = |owner| self.owners.get(owner).wait_count() > usize::from(asked.is_waiting);
        if asked.owner == NO_OWNER || asked.position == QueuePosition::LAST || !waits(asked.owner) {
            return None;
        }
        let (closure, number) = waiters.of(self, asked)?;
        // Before the request waits, its owner may also wait for untangled requests behind its position.
        let others = (!asked.is_waiting).then(|| closure.untangled_blockers(self, number));
        let indexes = (0..asked.claims.len()).filter(|index| {
            let claim = &asked.claims[*index];
            match self.claim_kind(asked, *index) {
                ClaimKind::Changes => claim.mode == Mode::Write,
                _ => self.must_queue(asked, *index),
            }
        });
        let mut yields = indexes.filter_map(|index| {
            let (claim, spot) = (&asked.claims[index], &asked.lookups[index]);
            let lines = self.tree.conflicting_queues(spot.ancestry.iter().copied(), spot.node(), claim.mode);
            let first = lines.flat_map(|(key, line)| {
                let other =
                    others.as_ref().and_then(|others| others.first_after((closure, self), line, asked.position));
                closure.first_blocker_after(key, number, asked.position).into_iter().chain(other)
            });
            Some((index, first.min()?))
        });
        yields.next()
    }
}
