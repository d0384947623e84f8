//! Where barriers meet the sessions, sweeps and reports of their namespace.

use std::cell::RefCell;
use std::collections::BTreeSet;

use holdfast_primitives::barriers::{ArrivalCursor, Barriers};
use holdfast_primitives::budget::Budget;
use holdfast_primitives::kit::Kit;
use holdfast_primitives::permits::{Choice, EndedPermits, PermitItem, Requester, Scope};

use super::LocksState;
use super::bit_set::BitSet;
use super::durability::absent;
use super::namespace::Namespace;
use super::permits::{goes_with, is_old_with, oldest_of};
use super::primitives::Tables;
use super::report::Report;
use super::restore::RestoreResult;
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::{
    ArrivalEnd, ArriveAtBarrier, BarrierCommand, BarrierQuery, CommandError, Owner, Response, Revision, SessionEnd,
    SessionNumber,
};

impl LocksState {
    /// Replies to a query about barriers.
    pub(super) fn barrier_query(&self, query: &BarrierQuery) -> Result<Response, CommandError> {
        let namespace = self.find_table(query.namespace(), absent::BARRIERS)?;
        let owner = match query {
            BarrierQuery::Wait(wait) => wait.owner.as_ref(),
            BarrierQuery::HasArrived { owner, .. } => Some(owner),
            BarrierQuery::Get { .. } | BarrierQuery::List { .. } => None,
        };
        let requester = owner.map(|owner| namespace.known_requester(owner)).transpose()?;
        namespace.barriers.query(query, requester.as_ref())
    }
}

