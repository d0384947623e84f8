//! Reconciles the state of a session with the state that its client reports.

use std::sync::Arc;

use holdfast_primitives::ask::{AskedList, Asks};
use holdfast_primitives::reply_size::{ByteBudget, MAX_REPLY_BYTES};

use super::end::EndCause;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::report::Report;
use super::sessions::{NamedRequest, Session};
use super::target::Target;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{
    AskedHolds, CommandError, Kind, LockInfo, LostHold, Reason, ReportedHold, Response, SessionNumber, WaitId,
};

/// A unit for so many holds of a session that are looked up in its report.
const HOLDS_PER_UNIT: usize = 4;

impl NamespaceTxn<'_> {
    /// Adds a part of a report that has more parts. Nothing ends yet. Reports the listed holds that the session does
    /// not have. Does not count as the message with its number, which the last part has too.
    pub(super) fn lock_info_part(&mut self, info: &LockInfo) -> Result<Response, CommandError> {
        if !self.session_for(&info.session_id)?.is_next(info.message)? {
            return Ok(Response::Ignored);
        }
        let (report, lost) = self.extended_report(info);
        self.set_report(&info.session_id, Some(report));
        let (lost, asked) = (self.lost_views(lost), self.asked_of(info));
        Ok(Response::reconciled(lost, (0, 0), asked))
    }

    /// Adds the last part of a report. Ends holds that it does not list, unless a pending request claims them, and
    /// waits that are not pending. Reports the holds listed in this part that the session does not have. If the work
    /// exceeds the slice, the response has to wait for it and does not count it.
    pub(super) fn lock_info(&mut self, info: &LockInfo) -> Result<Response, CommandError> {
        let is_next = self.check_sequence(&info.session_id, info.message)?;
        let session = &self.ns.sessions[info.session_id.as_str()];
        let number = session.facts.number;
        let permits = self.ns.permits.count_of_session(number);
        let arrivals = self.ns.barriers.count_of_session(number);
        let things = session.holds.saturating_add(session.waiting).saturating_add(permits).saturating_add(arrivals);
        let is_going_on = self.await_sweep(|there| *there == Target::Unlisted(number));
        if !is_next {
            return Ok(Response::Ignored);
        }
        let (report, lost) = self.extended_report(info);
        let is_small = things <= self.budget.visits as u64 && !is_going_on;
        let ended = if is_small { self.try_end_unlisted(&info.session_id, &report) } else { None };
        if ended.is_none() {
            self.begin_sweep(Target::Unlisted(number))?;
            self.set_report(&info.session_id, Some(report));
        }
        let (lost, asked) = (self.lost_views(lost), self.asked_of(info));
        let (ended_holds, ended_waits) = ended.unwrap_or_default();
        Ok(Response::reconciled(lost, (ended_holds, ended_waits), asked))
    }

    /// Ends the comparison with the report of an earlier connection. What it has not ended yet stays.
    pub(super) fn discard_report(&mut self, session_id: &str) {
        let session = self.ns.sessions.get_mut(session_id).filter(|session| session.report.is_some());
        let Some(session) = session else { return };
        session.report = None;
        let target = Target::Unlisted(session.facts.number);
        let began = self.ns.sweeps.iter().find(|(_, sweep)| sweep.target == target).map(|(began, _)| *began);
        if let Some((began, sweep)) = began.and_then(|began| self.ns.sweeps.remove_entry(&began)) {
            self.finished.push(began, sweep.finished_state());
            self.update_jobs();
        }
    }

    /// The session has nothing but what its client reported.
    pub(super) fn end_report(&mut self, number: SessionNumber) {
        let session_id = self.sessions.get(&number).filter(|(slot, _)| *slot == self.slot);
        if let Some(session) = session_id.and_then(|(_, session_id)| self.ns.sessions.get_mut(session_id)) {
            session.report = None;
        }
    }

    pub(super) fn set_report(&mut self, session_id: &str, report: Option<Arc<Report>>) {
        if let Some(session) = self.ns.sessions.get_mut(session_id) {
            session.report = report;
        }
    }

    /// Takes the report of the session and adds a part. Also returns the listed holds that the session does not have.
    /// The response to a pending request reports a hold that it changed, so such holds are left out.
    fn extended_report<'a>(&mut self, info: &'a LockInfo) -> (Arc<Report>, Vec<&'a ReportedHold>) {
        let session = self.ns.sessions.get_mut(info.session_id.as_str()).and_then(|session| session.report.take());
        let mut kept = session.unwrap_or_default();
        let report = Arc::make_mut(&mut kept);
        let session = &self.ns.sessions[info.session_id.as_str()];
        for request_id in &info.pending {
            let Some(named) = self.ns.request_named(&session.requests, request_id) else {
                let number = session.facts.number;
                let has_permits = self.ns.has_permits(number, &info.session_id, request_id);
                if has_permits || self.ns.barriers.has_request(number, request_id) {
                    report.add_pending(request_id);
                }
                continue;
            };
            report.add_pending(request_id);
            if let NamedRequest::Granted(granted) = named {
                self.ns.add_claims(report, granted);
            }
        }
        self.ns.spend(2 * info.held.len());
        let lost = info.held.iter().filter(|listed| {
            let node = self.ns.tree.find(&listed.path);
            match node.filter(|node| self.ns.has_hold_at(*node, session.facts.number, listed)) {
                Some(node) => report.list(node, listed.fencing_token),
                None => return !node.is_some_and(|node| report.claims_path(self.ns, node)),
            }
            false
        });
        let lost = lost.collect();
        (kept, lost)
    }

    /// Returns nothing if no caller receives the response.
    fn lost_views(&self, lost: Vec<&ReportedHold>) -> Vec<LostHold> {
        if self.with_views { self.ns.lost_views(lost) } else { Vec::new() }
    }

    /// Returns the requests to release the listed holds; empty if no caller receives the response.
    fn asked_of(&self, info: &LockInfo) -> Vec<AskedHolds> {
        let session = self.ns.sessions.get(info.session_id.as_str()).filter(|_| self.with_views);
        session.map_or_else(Vec::new, |session| self.ns.asked_holds_of(session, &info.held))
    }

    /// Ends unlisted holds and waits. Returns `None` if that exceeds the slice.
    fn try_end_unlisted(&mut self, session_id: &str, report: &Report) -> Option<(u64, u64)> {
        let session = &self.ns.sessions[session_id];
        let owners = session.owners.iter().copied().collect::<Vec<OwnerId>>();
        let waits = self.unlisted_waits(&owners, report);
        let awaits = self.unlisted_awaits(&owners, report);
        let (number, holds) = (session.facts.number, usize::try_from(session.holds).unwrap_or(usize::MAX));
        self.ns.spend(holds / HOLDS_PER_UNIT);
        let is_unlisted = |_: &Namespace, node: NodeId, hold: &Hold| !hold.is_kept() && !report.keeps(node, hold.token);
        let unlisted = self.find_holds(&owners, is_unlisted);
        let permits = self.ns.count_unlisted_permits((number, session_id), report, self.budget);
        let arrivals = self.ns.count_unlisted_arrivals((number, session_id), report, self.budget);
        let of_waits: usize = waits.iter().map(|position| self.ns.waiting(*position).ends()).sum();
        let of_locks = of_waits + awaits.len() + unlisted.len();
        if permits.saturating_add(arrivals).saturating_add(of_locks) > self.budget.ends {
            return None;
        }
        // Those of permits and arrivals are counted one by one.
        self.budget.ends -= of_locks;
        let unlisted = self.in_order_of_path(unlisted);
        let permits = self.end_unlisted_permits(number, session_id, report);
        let arrivals = self.end_unlisted_arrivals(number, session_id, report);
        for position in &waits {
            self.end_wait(*position, Reason::Ended);
        }
        awaits.iter().for_each(|wait| self.end_await(*wait, Reason::Ended));
        for (_, node, owner) in &unlisted {
            // Its client has not heard of it.
            self.owe_unheard(*node, *owner);
            self.end_hold(*node, *owner, EndCause::Released);
        }
        self.run_grant_loop();
        let waits = (waits.len() + awaits.len()) as u64 + permits.waits;
        Some((unlisted.len() as u64 + permits.holds + arrivals.holds, waits))
    }

    /// Returns the awaits of a session that belong to no pending request.
    fn unlisted_awaits(&self, owners: &[OwnerId], report: &Report) -> Vec<WaitId> {
        let mut awaits = self.awaits_of(owners);
        let request_id = |wait| self.ns.conditions.get(wait).and_then(|awaits| awaits.request_id.as_deref());
        awaits.retain(|wait| !report.is_pending(request_id(*wait)));
        awaits
    }

    /// Returns the waits of a session that belong to no pending request.
    fn unlisted_waits(&self, owners: &[OwnerId], report: &Report) -> Vec<QueuePosition> {
        let positions = owners.iter().flat_map(|owner| self.ns.owners.get(*owner).queue_positions());
        let is_pending = |position: &QueuePosition| report.is_pending(self.ns.waiting(*position).request_id.as_deref());
        let mut positions: Vec<QueuePosition> = positions.filter(|position| !is_pending(position)).collect();
        positions.sort_unstable();
        positions
    }
}

