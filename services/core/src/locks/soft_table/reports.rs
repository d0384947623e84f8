//! Takes reports of sessions of before the epoch, and enters them once they are all there: claims, then requests that
//! wait.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::rebuild::{Rebuild, Report, RequestToQueue};
use super::{SoftTable, busy};
use crate::locks::namespace::Namespace;
use crate::locks::request::Request;
use crate::locks::sessions::Session;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{
    CommandError, Durability, EntryContext, FencingToken, LocksCommand, MAX_WAITING_FOR, MessageSeq, NamespaceRef,
    OpenSession, Owner, Release, ReleaseTarget, ReportedWait, Response, SessionAcquire, SessionCommand, SessionNumber,
    SessionRequest, SessionTerms, TableCommand, TableReport, TableState, Wait,
};

/// What a command of a reported session gives up before its report is entered.
pub(super) enum GivenUp<'a> {
    Request(&'a str),
    All,
}

impl SoftTable {
    /// Returns the tables to rebuild, by the sessions that the log has.
    pub(super) fn rebuilds_of(log: &LocksState) -> BTreeMap<NamespaceKey, Rebuild> {
        let namespaces = log.session_durable.iter().filter_map(|key| Some((*key, *log.slots.get(key)?)));
        let rebuild_of = |slot| {
            let earlier: BTreeSet<SessionNumber> = log.namespaces.get(slot).table_log.earlier_sessions().collect();
            Rebuild::of(earlier)
        };
        namespaces.map(|(key, slot)| (key, rebuild_of(slot))).collect()
    }

    /// Returns whether what a session of before holds is known.
    pub fn has_reported(&self, number: SessionNumber) -> bool {
        self.reported.contains(&number)
    }

    /// Returns why a command is refused that is a report about a session or a namespace that the log does not have: no
    /// table has to begin for it, and the last one may be gone.
    pub fn refused_report(log: &ShardState, command: &LocksCommand) -> Option<CommandError> {
        let LocksCommand::Table(TableCommand::Report(report)) = command else { return None };
        log.locks()?.reported_session(report).err()
    }

    /// Returns whether a table of the log's namespaces is not complete. It visits all of them.
    pub fn is_rebuilding(&self, log: &ShardState) -> bool {
        let Some(log) = log.locks() else { return false };
        let of_log = |key| log.slots.get(key).map(|slot| log.namespaces.get(*slot));
        self.rebuilds
            .iter()
            .filter_map(|(key, it)| Some((it, of_log(key)?)))
            .any(|(it, of_log)| !it.is_complete(of_log))
    }

    /// Returns the session of before that an opening resumes, if its report is not there. Such a resume is no sign of
    /// life.
    pub fn unreported_resume(&self, log: &ShardState, open: &OpenSession) -> Option<SessionNumber> {
        let namespace = log.locks().filter(|_| open.resume).and_then(|log| log.find(&open.namespace).ok())?;
        if namespace.durability != Durability::Session {
            return None;
        }
        let number = namespace.sessions.get(open.session_id.as_str())?.facts.number;
        self.is_unreported(namespace, number).then_some(number)
    }

    /// Forgets what is not entered yet of a session that has ended in the log.
    pub(super) fn forget_report(&mut self, namespace: NamespaceKey, number: SessionNumber) {
        self.reported.remove(&number);
        if let Some(rebuild) = self.rebuilds.get_mut(&namespace) {
            rebuild.session_ended(number);
        }
    }

    /// Takes the number of claims that were not entered because they conflicted with others, or had ended by force.
    pub fn take_conflicts(&mut self) -> u64 {
        std::mem::take(&mut self.conflicts)
    }

    /// Completes the log's view of a lock table by the sessions that have reported.
    pub fn complete_state(&self, log: &ShardState, namespace: &NamespaceRef, state: &mut TableState) {
        let Some(log) = log.locks() else { return };
        let Some(of_log) = log.slot_of(namespace).map(|slot| log.namespaces.get(slot)) else { return };
        let Some(rebuild) = self.rebuilds.get(&NamespaceKey::of(namespace)) else { return };
        state.missing = rebuild.missing(of_log).count() as u64;
        let open_id = |number| {
            let (_, session_id) = log.sessions.get(&number)?;
            let session = of_log.sessions.get(session_id)?;
            (session.facts.number == number).then(|| session_id.to_string())
        };
        state.waiting_for = rebuild.missing(of_log).filter_map(open_id).take(MAX_WAITING_FOR).collect();
        if state.missing == 0 && !rebuild.is_complete(of_log) {
            // It is about to be.
            state.has_begun = false;
        }
    }

