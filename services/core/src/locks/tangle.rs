//! Limits the number of tangled owners.
//!
//! The wait-for graph is expensive only among these: an owner is tangled if it waits, and has a hold that others wait
//! for, or a second waiting request. Only requests of tangled owners may overtake. So their number is limited, and so
//! is that of their awaited holds and waiting claims. A request that would exceed a limit is rejected before it joins
//! the queue, and so is a grant. Every other change only lowers the numbers: a request behind a claim waits for the
//! hold once the claim is granted. So every admitted request can be evaluated exactly at any later time.
//!
//! The numbers follow from the state alone, not from its history. They are computed only if they may be too high, among
//! owners that were found tangled since they began to wait. Besides, untangled requests in between may have so many
//! different claim sets that building the wait-for graph takes long; then requests that would add to it are rejected.

use std::collections::BTreeSet;

use holdfast_primitives::kit::quota_exceeded;

use super::evaluate::{ClaimKind, Evaluation};
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::quota::effective_limit;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{CommandError, Limits, Mode};

const HINT: &str = "release before you wait, or give each thread a holder";

/// The size of the tangle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tangle {
    pub(super) owners: u64,
    /// Their awaited holds and their waiting claims.
    pub(super) claims: u64,
    /// All their holds and their waiting claims.
    pub(super) holds: u64,
}

/// What a grant would add to an owner.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TangleDelta {
    awaited: u64,
    holds: u64,
}

impl Tangle {
    fn add(&mut self, other: Self) {
        self.owners += other.owners;
        self.claims += other.claims;
        self.holds += other.holds;
    }

    fn fits(self, max: Self) -> bool {
        self.owners <= max.owners && self.claims <= max.claims && self.holds <= max.holds
    }

    /// Rejects a change that exceeds a limit. State from before the limits existed may exceed them already.
    fn check(self, before: Self, max: Self) -> Result<(), CommandError> {
        if self.owners > max.owners.max(before.owners) {
            let what = "the number of owners that wait and are waited for";
            return Err(quota_exceeded(what, max.owners, HINT));
        }
        if self.claims > max.claims.max(before.claims) {
            let what = "the number of claims of owners that wait and are waited for";
            return Err(quota_exceeded(what, max.claims, HINT));
        }
        if self.holds > max.holds.max(before.holds) {
            let what = "the number of holds of owners that wait and are waited for";
            return Err(quota_exceeded(what, max.holds, HINT));
        }
        Ok(())
    }
}

impl NamespaceTxn<'_> {
    /// Rejects a request that just joined the queue if it makes the tangle too large.
    pub(super) fn check_tangle(&mut self, position: QueuePosition) -> Result<(), CommandError> {
        let max = self.ns.max_tangle();
        if !self.ns.mark_tangled_by(position) && !position.is_upgrade() {
            return Ok(());
        }
        if !self.ns.tangle_upper_bound().fits(max) {
            let after = self.ns.tangle();
            if !after.fits(max) {
                after.check(self.ns.tangle_without(position), max)?;
            }
        }
        // Counts the visits of a full rebuild, because an update from this replica's caches may take fewer.
        self.ns.closure_is_stale = true;
        self.ns.refresh();
        let max_visits = self.ns.bounds.tangle_visits;
        if self.ns.closure.visits > max_visits {
            let what = "the number of steps to find out who waits for whom";
            return Err(quota_exceeded(what, max_visits, HINT));
        }
        Ok(())
    }

    /// Rejects a grant to a waiting owner if it makes the tangle too large: others may wait for the new holds.
    pub(super) fn check_tangled_grant(&mut self, asked: &Evaluation<'_>) -> Result<(), CommandError> {
        let (owner, ns) = (asked.owner, &*self.ns);
        if owner == NO_OWNER || ns.owners.get(owner).wait_count() == 0 {
            return Ok(());
        }
        let is_new = |index: &usize| match ns.claim_kind(asked, *index) {
            ClaimKind::New | ClaimKind::Retakes => true,
            ClaimKind::Changes => asked.claims[*index].mode == Mode::Write,
            ClaimKind::Extends | ClaimKind::OtherMode | ClaimKind::NotHeld => false,
        };
        let is_awaited = |index: &usize| {
            let (mode, spot) = (asked.claims[*index].mode, &asked.lookups[*index]);
            let mut lines = ns.tree.conflicting_queues(spot.ancestry.iter().copied(), spot.node(), mode);
            let is_awaited = lines.any(|(_, line)| line.iter().any(|entry| entry.owner != owner));
            let node = spot.node().filter(|node| ns.hold(*node, owner).is_some_and(|hold| !hold.is_kept()));
            is_awaited && !node.is_some_and(|node| ns.is_awaited(node, Mode::Read, owner))
        };
        let is_hold = |index: &usize| ns.claim_kind(asked, *index) == ClaimKind::New;
        let indexes = 0..asked.claims.len();
        let more = TangleDelta {
            awaited: indexes.clone().filter(is_new).filter(is_awaited).count() as u64,
            holds: indexes.filter(is_hold).count() as u64,
        };
        if more.awaited == 0 && (more.holds == 0 || !self.ns.tangled.contains(&owner)) {
            return Ok(());
        }
        let is_new = self.ns.tangled.insert(owner);
        let refused = self.check_delta(owner, more);
        if refused.is_err() && is_new {
            self.ns.tangled.remove(&owner);
        } else if is_new {
            self.ns.closure_is_stale = true;
        }
        refused
    }

    fn check_delta(&mut self, owner: OwnerId, more: TangleDelta) -> Result<(), CommandError> {
        let (most, max) = (self.ns.tangle_upper_bound(), self.ns.max_tangle());
        let (claims, holds) = (most.claims + more.awaited, most.holds + more.holds);
        if (Tangle { claims, holds, ..most }).fits(max) {
            return Ok(());
        }
        let (before, own) = (self.ns.tangle(), self.ns.tangle_of(owner, None, TangleDelta::default()));
        let with_more = self.ns.tangle_of(owner, None, more);
        let after = Tangle {
            owners: before.owners - own.owners + with_more.owners,
            claims: before.claims - own.claims + with_more.claims,
            holds: before.holds - own.holds + with_more.holds,
        };
        self.ns.tangled.insert(owner);
        after.check(before, max)
    }
}

