//! Where semaphores and pools meet the sessions, sweeps and reports of their namespace.

use std::collections::BTreeSet;
use std::sync::Arc;

use holdfast_primitives::budget::Budget;
use holdfast_primitives::permits::{Choice, EndedPermits, PermitCursor, PermitItem, PermitTable, Requester, Scope};

use super::LocksState;
use super::bit_set::BitSet;
use super::durability::absent;
use super::expire::FirstDue;
use super::namespace::Namespace;
use super::owner::{OwnerKey, Owners};
use super::primitives::Tables;
use super::report::Report;
use super::restore::RestoreResult;
use super::sessions::Session;
use super::sight::covers;
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::{
    AcquirePermits, CommandError, Kind, Owner, PermitCommand, PermitQuery, PermitWaitRecord, PermitsEnd, PermitsReport,
    ReportedPermits, Response, Revision, SessionEnd, SessionNumber, SessionView, WaitId,
};

impl LocksState {
    /// Replies to a query about semaphores and pools. `now` is the shard's revision.
    pub(super) fn permit_query(&self, query: &PermitQuery, now: Revision) -> Result<Response, CommandError> {
        let namespace = self.find_table(query.namespace(), absent::PERMITS)?;
        let owner = if let PermitQuery::HasHold { owner, .. } = query { Some(owner) } else { None };
        let requester = owner.map(|owner| namespace.known_requester(owner)).transpose()?;
        namespace.with_sight(|sight| namespace.permits.query(query, now, sight, requester.as_ref()))
    }

    /// Returns the requests that wait for permits, for a new leader that checks which callers are still attached.
    pub(crate) fn permit_waits(&self) -> impl Iterator<Item = PermitWaitRecord> {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot));
        let namespaces = namespaces.filter(|namespace| !self.is_quarantined(&namespace.id));
        namespaces.flat_map(|namespace| namespace.permits.waits(&namespace.id))
    }

    /// Returns the wait of an acquire of permits, and the attempts that rely on it and may leave.
    pub(crate) fn queued_permits(&self, acquire: &AcquirePermits) -> Option<(WaitId, Vec<u64>)> {
        let namespace = self.find(&acquire.namespace).ok()?;
        namespace.permits.queued_wait(&namespace.requester(&acquire.owner)?, acquire)
    }
}