impl Namespace {
    /// Returns the reported holds that the session lost.
    pub(super) fn lost_holds_of(&self, session: &Session, held: &[ReportedHold]) -> Vec<LostHold> {
        self.lost_views(held.iter().filter(|hold| !self.has_hold(session.facts.number, hold)))
    }

    /// Returns the requests to release the reported holds, as many as fit into a response.
    pub(super) fn asked_holds_of(&self, session: &Session, held: &[ReportedHold]) -> Vec<AskedHolds> {
        let mut list = AskedList::default();
        for listed in held {
            let node = self.tree.find(&listed.path);
            let Some(node) = node.filter(|node| self.has_hold_at(*node, session.facts.number, listed)) else {
                continue;
            };
            let Some(hold) = self.tree.get(node).holds.of_token(listed.fencing_token) else { continue };
            list.push(Kind::Lock, hold.asks().and_then(Asks::view), || self.asked_hold(node, hold));
        }
        list.into_asked()
    }

    /// Shows lost holds, with as many of their current owners as fit into a response.
    fn lost_views<'a>(&self, lost: impl IntoIterator<Item = &'a ReportedHold>) -> Vec<LostHold> {
        let (mut left, mut is_full) = (ByteBudget::new(MAX_REPLY_BYTES), false);
        let mut owner_of = |path| {
            let owner = if is_full { None } else { self.current_owner(path) };
            owner.filter(|owner| {
                is_full = !left.try_take(owner);
                !is_full
            })
        };
        let views = lost.into_iter().map(|believed| LostHold {
            path: believed.path.clone(),
            fencing_token: believed.fencing_token,
            current_owner: owner_of(&believed.path),
        });
        views.collect()
    }

    /// Returns whether the session has the reported hold.
    fn has_hold(&self, number: SessionNumber, believed: &ReportedHold) -> bool {
        self.tree.find(&believed.path).is_some_and(|node| self.has_hold_at(node, number, believed))
    }

    /// As above, given the node of its path.
    fn has_hold_at(&self, node: NodeId, number: SessionNumber, believed: &ReportedHold) -> bool {
        let hold = self.tree.get(node).holds.of_token(believed.fencing_token);
        hold.is_some_and(|hold| {
            let session = self.owners.name(hold.owner).session();
            !hold.is_kept() && hold.mode == believed.mode && session.is_some_and(|session| session.number == number)
        })
    }
}
