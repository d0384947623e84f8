//! Adds, ends and cancels awaits.

use std::sync::Arc;

use super::{Await, AwaitStage};
use crate::locks::attempts::DetachResult;
use crate::locks::effects::ResolvedAwait;
use crate::locks::end::EndCause;
use crate::locks::namespace::Namespace;
use crate::locks::owner::{NO_OWNER, OwnerId};
use crate::locks::sessions::NamedRequest;
use crate::locks::sweep::Sweep;
use crate::locks::target::Target;
use crate::locks::tree::NodeId;
use crate::locks::txn::NamespaceTxn;
use crate::{CancelAwait, EventKind, Path, Reason, Response, Revision, SessionNumber, WaitId};

impl Namespace {
    fn session_number_of(&self, owner: OwnerId) -> Option<SessionNumber> {
        self.owners.name(owner).session().map(|session| session.number)
    }

    /// Adds an await. Its owner must be known.
    pub(in crate::locks) fn add_await(&mut self, wait: WaitId, mut awaits: Await) {
        awaits.owner_bytes = self.owners.name(awaits.owner).name_bytes();
        if let Some(session) = self.session_mut(awaits.owner) {
            session.waiting += 1;
            if let Some(request_id) = &awaits.request_id {
                session.requests.insert(request_id, NamedRequest::Awaiting(wait));
            }
        }
        self.owners.get_mut(awaits.owner).waits.get_or_insert_default().awaits.insert(wait);
        let number = self.session_number_of(awaits.owner);
        self.conditions.insert(wait, number, awaits);
    }

    /// Removes an await. Its owner stays until it is pruned.
    pub(in crate::locks) fn remove_await(&mut self, wait: WaitId) -> Option<Await> {
        let number = self.session_number_of(self.conditions.get(wait)?.owner);
        let awaits = self.conditions.remove(wait, number)?;
        if let Some(session) = self.session_mut(awaits.owner) {
            session.waiting -= 1;
            if let Some(request_id) = &awaits.request_id {
                session.requests.remove(request_id, NamedRequest::Awaiting(wait));
            }
        }
        self.owners.get_mut(awaits.owner).remove_await(wait);
        Some(awaits)
    }

    /// Returns the unfinished sweep that will end an await.
    pub(in crate::locks) fn sweep_of_await(&self, wait: WaitId) -> Option<Revision> {
        let goes = |(began, sweep): &(&Revision, &Sweep)| self.sweep_covers_await(**began, sweep, wait);
        self.sweeps.iter().find(goes).map(|(began, _)| *began)
    }

    pub(in crate::locks) fn sweep_covers_await(&self, began: Revision, sweep: &Sweep, wait: WaitId) -> bool {
        let Some(awaits) = self.conditions.get(wait).filter(|_| wait.0 < began) else { return false };
        if !sweep.covers(self, awaits.owner) {
            return false;
        }
        let report = || self.report_of(awaits.owner);
        match &sweep.target {
            Target::Unlisted(_) => report().is_some_and(|report| !report.is_pending(awaits.request_id.as_deref())),
            _ => true,
        }
    }
}