impl NamespaceTxn<'_> {
    /// Executes a command for a semaphore or a pool.
    pub(super) fn permit_command(&mut self, command: &PermitCommand) -> Result<Response, CommandError> {
        let units = command.units().saturating_add(self.ns.permits.units_of_present(command));
        self.ns.spend(usize::try_from(units).unwrap_or(usize::MAX));
        match command {
            PermitCommand::Configure(configure) => self.with_permits(|all, kit| all.configure(kit, configure)),
            PermitCommand::ConfigurePool(configure) => self.with_permits(|all, kit| all.configure_pool(kit, configure)),
            PermitCommand::ChangePool(change) => self.with_permits(|all, kit| all.change_pool(kit, change)),
            PermitCommand::Acquire(acquire) => self.acquire_permits(acquire),
            PermitCommand::Release(release) => {
                if let Owner::Session { session_id, .. } = &release.owner
                    && !self.check_sequence(session_id, release.message)?
                {
                    return Ok(Response::Ignored);
                }
                let requester = self.ns.known_requester(&release.owner)?;
                Ok(self.with_permits(|all, kit| all.release(kit, &requester, release)))
            }
            PermitCommand::Delete { kind, path, .. } => Ok(self.with_permits(|all, kit| all.delete(kit, *kind, path))),
            PermitCommand::Cancel(cancel) => {
                let Some(requester) = self.ns.requester(&cancel.owner) else {
                    return Ok(Response::Cancelled { left_queue: false, grant_released: false });
                };
                Ok(self.with_permits(|all, kit| all.cancel(kit, &requester, cancel)))
            }
        }
    }

    fn acquire_permits(&mut self, acquire: &AcquirePermits) -> Result<Response, CommandError> {
        let mut requester = self.ns.known_requester(&acquire.owner)?;
        if let Owner::Session { session_id, .. } = &acquire.owner {
            requester.is_new = self.check_sequence(session_id, acquire.message)?;
        }
        requester.refusal = self.refusal_of_new(&requester.scope, &acquire.owner, Some(&acquire.request_id));
        if let Scope::Session { number, .. } = &requester.scope {
            requester.things_elsewhere = self.ns.barriers.count_of_session(*number);
            let taken = self.ns.barriers.has_request(*number, &acquire.request_id);
            let taken = taken.then(|| CommandError::RequestIdTaken(acquire.request_id.clone()));
            requester.refusal = requester.refusal.or(taken);
        }
        self.with_permits(|all, kit| all.acquire(kit, &requester, acquire))
    }

    /// Returns why an owner can't get anything new now under a request id.
    pub(super) fn refusal_of_new(
        &self,
        scope: &Scope,
        requester: &Owner,
        request_id: Option<&str>,
    ) -> Option<CommandError> {
        if self.ns.is_frozen() {
            return Some(CommandError::Busy("the namespace is being reset".into()));
        }
        let is_its = |target: &Target| match (target, scope) {
            (Target::Owner(owner, _), _) => owner == requester,
            (Target::Session(swept), Scope::Session { number, .. }) => swept == number,
            _ => false,
        };
        let session = match scope {
            Scope::Session { session_id, .. } => self.ns.sessions.get(session_id),
            Scope::Process(_) => None,
        };
        let has_report = session.is_some_and(|session| session.report.is_some());
        if has_report || self.ns.sweeps.values().any(|sweep| is_its(&sweep.target)) {
            return Some(CommandError::Busy("what the owner has is being released".into()));
        }
        let request_id = request_id?;
        let named = session.and_then(|session| self.ns.request_named(&session.requests, request_id));
        named.map(|_| CommandError::RequestIdTaken(request_id.to_owned()))
    }

    /// Rejects a request id that belongs to a request for permits, or to an arrival, of the same session.
    pub(super) fn check_id_of_permits(&self, owner: &Owner, request_id: Option<&str>) -> Result<(), CommandError> {
        let (Owner::Session { session_id, .. }, Some(request_id)) = (owner, request_id) else { return Ok(()) };
        let session = self.ns.sessions.get(session_id.as_str());
        let is_taken = session.map(|session| session.facts.number).is_some_and(|number| {
            self.ns.has_permits(number, session_id, request_id) || self.ns.barriers.has_request(number, request_id)
        });
        if is_taken { Err(CommandError::RequestIdTaken(request_id.to_owned())) } else { Ok(()) }
    }

    /// Ends due holds and waits of semaphores and pools, as long as nothing else is due before: up to an instant, and
    /// at most as many as the slice and a number of ends allow. After each end, it settles the queues. Returns how many
    /// ends it cost.
    pub(super) fn end_due_permits(&mut self, until: FirstDue, at_most: usize) -> usize {
        let slot = self.slot;
        let until = self.ns.earliest_due_elsewhere(slot).map_or(until, |due| due.min(until));
        self.with_permits(|all, kit| {
            let mut ended = 0;
            loop {
                ended += all.end_first_due(kit);
                all.settle(kit);
                let is_next = all.first_due().is_some_and(|due| FirstDue::of_permits(due, slot) < until);
                if !is_next || ended >= at_most || kit.budget.visits == 0 || !all.is_settled() {
                    return ended;
                }
            }
        })
    }

    /// Settles the queues that changed.
    pub(super) fn settle_permits(&mut self) {
        if self.ns.permits.has_jobs() {
            self.with_permits(PermitTable::settle);
        }
    }

    /// Runs one slice of unfinished work of semaphores and pools.
    pub(super) fn run_permit_jobs(&mut self) {
        if self.ns.permits.has_jobs() {
            self.with_permits(PermitTable::run_jobs);
        }
    }

    /// Ends the permits of a session that has ended. Returns whether all are done.
    pub(super) fn end_permits_of_session(
        &mut self,
        number: SessionNumber,
        session_id: &str,
        why: SessionEnd,
        since_ms: u64,
    ) -> bool {
        if self.ns.permits.count_of_session(number) == 0 {
            return true;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        self.with_permits(|all, kit| all.end_session(kit, &scope, why, since_ms))
    }

    /// Releases the hold or ends the wait of a session with that id.
    pub(super) fn release_named_permits(&mut self, owner: &Owner, request_id: &str) -> bool {
        let Owner::Session { .. } = owner else { return false };
        let Some(requester) = self.ns.requester(owner) else { return false };
        self.with_permits(|all, kit| all.release_named(kit, &requester.scope, request_id))
    }

    /// Returns how many holds of semaphores, and waits for them, a target covers; `usize::MAX` if a slice may not
    /// suffice. `old` has the owners of locks that are old enough.
    pub(super) fn count_permits(&mut self, target: &Target, old: &BitSet) -> usize {
        let Some(scope) = self.scope_of(target).filter(|_| self.ns.permits.things() > 0) else { return 0 };
        let report = self.report_for(target);
        self.with_tables(|Tables { permits, barriers, owners, .. }, kit| {
            let (goes, is_old) = (goes_with(target, Revision::MAX, report), is_old_with(target, old, owners));
            let is_old =
                |process: &str, oldest| is_old(process, oldest_of(oldest, barriers.oldest_of_process(process)));
            permits.count(&Choice { scope, goes: &goes, is_old: &is_old }, kit.budget)
        })
    }

    /// Ends all holds of semaphores, and waits for them, that a target covers. They must fit into the slice.
    pub(super) fn end_all_permits(&mut self, target: &Target, old: &BitSet) -> EndedPermits {
        let mut ended = EndedPermits::default();
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        self.end_permits((target, Revision::MAX), old, None, &mut ended);
        self.budget.visits = visits;
        ended
    }

    /// Ends what a target covers and what began before a revision, from a cursor on. The slice must have something
    /// left. Returns the cursor if the slice did not suffice.
    pub(super) fn end_permits(
        &mut self,
        (target, began): (&Target, Revision),
        old: &BitSet,
        after: Option<PermitCursor>,
        ended: &mut EndedPermits,
    ) -> Option<PermitCursor> {
        let scope = self.scope_of(target).filter(|_| self.ns.permits.things() > 0)?;
        let report = self.report_for(target);
        let cause = if target.is_reset() { PermitsEnd::Reset } else { PermitsEnd::Released };
        self.with_tables(|Tables { permits, owners, .. }, kit| {
            let (goes, is_old) = (goes_with(target, began, report), is_old_with(target, old, owners));
            permits.end_all(kit, &Choice { scope, goes: &goes, is_old: &is_old }, after, cause, ended)
        })
    }

    /// Ends what a report of a session does not list. It must fit into the slice.
    pub(super) fn end_unlisted_permits(
        &mut self,
        number: SessionNumber,
        session_id: &str,
        report: &Report,
    ) -> EndedPermits {
        let mut ended = EndedPermits::default();
        if self.ns.permits.count_of_session(number) == 0 {
            return ended;
        }
        let scope = Some(Scope::Session { number, session_id: session_id.into() });
        let goes = |permits: &PermitItem<'_>| !report.keeps_permits(permits);
        let choice = Choice { scope, goes: &goes, is_old: &|_, _| true };
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        self.with_permits(|all, kit| all.end_all(kit, &choice, None, PermitsEnd::Released, &mut ended));
        self.budget.visits = visits;
        ended
    }

    /// Adds a part of a report, with holds of semaphores and pools, and arrivals. Nothing ends yet. Reports the listed
    /// holds that the session does not have. Does not count as the message with its number, which the last part has
    /// too.
    pub(super) fn report_permits(&mut self, listed: &PermitsReport) -> Result<Response, CommandError> {
        let session = self.session_for(&listed.session_id)?;
        if !session.is_next(listed.message)? {
            return Ok(Response::Ignored);
        }
        let number = session.facts.number;
        let mut report = session.report.take().unwrap_or_default();
        self.ns.spend(listed.held.len());
        let (mut lost, names) = (Vec::new(), Arc::make_mut(&mut report));
        for hold in &listed.held {
            match self.ns.has_reported(number, hold) {
                // An arrival has no token. Its id is no other request's.
                true if hold.kind == Kind::Barrier => names.add_pending(&hold.request_id),
                true => names.list_permits(hold.fencing_token),
                false => lost.push(hold.clone()),
            }
        }
        self.set_report(&listed.session_id, Some(report));
        let asked = if self.with_views { self.ns.permits.asked_of(number, &listed.held) } else { Vec::new() };
        Ok(Response::PermitsReconciled { lost, asked })
    }

    /// Returns the scope of what a target covers, or that it is everything. `None` if it covers no permits.
    pub(super) fn scope_of(&self, target: &Target) -> Option<Option<Scope>> {
        let session = |number: SessionNumber| {
            let (_, session_id) = self.sessions.get(&number).filter(|(slot, _)| *slot == self.slot)?;
            Some(Some(Scope::Session { number, session_id: Arc::clone(session_id) }))
        };
        match target {
            Target::Owner(Owner::Process(process_id), _) => Some(Some(Scope::Process(process_id.as_str().into()))),
            Target::Owner(Owner::Session { .. }, number) | Target::Session(number) | Target::Unlisted(number) => {
                session(*number)
            }
            Target::Reset { .. } => Some(None),
            Target::Path(_) => None,
        }
    }

    /// Returns the report that a target compares with, if it does.
    pub(super) fn report_for(&self, target: &Target) -> Option<Arc<Report>> {
        let Target::Unlisted(number) = target else { return None };
        self.session_numbered(*number)?.report.clone()
    }
}

