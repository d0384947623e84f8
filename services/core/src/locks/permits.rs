//! Where semaphores meet the sessions, sweeps and reports of their namespace.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::LocksState;
use super::namespace::Namespace;
use super::owner::OwnerKey;
use super::report::Report;
use super::restore::RestoreResult;
use super::sessions::Session;
use super::target::Target;
use super::txn::NamespaceTxn;
use crate::semaphores::{EndedPermits, PermitCursor, PermitItem, Requester, Scope, Semaphores};
use crate::{
    AcquirePermits, CommandError, Owner, PermitWaitRecord, PermitsEnd, PermitsReport, Response, Revision,
    SemaphoreCommand, SessionEnd, SessionNumber, WaitId,
};

impl LocksState {
    /// Returns the requests that wait for permits, for a new leader that checks which callers are still attached.
    pub(crate) fn permit_waits(&self) -> impl Iterator<Item = PermitWaitRecord> {
        let namespaces = self.slots.values().map(|slot| self.namespaces.get(*slot));
        let namespaces = namespaces.filter(|namespace| !self.is_quarantined(&namespace.id));
        namespaces.flat_map(|namespace| namespace.semaphores.waits(&namespace.id))
    }

    /// Returns the wait of an acquire of permits, and the attempts that rely on it and may leave.
    pub(crate) fn queued_permits(&self, acquire: &AcquirePermits) -> Option<(WaitId, Vec<u64>)> {
        let namespace = self.find(&acquire.namespace).ok()?;
        namespace.semaphores.queued_wait(&namespace.requester(&acquire.owner)?, acquire)
    }
}

