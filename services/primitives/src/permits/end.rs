//! Ends holds and waits.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::item::{PermitHold, QueueRank};
use super::key::Requester;
use super::key::{Key, Name, Scope, WaitEnd};
use super::{HoldOrWait, PermitTable};
use crate::kit::{END_UNITS, Kit, Notice, ResolvedPermits, TableEvent, TableOwner};
use crate::{
    CancelPermits, EventKind, FencingToken, PermitsEnd, Phase, Reason, ReleasePermits, ReportedPermits, Response,
    RevokedReason, Rules,
};

impl PermitTable {
    /// Releases a hold or some of its members, or ends the wait for it.
    pub fn release(&mut self, kit: &mut Kit<'_>, requester: &Requester, request: &ReleasePermits) -> Response {
        let name = Arc::new(Name::new(request.kind, &request.path));
        let found = match (&request.request_id, request.fencing_token) {
            (Some(request_id), token) => {
                let key = requester.key(&name, request_id);
                let entry = self.index.get(&key).copied();
                entry.filter(|entry| token.is_none_or(|token| *entry == HoldOrWait::Hold(token)))
            }
            (None, Some(token)) => {
                let is_its = |key: &Key| key.scope == requester.scope && key.holder == requester.holder;
                let hold = self.hold(&name, token).filter(|hold| is_its(&hold.key));
                hold.map(|hold| HoldOrWait::Hold(hold.token))
            }
            (None, None) => None,
        };
        let released = match found {
            None => false,
            Some(entry) if request.members.is_empty() => {
                self.end(kit, &name, entry);
                true
            }
            Some(HoldOrWait::Hold(token)) => self.return_members(kit, &name, token, &request.members),
            Some(HoldOrWait::Wait(_)) => false,
        };
        self.settle(kit);
        Response::PermitsReleased { released, view: self.view(kit, &name) }
    }

    /// Ends what an owner has released.
    pub(super) fn end(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>, entry: HoldOrWait) {
        match entry {
            HoldOrWait::Hold(token) => self.end_hold(kit, name, token, PermitsEnd::Released),
            HoldOrWait::Wait(rank) => self.end_wait(kit, name, rank, WaitEnd::Refused(Reason::Ended)),
        }
    }

    /// Removes the attempts of callers that left. When none remains, the wait ends, or the hold of a grant that its
    /// owner is not known to have received.
    pub fn cancel(&mut self, kit: &mut Kit<'_>, requester: &Requester, cancel: &CancelPermits) -> Response {
        let (mut left_queue, mut grant_released) = (false, false);
        let name = Arc::new(Name::new(cancel.kind, &cancel.path));
        let key = requester.key(&name, &cancel.request_id);
        let (attempt, left) = cancel.attempts.split_first().map_or((0, &[][..]), |(first, rest)| (*first, rest));
        let mut is_left = false;
        match self.index.get(&key).copied() {
            Some(HoldOrWait::Wait(rank)) => {
                self.change_wait(&name, rank, |wait| {
                    is_left = wait.attempts.detach(attempt, left, Rules::TWO);
                });
                left_queue = is_left;
            }
            Some(HoldOrWait::Hold(token)) => {
                self.change_hold(&name, token, |hold| {
                    let may_leave = !hold.attempts.is_permanent();
                    is_left = may_leave && hold.attempts.detach(attempt, left, Rules::TWO);
                });
                grant_released = is_left;
            }
            None => {}
        }
        if let Some(entry) = self.index.get(&key).copied().filter(|_| is_left) {
            self.end(kit, &name, entry);
            self.settle(kit);
        }
        Response::Cancelled { left_queue, grant_released }
    }