impl Namespace {
    /// Returns the sender of a command: a process, or an owner of an open session.
    pub(super) fn requester(&self, owner: &Owner) -> Option<Requester> {
        let (scope, process_id, holder): (Scope, Arc<str>, Option<&String>) = match owner {
            Owner::Process(process_id) => {
                let process_id: Arc<str> = process_id.as_str().into();
                (Scope::Process(Arc::clone(&process_id)), process_id, None)
            }
            Owner::Session { session_id, holder } => {
                let (session_id, session) = self.sessions.get_key_value(session_id.as_str())?;
                let (number, session_id) = (session.facts.number, Arc::clone(session_id));
                (Scope::Session { number, session_id }, Arc::clone(&session.facts.process_id), holder.as_ref())
            }
        };
        let holder = holder.map(|holder| holder.as_str().into());
        Some(Requester { scope, holder, process_id, is_new: true, refusal: None, things_elsewhere: 0 })
    }

    /// Returns whether a session has what its client reports.
    pub(super) fn has_reported(&self, number: SessionNumber, reported: &ReportedPermits) -> bool {
        match reported.kind {
            Kind::Barrier => self.barriers.has_arrival(number, reported),
            Kind::Lock | Kind::Semaphore | Kind::Latch | Kind::Pool | Kind::Condition | Kind::Request => {
                self.permits.has_hold(number, reported)
            }
        }
    }

