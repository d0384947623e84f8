//! Reconciles the state of a session with the state that its client reports.

use std::collections::BTreeSet;

use super::end::EndCause;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::{NamedRequest, Session};
use super::target::Target;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{
    CommandError, FencingToken, LockInfo, LostHold, Mode, Path, Reason, ReportedHold, Response, SessionNumber,
};

impl NamespaceTxn<'_> {
    /// Ends holds that the client does not list, unless a pending request claims them, and waits that are not pending.
    /// Reports the listed holds that the session does not have. If the work exceeds the slice, the response has to wait
    /// for it and does not count it.
    pub(super) fn lock_info(&mut self, info: &LockInfo) -> Result<Response, CommandError> {
        if !self.check_sequence(&info.session_id, info.message)? {
            let number = self.ns.sessions.get(info.session_id.as_str()).map(|session| session.facts.number);
            let target = number.map(|number| Target::unlisted(number, info));
            self.await_sweep(|there| target.as_ref() == Some(there));
            return Ok(Response::Ignored);
        }
        self.ns.spend(2 * info.held.len());
        let session = &self.ns.sessions[info.session_id.as_str()];
        let (number, things) = (session.facts.number, session.holds.saturating_add(session.waiting));
        let lost = self.lost_holds(number, info);
        let is_small = things <= self.budget.visits as u64;
        let (ended_holds, ended_waits) = match is_small.then(|| self.try_end_unlisted(info)).flatten() {
            Some(ended) => ended,
            None => {
                self.begin_sweep(Target::unlisted(number, info))?;
                (0, 0)
            }
        };
        let lost = lost.into_iter().map(|hold| self.ns.lost_hold(hold)).collect();
        Ok(Response::Reconciled { lost, ended_holds, ended_waits })
    }

    /// Returns the lost holds. The response to a pending request reports a hold that it changed, so such holds are left
    /// out.
    fn lost_holds<'a>(&self, number: SessionNumber, info: &'a LockInfo) -> Vec<&'a ReportedHold> {
        let requests = self.session_numbered(number).map(|session| &session.requests);
        let granted = info.pending.iter().filter_map(|request_id| match requests?.get(request_id.as_str())? {
            NamedRequest::Granted(granted) => Some(self.ns.granted_requests.get(*granted)),
            NamedRequest::Waiting(_) => None,
        });
        let claimed: BTreeSet<NodeId> = granted.flat_map(|granted| granted.live.keys().copied()).collect();
        let lost = info.held.iter().filter(|hold| !self.ns.has_hold(number, hold));
        lost.filter(|hold| !self.ns.tree.find(&hold.path).is_some_and(|node| claimed.contains(&node))).collect()
    }

    /// Ends unlisted holds and waits. Returns `None` if that exceeds the slice.
    fn try_end_unlisted(&mut self, info: &LockInfo) -> Option<(u64, u64)> {
        let pending: BTreeSet<&str> = info.pending.iter().map(String::as_str).collect();
        let listed: BTreeSet<(FencingToken, Mode, &Path)> =
            info.held.iter().map(|hold| (hold.fencing_token, hold.mode, &hold.path)).collect();
        let session = &self.ns.sessions[info.session_id.as_str()];
        let owners = session.owners.iter().copied().collect::<Vec<OwnerId>>();
        let waits = self.unlisted_waits(&owners, &pending);
        let mut unlisted = Vec::new();
        for (path, node, owner) in self.holds_of(&owners) {
            let Some(hold) = self.ns.hold(node, owner) else { continue };
            if !self.is_pending(hold, &pending) && !listed.contains(&(hold.token, hold.mode, &path)) {
                unlisted.push((node, owner));
            }
        }
        self.budget.ends = self.budget.ends.checked_sub(waits.len() + unlisted.len())?;
        for position in &waits {
            self.end_wait(*position, Reason::Ended);
        }
        for (node, owner) in &unlisted {
            self.end_hold(*node, *owner, EndCause::Released);
        }
        self.run_grant_loop();
        Some((unlisted.len() as u64, waits.len() as u64))
    }

    /// Returns the waits of a session that belong to no pending request.
    fn unlisted_waits(&self, owners: &[OwnerId], pending: &BTreeSet<&str>) -> Vec<QueuePosition> {
        let positions = owners.iter().flat_map(|owner| self.ns.owners.get(*owner).queue_positions());
        let is_pending = |position: &QueuePosition| {
            let request_id = self.ns.waiting(*position).request_id.as_deref();
            request_id.is_some_and(|request_id| pending.contains(request_id))
        };
        let mut positions: Vec<QueuePosition> = positions.filter(|position| !is_pending(position)).collect();
        positions.sort_unstable();
        positions
    }

    /// Returns whether a pending request claims the hold.
    fn is_pending(&self, hold: &Hold, pending: &BTreeSet<&str>) -> bool {
        let mut requests = hold.requests().iter();
        requests.any(|request| pending.contains(&*self.ns.granted_requests.get(*request).request_id))
    }
}

impl Namespace {
    /// Returns the reported holds that the session lost.
    pub(super) fn lost_holds_of(&self, session: &Session, held: &[ReportedHold]) -> Vec<LostHold> {
        let lost = held.iter().filter(|hold| !self.has_hold(session.facts.number, hold));
        lost.map(|hold| self.lost_hold(hold)).collect()
    }

    /// Returns whether the session has the reported hold.
    fn has_hold(&self, number: SessionNumber, believed: &ReportedHold) -> bool {
        let node = self.tree.find(&believed.path);
        let hold = node.and_then(|node| self.tree.get(node).holds.of_token(believed.fencing_token));
        hold.is_some_and(|hold| {
            let session = self.owners.name(hold.owner).session();
            hold.mode == believed.mode && session.is_some_and(|session| session.number == number)
        })
    }

    fn lost_hold(&self, believed: &ReportedHold) -> LostHold {
        LostHold {
            path: believed.path.clone(),
            fencing_token: believed.fencing_token,
            current_owner: self.current_owner(&believed.path),
        }
    }
}
