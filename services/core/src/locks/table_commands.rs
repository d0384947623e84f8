//! Commands for lock tables that are in the memory of their shard's leader.

use std::sync::Arc;

use holdfast_primitives::kit::quota_exceeded;

use super::LocksState;
use super::durability::absent;
use super::restore::RESTORE_CONTEXT;
use super::sessions::SessionFacts;
use super::table_log::TableLog;
use super::txn::NamespaceTxn;
use crate::{
    BLOCK_REVISIONS, CommandError, Durability, EntryContext, Forfeit, MAX_FORFEITS, MAX_TABLE_TRANSITION_MS,
    MAX_WAITING_FOR, NamespaceRef, OpenSession, OpenTableSession, Reset, Response, Revision, RevisionBlock, SessionEnd,
    SessionNumber, TABLE_SESSION_TTL_MS, TableCommand, TableEpoch, TableState,
};

impl LocksState {
    /// Executes a command for such tables.
    pub(super) fn table_command(
        &mut self,
        context: &EntryContext,
        command: &TableCommand,
    ) -> Result<Response, CommandError> {
        match command {
            TableCommand::BeginEpoch { attempt } => self.begin_epoch(*attempt),
            TableCommand::ReserveBlock { epoch, after } => self.reserve_block(*epoch, *after),
            TableCommand::OpenSession(open) => self.any_txn(&open.open.namespace, context)?.open_table_session(open),
            TableCommand::Forfeit(forfeit) => self.any_txn(&forfeit.namespace, context)?.forfeit(forfeit),
            TableCommand::Report(_) => Err(CommandError::InvalidArgument(absent::ELSEWHERE.to_owned())),
        }
    }

    /// Begins an epoch of all such tables of the shard. Each namespace remembers it for itself.
    fn begin_epoch(&mut self, attempt: u64) -> Result<Response, CommandError> {
        if attempt < self.table_epoch.attempt {
            return Err(CommandError::InvalidArgument("attempt: a later one has begun an epoch".to_owned()));
        }
        if attempt > self.table_epoch.attempt {
            let block = self.take_block();
            self.table_epoch = TableEpoch { epoch: block.first, attempt, block };
            for key in &self.session_durable {
                let Some(slot) = self.slots.get(key) else { continue };
                Arc::make_mut(&mut self.namespaces.get_mut(*slot).table_log).epoch = block.first;
            }
        }
        Ok(Response::TableEpoch(self.table_epoch))
    }

    fn reserve_block(&mut self, epoch: Revision, after: Revision) -> Result<Response, CommandError> {
        if epoch != self.table_epoch.epoch || epoch == 0 {
            return Err(CommandError::InvalidArgument("epoch: it is not the one that was begun last".to_owned()));
        }
        if after >= self.table_epoch.block.last {
            self.table_epoch.block = self.take_block();
        }
        Ok(Response::TableEpoch(self.table_epoch))
    }

    /// Returns how far a lock table is, as far as the log knows: whether the leader has it is for the leader to say.
    pub(super) fn table_state(&self, namespace: &NamespaceRef) -> Result<Response, CommandError> {
        let namespace = self.find(namespace)?;
        if namespace.durability == Durability::Full {
            return Err(CommandError::InvalidArgument("namespace: its lock table is in the log".to_owned()));
        }
        let log = &namespace.table_log;
        let id_of = |number| {
            let (_, session_id) = self.sessions.get(&number)?;
            let session = namespace.sessions.get(session_id)?;
            (session.facts.number == number).then(|| session_id.to_string())
        };
        Ok(Response::TableState(TableState {
            epoch: log.epoch,
            has_begun: false,
            since_ms: 0,
            sessions: namespace.sessions.len() as u64,
            missing: log.earlier_sessions().count() as u64,
            waiting_for: log.earlier_sessions().filter_map(id_of).take(MAX_WAITING_FOR).collect(),
        }))
    }

    fn take_block(&mut self) -> RevisionBlock {
        let first = self.common.next_revision();
        self.common.raise_revision(BLOCK_REVISIONS - 1);
        RevisionBlock { first, last: self.common.revision }
    }

    /// Ends the present epoch: leaders unknown to this state may have used later revisions. Attempts may begin anew.
    /// Sessions unknown to this state may hold something until they have expired: in every table they count as one
    /// session that expires last, under an unused number. `now_ms` is the shard clock, if that is ahead of the state's.
    pub(crate) fn void_epoch(&mut self, now_ms: u64) {
        self.table_epoch = TableEpoch::default();
        let (number, clock_ms) = (self.common.revision, self.common.clock_ms.max(now_ms));
        let of_tables = self.session_durable.iter().filter_map(|key| self.slots.get(key).copied());
        // A namespace in quarantine stands still, and grants nothing.
        let of_tables = of_tables.filter(|slot| !self.is_quarantined(&self.namespaces.get(*slot).id));
        for slot in of_tables.collect::<Vec<u32>>() {
            let mut work = self.txn_in(slot, &RESTORE_CONTEXT);
            work.table_log_mut().lost_sessions(number, clock_ms);
            work.update_first_due();
        }
        self.update_charges();
    }
}

