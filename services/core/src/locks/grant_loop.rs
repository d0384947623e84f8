//! Grants waiting requests as soon as possible.

use super::effects::ResolvedWait;
use super::end::GrantContext;
use super::queue::QueuePosition;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use super::waiting::{BlockedOn, WaitingRequest};
use crate::{FencingToken, Reason};

/// Cost of one evaluation of a request, for each of its claims.
const EVALUATION_COST: usize = 8;

impl NamespaceTxn<'_> {
    /// Grants waiting requests, always the first in the queue, until none can be granted or the slice is used up. The
    /// next entry grants the remaining ones in the same order; until then no other waiting request is granted.
    ///
    /// Every waiting request has one blocker. The loop evaluates only requests whose blocker ended: the next in the
    /// queue, not all of it. If many requests had the same blocker and now have to wait for another, the next entry
    /// continues this too.
    ///
    /// Each grant may change the wait-for graph. Rebuilding the closure counts towards the slice, so many tangled
    /// owners mean fewer grants per slice. It is charged when another grant follows, and always as a full rebuild,
    /// because whether one is needed depends on what this replica has cached.
    ///
    /// Called awaits join the queue first, including awaits that get a signal handed on because a request ended.
    pub(super) fn run_grant_loop(&mut self) {
        self.move_called();
        self.grant_queue();
        while self.ns.conditions.has_owed() {
            self.move_called();
            self.grant_queue();
        }
        self.settle_permits();
        self.update_jobs();
    }

    fn grant_queue(&mut self) {
        if self.ns.is_requeueing {
            // Whoever is queued so far is looked at once all are.
            self.ns.refresh();
            self.ns.has_pending_grants = self.ns.blocked_index.first_to_reevaluate().is_some();
            return;
        }
        let mut grants = if self.ns.has_pending_grants || self.ns.is_frozen() { 0 } else { self.budget.grants };
        let may_grant = grants;
        let (mut is_charged, mut is_fresh, mut has_looked) = (true, false, false);
        loop {
            is_fresh |= self.ns.refresh();
            let Some(position) = self.ns.blocked_index.first_to_reevaluate() else { break };
            if has_looked && self.budget.visits == 0 {
                break;
            }
            has_looked = true;
            self.budget.visits =
                self.budget.visits.saturating_sub(EVALUATION_COST * self.ns.waiting(position).claims.len());
            self.ns.examined += 1;
            self.ns.spend(1);
            if let Some(watch) = self.ns.reevaluate(position) {
                self.ns.set_blocked_on(position, watch);
                continue;
            }
            if grants == 0 {
                break;
            }
            if !is_charged {
                self.charge_closure(is_fresh);
                is_charged = true;
                if self.budget.visits == 0 {
                    break;
                }
                continue;
            }
            self.resolve_wait(position);
            grants -= 1;
            (is_charged, is_fresh) = (false, false);
        }
        self.budget.grants -= may_grant - grants;
        self.ns.has_pending_grants = self.ns.blocked_index.first_to_reevaluate().is_some();
    }

    /// Charges the cost of the closure. Rebuilds it first, unless it is fresh.
    pub(super) fn charge_closure(&mut self, is_fresh: bool) {
        if !is_fresh {
            self.ns.closure_is_stale = true;
            self.ns.refresh();
        }
        let cost = usize::try_from(self.ns.closure.cost).unwrap_or(usize::MAX);
        self.budget.visits = self.budget.visits.saturating_sub(cost);
    }

    /// Ends or grants a wait whose request is not blocked any more.
    fn resolve_wait(&mut self, position: QueuePosition) {
        let swept_with = self.ns.sweep_of_wait(position);
        if let Some(sweep) = swept_with.and_then(|began| self.ns.sweeps.get_mut(&began)) {
            sweep.ended_waits += 1;
        }
        if self.ns.ending_session_of(self.ns.waiting(position).owner).is_some() || swept_with.is_some() {
            self.end_wait(position, Reason::Ended);
        } else if self.ns.has_timed_out(position) {
            self.end_wait(position, Reason::TimedOut);
        } else {
            self.grant_waiting(position);
        }
    }

    fn grant_waiting(&mut self, position: QueuePosition) {
        let waiting = self.leave_queue(position);
        let call = GrantContext {
            attempts: &waiting.attempts,
            abandoned: &[],
            request_id: waiting.request_id.as_deref(),
            metadata_fits: true,
            came_from: waiting.came_from.as_deref(),
        };
        self.revoke_listed(position, &waiting);
        // The nodes may have been removed together with the wait.
        let claims = &waiting.claims;
        let nodes: Vec<NodeId> = claims.iter().map(|claim| self.ns.tree.ensure_path(&claim.path)).collect();
        let token = self.grant(waiting.owner, (claims, &nodes), &waiting.terms, call);
        if let Some(request_id) = &waiting.request_id {
            self.ns.claim_reported(waiting.owner, request_id);
        }
        self.record_wait_outcome(position, waiting, Ok(token));
    }

    /// Records what has become of a request that left the queue.
    fn record_wait_outcome(
        &mut self,
        position: QueuePosition,
        waiting: WaitingRequest,
        outcome: Result<FencingToken, Reason>,
    ) {
        let owner = self.ns.owners.name(waiting.owner).to_owner();
        let settled = ResolvedWait::new(position.wait(), owner, waiting, outcome);
        match settled.into_await() {
            Ok(resolved) => self.effects.await_resolved(&self.ns.id, resolved),
            Err(settled) => self.effects.wait_resolved(&self.ns.id, settled),
        }
    }

    /// Ends a wait without a grant. Removes its owner with the owner's last wait or hold. A signal that it had is
    /// handed on by the next grant run.
    pub(super) fn end_wait(&mut self, position: QueuePosition, reason: Reason) {
        let waiting = self.leave_queue(position);
        let owner = waiting.owner;
        let passes_on = waiting.came_from.as_deref().and_then(|came_from| came_from.passes_on.as_ref());
        if let (Some(condition), Some(claim)) = (passes_on, waiting.claims.first()) {
            self.ns.conditions.owe(&claim.path, condition);
        }
        self.record_wait_outcome(position, waiting, Err(reason));
        self.ns.remove_if_idle(owner);
    }

    fn leave_queue(&mut self, position: QueuePosition) -> WaitingRequest {
        let waiting = self.ns.remove_waiting(position);
        self.ns.spend(waiting.units());
        self.remove_wait_end(position, waiting.ends_at_ms);
        self.ns.blocked_index.unblock(BlockedOn::Request(position));
        waiting
    }
}
