//! What the leader does with the lock tables in its memory.

use holdfast_core::shard::{PendingReply, ShardState};
use holdfast_core::{
    CommandError, EntryContext, Forfeit, JobState, LocksCommand, NamespaceRef, Path, Query, Reply, Response, Revision,
    SessionNumber, TableCommand,
};
use tokio::time::Instant;

use super::{Garbage, LeaderState};

impl LeaderState {
    /// Ends in the lock tables in memory what the effects of an entry so far have ended.
    pub(crate) fn settle_tables(&mut self, core: &ShardState, context: &EntryContext) {
        self.tables.settle(core, context);
        self.publish_tables(core.clock_ms());
    }

    /// Returns whether a command waits for the lock tables in memory.
    pub(crate) fn must_wait_for_tables(&self, core: &ShardState, command: &LocksCommand) -> bool {
        self.tables.must_wait(core, command)
    }

    /// Returns whether a command resumes a session whose report may still come from the gateway that it had.
    pub(crate) fn awaits_report(&self, core: &ShardState, command: &LocksCommand) -> bool {
        self.tables.unreported_resume(core, command).is_some()
    }

    /// Returns true if calls about the lock table of a namespace must wait until that table is complete in memory.
    pub(crate) fn must_wait_for_table_of(&self, core: &ShardState, namespace: &NamespaceRef) -> bool {
        self.tables.must_wait_for_table_of(core, namespace)
    }

    /// Returns true if a query about a lock table in memory must wait.
    pub(crate) fn must_wait_to_answer(&self, core: &ShardState, namespace: &NamespaceRef, query: &Query) -> bool {
        self.tables.must_wait_to_answer(core, namespace, query)
    }

    /// Applies a command of a connected session in the lock tables in memory. `None` if it is for the log.
    pub(crate) fn apply_in_memory(&mut self, core: &ShardState, now_ms: u64, command: &LocksCommand) -> Option<Reply> {
        let reported = match command {
            LocksCommand::Table(TableCommand::Report(report)) => Some(report.session),
            _ => None,
        };
        // A resume without a report is no keep-alive, and must not delay the end of its session.
        let concerned = reported.or_else(|| self.tables.unreported_resume(core, command));
        if concerned.is_some_and(|number| self.heartbeats.is_expiring(number)) {
            let refused = CommandError::Busy("it is not known yet whether the session expires".to_owned());
            return Some(Reply { outcome: Err(refused), clock_ms: now_ms, awaits: None });
        }
        let reply = self.tables.apply(core, (now_ms, self.rules), command)?;
        // A complete report counts as a keep-alive.
        if let Some(number) =
            reported.filter(|number| reply.outcome.is_ok() && self.unreported(core, *number).is_none())
        {
            self.heartbeats.keep_alive(number, Instant::now());
        }
        match &reply.outcome {
            Ok(Response::Batch(outcomes)) => outcomes.iter().for_each(|outcome| self.count_outcome(outcome)),
            outcome => self.count_outcome(outcome),
        }
        self.publish_tables(now_ms);
        Some(reply)
    }

    /// Returns the error for whatever a session sends whose report has to come first, if it has to.
    pub(crate) fn unreported(&self, core: &ShardState, number: SessionNumber) -> Option<CommandError> {
        self.tables.unreported(core, number)
    }

    /// Returns what the log is told to force a lock of the lock tables in memory open. `None` if the log has the table.
    pub(crate) fn force_open_in_memory(
        &mut self,
        core: &ShardState,
        now_ms: u64,
        lock: (&NamespaceRef, &Path),
    ) -> Option<Result<Forfeit, CommandError>> {
        let outcome = self.tables.force_open(core, (now_ms, self.rules), lock);
        self.publish_tables(now_ms);
        outcome
    }

    /// Begins a query about the lock tables in memory. `None` if it is about something else.
    pub(crate) fn query_tables(&self, core: &ShardState, now_ms: u64, query: &Query) -> Option<PendingReply> {
        self.tables.query(core, now_ms, query)
    }

    /// Adds the contents of the lock tables in memory to the log's response to a query.
    pub(crate) fn complete_with_tables(&self, core: &ShardState, query: &Query, reply: &mut Reply) {
        if let Ok(response) = &mut reply.outcome {
            self.tables.complete(core, query, response);
        }
    }

    /// Does the due work of the lock tables in memory. Returns when more is due, and whether to wake the calls that
    /// wait for a table.
    pub(crate) fn advance_tables(&mut self, core: &ShardState, now_ms: u64) -> (Option<u64>, bool) {
        let due_ms = self.tables.advance(core, now_ms.max(core.clock_ms()), self.rules);
        self.publish_tables(now_ms);
        (due_ms, self.tables.take_wakes_all())
    }

    /// Returns the progress of what a reply of the lock tables in memory awaits.
    pub(crate) fn table_job_state(&self, core: &ShardState, began: Revision) -> JobState {
        self.tables.job_state(core, began)
    }

    /// Takes what of the lock tables in memory is to be freed, which may take long.
    pub(crate) fn take_garbage(&mut self) -> Vec<Garbage> {
        self.tables.take_garbage()
    }

    /// Ends the lock tables in memory, with the leadership. Returns the memory to free.
    pub(crate) fn end_tables(&mut self) -> Vec<Garbage> {
        self.tables.end()
    }

    /// Returns what to write for the lock tables in memory. It is under way until [`Self::table_written`].
    pub(crate) fn next_table_command(&mut self, core: &ShardState) -> Option<TableCommand> {
        let mut tables = std::mem::take(&mut self.tables);
        let command = tables.next_command(core, || self.next_attempt());
        self.tables = tables;
        command
    }

    /// Records what became of such a command; `None` if that is not known.
    pub(crate) fn table_written(&mut self, core: &ShardState, command: &TableCommand, outcome: Option<&Response>) {
        self.tables.written(core, command, outcome);
        if matches!((command, outcome), (TableCommand::BeginEpoch { .. }, Some(_))) {
            // Their sessions have to be reported first.
            self.subscriptions.end_sessions_of(|account, incarnation| core.has_soft_table(account, incarnation));
        }
    }

    pub(super) fn publish_tables(&mut self, clock_ms: u64) {
        for effect in self.tables.take_effects() {
            self.on_effect(effect, clock_ms);
        }
    }
}