    /// Does what is due first: the rest of a member or the phase of a hold is over, or a wait times out. Returns how many
    /// ends of a slice it costs.
    pub fn end_first_due(&mut self, kit: &mut Kit<'_>) -> usize {
        let first_due_ms = self.due.first_key_value().map_or(u64::MAX, |(due, _)| due.at_ms);
        if self.rests.first().is_some_and(|(at_ms, ..)| *at_ms <= first_due_ms) {
            self.end_first_rest(kit);
            return 1;
        }
        let Some((due, key)) = self.due.first_key_value().map(|(due, key)| (*due, Arc::clone(key))) else { return 1 };
        if is_enabled(Mutation::SemExpiryKept) && !due.is_wait {
            self.due.remove(&due);
            return 1;
        }
        let entry = self.index.get(&key).copied();
        let ends = entry.map_or(1, |entry| self.ends_of(&key, entry));
        match entry {
            Some(HoldOrWait::Hold(token)) => self.end_phase(kit, &key.name, token, due.at_ms),
            Some(HoldOrWait::Wait(rank)) => self.end_wait(kit, &key.name, rank, WaitEnd::Refused(Reason::TimedOut)),
            None => _ = self.due.remove(&due),
        }
        ends
    }

    /// Does what is due of a key, so that a command meets nothing whose time is over.
    pub(super) fn end_due_at(&mut self, kit: &mut Kit<'_>, key: &Key) {
        while let Some((key, entry)) = self.index.get_key_value(key) {
            let (key, entry) = (Arc::clone(key), *entry);
            match entry {
                HoldOrWait::Hold(token) => {
                    let at_ms = self.hold(&key.name, token).and_then(PermitHold::ends_at_ms);
                    let Some(at_ms) = at_ms.filter(|at_ms| *at_ms <= kit.clock_ms()) else { return };
                    self.end_phase(kit, &key.name, token, at_ms);
                }
                HoldOrWait::Wait(rank) => {
                    let at_ms = self.wait(&key.name, rank).and_then(|wait| wait.ends_at_ms);
                    if at_ms.is_none_or(|at_ms| at_ms > kit.clock_ms()) {
                        return;
                    }
                    self.end_wait(kit, &key.name, rank, WaitEnd::Refused(Reason::TimedOut));
                }
            }
        }
    }

    /// Ends the phase of a hold at an instant of the shard clock, or the hold by force. A hold with a transition time
    /// enters its transition.
    pub(super) fn end_phase(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>, token: FencingToken, at_ms: u64) {
        let Some(hold) = self.hold(name, token) else { return };
        if hold.asks.forced_at_ms.is_some_and(|forced_at_ms| forced_at_ms <= at_ms) {
            return self.end_hold(kit, name, token, PermitsEnd::Deleted);
        }
        if !hold.is_held() || hold.transition_ms == 0 {
            return self.end_hold(kit, name, token, PermitsEnd::Expired);
        }
        if let Some(notice) = hold.revoked(RevokedReason::Expired) {
            kit.notify(notice);
        }
        kit.spend(END_UNITS);
        self.change_hold(name, token, |hold| {
            hold.phase = Phase::Transition;
            hold.deadline_ms = Some(at_ms.saturating_add(hold.transition_ms.into()));
        });
    }

    /// Ends a hold, with a revision of its own. Who waits is granted when the queue is settled.
    pub(super) fn end_hold(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>, token: FencingToken, cause: PermitsEnd) {
        let Some(hold) = self.remove_hold(name, token) else { return };
        let notice = cause.revoked().filter(|_| hold.is_held()).and_then(|reason| hold.revoked(reason));
        notice.into_iter().for_each(|notice| kit.notify(notice));
        let revision = match &hold.lease {
            None => {
                let kind = EventKind::PermitsReleased { weight: hold.weight, cause };
                record(kit, kind, &hold.key, &hold.process_id, (Some(token), &[]))
            }
            Some(lease) => {
                let (kind, its) = (EventKind::MembersReturned { cause }, (Some(token), &lease.members[..]));
                record(kit, kind, &hold.key, &hold.process_id, its)
            }
        };
        self.free_members(kit, name, hold.members(), revision);
        self.change(name, |source| source.revision = revision);
        self.unsettle(name);
        self.remove_if_unused(name);
    }

    /// Takes permits from a hold, which keeps its token.
    pub(super) fn shrink(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>, token: FencingToken, weight: u64) {
        let Some(mut hold) = self.remove_hold(name, token) else { return };
        let kind = EventKind::PermitsReleased { weight: hold.weight - weight, cause: PermitsEnd::Shrunk };
        let revision = record(kit, kind, &hold.key, &hold.process_id, (Some(token), &[]));
        hold.weight = weight;
        self.insert_hold(hold);
        self.change(name, |source| source.revision = revision);
        self.unsettle(name);
        self.settle(kit);
    }

