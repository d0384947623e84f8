//! Moves awaits that were called to the queues of their locks.

use holdfast_mutations::{Mutation, is_enabled};

use super::{Await, CameFrom, WakeCall};
use crate::locks::effects::{MovedAwait, ResolvedAwait};
use crate::locks::end::GrantContext;
use crate::locks::evaluate::{Decision, Evaluation};
use crate::locks::queue::QueuePosition;
use crate::locks::tree::NodeId;
use crate::locks::txn::NamespaceTxn;
use crate::locks::wait_graph::Dependents;
use crate::locks::waiting::{BlockedOn, WaitingRequest, claim_set_of};
use crate::{Claim, EventKind, FencingToken, Mode, Path, Reason, WaitId};

/// Visits of a slice for each await that is moved.
const MOVE_COST: usize = 8;
/// Units of each moved await, without the units of the request that joins the queue.
const MOVE_UNITS: usize = 4;

impl NamespaceTxn<'_> {
    /// Moves awaits that were called, in order of the calls, until none is left or the slice is used up. The next entry
    /// moves the remaining ones.
    pub(in crate::locks) fn move_called(&mut self) {
        loop {
            self.hand_on();
            if self.ns.is_frozen() || self.budget.moves == 0 || self.budget.visits == 0 {
                return;
            }
            let Some(wait) = self.ns.conditions.first_called() else { return };
            self.budget.moves -= 1;
            self.budget.visits = self.budget.visits.saturating_sub(MOVE_COST);
            self.ns.spend(MOVE_UNITS);
            self.wake(wait);
        }
    }

    /// Lets an await that was called wait for its lock, behind everything that waits for it.
    fn wake(&mut self, from: WaitId) {
        let swept_with = self.ns.sweep_of_await(from);
        if let Some(sweep) = swept_with.and_then(|began| self.ns.sweeps.get_mut(&began)) {
            sweep.ended_waits += 1;
        }
        let Some(awaits) = self.ns.remove_await(from) else { return };
        if swept_with.is_some() || self.ns.ending_session_of(awaits.owner).is_some() {
            return self.resolve_await(from, awaits, Reason::Ended);
        }
        let Some(call) = awaits.call else { return };
        let revision = self.common.next_revision();
        let wait = if is_enabled(Mutation::CondFront) { from } else { WaitId(revision) };
        self.record_await(EventKind::Signalled { woken: call.woken }, revision, &awaits);
        let moved = MovedAwait {
            from,
            wait,
            attempt: awaits.attempts.highest(),
            owner: self.ns.owners.name(awaits.owner).to_owner(),
            request_id: awaits.request_id.clone(),
            woken: call.woken,
        };
        self.effects.await_moved(&self.ns.id, moved);
        let claims = [Claim { path: Path::clone(&awaits.path), mode: Mode::Write }];
        // What ended before it may have changed who waits for whom.
        self.ns.refresh();
        match self.judge(&awaits, &claims) {
            Decision::Granted => self.relock_at_once(wait, awaits, call, &claims),
            Decision::Impossible(_, reason) => self.end_woken(wait, awaits, call, Err(reason)),
            Decision::Blocked(..) => self.enqueue_woken(wait, awaits, call, claims),
        }
    }

    /// Judges it like a new request. It may have its lock only if that does not make the wait-for graph too tangled.
    fn judge(&mut self, awaits: &Await, claims: &[Claim]) -> Decision {
        let asked = Evaluation {
            owner: awaits.owner,
            claims,
            lookups: vec![self.ns.tree.lookup(&awaits.path)],
            position: QueuePosition::LAST,
            is_waiting: false,
            allow_upgrade: false,
            token: None,
        };
        match self.ns.evaluate(&asked, &mut Dependents::default(), true) {
            Decision::Blocked(..) if self.ns.detect_deadlock(&asked, false).is_some() => {
                Decision::Impossible(0, Reason::Deadlock)
            }
            Decision::Granted if self.check_tangled_grant(&asked).is_err() => Decision::Impossible(0, Reason::Ended),
            decision => decision,
        }
    }

    fn relock_at_once(&mut self, wait: WaitId, awaits: Await, call: WakeCall, claims: &[Claim]) {
        let came_from = awaits.came_from(call);
        let context = GrantContext {
            attempts: &awaits.attempts,
            abandoned: &[],
            request_id: awaits.request_id.as_deref(),
            metadata_fits: true,
            came_from: Some(&came_from),
        };
        let nodes = [self.ns.tree.ensure_path(&awaits.path)];
        let token = self.grant(awaits.owner, (claims, &nodes), &awaits.terms, context);
        if let Some(request_id) = &awaits.request_id {
            self.ns.claim_reported(awaits.owner, request_id);
        }
        self.end_woken(wait, awaits, call, Ok(token));
    }

    /// Tells the callers what has become of an await that was moved and does not wait for its lock.
    fn end_woken(&mut self, wait: WaitId, awaits: Await, call: WakeCall, outcome: Result<FencingToken, Reason>) {
        if outcome.is_err() && call.passes_on {
            self.ns.conditions.owe(&awaits.path, &awaits.condition);
        }
        let resolved = ResolvedAwait {
            wait,
            attempt: awaits.attempts.highest(),
            owner: self.ns.owners.name(awaits.owner).to_owner(),
            request_id: awaits.request_id,
            path: Path::clone(&awaits.path),
            from_token: awaits.from_token,
            woken: Some(call.woken),
            outcome,
        };
        self.effects.await_resolved(&self.ns.id, resolved);
        self.ns.remove_if_idle(awaits.owner);
    }

    /// Adds it to the queue of the lock, unless that would make the wait-for graph too tangled: then it ends.
    fn enqueue_woken(&mut self, wait: WaitId, awaits: Await, call: WakeCall, claims: [Claim; 1]) {
        let position = QueuePosition::of(wait, false);
        let node: NodeId = self.ns.tree.ensure_path(&awaits.path);
        let ends_at_ms = awaits.relock_ms.map(|ms| self.common.clock_ms.saturating_add(ms));
        let waiting = WaitingRequest {
            owner: awaits.owner,
            claims: claims.into(),
            claim_set: claim_set_of(std::iter::once((node, Mode::Write))),
            nodes: vec![node],
            terms: awaits.terms.clone(),
            request_id: awaits.request_id.clone(),
            attempts: awaits.attempts.clone(),
            ends_at_ms,
            since_ms: self.wall_ms,
            blocked_on: BlockedOn::Unknown,
            came_from: Some(Box::new(awaits.came_from(call))),
        };
        let known = self.ns.checkpoint();
        self.ns.add_waiting(position, waiting);
        if self.check_tangle(position).is_err() {
            self.ns.remove_waiting(position);
            self.ns.roll_back(known);
            return self.end_woken(wait, awaits, call, Err(Reason::Ended));
        }
        self.add_wait_end(position, ends_at_ms);
        self.ns.blocked_index.schedule(position);
        self.charge_closure(false);
    }
}

impl Await {
    fn came_from(&self, call: WakeCall) -> CameFrom {
        let passes_on = call.passes_on.then(|| std::sync::Arc::clone(&self.condition));
        CameFrom { token: self.from_token, woken: call.woken, passes_on }
    }
}