    /// Takes a part of a report. With the last one that is awaited, all claims are entered.
    pub(super) fn take_report(
        &mut self,
        log: &LocksState,
        context: &EntryContext,
        report: &TableReport,
    ) -> Result<Response, CommandError> {
        if report.table_epoch != self.epoch {
            return Err(CommandError::Unreported { table_epoch: self.epoch });
        }
        let (namespace, session_id, session) = log.reported_session(report)?;
        if !is_enabled(Mutation::SoftAnyConnection) {
            session.check_epoch(report.connection_epoch)?;
        }
        let number = report.session;
        let is_known = self.has_reported(number) && !is_enabled(Mutation::SoftUnordered);
        if !namespace.table_log.is_earlier(number) || is_known {
            return Ok(Response::Ignored);
        }
        self.hear_of_ends(log);
        self.advance(context);
        self.check_settled()?;
        let rebuild = self.rebuilds.get_mut(&NamespaceKey::of(&namespace.id));
        let (is_new, is_whole) = rebuild.ok_or_else(|| busy("the namespace is not known yet"))?.add(report)?;
        if is_whole {
            self.reported.insert(number);
            self.mirror(context, namespace, session_id, &session.facts);
            if let Some(slot) = self.core.slots.get(&NamespaceKey::of(&namespace.id)).copied() {
                let last = MessageSeq { epoch: report.connection_epoch, seq: report.seq };
                self.core.txn_in(slot, context).check_sequence(session_id, Some(last))?;
            }
            self.core.enforce_byte_limits();
            self.rebuild(context, namespace);
        }
        Ok(if is_new { Response::Done } else { Response::Ignored })
    }

    /// Enters what is there of all namespaces, as far as there are revisions.
    pub fn rebuild_all(&mut self, log: &ShardState, context: &EntryContext) {
        let Some(log) = log.locks().filter(|log| self.check_epoch(log).is_ok()) else { return };
        self.hear_of_ends(log);
        self.settle(context);
        let of_log = |key| log.slots.get(key).map(|slot| log.namespaces.get(*slot));
        let unfinished = self.rebuilds.iter().filter(|(_, rebuild)| !rebuild.has_completed());
        let unfinished: Vec<&Namespace> = unfinished.filter_map(|(key, _)| of_log(key)).collect();
        unfinished.into_iter().for_each(|namespace| self.rebuild(context, namespace));
    }

    /// Enters what was reported in a namespace if everything is there, as far as there are revisions.
    pub(super) fn rebuild(&mut self, context: &EntryContext, namespace: &Namespace) {
        let key = NamespaceKey::of(&namespace.id);
        let is_ready = |rebuild: &Rebuild| {
            !rebuild.has_completed() && (rebuild.is_queueing() || rebuild.can_be_complete(namespace))
        };
        if !self.rebuilds.get(&key).is_some_and(is_ready) || !self.begin_step(context) {
            return;
        }
        let Some(mut rebuild) = self.rebuilds.remove(&key) else { return };
        if let Some(reports) = rebuild.take_reports(namespace) {
            self.enter_all(context, namespace, &reports);
            self.garbage.reports.push(reports);
        }
        while self.check_revisions().is_ok() {
            match rebuild.next_waiting() {
                Some(waiting) => self.enqueue(context, namespace, &waiting),
                None => break,
            }
        }
        self.completed |= rebuild.has_completed();
        self.rebuilds.insert(key, rebuild);
    }

