//! Ends sessions: closed, expired, or removed by a reset.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::LocksState;
use super::conditions::AwaitsOf;
use super::end::EndCause as HoldEnding;
use super::hold::Hold;
use super::namespace::Namespace;
use super::owner::OwnerId;
use super::queue::QueuePosition;
use super::sessions::Session;
use super::tree::NodeId;
use super::txn::NamespaceTxn;
use crate::{
    CommandError, EntryContext, EventKind, MessageSeq, Path, Reason, Response, Revision, SessionEnd, SessionNumber,
};

/// An ended session with more state than a slice ends. From then on its holds count as over and it is granted nothing.
/// Its waits and holds end in slices.
#[derive(Clone, Debug)]
pub(super) struct EndingSession {
    pub(super) session_id: Arc<str>,
    pub(super) session: Session,
    pub(super) reason: SessionEnd,
    /// The shard clock at which it ended.
    pub(super) since_ms: u64,
    /// All of its waits up to this position have ended.
    pub(super) after_wait: Option<QueuePosition>,
    /// All of its holds up to this path have ended.
    pub(super) after_path: Option<Path>,
}

impl LocksState {
    /// Expires the given sessions, except those opened or resumed after revision `known_revision`, which the leader knew.
    pub(super) fn expire_sessions(
        &mut self,
        context: &EntryContext,
        ids: &[SessionNumber],
        known_revision: Revision,
    ) -> Response {
        let mut ended = Vec::new();
        let (mut slots, mut order) = (BTreeSet::new(), Vec::new());
        for number in ids {
            let Some((slot, session_id)) = self.sessions.get(number).cloned() else { continue };
            let namespace = self.namespaces.find(slot).filter(|namespace| !self.is_quarantined(&namespace.id));
            let session = namespace.and_then(|namespace| namespace.sessions.get(&session_id));
            if session.is_none_or(|session| session.facts.number != *number || session.facts.epoch > known_revision) {
                continue;
            }
            let mut work = self.txn_in(slot, context);
            work.end_session(&session_id, SessionEnd::Expired);
            ended.push(*number);
            // Grants follow once all of these sessions ended, because waiters may belong to them.
            if slots.insert(slot) {
                order.push(slot);
            }
        }
        for slot in order {
            self.txn_in(slot, context).run_grant_loop();
        }
        Response::SessionsExpired { ended }
    }
}