    /// Returns the revision of the oldest that a process has besides locks.
    pub(super) fn oldest_elsewhere(&self, process_id: &str) -> Option<Revision> {
        let all = [self.permits.oldest_of_process(process_id), self.barriers.oldest_of_process(process_id)];
        all.into_iter().flatten().min()
    }

    /// Returns whether a command for a semaphore or a pool would create state.
    pub(super) fn creates_permits(&self, command: &PermitCommand) -> bool {
        let requester = match command {
            PermitCommand::Acquire(acquire) => self.requester(&acquire.owner),
            _ => None,
        };
        self.permits.creates_state(command, requester.as_ref())
    }

    /// Returns the view of a session, with what it has of every kind of thing.
    pub(super) fn view_of_session(&self, session_id: &str, session: &Session) -> SessionView {
        session.view(session_id, self.permits.holds_and_waits_of_session(session.facts.number))
    }

    /// Returns whether a session has a hold of a semaphore, or waits for one, under that request id.
    pub(super) fn has_permits(&self, number: SessionNumber, session_id: &str, request_id: &str) -> bool {
        self.permits.count_of_session(number) > 0
            && self.permits.has_request(&Scope::Session { number, session_id: session_id.into() }, request_id)
    }

    /// Returns how many holds of semaphores, and waits for them, a report does not list; `usize::MAX` if a slice may
    /// not suffice.
    pub(super) fn count_unlisted_permits(
        &self,
        (number, session_id): (SessionNumber, &str),
        report: &Report,
        budget: &mut Budget,
    ) -> usize {
        if self.permits.count_of_session(number) == 0 {
            return 0;
        }
        let scope = Some(Scope::Session { number, session_id: session_id.into() });
        let goes = |permits: &PermitItem<'_>| !report.keeps_permits(permits);
        self.permits.count(&Choice { scope, goes: &goes, is_old: &|_, _| true }, budget)
    }

    /// Checks semaphores after a restore, and marks the sessions that are ending.
    pub(super) fn finish_permits(&mut self) -> RestoreResult {
        let mut open: BTreeSet<SessionNumber> = self.sessions.values().map(|session| session.facts.number).collect();
        for (number, ending) in &self.ending_sessions {
            open.insert(*number);
            self.permits.begin_session_end(*number, ending.reason, ending.since_ms);
        }
        self.permits.finish_restore(|number| open.contains(&number))
    }
}

/// Returns what tells whether a target covers a hold or a wait that began before a revision, unless it is of a process
/// that is not old enough.
pub(super) fn goes_with(
    target: &Target,
    began: Revision,
    report: Option<Arc<Report>>,
) -> impl Fn(&PermitItem<'_>) -> bool {
    let is_listed = move |permits: &PermitItem<'_>| report.as_ref().is_none_or(|report| report.keeps_permits(permits));
    let is_unlisted = matches!(target, Target::Unlisted(_));
    move |permits: &PermitItem<'_>| {
        permits.since < began && covers(target, permits) && !(is_unlisted && is_listed(permits))
    }
}

/// Returns the older of the oldest hold of a process and of the oldest that it has elsewhere.
pub(super) fn oldest_of(here: Revision, elsewhere: Option<Revision>) -> Revision {
    elsewhere.map_or(here, |elsewhere| elsewhere.min(here))
}

/// Returns a function that tells whether a process is old enough, given its oldest hold of a semaphore or wait for one.
/// `old` has the processes with an old hold of a lock or an old wait for one.
pub(super) fn is_old_with(target: &Target, old: &BitSet, owners: &Owners) -> impl Fn(&str, Revision) -> bool {
    let before = if let Target::Reset { before, .. } = target { *before } else { None };
    let is_old_owner = move |process_id: &str| {
        let owner = owners.find(OwnerKey::Process(process_id));
        owner.is_some_and(|owner| old.contains(owner.0 as usize))
    };
    move |process_id: &str, oldest: Revision| before.is_none_or(|before| oldest < before || is_old_owner(process_id))
}