impl NamespaceTxn<'_> {
    /// Ends an await that exists. Its owner does not get the lock again. Removes the owner with its last wait or hold.
    pub(in crate::locks) fn end_await(&mut self, wait: WaitId, reason: Reason) {
        let Some(awaits) = self.ns.remove_await(wait) else { return };
        // The units of the await, its place in the queue, its owner and its request.
        self.ns.spend(4);
        self.update_first_due();
        self.resolve_await(wait, awaits, reason);
    }

    /// Tells the callers of an await that was removed that it ended, and hands a signal on that it had.
    pub(super) fn resolve_await(&mut self, wait: WaitId, awaits: Await, reason: Reason) {
        if awaits.call.is_some_and(|call| call.passes_on) {
            self.ns.conditions.owe(&awaits.path, &awaits.condition);
        }
        let resolved = ResolvedAwait {
            wait,
            attempt: awaits.attempts.highest(),
            owner: self.ns.owners.name(awaits.owner).to_owner(),
            request_id: awaits.request_id,
            path: Path::clone(&awaits.path),
            from_token: awaits.from_token,
            woken: None,
            outcome: Err(reason),
        };
        self.effects.await_resolved(&self.ns.id, resolved);
        self.ns.remove_if_idle(awaits.owner);
    }

    /// Returns the awaits of a target to end, after a given one and as many as the slice allows, and the last await
    /// that it visited.
    pub(in crate::locks) fn next_awaits(
        &mut self,
        of: AwaitsOf,
        after: Option<WaitId>,
        mut goes: impl FnMut(&Namespace, WaitId) -> bool,
    ) -> (Vec<WaitId>, Option<WaitId>) {
        let (mut found, mut reached) = (Vec::new(), None);
        let ns = &*self.ns;
        let candidates = match of {
            AwaitsOf::All => ns.conditions.after(None, after, self.budget.visits),
            AwaitsOf::Session(number) => ns.conditions.after(Some(number), after, self.budget.visits),
            AwaitsOf::Owner(owner) => ns.owners.get(owner).await_ids().filter(|wait| Some(*wait) > after).collect(),
        };
        for wait in candidates {
            if self.budget.ends == 0 || self.budget.visits == 0 {
                break;
            }
            self.budget.visits -= 1;
            reached = Some(wait);
            if goes(ns, wait) {
                self.budget.ends -= 1;
                found.push(wait);
            }
        }
        (found, reached)
    }

    /// Removes the attempts of callers that left. When none remains, ends the await, the wait for the lock, or the
    /// hold, unless its owner is known to have received it. A signal to it is handed on.
    pub(super) fn cancel_await(&mut self, cancel: &CancelAwait) -> Response {
        let (mut left_queue, mut grant_released) = (false, false);
        let owner = self.ns.owner_id(&cancel.owner);
        if let Some((attempt, left)) = cancel.attempts.split_last().filter(|_| owner != NO_OWNER) {
            let rules = self.rules;
            match self.ns.conditions.stage(&cancel.path, cancel.fencing_token) {
                Some(AwaitStage::Awaiting(wait))
                    if self.ns.conditions.get(wait).is_some_and(|it| it.owner == owner) =>
                {
                    let mut is_left = false;
                    self.ns.conditions.change_attempts(wait, |all| is_left = all.detach(*attempt, left, rules));
                    if is_left {
                        self.end_await(wait, Reason::Ended);
                        left_queue = true;
                    }
                }
                Some(AwaitStage::Waiting(position)) if self.ns.waiting(position).owner == owner => {
                    if self.ns.waiting_mut(position).attempts.detach(*attempt, left, rules) {
                        self.end_wait(position, Reason::Ended);
                        left_queue = true;
                    }
                }
                _ => grant_released = self.roll_back_relock(cancel, owner, (*attempt, left)),
            }
        }
        self.run_grant_loop();
        Response::Cancelled { left_queue, grant_released }
    }

    /// Ends a hold that came from the await, if no attempt relies on it any more.
    fn roll_back_relock(&mut self, cancel: &CancelAwait, owner: OwnerId, (attempt, left): (u64, &[u64])) -> bool {
        let rules = self.rules;
        let Some(node) = self.ns.tree.find(&cancel.path) else { return false };
        let hold = self.ns.hold(node, owner);
        let Some(hold) = hold.filter(|hold| hold.came_from().iter().any(|it| it.token == cancel.fencing_token)) else {
            return false;
        };
        if let ([granted], false) = (hold.requests(), hold.direct) {
            let granted = *granted;
            let attempts = &mut self.ns.granted_requests.get_mut(granted).attempts;
            if attempts.is_permanent() || !attempts.detach(attempt, left, rules) {
                return false;
            }
            self.owe_unheard(node, owner);
            self.release_granted(granted);
            return true;
        }
        let mut still = DetachResult::InUse;
        self.change_hold(node, owner, |hold| still = hold.detach(attempt, left, rules));
        if still != DetachResult::Unused {
            return false;
        }
        self.owe_unheard(node, owner);
        self.end_hold(node, owner, EndCause::Released);
        true
    }

    /// Hands on the signals of a hold that its owner never heard of, before it ends.
    pub(in crate::locks) fn owe_unheard(&mut self, node: NodeId, owner: OwnerId) {
        let Some(hold) = self.ns.hold(node, owner) else { return };
        let unheard: Vec<Arc<str>> = hold.came_from().iter().filter_map(|it| it.passes_on.clone()).collect();
        if !unheard.is_empty() {
            let path = self.ns.tree.path_of(node);
            unheard.iter().for_each(|condition| self.ns.conditions.owe(&path, condition));
        }
    }

    /// Records an event of an await.
    pub(super) fn record_await(&mut self, kind: EventKind, revision: Revision, awaits: &Await) {
        self.record_condition_event(
            (kind, revision),
            awaits.owner,
            awaits.from_token,
            (&awaits.path, &awaits.condition),
        );
    }
}

/// Whose awaits are meant.
#[derive(Clone, Copy, Debug)]
pub(in crate::locks) enum AwaitsOf {
    All,
    Session(SessionNumber),
    Owner(OwnerId),
}