impl NamespaceTxn<'_> {
    pub(super) fn close_session(
        &mut self,
        session_id: &str,
        message: Option<MessageSeq>,
    ) -> Result<Response, CommandError> {
        if !self.check_sequence(session_id, message)? {
            return Ok(Response::Ignored);
        }
        self.end_session(session_id, SessionEnd::Closed);
        self.run_grant_loop();
        Ok(Response::Done)
    }

    /// Ends a session and everything it has. If that exceeds the slice, ends only the session for now.
    pub(super) fn end_session(&mut self, session_id: &str, why: SessionEnd) {
        let session = &self.ns.sessions[session_id];
        let number = session.facts.number;
        let things = usize::try_from(session.holds.saturating_add(session.waiting)).unwrap_or(usize::MAX);
        // Before its owners are listed, of which there may be as many.
        if things > self.budget.ends {
            return self.begin_session_end(session_id, why);
        }
        let owners: Vec<OwnerId> = session.owners.iter().copied().collect();
        let things = self.ends_of_all(things, &owners);
        let permits = usize::try_from(self.ns.permits.ends_of_session(number)).unwrap_or(usize::MAX);
        let arrivals = self.ends_of_arrivals(number, session_id);
        if things.saturating_add(permits).saturating_add(arrivals) > self.budget.ends {
            return self.begin_session_end(session_id, why);
        }
        // Those of permits and arrivals are counted one by one.
        self.budget.ends -= things;
        self.end_waits(&owners);
        for (_, node, owner) in self.holds_of(&owners) {
            self.end_hold_of_session(node, owner, why, self.common.clock_ms);
        }
        self.end_permits_of_session(number, session_id, why, self.common.clock_ms);
        self.end_arrivals_of_session(number, session_id, why);
        self.remove_session(session_id, why);
    }

    /// If the session expired, a hold with a transition time enters its transition.
    fn end_hold_of_session(&mut self, node: NodeId, owner: OwnerId, why: SessionEnd, since_ms: u64) {
        if why != SessionEnd::Expired {
            return self.end_hold(node, owner, HoldEnding::Released);
        }
        let Some(hold) = self.ns.hold(node, owner).filter(|hold| !hold.is_kept()) else { return };
        if hold.transition_ms > 0 || hold.kept_after(since_ms).is_some() {
            self.unclaim_requests(node, owner);
        }
        self.end_phase(node, owner, since_ms);
    }

    /// Removes the session immediately; its holds and waits end later.
    fn begin_session_end(&mut self, session_id: &str, reason: SessionEnd) {
        let Some((session_id, mut session)) = self.ns.sessions.remove_entry(session_id) else { return };
        session.report = None;
        let number = session.facts.number;
        self.common.next_revision();
        self.sessions.remove(&number);
        self.end_table_session(number, reason);
        self.effects.ended(&self.ns.id, &session_id, number, reason);
        let since_ms = self.common.clock_ms;
        let ending = EndingSession { session_id, session, reason, since_ms, after_wait: None, after_path: None };
        self.ns.permits.begin_session_end(number, reason, since_ms);
        self.ns.barriers.begin_session_end(number, reason);
        self.ns.ending_sessions.insert(number, ending);
    }

    /// Ends a slice of an ended session's state: first its waits in queue order, then its holds in path order, then
    /// records the event of its end. It is finished when some of the slice is left.
    pub(super) fn continue_session_end(&mut self, number: SessionNumber) {
        let Some(ending) = self.ns.ending_sessions.get(&number) else { return };
        let is_its = move |ns: &Namespace, owner| ns.owners.name(owner).session().is_some_and(|it| it.number == number);
        if ending.session.waiting > 0 {
            let owners = ending.session.owners_if_few(ending.session.waiting, &self.ns.bounds);
            let goes = |ns: &Namespace, position| is_its(ns, ns.waiting(position).owner);
            let waits = match owners {
                Some(owners) => self.next_waits_of(&owners, goes),
                None => self.next_waits(ending.after_wait, None, goes),
            };
            if let Some(ending) = self.ns.ending_sessions.get_mut(&number) {
                ending.after_wait = waits.scanned_to.or(ending.after_wait);
            }
            waits.found.into_iter().for_each(|position| _ = self.end_wait_if_present(position));
            let (awaits, _) = self.next_awaits(AwaitsOf::Session(number), None, |_, _| true);
            awaits.into_iter().for_each(|wait| self.end_await(wait, Reason::Ended));
        }
        // Its owners may be many: they are listed only for a slice that ends holds.
        if self.budget.ends == 0 {
            return;
        }
        let Some(ending) = self.ns.ending_sessions.get(&number) else { return };
        let (why, since_ms, after_path) = (ending.reason, ending.since_ms, ending.after_path.clone());
        let owners = ending.session.owners_if_few(ending.session.holds, &self.ns.bounds);
        let goes = |ns: &Namespace, _: NodeId, hold: &Hold| hold.is_held() && is_its(ns, hold.owner);
        let holds = match owners {
            Some(owners) => self.next_holds_of(&owners, goes),
            None => self.next_holds(after_path.as_ref(), goes),
        };
        if let Some(ending) = self.ns.ending_sessions.get_mut(&number).filter(|_| holds.scanned_to.is_some()) {
            ending.after_path = holds.scanned_to;
        }
        for (node, owner) in holds.found {
            self.end_hold_of_session(node, owner, why, since_ms);
        }
        if self.budget.ends == 0 || self.budget.visits == 0 {
            return;
        }
        let session_id = self.ns.ending_sessions.get(&number).map(|ending| Arc::clone(&ending.session_id));
        if session_id.is_some_and(|session_id| !self.end_permits_of_session(number, &session_id, why, since_ms)) {
            return;
        }
        let session_id = self.ns.ending_sessions.get(&number).map(|ending| Arc::clone(&ending.session_id));
        if session_id.is_some_and(|session_id| !self.end_arrivals_of_session(number, &session_id, why)) {
            return;
        }
        self.ns.permits.finish_session_end(number);
        self.ns.barriers.finish_session_end(number);
        let ending = match is_enabled(Mutation::MarkOutlivesJob) {
            true => self.ns.ending_sessions.get(&number).cloned().inspect(|_| self.budget.visits = 0),
            false => self.ns.ending_sessions.remove(&number),
        };
        let Some(ending) = ending else { return };
        self.ns.charged.sessions -= ending.session.facts.charge(&ending.session_id);
        self.record_session_event(EventKind::SessionEnded, &ending.session_id, &ending.session.facts.process_id);
    }

    /// Removes the claims of all requests from a hold, which outlives them.
    pub(super) fn unclaim_requests(&mut self, node: NodeId, owner: OwnerId) {
        let mut requests = Vec::new();
        self.change_hold(node, owner, |hold| requests = hold.unclaim_all());
        requests.into_iter().for_each(|request| self.remove_claim(request, node));
    }

    /// Removes a session that has nothing left but holds in transition.
    pub(super) fn remove_session(&mut self, session_id: &str, why: SessionEnd) {
        let Some((session_id, session)) = self.ns.sessions.remove_entry(session_id) else { return };
        let facts = &session.facts;
        self.ns.charged.sessions -= facts.charge(&session_id);
        self.sessions.remove(&facts.number);
        self.end_table_session(facts.number, why);
        self.record_session_event(EventKind::SessionEnded, &session_id, &facts.process_id);
        self.effects.ended(&self.ns.id, &session_id, facts.number, why);
    }
}
