//! Limits on new state. They never affect existing state: it may always be extended and released.

use holdfast_primitives::kit::quota_exceeded;

use super::evaluate::{ClaimKind, Evaluation};
use super::namespace::Namespace;
use super::owner::{NO_OWNER, OwnerId};
use super::queue::QueuePosition;
use super::tree::PathLookup;
use super::txn::NamespaceTxn;
use crate::{Claim, CommandError, Limits, Mode, Owner};

impl NamespaceTxn<'_> {
    /// Checks the limits for the new holds of a grant. The claims of waiting requests count as well.
    pub(super) fn check_holds(&self, asked: &Evaluation<'_>) -> Result<(), CommandError> {
        let mut new = (0..asked.claims.len()).filter(|index| self.ns.claim_kind(asked, *index) == ClaimKind::New);
        let count = new.clone().count();
        if count == 0 {
            return Ok(());
        }
        self.check_claims(asked.claims)?;
        self.check_hold_count(count)?;
        if asked.owner != NO_OWNER && self.ns.owners.get(asked.owner).request_count() > 0 {
            self.check_holds_of_waiting(asked.owner, count)?;
        }
        new.try_for_each(|index| self.check_readers(asked, index))
    }

    /// Checks whether an owner may wait. A waiting owner must not hold so much that building the wait-for graph takes
    /// long.
    pub(super) fn check_may_wait(&self, asked: &Evaluation<'_>) -> Result<(), CommandError> {
        let bounds = &self.ns.bounds;
        self.check_waits_of_owner(asked.owner)?;
        self.check_holds_of_waiting(asked.owner, 0)?;
        let is_above = |(claim, spot): (&Claim, &PathLookup)| {
            spot.node().is_some_and(|node| self.ns.subtree_conflict(node, asked.owner, claim.mode).is_some())
        };
        if self.ns.holds_of_waiting > bounds.holds_of_waiting && asked.claims.iter().zip(&asked.lookups).any(is_above) {
            return Err(quota_exceeded(
                "the number of holds of owners that wait, when a request waits above holds",
                bounds.holds_of_waiting,
                "wait for the paths that are needed rather than for one above them",
            ));
        }
        Ok(())
    }

    /// Limits the waiting requests of an owner. Awaits count, because each will wait for its lock.
    pub(super) fn check_waits_of_owner(&self, owner: OwnerId) -> Result<(), CommandError> {
        let max = effective_limit(self.ns.bounds.waiting_of_owner, self.ns.limits.max_waiting_per_owner);
        let waits = if owner == NO_OWNER { 0 } else { self.ns.owners.get(owner).request_count() };
        if (waits as u64) < max {
            return Ok(());
        }
        Err(quota_exceeded(
            "the number of waiting requests of an owner",
            max,
            "wait for fewer locks at once, or give each thread a holder",
        ))
    }

    /// Limits the present and the new holds of a waiting owner. The holds that its queued requests will add are limited
    /// by the number of these requests and, since an owner with two of them may be tangled, by the limits of the
    /// tangle.
    pub(super) fn check_holds_of_waiting(&self, owner: OwnerId, more: usize) -> Result<(), CommandError> {
        let max = self.ns.max_holds_of_waiting_owner();
        let own = if owner == NO_OWNER { 0 } else { self.ns.owners.get(owner).holds.len() };
        if own.saturating_add(more) as u64 <= max {
            return Ok(());
        }
        Err(quota_exceeded(
            "the number of holds of an owner that waits",
            max,
            "release before you wait, or give each thread a holder",
        ))
    }

    /// Checks the limits of the queue. Claims count when they are enqueued, so that no limit prevents their grant
    /// later.
    pub(super) fn check_queue_limits(&self, asked: &Evaluation<'_>) -> Result<(), CommandError> {
        let limits = &self.ns.limits;
        self.check_claims(asked.claims)?;
        self.check_hold_count(asked.claims.len())?;
        self.check_waiting_count()?;
        for (index, spot) in asked.lookups.iter().enumerate() {
            let queue = spot.node().and_then(|node| self.ns.tree.queue(node));
            if queue.map_or(0, |queue| queue.own.len() as u64) >= limits.max_waiting_per_lock {
                return Err(quota_exceeded(
                    "the number of requests that wait for a lock",
                    limits.max_waiting_per_lock,
                    "try again later or have the limit raised",
                ));
            }
            if self.ns.claim_kind(asked, index) == ClaimKind::New {
                self.check_readers(asked, index)?;
            }
        }
        Ok(())
    }

    /// Limits the requests that wait for anything.
    pub(super) fn check_waiting_count(&self) -> Result<(), CommandError> {
        let max = self.ns.limits.max_waiting_per_namespace;
        if self.ns.waiting_count() < max {
            return Ok(());
        }
        Err(quota_exceeded(
            "the number of waiting requests in a namespace",
            max,
            "wait for fewer locks at once or have the limit raised",
        ))
    }

    /// Checks the limits on the named state of a session: its owners, and its requests with an id. Requests are kept
    /// until they are released, even if they only extend holds.
    pub(super) fn check_session_limits(
        &self,
        asked: &Evaluation<'_>,
        owner: &Owner,
        request_id: Option<&str>,
    ) -> Result<(), CommandError> {
        let Owner::Session { session_id, .. } = owner else { return Ok(()) };
        let Some(session) = self.ns.sessions.get(session_id.as_str()) else { return Ok(()) };
        let limits = &self.ns.limits;
        let max = self.since_rules_two(limits.max_owners_per_session);
        if asked.owner == NO_OWNER && session.owners.len() as u64 >= max {
            return Err(quota_exceeded(
                "the number of holders of a session that hold or wait",
                max,
                "use holders again, open another session or have the limit raised",
            ));
        }
        if request_id.is_none() {
            return Ok(());
        }
        let max = self.since_rules_two(limits.max_requests_per_session);
        if session.requests.len() as u64 >= max {
            return Err(CommandError::too_many_requests(max));
        }
        let max = self.since_rules_two(limits.max_requests_per_hold);
        let is_full = |index: usize| self.requests_at(asked, index, max) >= max;
        if (0..asked.claims.len()).any(is_full) {
            return Err(quota_exceeded(
                "the number of requests that claim one hold",
                max,
                "release requests by their ids or have the limit raised",
            ));
        }
        Ok(())
    }

    /// Counts the requests with an id that claim the owner's hold at that path, including waiting ones, up to about
    /// `max`.
    fn requests_at(&self, asked: &Evaluation<'_>, index: usize, max: u64) -> u64 {
        let Some(node) = asked.lookups[index].node().filter(|_| asked.owner != NO_OWNER) else { return 0 };
        let granted = self.ns.hold(node, asked.owner).map_or(0, |hold| hold.requests().len());
        let awaits = self.ns.owners.get(asked.owner).waits.as_deref();
        let there = awaits
            .into_iter()
            .flat_map(|awaits| awaits.claims.range((node, QueuePosition::FIRST)..=(node, QueuePosition::LAST)));
        granted as u64 + there.take(usize::try_from(max).unwrap_or(usize::MAX)).count() as u64
    }

    fn check_claims(&self, claims: &[Claim]) -> Result<(), CommandError> {
        let limits = &self.ns.limits;
        let max = u64::from(limits.max_claims_per_request).min(self.since_rules_two(Limits::CLAIMS_PER_REQUEST.into()));
        if claims.len() as u64 > max {
            return Err(quota_exceeded(
                "the number of claims in a request",
                max,
                "claim an ancestor of several paths instead",
            ));
        }
        let max = u64::from(limits.max_path_depth).min(self.since_rules_two(Limits::PATH_DEPTH.into()));
        if claims.iter().any(|claim| claim.path.0.len() as u64 > max) {
            return Err(quota_exceeded("the number of segments in a path", max, "use a shorter path"));
        }
        Ok(())
    }

    fn check_hold_count(&self, new: usize) -> Result<(), CommandError> {
        let max = self.ns.limits.max_holds_per_namespace.min(self.since_rules_two(Limits::HOLDS_PER_NAMESPACE));
        if self
            .ns
            .hold_count
            .saturating_add(self.ns.claims_waiting)
            .saturating_add(self.ns.conditions.len() as u64)
            .saturating_add(new as u64)
            <= max
        {
            return Ok(());
        }
        Err(quota_exceeded(
            "the number of holds in a namespace",
            max,
            "release holds, shorten their time to live or have the limit raised",
        ))
    }

    /// READ holds of a path and waiting READ claims count together.
    fn check_readers(&self, asked: &Evaluation<'_>, index: usize) -> Result<(), CommandError> {
        let Some(node) = asked.lookups[index].node() else {
            return self.check_reader_count(asked.claims[index].mode, 0);
        };
        let holds = self.ns.tree.get(node).holds.as_slice();
        let holding = if holds.first().is_some_and(|hold| hold.mode == Mode::Read) { holds.len() } else { 0 };
        let waiting = self.ns.tree.queue(node).map_or(0, |queue| queue.own.reads.len());
        self.check_reader_count(asked.claims[index].mode, holding + waiting)
    }

    fn check_reader_count(&self, mode: Mode, readers: usize) -> Result<(), CommandError> {
        let max =
            u64::from(self.ns.limits.max_readers_per_lock).min(self.since_rules_two(Limits::READERS_PER_LOCK.into()));
        if mode == Mode::Write || (readers as u64) < max {
            return Ok(());
        }
        Err(quota_exceeded(
            "the number of readers of a lock",
            max,
            "wait until a reader has left or have the limit raised",
        ))
    }

    pub(super) fn check_session_count(&self) -> Result<(), CommandError> {
        let max = self.ns.limits.max_sessions_per_namespace;
        let ended = self.ns.table_log.ended_count();
        if (self.ns.sessions.len() as u64).saturating_add(ended) < max {
            return Ok(());
        }
        Err(quota_exceeded("the number of sessions in a namespace", max, "close sessions or have the limit raised"))
    }
}

impl Namespace {
    /// Returns the maximum number of holds of a waiting owner.
    pub(super) fn max_holds_of_waiting_owner(&self) -> u64 {
        effective_limit(self.bounds.holds_of_waiting_owner, self.limits.max_holds_of_waiting_owner)
    }
}

/// Returns an account's limit, capped by the bound of the rules. If the rules have no bound, the limit does not apply.
pub(super) fn effective_limit(bound: u64, limit: u64) -> u64 {
    if bound == u64::MAX { bound } else { bound.min(limit) }
}