    /// Enters all claims of reports, in descending order of token.
    fn enter_all(&mut self, context: &EntryContext, namespace: &Namespace, reports: &BTreeMap<SessionNumber, Report>) {
        let Some(slot) = self.core.slots.get(&NamespaceKey::of(&namespace.id)).copied() else { return };
        let mut claims: Vec<(FencingToken, SessionNumber, usize, usize)> = Vec::new();
        for (number, report) in reports {
            for (at, request) in report.granted.iter().enumerate() {
                claims.extend(request.claims.iter().enumerate().map(|(of, it)| (it.fencing_token, *number, at, of)));
            }
        }
        if !is_enabled(Mutation::SoftFirstClaim) {
            claims.sort_unstable_by(|one, other| other.0.cmp(&one.0).then_with(|| one.cmp(other)));
        }
        self.core.begin_slice();
        let mut entered: BTreeMap<(SessionNumber, usize), u32> = BTreeMap::new();
        let mut work = self.core.txn_in(slot, context);
        for (token, number, at, of) in claims {
            let Some(request) = reports.get(&number).and_then(|report| report.granted.get(at)) else { continue };
            let Some(claim) = request.claims.get(of) else { continue };
            let Some(session_id) = work.sessions.get(&number).map(|(_, session_id)| Arc::clone(session_id)) else {
                continue;
            };
            let transition_ms = namespace.table_log.transition_ms(number).unwrap_or_default();
            let known = entered.get(&(number, at)).copied();
            let is_forfeit = namespace.table_log.is_forfeit(number, &claim.path, token);
            let now = if is_forfeit { None } else { work.enter(&session_id, request, claim, (known, transition_ms)) };
            match now {
                Some(now) => _ = entered.insert((number, at), now),
                None => {
                    self.conflicts += 1;
                    work.lose(&session_id, claim);
                }
            }
        }
        self.core.enforce_byte_limits();
        self.collect_effects();
    }

    /// Queues a request that waits, or grants it. Whoever waits asks again, and hears of it then.
    fn enqueue(&mut self, context: &EntryContext, namespace: &Namespace, waiting: &RequestToQueue) {
        let RequestToQueue { session: number, wait } = waiting;
        let ReportedWait { request_id, holder, metadata, claims, .. } = wait;
        let Some((slot, session_id)) = self.core.sessions.get(number).cloned() else { return };
        let acquire = SessionAcquire {
            holder: holder.clone(),
            claims: claims.clone(),
            transition_ms: namespace.table_log.transition_ms(*number).unwrap_or_default(),
            wait: Wait::Unlimited,
            allow_upgrade: false,
            request_id: request_id.clone(),
        };
        let terms = SessionTerms { at_least_ms: 0, metadata: metadata.clone() };
        let owner = Owner::Session { session_id: session_id.to_string(), holder: holder.clone() };
        let of_session = Request::of_session((&acquire, &terms), &owner, MessageSeq { epoch: 0, seq: 0 });
        let request = Request { message: None, ..of_session };
        self.core.begin_slice();
        self.core.with_views = false;
        // One that is refused is refused again when its session asks again.
        let _ = self.core.txn_in(slot, context).acquire(&request, &[]);
        self.core.with_views = true;
        self.core.enforce_byte_limits();
        self.collect_effects();
    }

    /// Lets a reported session give up what is not entered yet. `None` if the command is for the table.
    pub(super) fn withdraw_reported(
        &mut self,
        context: &EntryContext,
        (namespace, session_id, session): (&Namespace, &Arc<str>, &Session),
        command: &LocksCommand,
    ) -> Option<Result<Response, CommandError>> {
        let (key, number) = (NamespaceKey::of(&namespace.id), session.facts.number);
        let (message, given_up) = given_up(command)?;
        let rebuild = self.rebuilds.get(&key)?;
        let (has_report, is_queueing) = (rebuild.has_report(number), rebuild.is_queueing());
        if !has_report && !is_queueing {
            return None;
        }
        if has_report {
            let slot = self.core.slots.get(&key).copied()?;
            match self.core.txn_in(slot, context).check_sequence(session_id, Some(message)) {
                Ok(true) => {}
                Ok(false) => return Some(Ok(Response::Ignored)),
                Err(refused) => return Some(Err(refused)),
            }
        }
        let request_id = match given_up {
            GivenUp::Request(request_id) => Some(request_id),
            GivenUp::All => None,
        };
        self.rebuilds.get_mut(&key)?.withdraw(number, request_id);
        // What is entered already is given up there.
        has_report.then(|| Ok(Response::Released { released: false, locks: Vec::new() }))
    }
}

fn given_up(command: &LocksCommand) -> Option<(MessageSeq, GivenUp<'_>)> {
    match command {
        LocksCommand::Session(SessionCommand {
            message,
            request: SessionRequest::Release { request_id, .. } | SessionRequest::ReleaseUnheard { request_id },
            ..
        }) => Some((*message, GivenUp::Request(request_id))),
        LocksCommand::Release(Release { what: ReleaseTarget::All, message: Some(message), .. }) => {
            Some((*message, GivenUp::All))
        }
        _ => None,
    }
}