impl NamespaceTxn<'_> {
    fn table_log_mut(&mut self) -> &mut TableLog {
        Arc::make_mut(&mut self.ns.table_log)
    }

    /// Opens or resumes a session whose client keeps a table of its holds.
    fn open_table_session(&mut self, command: &OpenTableSession) -> Result<Response, CommandError> {
        let OpenTableSession { open, transition_ms } = command;
        if self.ns.durability == Durability::Full {
            return self.open_session(open);
        }
        let (shortest, longest) = TABLE_SESSION_TTL_MS;
        let keeps_ttl = open.resume && open.ttl_ms == 0;
        if !keeps_ttl && !(shortest..=longest).contains(&open.ttl_ms) {
            return Err(CommandError::InvalidArgument(format!(
                "ttl_ms: must be {shortest} to {longest} in this namespace"
            )));
        }
        if *transition_ms > MAX_TABLE_TRANSITION_MS {
            return Err(CommandError::InvalidArgument(format!(
                "transition_ms: must be at most {MAX_TABLE_TRANSITION_MS}"
            )));
        }
        self.check_not_earlier(open)?;
        let opened = self.open_session(open)?;
        let Response::SessionOpened { session, resumed } = opened else { return Ok(opened) };
        self.table_log_mut().opened(session.number, *transition_ms);
        Ok(Response::TableSessionOpened { session, resumed, table_epoch: self.ns.table_log.epoch })
    }

    /// Checks that an opening is not the one of a session of before the epoch: nobody knows what that has, because no
    /// connection of it ever began. Whether such a session can be resumed is for the leader to say, who knows whether it
    /// has been reported.
    fn check_not_earlier(&self, open: &OpenSession) -> Result<(), CommandError> {
        let known = self.ns.sessions.get(open.session_id.as_str()).map(|session| &session.facts);
        let is_repeat = |facts: &SessionFacts| !open.resume && facts.opening == open.request_id;
        match known.filter(|facts| self.ns.table_log.is_earlier(facts.number)) {
            Some(facts) if is_repeat(facts) => {
                Err(CommandError::Busy("the session ended with the leader that opened it; open another one".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Ends holds by force. Holds of ended sessions have ended, or will end without a report.
    fn forfeit(&mut self, forfeit: &Forfeit) -> Result<Response, CommandError> {
        if self.ns.durability == Durability::Full {
            return Err(CommandError::InvalidArgument("namespace: its lock table is in the log".to_owned()));
        }
        let new = self.ns.table_log.new_forfeits(&forfeit.path, &forfeit.holds);
        if self.ns.table_log.forfeit_count().saturating_add(new.len() as u64) > MAX_FORFEITS {
            return Err(quota_exceeded(
                "the number of holds of a namespace that were ended by force and whose sessions have not ended",
                MAX_FORFEITS,
                "reset the namespace, or wait until these sessions have ended",
            ));
        }
        if !new.is_empty() {
            self.common.next_revision();
            self.table_log_mut().forfeit(&forfeit.path, &new);
        }
        Ok(Response::Done)
    }

    /// Records the end of a session in the log of its lock table, if that is in the leader's memory.
    pub(super) fn end_table_session(&mut self, number: SessionNumber, why: SessionEnd) {
        if self.ns.durability == Durability::Full {
            return;
        }
        let clock_ms = self.common.clock_ms;
        self.table_log_mut().ended(number, why, clock_ms);
        self.update_first_due();
    }

    /// Forgets the ended sessions that a reset covers, whatever is left of their transition. Their ids are not known any
    /// more: a list with an id that no open session has may name one of them, and protects them all.
    pub(super) fn reset_table_sessions(&mut self, reset: &Reset) {
        let is_open = |id: &String| self.ns.sessions.contains_key(id.as_str());
        if self.ns.durability == Durability::Session && reset.live_owners.iter().all(is_open) {
            self.table_log_mut().remove_ended(reset.before_revision);
            self.update_first_due();
        }
    }

    /// Forgets the ended session whose transition is over first.
    pub(super) fn end_due_table_session(&mut self) {
        self.table_log_mut().end_first_due();
        self.update_first_due();
    }
}