    /// Records a grant. Returns its token.
    pub(super) fn record_grant(
        &mut self,
        kit: &mut Kit<'_>,
        key: &Key,
        process_id: &Arc<str>,
        weight: u64,
    ) -> FencingToken {
        record(kit, EventKind::PermitsAcquired { weight }, key, process_id, (None, &[]))
    }

    /// Ends a wait. If it is granted, its hold follows.
    pub(super) fn end_wait(&mut self, kit: &mut Kit<'_>, name: &Arc<Name>, rank: QueueRank, end: WaitEnd) {
        let Some(wait) = self.remove_wait(name, rank) else { return };
        kit.spend(END_UNITS);
        let (key, attempt) = (Arc::clone(&wait.key), wait.attempts.highest());
        let outcome = match end {
            WaitEnd::Refused(reason) => Err(reason),
            WaitEnd::Granted => {
                let owner = (Arc::clone(&wait.key), wait.process_id);
                Ok(self.grant(kit, owner, wait.wanted, wait.terms, wait.attempts))
            }
        };
        let held = outcome.ok().and_then(|token| self.hold(name, token));
        let members = held.map(|hold| hold.members().to_vec()).unwrap_or_default();
        kit.notify(Notice::PermitsResolved(Box::new(ResolvedPermits {
            wait: rank.wait,
            attempt,
            owner: key.owner(),
            request_id: key.request_id.to_string(),
            kind: name.kind,
            path: name.path.clone(),
            outcome,
            members,
        })));
        self.unsettle(name);
        self.remove_if_unused(name);
    }

    /// Takes the next waiting request of a namespace that is gone.
    pub fn pop_wait(&mut self) -> Option<ResolvedPermits> {
        let (wait, key) = self.waits.pop_first()?;
        let attempt = match self.index.get(&key) {
            Some(HoldOrWait::Wait(rank)) => self.wait(&key.name, *rank).map_or(0, |wait| wait.attempts.highest()),
            _ => 0,
        };
        let (owner, request_id) = (key.owner(), key.request_id.to_string());
        let (kind, path, outcome, members) = (key.name.kind, key.name.path.clone(), Err(Reason::Ended), Vec::new());
        Some(ResolvedPermits { wait, attempt, owner, request_id, kind, path, outcome, members })
    }

    /// Marks a source whose queue may be granted or refused something.
    pub(super) fn unsettle(&mut self, name: &Name) {
        if let Some((name, source)) = self.by_name.get_key_value(name)
            && !source.queue.is_empty()
            && source.deleting.is_none()
        {
            self.unsettled.insert(Arc::clone(name));
        }
    }
}

impl PermitHold {
    /// Returns what a session is told that loses the hold.
    fn revoked(&self, reason: RevokedReason) -> Option<Notice> {
        let Scope::Session { number, session_id } = &self.key.scope else { return None };
        let hold = ReportedPermits {
            kind: self.key.name.kind,
            path: self.key.name.path.clone(),
            request_id: self.key.request_id.to_string(),
            fencing_token: self.token,
        };
        Some(Notice::PermitsRevoked { number: *number, session_id: Arc::clone(session_id), hold, reason })
    }
}

/// Records an event of a hold, or of some of its members. Returns its revision, which is the token unless another is
/// given.
pub(super) fn record(
    kit: &mut Kit<'_>,
    kind: EventKind,
    key: &Key,
    process_id: &Arc<str>,
    (token, members): (Option<FencingToken>, &[Arc<str>]),
) -> FencingToken {
    let revision = kit.next_revision();
    let owner = Some(TableOwner { owner: key.owner(), process_id: Arc::clone(process_id) });
    let (path, token, members) = (key.name.path.clone(), Some(token.unwrap_or(revision)), members.to_vec());
    kit.notify(Notice::Event(TableEvent { revision, kind, path, owner, token, members }));
    revision
}
