//! Takes reports of sessions of before the epoch, and what those give up before it is entered.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::rebuild::Rebuild;
use super::{SoftTable, busy};
use crate::locks::namespace::Namespace;
use crate::locks::sessions::Session;
use crate::locks::{LocksState, NamespaceKey};
use crate::shard::ShardState;
use crate::{
    CommandError, Durability, EntryContext, LocksCommand, MAX_WAITING_FOR, MessageSeq, NamespaceRef, OpenSession,
    Query, Release, ReleaseTarget, Response, SessionCommand, SessionNumber, SessionRequest, TableCommand, TableReport,
    TableState,
};

/// What a command of a reported session gives up before its report is entered.
pub(super) enum Withdrawal<'a> {
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
    /// table has to begin for it, and the last one may be gone. `None` for a report of a later epoch, of which this log
    /// does not know all sessions.
    pub fn refused_report(log: &ShardState, command: &LocksCommand) -> Option<CommandError> {
        let LocksCommand::Table(TableCommand::Report(report)) = command else { return None };
        let log = log.locks().filter(|log| report.table_epoch <= log.table_epoch().epoch)?;
        log.reported_session(report).err()
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

    /// Forgets the unentered report of a session that has ended in the log.
    pub(super) fn remove_report(&mut self, namespace: NamespaceKey, number: SessionNumber) {
        self.reported.remove(&number);
        let rebuild = self.rebuilds.get_mut(&namespace);
        self.garbage.reports.extend(rebuild.and_then(|rebuild| rebuild.session_ended(number)));
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
        // Entered reports no longer count.
        state.missing = rebuild.missing(of_log).count() as u64 + rebuild.unentered();
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

    /// Answers a subscriber that asks what it still holds before the table is complete: it has lost nothing before claims
    /// are entered, and is told what it loses then. `None` if the answer has to wait until all are entered.
    pub(super) fn reconcile_early(
        &self,
        log: &LocksState,
        namespace: &Namespace,
        query: &Query,
    ) -> Option<Result<Response, CommandError>> {
        let Query::ReconcileHolds { session_id, .. } = query else { return None };
        self.check_epoch(log).ok()?;
        let number = namespace.sessions.get(session_id.as_str())?.facts.number;
        if self.is_unreported(namespace, number) {
            return Some(Err(CommandError::Unreported { table_epoch: self.epoch }));
        }
        let rebuild = self.rebuilds.get(&NamespaceKey::of(&namespace.id))?;
        rebuild.is_collecting().then(|| Ok(Response::reconciled(Vec::new(), (0, 0), Vec::new())))
    }

    /// Takes a part of a report. After the last missing part, claims are entered.
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
        self.apply_ends(log);
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

    /// Lets a reported session give up requests that are not entered yet. `None` if the command is for the table.
    pub(super) fn withdraw_reported(
        &mut self,
        context: &EntryContext,
        (namespace, session_id, session): (&Namespace, &Arc<str>, &Session),
        command: &LocksCommand,
    ) -> Option<Result<Response, CommandError>> {
        let (key, number) = (NamespaceKey::of(&namespace.id), session.facts.number);
        let (message, given_up) = given_up(command)?;
        let rebuild = self.rebuilds.get(&key).filter(|rebuild| rebuild.has_report(number))?;
        let is_collecting = rebuild.is_collecting();
        let slot = self.core.slots.get(&key).copied()?;
        if is_collecting {
            match self.core.txn_in(slot, context).check_sequence(session_id, Some(message)) {
                Ok(true) => {}
                Ok(false) => return Some(Ok(Response::Ignored)),
                Err(refused) => return Some(Err(refused)),
            }
        } else {
            // The table does the same with the message.
            let session = self.core.namespaces.get(slot).sessions.get(session_id)?;
            if !matches!(session.is_next(Some(message)), Ok(true)) {
                return None;
            }
        }
        let request_id = match given_up {
            Withdrawal::Request(request_id) => Some(request_id),
            Withdrawal::All => None,
        };
        self.rebuilds.get_mut(&key)?.withdraw(number, request_id);
        // What is entered already is given up there.
        is_collecting.then(|| Ok(Response::Released { released: false, locks: Vec::new() }))
    }
}

fn given_up(command: &LocksCommand) -> Option<(MessageSeq, Withdrawal<'_>)> {
    match command {
        LocksCommand::Session(SessionCommand {
            message,
            request: SessionRequest::Release { request_id, .. } | SessionRequest::ReleaseUnheard { request_id },
            ..
        }) => Some((*message, Withdrawal::Request(request_id))),
        LocksCommand::Release(Release { what: ReleaseTarget::All, message: Some(message), .. }) => {
            Some((*message, Withdrawal::All))
        }
        _ => None,
    }
}
