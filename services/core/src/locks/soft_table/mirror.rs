//! What the tables have of the namespaces and sessions of the log. They come with the first request for them, and
//! namespaces also with their first event. They go when they go in the log.

use std::sync::Arc;

use holdfast_mutations::{Mutation, is_enabled};

use super::SoftTable;
use crate::locks::namespace::Namespace;
use crate::locks::owner::{OwnerId, OwnerName};
use crate::locks::sessions::{Session, SessionFacts};
use crate::locks::{LocksState, NamespaceKey};
use crate::{
    AccountId, CommandError, Durability, EntryContext, Incarnation, Limits, LocksCommand, MAX_TABLE_REQUESTS,
    NamespaceRef, Owner, Query, Release, Response, Revision, SessionCommand, SessionEnd, SessionNumber, TableEpoch,
    TableReport,
};

/// Holds in one namespace.
const MAX_HOLDS: u64 = 200_000;

impl SoftTable {
    /// Makes a namespace as it is in the log. Returns its slot.
    pub(super) fn mirror_namespace(&mut self, namespace: &Namespace) -> Option<u32> {
        let limits = table_limits(&namespace.limits);
        let key = NamespaceKey::of(&namespace.id);
        if self.core.slots.get(&key).is_none_or(|slot| self.core.namespaces.get(*slot).limits != limits) {
            self.core.open_mirrored_namespace(&namespace.id, &limits, self.epoch);
        }
        self.core.slots.get(&key).copied()
    }

    /// Makes the namespace and the session of a request as they are in the log.
    pub(super) fn mirror(
        &mut self,
        context: &EntryContext,
        namespace: &Namespace,
        session_id: &Arc<str>,
        facts: &SessionFacts,
    ) {
        let Some(slot) = self.mirror_namespace(namespace) else { return };
        let there = self.core.namespaces.get(slot).sessions.get(session_id).map(|there| Arc::clone(&there.facts));
        match there {
            Some(there) if there.number == facts.number && there.epoch == facts.epoch => {}
            Some(there) if there.number == facts.number => {
                self.core.txn_in(slot, context).discard_report(session_id);
                self.core.resume_mirrored(slot, session_id, facts);
            }
            Some(there) => {
                // The end of the other one is about to be followed.
                self.core.end_mirrored(context, there.number, SessionEnd::Expired);
                self.core.grant_freed(context, slot);
                self.core.open_mirrored(slot, session_id, facts);
            }
            None => self.core.open_mirrored(slot, session_id, facts),
        }
    }
}

/// Returns the limits of a namespace in the leader's memory.
fn table_limits(limits: &Limits) -> Limits {
    let max_holds_per_namespace = limits.max_holds_per_namespace.min(MAX_HOLDS);
    let max_requests_per_session = limits.max_requests_per_session.min(MAX_TABLE_REQUESTS);
    Limits { max_holds_per_namespace, max_requests_per_session, ..limits.clone() }
}

impl LocksState {
    /// Returns the namespace and the session of a command for a lock table that is in the leader's memory.
    ///
    /// # Errors
    /// `SessionNotFound`, `NamespaceNotFound`, `Quarantined`, and `InvalidArgument` for a command that is for the log.
    pub(super) fn table_session(
        &self,
        command: &LocksCommand,
    ) -> Result<(&Namespace, &Arc<str>, &Session), CommandError> {
        let (namespace, session_id, session) = match command {
            LocksCommand::Session(command) => self.numbered_session(command)?,
            LocksCommand::Release(Release {
                namespace,
                owner: Owner::Session { session_id, .. },
                message: Some(_),
                ..
            }) => self.named_session(namespace, session_id)?,
            LocksCommand::LockInfo(info) | LocksCommand::LockInfoPart(info) => {
                self.named_session(&info.namespace, &info.session_id)?
            }
            _ => return Err(CommandError::InvalidArgument("command: is for the log".to_owned())),
        };
        match namespace.durability {
            Durability::Full => {
                Err(CommandError::InvalidArgument("namespace: its lock table is in the log".to_owned()))
            }
            Durability::Session => Ok((namespace, session_id, session)),
        }
    }

    /// Returns the namespace and the session that a report is about.
    pub(super) fn reported_session(
        &self,
        report: &TableReport,
    ) -> Result<(&Namespace, &Arc<str>, &Session), CommandError> {
        let found = self.session_of_account(report.namespace.account, report.session)?;
        match found.0.durability {
            Durability::Session if *found.0.id == report.namespace => Ok(found),
            _ => Err(CommandError::SessionNotFound(report.session.to_string())),
        }
    }

    fn numbered_session(&self, command: &SessionCommand) -> Result<(&Namespace, &Arc<str>, &Session), CommandError> {
        self.session_of_account(command.account, command.session)
    }