impl NamespaceTxn<'_> {
    /// Executes a command for a barrier.
    pub(super) fn barrier_command(&mut self, command: &BarrierCommand) -> Result<Response, CommandError> {
        self.ns.spend(1);
        match command {
            BarrierCommand::Configure(configure) => self.with_barriers(|all, kit| all.configure(kit, configure)),
            BarrierCommand::Arrive(arrive) => self.arrive(arrive),
            BarrierCommand::Leave(leave) => {
                let mut requester = self.ns.known_requester(&leave.owner)?;
                if let Owner::Session { session_id, .. } = &leave.owner {
                    requester.is_new = self.check_sequence(session_id, leave.message)?;
                }
                self.with_barriers(|all, kit| all.leave(kit, &requester, leave))
            }
            BarrierCommand::Delete { path, .. } => Ok(self.with_barriers(|all, kit| all.delete(kit, path))),
        }
    }

    fn arrive(&mut self, arrive: &ArriveAtBarrier) -> Result<Response, CommandError> {
        let mut requester = self.ns.known_requester(&arrive.owner)?;
        if let Owner::Session { session_id, .. } = &arrive.owner {
            requester.is_new = self.check_sequence(session_id, arrive.message)?;
        }
        requester.refusal = self.refusal_of_new(&requester.scope, &arrive.owner, arrive.request_id.as_deref());
        if let Scope::Session { number, session_id } = &requester.scope {
            requester.things_elsewhere = self.ns.permits.count_of_session(*number);
            let request_id = arrive.request_id.as_deref();
            let taken = request_id.filter(|id| self.ns.has_permits(*number, session_id, id));
            let taken = taken.map(|id| CommandError::RequestIdTaken(id.to_owned()));
            requester.refusal = requester.refusal.or(taken);
        }
        self.with_barriers(|all, kit| all.arrive(kit, &requester, arrive))
    }

    /// Runs an operation on the barriers, and publishes its effects.
    fn with_barriers<T>(&mut self, work: impl FnOnce(&mut Barriers, &mut Kit<'_>) -> T) -> T {
        self.with_tables(|tables, kit| work(tables.barriers, kit))
    }

    /// Ends the first due arrival or barrier. Returns how many ends of the slice it cost.
    pub(super) fn end_due_barrier(&mut self) -> usize {
        self.with_barriers(Barriers::end_first_due)
    }

    /// Ends the arrivals of a session that has ended. Returns whether all are done.
    pub(super) fn end_arrivals_of_session(&mut self, number: SessionNumber, session_id: &str, why: SessionEnd) -> bool {
        if self.ns.barriers.count_of_session(number) == 0 {
            return true;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        self.with_barriers(|all, kit| all.end_session(kit, &scope, why))
    }

    /// Returns how many ends of a slice it costs to end the arrivals of a session, or more than the slice has left.
    pub(super) fn ends_of_arrivals(&self, number: SessionNumber, session_id: &str) -> usize {
        if self.ns.barriers.count_of_session(number) == 0 {
            return 0;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        self.ns.barriers.ends_of_session(&scope, self.budget)
    }

    /// Ends the arrival of a session with that id.
    pub(super) fn release_named_arrival(&mut self, owner: &Owner, request_id: &str) -> bool {
        let Owner::Session { session_id, .. } = owner else { return false };
        let number = self.ns.sessions.get(session_id.as_str()).map(|session| session.facts.number);
        number.is_some_and(|number| self.with_barriers(|all, kit| all.release_named(kit, number, request_id)))
    }

    /// Returns how many ends of a slice the arrivals cost that a target covers; `usize::MAX` if a slice may not
    /// suffice.
    pub(super) fn count_arrivals(&mut self, target: &Target, old: &BitSet) -> usize {
        let Some(scope) = self.scope_of(target).filter(|_| self.ns.barriers.arrivals() > 0) else { return 0 };
        let report = self.report_for(target);
        self.with_tables(|Tables { permits, barriers, owners, .. }, kit| {
            let (goes, is_old) = (goes_with(target, Revision::MAX, report), is_old_with(target, old, owners));
            let is_old = |process: &str, oldest| is_old(process, oldest_of(oldest, permits.oldest_of_process(process)));
            barriers.count(&Choice { scope, goes: &goes, is_old: &is_old }, kit.budget)
        })
    }

    /// Ends all arrivals that a target covers. They must fit into the slice.
    pub(super) fn end_all_arrivals(&mut self, target: &Target, old: &BitSet) -> EndedPermits {
        let mut ended = EndedPermits::default();
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        let ends = std::mem::replace(&mut self.budget.ends, usize::MAX);
        self.end_arrivals((target, Revision::MAX), old, None, &mut ended);
        self.budget.visits = visits;
        self.budget.ends = ends.saturating_sub(usize::MAX - self.budget.ends);
        ended
    }

    /// Ends the arrivals that a target covers and that began before a revision, from a cursor on. The permits of a
    /// process that is old enough end before its arrivals, because it may be so by these. The slice must have something
    /// left. Returns the cursor if the slice did not suffice.
    pub(super) fn end_arrivals(
        &mut self,
        (target, began): (&Target, Revision),
        old: &BitSet,
        after: Option<ArrivalCursor>,
        ended: &mut EndedPermits,
    ) -> Option<ArrivalCursor> {
        let scope = self.scope_of(target).filter(|_| self.ns.barriers.arrivals() > 0)?;
        let report = self.report_for(target);
        let cause = if target.is_reset() { ArrivalEnd::Reset } else { ArrivalEnd::Released };
        self.with_tables(|Tables { permits, barriers, owners, .. }, kit| {
            let (goes, is_old) = (goes_with(target, began, report), is_old_with(target, old, owners));
            let permits = RefCell::new(permits);
            let is_old = |process: &str, oldest| {
                let elsewhere = permits.borrow().oldest_of_process(process);
                is_old(process, oldest_of(oldest, elsewhere))
            };
            let end_first = &mut |kit: &mut Kit<'_>, scope: &Scope, ended: &mut EndedPermits| {
                let choice = Choice { scope: Some(scope.clone()), goes: &goes, is_old: &|_, _| true };
                permits.borrow_mut().end_all(kit, &choice, None, cause, ended).is_none()
            };
            barriers.end_all(kit, &Choice { scope, goes: &goes, is_old: &is_old }, (after, cause), ended, end_first)
        })
    }

    /// Ends the arrivals that a report of a session does not list. They must fit into the slice.
    pub(super) fn end_unlisted_arrivals(
        &mut self,
        number: SessionNumber,
        session_id: &str,
        report: &Report,
    ) -> EndedPermits {
        let mut ended = EndedPermits::default();
        if self.ns.barriers.count_of_session(number) == 0 {
            return ended;
        }
        let scope = Some(Scope::Session { number, session_id: session_id.into() });
        let goes = |arrival: &PermitItem<'_>| !report.keeps_permits(arrival);
        let choice = Choice { scope, goes: &goes, is_old: &|_, _| true };
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        let no_others = &mut |_: &mut Kit<'_>, _: &Scope, _: &mut EndedPermits| true;
        let how = (None, ArrivalEnd::Released);
        self.with_barriers(|all, kit| all.end_all(kit, &choice, how, &mut ended, no_others));
        self.budget.visits = visits;
        ended
    }
}

impl Namespace {
    /// Returns whether a command for a barrier would create state.
    pub(super) fn creates_barriers(&self, command: &BarrierCommand) -> bool {
        let requester = if let BarrierCommand::Arrive(arrive) = command { self.requester(&arrive.owner) } else { None };
        self.barriers.creates_state(command, requester.as_ref())
    }

    /// Returns whoever sends a command.
    ///
    /// # Errors
    /// `SessionNotFound`. A process is always known.
    pub(super) fn known_requester(&self, owner: &Owner) -> Result<Requester, CommandError> {
        let session_id = if let Owner::Session { session_id, .. } = owner { session_id.as_str() } else { "" };
        self.requester(owner).ok_or_else(|| CommandError::SessionNotFound(session_id.to_owned()))
    }

    /// Returns how many ends of a slice the arrivals cost that a report does not list; `usize::MAX` if a slice may not
    /// suffice.
    pub(super) fn count_unlisted_arrivals(
        &self,
        (number, session_id): (SessionNumber, &str),
        report: &Report,
        budget: &mut Budget,
    ) -> usize {
        if self.barriers.count_of_session(number) == 0 {
            return 0;
        }
        let scope = Some(Scope::Session { number, session_id: session_id.into() });
        let goes = |arrival: &PermitItem<'_>| !report.keeps_permits(arrival);
        self.barriers.count(&Choice { scope, goes: &goes, is_old: &|_, _| true }, budget)
    }

    /// Checks barriers after a restore, and marks the sessions that are ending.
    pub(super) fn finish_barriers(&mut self) -> RestoreResult {
        let mut open: BTreeSet<SessionNumber> = self.sessions.values().map(|session| session.facts.number).collect();
        for (number, ending) in &self.ending_sessions {
            open.insert(*number);
            self.barriers.begin_session_end(*number, ending.reason);
        }
        self.barriers.finish_restore(|number| open.contains(&number))
    }
}