impl NamespaceTxn<'_> {
    /// Executes a command for a semaphore.
    pub(super) fn semaphore(&mut self, command: &SemaphoreCommand) -> Result<Response, CommandError> {
        self.ns.spend(1);
        match command {
            SemaphoreCommand::Configure(configure) => self.with_semaphores(|all, kit| all.configure(kit, configure)),
            SemaphoreCommand::Acquire(acquire) => self.acquire_permits(acquire),
            SemaphoreCommand::Release(release) => {
                if let Owner::Session { session_id, .. } = &release.owner
                    && !self.check_sequence(session_id, release.message)?
                {
                    return Ok(Response::Ignored);
                }
                let requester = self.known_requester(&release.owner)?;
                Ok(self.with_semaphores(|all, kit| all.release(kit, &requester, release)))
            }
            SemaphoreCommand::Delete { path, .. } => Ok(self.with_semaphores(|all, kit| all.delete(kit, path))),
            SemaphoreCommand::Cancel(cancel) => {
                let Some(requester) = self.ns.requester(&cancel.owner) else {
                    return Ok(Response::Cancelled { left_queue: false, grant_released: false });
                };
                Ok(self.with_semaphores(|all, kit| all.cancel(kit, &requester, cancel)))
            }
        }
    }

    fn acquire_permits(&mut self, acquire: &AcquirePermits) -> Result<Response, CommandError> {
        let mut requester = self.known_requester(&acquire.owner)?;
        if let Owner::Session { session_id, .. } = &acquire.owner {
            requester.is_new = self.check_sequence(session_id, acquire.message)?;
        }
        requester.refusal = self.refusal_of_permits(&requester.scope, acquire);
        self.with_semaphores(|all, kit| all.acquire(kit, &requester, acquire))
    }

    fn known_requester(&self, owner: &Owner) -> Result<Requester, CommandError> {
        self.ns.requester(owner).ok_or_else(|| match owner {
            Owner::Session { session_id, .. } => CommandError::SessionNotFound(session_id.clone()),
            Owner::Process(_) => CommandError::InvalidArgument("the owner has no name".to_owned()),
        })
    }

    /// Returns why an owner can't get anything new now.
    fn refusal_of_permits(&self, scope: &Scope, acquire: &AcquirePermits) -> Option<CommandError> {
        if self.ns.is_frozen() {
            return Some(CommandError::Busy("the namespace is being reset".into()));
        }
        let is_its = |target: &Target| match (target, scope) {
            (Target::Owner(owner, _), _) => *owner == acquire.owner,
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
        let named = session.and_then(|session| self.ns.request_named(&session.requests, &acquire.request_id));
        named.map(|_| CommandError::RequestIdTaken(acquire.request_id.clone()))
    }

    /// Rejects a request id that belongs to a request for permits of the same session.
    pub(super) fn check_id_of_permits(&self, owner: &Owner, request_id: Option<&str>) -> Result<(), CommandError> {
        let (Owner::Session { session_id, .. }, Some(request_id)) = (owner, request_id) else { return Ok(()) };
        let session = self.ns.sessions.get(session_id.as_str());
        let is_taken = session.is_some_and(|it| self.ns.has_permits(it.facts.number, session_id, request_id));
        if is_taken { Err(CommandError::RequestIdTaken(request_id.to_owned())) } else { Ok(()) }
    }

    /// Does what is due first of the semaphores.
    pub(super) fn end_due_permits(&mut self) {
        self.with_semaphores(Semaphores::end_first_due);
    }

    /// Settles the queues that changed.
    pub(super) fn settle_semaphores(&mut self) {
        if self.ns.semaphores.has_jobs() {
            self.with_semaphores(Semaphores::settle);
        }
    }

    /// Runs one slice of unfinished work of the semaphores.
    pub(super) fn run_semaphore_jobs(&mut self) {
        if self.ns.semaphores.has_jobs() {
            self.with_semaphores(Semaphores::run_jobs);
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
        if self.ns.semaphores.count_of_session(number) == 0 {
            return true;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        self.with_semaphores(|all, kit| all.end_session(kit, &scope, why, since_ms))
    }

    /// Releases the hold or ends the wait of a session with that id.
    pub(super) fn release_named_permits(&mut self, owner: &Owner, request_id: &str) -> bool {
        let Owner::Session { .. } = owner else { return false };
        let Some(requester) = self.ns.requester(owner) else { return false };
        self.with_semaphores(|all, kit| all.release_named(kit, &requester.scope, request_id))
    }

    /// Returns how many holds of semaphores, and waits for them, a target covers.
    pub(super) fn count_permits(&self, target: &Target) -> usize {
        let Some(scope) = self.scope_of(target) else { return 0 };
        self.ns.semaphores.count(scope.as_ref(), self.filter_of(target))
    }

    /// Ends all holds of semaphores, and waits for them, that a target covers. They must fit into the slice.
    pub(super) fn end_all_permits(&mut self, target: &Target) -> EndedPermits {
        let mut ended = EndedPermits::default();
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        self.end_permits(target, None, &mut ended);
        self.budget.visits = visits;
        ended
    }

    /// Ends what a target covers, from a cursor on. Returns the cursor if the slice did not suffice.
    pub(super) fn end_permits(
        &mut self,
        target: &Target,
        after: Option<PermitCursor>,
        ended: &mut EndedPermits,
    ) -> Option<PermitCursor> {
        let scope = self.scope_of(target).filter(|_| self.ns.semaphores.things() > 0)?;
        let goes = self.filter_of(target);
        let cause = if target.is_reset() { PermitsEnd::Reset } else { PermitsEnd::Released };
        self.with_semaphores(|all, kit| all.end_all(kit, (scope.as_ref(), after), cause, ended, goes))
    }

    /// Ends what a report of a session does not list. It must fit into the slice.
    pub(super) fn end_unlisted_permits(
        &mut self,
        number: SessionNumber,
        session_id: &str,
        report: &Report,
    ) -> EndedPermits {
        let mut ended = EndedPermits::default();
        if self.ns.semaphores.count_of_session(number) == 0 {
            return ended;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        let goes = |permits: &PermitItem<'_>| !report.keeps_permits(permits);
        let visits = std::mem::replace(&mut self.budget.visits, usize::MAX);
        self.with_semaphores(|all, kit| all.end_all(kit, (Some(&scope), None), PermitsEnd::Released, &mut ended, goes));
        self.budget.visits = visits;
        ended
    }

    /// Adds a part of a report, with holds of semaphores. Nothing ends yet. Reports the listed holds that the session
    /// does not have. Does not count as the message with its number, which the last part has too.
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
            match self.ns.semaphores.has_hold(number, &hold.path, hold.fencing_token) {
                true => names.list_permits(hold.fencing_token),
                false => lost.push(hold.clone()),
            }
        }
        self.set_report(&listed.session_id, Some(report));
        Ok(Response::PermitsReconciled { lost })
    }

    /// Returns the scope of what a target covers, or that it is everything. `None` if it covers no permits.
    fn scope_of(&self, target: &Target) -> Option<Option<Scope>> {
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

    /// Returns what tells whether a target covers a hold or a wait.
    fn filter_of(&self, target: &Target) -> Box<dyn Fn(&PermitItem<'_>) -> bool> {
        let target = target.clone();
        match &target {
            Target::Unlisted(number) => {
                let report = self.session_numbered(*number).and_then(|session| session.report.clone());
                Box::new(move |permits| report.as_ref().is_some_and(|report| !report.keeps_permits(permits)))
            }
            Target::Reset { before: Some(before), .. } => {
                let (before, old) = (*before, self.old_processes(*before));
                Box::new(move |permits| {
                    let is_old = match permits.scope {
                        Scope::Process(process_id) => permits.since < before || old.contains(process_id),
                        Scope::Session { .. } => true,
                    };
                    is_old && covers(&target, permits)
                })
            }
            _ => Box::new(move |permits| covers(&target, permits)),
        }
    }

    /// Returns the processes with permits that are older than a revision, by anything that they have. Where there are
    /// more permits than a slice visits, each hold and each wait is as old as itself.
    fn old_processes(&self, before: Revision) -> BTreeSet<Arc<str>> {
        if self.ns.semaphores.things() > self.ns.bounds.visits_per_slice as u64 {
            return BTreeSet::new();
        }
        let all = self.ns.semaphores.oldest_of_processes().into_iter();
        let is_old = |(process_id, since): &(Arc<str>, Revision)| {
            let owner = self.ns.owners.find(OwnerKey::Process(process_id));
            let of_locks = owner.map_or(Revision::MAX, |owner| self.oldest_revision(owner));
            (*since).min(of_locks) < before
        };
        all.filter(is_old).map(|(process_id, _)| process_id).collect()
    }
}

impl Namespace {
    /// Returns whoever sends a command: a process, or an owner of an open session.
    fn requester(&self, owner: &Owner) -> Option<Requester> {
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
        Some(Requester { scope, holder, process_id, is_new: true, refusal: None })
    }

    /// Returns whether a command for a semaphore would create state.
    pub(super) fn creates_permits(&self, command: &SemaphoreCommand) -> bool {
        let requester = match command {
            SemaphoreCommand::Acquire(acquire) => self.requester(&acquire.owner),
            _ => None,
        };
        self.semaphores.creates_state(command, requester.as_ref())
    }

    /// Returns whether a session has a hold of a semaphore, or waits for one, under that request id.
    pub(super) fn has_permits(&self, number: SessionNumber, session_id: &str, request_id: &str) -> bool {
        self.semaphores.count_of_session(number) > 0
            && self.semaphores.has_request(&Scope::Session { number, session_id: session_id.into() }, request_id)
    }

    pub(super) fn count_unlisted_permits(&self, number: SessionNumber, session_id: &str, report: &Report) -> usize {
        if self.semaphores.count_of_session(number) == 0 {
            return 0;
        }
        let scope = Scope::Session { number, session_id: session_id.into() };
        self.semaphores.count(Some(&scope), |permits| !report.keeps_permits(permits))
    }

    /// Checks semaphores after a restore, and marks the sessions that are ending.
    pub(super) fn finish_semaphores(&mut self) -> RestoreResult {
        let mut open: BTreeSet<SessionNumber> = self.sessions.values().map(|session| session.facts.number).collect();
        for number in self.ending_sessions.keys() {
            open.insert(*number);
            self.semaphores.begin_session_end(*number);
        }
        self.semaphores.finish_restore(|number| open.contains(&number))
    }
}

/// Returns whether a sweep with that target ends a request that waits for permits.
pub(super) fn is_swept(target: &Target, sessions: &BTreeMap<Arc<str>, Session>, permits: &PermitItem<'_>) -> bool {
    match (target, permits.scope) {
        (Target::Unlisted(_), Scope::Session { session_id, .. }) => {
            let report = sessions.get(session_id).and_then(|session| session.report.as_ref());
            covers(target, permits) && report.is_some_and(|report| !report.keeps_permits(permits))
        }
        // A reset grants nothing at all.
        (Target::Owner(..) | Target::Session(_), _) => covers(target, permits),
        _ => false,
    }
}

fn covers(target: &Target, permits: &PermitItem<'_>) -> bool {
    match (target, permits.scope) {
        (Target::Owner(Owner::Process(process_id), _), Scope::Process(owner)) => **owner == **process_id,
        (Target::Owner(Owner::Session { holder, .. }, number), Scope::Session { number: session, .. }) => {
            session == number && permits.holder == holder.as_deref()
        }
        (Target::Session(number) | Target::Unlisted(number), Scope::Session { number: session, .. }) => {
            session == number
        }
        (Target::Reset { live, .. }, Scope::Process(owner)) => !live.contains(&**owner),
        (Target::Reset { .. }, Scope::Session { number, session_id }) => target.covers_session(session_id, *number),
        _ => false,
    }
}