impl Namespace {
    /// Returns the maximum size of the tangle from the account's limits, capped by the bounds.
    fn max_tangle(&self) -> Tangle {
        let (bounds, owners) = (&self.bounds, self.limits.max_tangle);
        Tangle {
            owners: effective_limit(bounds.tangled_owners, owners),
            claims: effective_limit(bounds.tangled_claims, owners.saturating_mul(Limits::UNITS_PER_TANGLED_OWNER)),
            holds: bounds.tangled_holds,
        }
    }

    /// Marks an owner as possibly tangled.
    fn mark_tangled(&mut self, owner: OwnerId) {
        self.closure_is_stale |= self.tangled.insert(owner);
    }

    /// Marks the owners that a new queued request tangles. Returns whether there are any.
    fn mark_tangled_by(&mut self, position: QueuePosition) -> bool {
        let waiting = self.waiting(position);
        let mut found: BTreeSet<OwnerId> = BTreeSet::new();
        if self.owners.get(waiting.owner).wait_count() > 1 || self.has_awaited_hold(waiting.owner) {
            found.insert(waiting.owner);
        }
        for (node, claim) in waiting.nodes.iter().zip(&waiting.claims) {
            let spot = self.tree.lookup_node(*node);
            let holders = self.blocking_waiting_holders((waiting.owner, claim.mode, &spot));
            found.extend(holders.into_iter().map(|(owner, _)| owner));
        }
        let is_any = !found.is_empty();
        found.into_iter().for_each(|owner| self.mark_tangled(owner));
        is_any
    }

    /// Marks the owners that may be tangled after a restore.
    pub(super) fn mark_all_tangled(&mut self) {
        let may_be =
            |owner: &OwnerId| self.owners.get(*owner).wait_count() > 1 || self.owners.get(*owner).holds.len() > 0;
        self.tangled = self.waits.values().map(|waiting| waiting.owner).filter(may_be).collect();
        self.closure_is_stale = true;
    }

    /// Returns an upper bound of the size without inspecting which holds are awaited.
    fn tangle_upper_bound(&self) -> Tangle {
        let mut most = Tangle::default();
        for owner in &self.tangled {
            self.spend(1);
            let record = self.owners.get(*owner);
            let claims = (record.holds.len() + record.waiting_claim_count()) as u64;
            most.add(Tangle { owners: 1, claims, holds: claims });
        }
        most
    }

    /// Returns an upper bound of the number of tangled owners.
    pub(super) fn max_tangled_owners(&self) -> u64 {
        self.tangled.len() as u64
    }

    /// Returns the exact size of the tangle.
    fn tangle(&mut self) -> Tangle {
        self.cache_awaited();
        let of: Vec<(OwnerId, Tangle)> =
            self.tangled.iter().map(|owner| (*owner, self.tangle_of(*owner, None, TangleDelta::default()))).collect();
        let mut tangle = Tangle::default();
        for (owner, of) in of {
            if of.owners == 0 {
                self.tangled.remove(&owner);
            }
            tangle.add(of);
        }
        tangle
    }

    /// Returns the size of the tangle before a request joined the queue.
    fn tangle_without(&self, position: QueuePosition) -> Tangle {
        let mut tangle = Tangle::default();
        self.tangled
            .iter()
            .for_each(|owner| tangle.add(self.tangle_of(*owner, Some(position), TangleDelta::default())));
        tangle
    }

    /// Returns the share of one owner, as if the request `without` did not wait and `more` were added.
    pub(super) fn tangle_of(&self, owner: OwnerId, without: Option<QueuePosition>, more: TangleDelta) -> Tangle {
        let record = self.owners.get(owner);
        self.spend(1);
        let waits = |position: &QueuePosition| Some(*position) != without;
        let requests = record.queue_positions().filter(waits);
        let (requests, claims) = requests.fold((0, 0), |(requests, claims), position| {
            (requests + 1_u64, claims + self.waiting(position).claims.len() as u64)
        });
        if requests == 0 {
            return Tangle::default();
        }
        let awaited = more.awaited
            + match self.awaited.get(owner) {
                Some(known) if without.is_none() => known.holds,
                _ => self.awaited_holds(owner, waits),
            };
        if requests < 2 && awaited == 0 {
            return Tangle::default();
        }
        Tangle { owners: 1, claims: awaited + claims, holds: record.holds.len() as u64 + more.holds + claims }
    }

    /// Returns how many holds of the owner have waiters at positions accepted by `waits`.
    fn awaited_holds(&self, owner: OwnerId, waits: impl Fn(&QueuePosition) -> bool) -> u64 {
        let holds = &self.owners.get(owner).holds;
        self.spend(holds.len());
        let is_awaited = |node: &NodeId| {
            let Some(hold) = self.hold(*node, owner).filter(|hold| !hold.is_kept()) else { return false };
            let mut lines = self.conflicting_queues_of(*node, hold.mode);
            lines.any(|(_, line)| line.iter().any(|entry| entry.owner != owner && waits(&entry.position)))
        };
        holds.iter().filter(is_awaited).count() as u64
    }
}