    fn session_of_account(
        &self,
        account: AccountId,
        number: SessionNumber,
    ) -> Result<(&Namespace, &Arc<str>, &Session), CommandError> {
        let not_found = || CommandError::SessionNotFound(number.to_string());
        let (slot, session_id) = self.sessions.get(&number).ok_or_else(not_found)?;
        let namespace = self.namespaces.find(*slot).ok_or_else(not_found)?;
        let session = namespace.sessions.get(session_id).filter(|session| session.facts.number == number);
        let session = session.filter(|_| namespace.id.account == account).ok_or_else(not_found)?;
        if self.is_quarantined(&namespace.id) {
            return Err(CommandError::Quarantined);
        }
        Ok((namespace, session_id, session))
    }

    fn named_session(
        &self,
        namespace: &NamespaceRef,
        session_id: &str,
    ) -> Result<(&Namespace, &Arc<str>, &Session), CommandError> {
        let namespace = self.find(namespace)?;
        let found = namespace.sessions.get_key_value(session_id);
        let (session_id, session) = found.ok_or_else(|| CommandError::SessionNotFound(session_id.to_owned()))?;
        Ok((namespace, session_id, session))
    }

    /// Returns the epoch that was begun last.
    pub(crate) fn table_epoch(&self) -> TableEpoch {
        self.table_epoch
    }

    /// Returns whether there are namespaces whose lock table is in the leader's memory.
    pub(crate) fn has_soft_tables(&self) -> bool {
        !self.session_durable.is_empty()
    }

    /// Returns whether the lock table of a namespace is in the leader's memory.
    pub(crate) fn has_soft_table(&self, account: AccountId, incarnation: Incarnation) -> bool {
        self.session_durable.contains(&NamespaceKey { account, incarnation })
    }

    /// Returns true if a session is from before the epoch: its keep-alives do not count until it has reported.
    pub(crate) fn needs_report(&self, number: SessionNumber) -> bool {
        let namespace = self.sessions.get(&number).and_then(|(slot, _)| self.namespaces.find(*slot));
        let namespace = namespace.filter(|_| !is_enabled(Mutation::SoftLifeUnreported));
        namespace.is_some_and(|it| it.durability == Durability::Session && it.table_log.is_earlier(number))
    }

    fn open_mirrored(&mut self, slot: u32, session_id: &Arc<str>, facts: &SessionFacts) {
        let facts = SessionFacts { seq: 0, ..facts.clone() };
        self.sessions.insert(facts.number, (slot, Arc::clone(session_id)));
        self.touched.push(slot);
        let namespace = self.namespaces.get_mut(slot);
        namespace.charged.sessions += facts.charge(session_id);
        namespace.sessions.insert(Arc::clone(session_id), Session::new(facts));
    }

    /// Another connection has resumed the session: its messages are counted anew.
    fn resume_mirrored(&mut self, slot: u32, session_id: &Arc<str>, facts: &SessionFacts) {
        self.touched.push(slot);
        let namespace = self.namespaces.get_mut(slot);
        let Some(session) = namespace.sessions.get_mut(session_id) else { return };
        namespace.charged.sessions -= session.facts.charge(session_id);
        session.facts = Arc::new(SessionFacts { seq: 0, ..facts.clone() });
        namespace.charged.sessions += session.facts.charge(session_id);
        let owners: Vec<OwnerId> = session.owners.iter().copied().collect();
        for owner in owners {
            if let OwnerName::Session(name) = namespace.owners.name_mut(owner) {
                name.process_id = Arc::clone(&facts.process_id);
            }
        }
    }

    /// Returns whether the slice has room for one more end, and takes that.
    pub(super) fn takes_end(&mut self) -> bool {
        self.budget.takes_end()
    }

    /// Ends a session. What that frees is to be granted afterwards.
    pub(super) fn end_mirrored(&mut self, context: &EntryContext, number: SessionNumber, why: SessionEnd) {
        let Some((slot, session_id)) = self.sessions.get(&number).cloned() else { return };
        let mut work = self.txn_in(slot, context);
        if work.ns.sessions.get(&session_id).is_some_and(|session| session.facts.number == number) {
            work.end_session(&session_id, why);
        }
        self.enforce_byte_limits();
    }

    /// Grants what has been freed in a namespace.
    pub(super) fn grant_freed(&mut self, context: &EntryContext, slot: u32) {
        self.txn_in(slot, context).run_grant_loop();
        self.enforce_byte_limits();
    }

    /// Answers a query about a namespace of the log in whose lock table nothing has happened since an epoch began.
    pub(super) fn query_empty(
        mut self,
        namespace: &Namespace,
        query: &Query,
        epoch: Revision,
    ) -> Option<Result<Response, CommandError>> {
        self.open_mirrored_namespace(&namespace.id, &namespace.limits, epoch);
        self.query(query)
    }
}
