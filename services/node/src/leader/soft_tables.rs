//! The lock tables in this leader's memory: the epoch that it has begun for them, and what it writes for them.

mod steps;

use holdfast_core::locks::{Charge, SoftTable};
use holdfast_core::shard::{PendingReply, ShardState};
use holdfast_core::{
    AccountId, CommandError, Effect, EntryContext, Forfeit, LocksCommand, NamespaceRef, OpenTableSession, Path, Query,
    Reply, Response, Rules, SessionNumber, TableCommand,
};
use metrics::counter;
use tokio::time::Instant;

use super::table_memory::apply_what_fits;
use crate::memory::{NodeMemory, ShardMemory};

pub(crate) use steps::Garbage;

/// The tables of one leadership: none until its epoch has begun, which is when there are namespaces for them.
#[derive(Default)]
pub(crate) struct SoftTables {
    table: Option<SoftTable>,
    /// The tables' use of the node's memory; `None` if that memory has no limit.
    memory: Option<ShardMemory>,
    /// Whether there was little of it when it was last charged.
    is_memory_scarce: bool,
    /// True while a command for them is under way.
    is_writing: bool,
    /// The clock at which a leader task next does due work; absent if it sleeps until it is woken.
    scheduled_ms: Option<u64>,
    /// The clock of the last entry, and its wall clock, in milliseconds.
    last_entry: (u64, u64),
    /// The wall clock when the epoch began, in milliseconds.
    begun_at_ms: u64,
    /// When the epoch began, until all earlier sessions have reported or ended.
    rebuilding: Option<Instant>,
    /// True until all waiting calls are woken: calls that wait for the epoch, for revisions, for the end of a session,
    /// or for work in steps.
    wakes_all: bool,
    /// The number of finished sweeps when the calls that wait for them were last woken.
    sweeps_done: u64,
    garbage: Vec<Garbage>,
}

impl SoftTables {
    /// Counts what the tables take towards this memory.
    pub(super) fn set_memory(&mut self, memory: Option<NodeMemory>) {
        self.memory = memory.map(ShardMemory::new);
    }

    /// Returns the bytes that accounts are charged with for the tables.
    pub(super) fn bytes(&self) -> u64 {
        self.memory.as_ref().map_or(0, ShardMemory::total)
    }

    /// Returns the moment by which a step is done at this clock.
    fn context(&self, now_ms: u64, rules: Rules) -> EntryContext {
        let (entry_ms, wall_ms) = self.last_entry;
        EntryContext { now_ms, wall_ms: wall_ms.saturating_add(now_ms.saturating_sub(entry_ms)), rules }
    }

    /// Returns whether a command has to wait: for the epoch if it opens a session, which would be of before otherwise;
    /// or for a table that is complete.
    pub(super) fn must_wait(&self, core: &ShardState, command: &LocksCommand) -> bool {
        let table = self.current(core);
        match command {
            LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, .. })) => {
                SoftTable::is_of_tables(core, &open.namespace) && table.is_none()
            }
            command if SoftTable::is_for_tables(core, command) => {
                let is_ready = || table.is_some_and(|table| table.is_ready_for(core, command));
                !is_ready() && SoftTable::refused_report(core, command).is_none()
            }
            _ => false,
        }
    }

    /// Returns the session of before that a command resumes, if its report is not there: its client has to make it.
    pub(super) fn unreported_resume(&self, core: &ShardState, command: &LocksCommand) -> Option<SessionNumber> {
        let LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, .. })) = command else {
            return None;
        };
        self.current(core)?.unreported_resume(core, open)
    }

    /// Returns true if calls about the lock table of a namespace must wait until that table is complete.
    pub(super) fn must_wait_for_table_of(&self, core: &ShardState, namespace: &NamespaceRef) -> bool {
        let is_ready = || self.current(core).is_some_and(|table| table.is_ready_to_answer(core, namespace));
        SoftTable::is_of_tables(core, namespace) && !is_ready()
    }

    /// Returns true if a query about a lock table must wait: for the epoch if it reads events, any other until that
    /// table is complete.
    pub(super) fn must_wait_to_answer(&self, core: &ShardState, namespace: &NamespaceRef, query: &Query) -> bool {
        match query {
            Query::Events { .. } => SoftTable::is_of_tables(core, namespace) && self.current(core).is_none(),
            _ => self.must_wait_for_table_of(core, namespace),
        }
    }

    /// Applies a command of a connected session. `None` if it is for the log. A command that opens a session is for the
    /// log, unless it must wait.
    pub(super) fn apply(
        &mut self,
        core: &ShardState,
        (now_ms, rules): (u64, Rules),
        command: &LocksCommand,
    ) -> Option<Reply> {
        if !SoftTable::is_for_tables(core, command) {
            return self.must_wait(core, command).then(|| not_begun(now_ms));
        }
        if let Some(refused) = SoftTable::refused_report(core, command) {
            return Some(Reply { outcome: Err(refused), clock_ms: now_ms, awaits: None });
        }
        if let Some(account) = growing_account(command) {
            self.spare_for(account);
        }
        let context = self.context(now_ms, rules);
        let Some(table) = &mut self.table else { return Some(not_begun(now_ms)) };
        let scarce = self.memory.as_ref().filter(|memory| memory.is_under_pressure());
        let reply = match scarce {
            None => table.apply(core, &context, command),
            Some(memory) => apply_what_fits(table, memory, (core, &context), command),
        };
        self.record_rebuilt();
        Some(reply)
    }

    /// Returns the error for whatever a session sends whose report has to come first, if it has to.
    pub(super) fn unreported(&self, core: &ShardState, number: SessionNumber) -> Option<CommandError> {
        let is_reported = || self.current(core).is_some_and(|table| table.has_reported(number));
        let is_missing = core.needs_report(number) && !is_reported();
        is_missing.then(|| CommandError::Unreported { table_epoch: core.table_epoch() })
    }

    /// Counts conflicting claims, and wakes the calls that wait for a table or a sweep that has completed.
    fn record_rebuilt(&mut self) {
        let Some(table) = &mut self.table else { return };
        self.wakes_all |= table.take_completed() || table.sweeps_done() != self.sweeps_done;
        self.sweeps_done = table.sweeps_done();
        let conflicts = table.take_conflicts();
        if conflicts > 0 {
            tracing::warn!(conflicts, "conflicting session claims after leader change; latest kept");
            counter!("holdfast_conflicting_claims_total").increment(conflicts);
        }
    }

    /// Returns what the log is told to force a lock open. `None` if the log has the table.
    pub(super) fn force_open(
        &mut self,
        core: &ShardState,
        (now_ms, rules): (u64, Rules),
        (namespace, path): (&NamespaceRef, &Path),
    ) -> Option<Result<Forfeit, CommandError>> {
        if !SoftTable::is_of_tables(core, namespace) {
            return None;
        }
        let context = self.context(now_ms, rules);
        let told = match &mut self.table {
            Some(table) => table.force_open(core, &context, (namespace, path)),
            None => Some(Err(has_not_begun())),
        };
        self.record_rebuilt();
        told
    }

    /// Answers a query about the tables. `None` if it is about something else.
    pub(super) fn query(&self, core: &ShardState, now_ms: u64, query: &Query) -> Option<PendingReply> {
        let table = self.table.as_ref();
        match query {
            Query::Usage { namespace } => table.and_then(|table| table.usage(core, now_ms, namespace)).map(Into::into),
            query if query.lock_table().is_some_and(|namespace| SoftTable::is_of_tables(core, namespace)) => {
                let answer = table.and_then(|table| table.begin_query(core, now_ms, query));
                Some(answer.unwrap_or_else(|| not_begun(now_ms).into()))
            }
            _ => None,
        }
    }

    /// Adds what only the leader knows to a response of the log.
    pub(super) fn complete(&self, core: &ShardState, query: &Query, response: &mut Response) {
        let Some(table) = self.current(core) else { return };
        match response {
            Response::TableState(state) => {
                (state.has_begun, state.since_ms) = (true, self.begun_at_ms);
                if let Query::TableState { namespace } = query {
                    table.complete_state(core, namespace, state);
                }
            }
            response => table.add_counts(core, query, response),
        }
    }

    /// Returns the tables of the epoch that was begun last.
    fn current(&self, core: &ShardState) -> Option<&SoftTable> {
        self.table.as_ref().filter(|table| table.is_current(core))
    }

    /// Records the clocks of an entry.
    pub(super) fn begin_entry(&mut self, context: &EntryContext) {
        self.last_entry = (context.now_ms, context.wall_ms);
    }

    /// Hears of an effect of an entry of the log.
    pub(super) fn follow(&mut self, effect: &Effect) {
        self.wakes_all |= self.rebuilding.is_some() && matches!(effect, Effect::SessionEnded { .. });
        if let Some(table) = &mut self.table {
            table.follow(effect);
        }
    }

    /// Returns true, once, if the calls that wait for a table must be woken.
    pub(super) fn take_wakes_all(&mut self) -> bool {
        std::mem::take(&mut self.wakes_all)
    }

    /// Charges the changes to the memory. Takes their effects on others than the callers.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        self.charge();
        self.table.as_mut().map(SoftTable::take_effects).unwrap_or_default()
    }

    /// Charges the changes to the memory. Events give way to locks where there is little left: first those of all
    /// accounts, then those of whoever makes more. Those of an account over its limit give way, too, and no others.
    fn charge(&mut self) {
        let (Some(table), Some(memory)) = (&mut self.table, &self.memory) else { return };
        let changed = table.take_changed_charges();
        memory.update(&changed);
        let was_scarce = std::mem::replace(&mut self.is_memory_scarce, memory.is_scarce());
        if self.is_memory_scarce && !was_scarce {
            table.evict_events(None);
        } else if self.is_memory_scarce || memory.is_under_pressure() {
            let gives_way = |charge: &&Charge| self.is_memory_scarce || memory.is_over_limit(charge.account);
            changed.iter().filter(gives_way).for_each(|charge| table.evict_events(Some(charge.account)));
        }
        memory.update(&table.take_changed_charges());
    }

    /// Lets events give way before it is checked whether an account may have more: what other shards have taken of the
    /// memory since, this one may not have heard of.
    fn spare_for(&mut self, account: AccountId) {
        if !self.memory.as_ref().is_some_and(ShardMemory::is_under_pressure) {
            return;
        }
        self.charge();
        let (Some(table), Some(memory)) = (&mut self.table, &self.memory) else { return };
        if memory.is_over_limit(account) {
            table.evict_events(Some(account));
            memory.update(&table.take_changed_charges());
        }
    }

    /// Returns whether there is something to write, or is due before it is expected; once, whether the tables have
    /// begun, have more revisions or a session of before has ended, for which commands wait.
    pub(super) fn needs_wakeup(&mut self) -> bool {
        if self.take_wakes_all() {
            return true;
        }
        let Some(table) = &self.table else { return false };
        let is_earlier = |due_ms| self.scheduled_ms.is_none_or(|scheduled_ms| due_ms < scheduled_ms);
        (!self.is_writing && table.needs_block().is_some()) || table.next_deadline_ms().is_some_and(is_earlier)
    }

    /// Returns what to write for the tables. It is under way from then on.
    pub(super) fn next_command(
        &mut self,
        core: &ShardState,
        attempt: impl FnOnce() -> Option<u64>,
    ) -> Option<TableCommand> {
        if self.is_writing || !core.has_soft_tables() {
            return None;
        }
        let command = match self.current(core) {
            None => TableCommand::BeginEpoch { attempt: attempt()? },
            Some(table) => {
                let (epoch, after) = table.needs_block()?;
                TableCommand::ReserveBlock { epoch, after }
            }
        };
        self.is_writing = true;
        Some(command)
    }

    /// Records what became of the command that was under way; `None` if that is not known.
    pub(super) fn written(&mut self, core: &ShardState, command: &TableCommand, outcome: Option<&Response>) {
        self.is_writing = false;
        let Some(Response::TableEpoch(given)) = outcome else { return };
        match (command, &mut self.table) {
            (TableCommand::BeginEpoch { .. }, table) => {
                let earlier = std::mem::replace(table, SoftTable::begin(core, given));
                self.garbage.extend(earlier.map(|freed| Garbage::Earlier { _freed: Box::new(freed) }));
                self.sweeps_done = 0;
                if let Some(memory) = &self.memory {
                    memory.reset(&[]);
                }
                (self.wakes_all, self.begun_at_ms) = (true, self.last_entry.1);
                self.rebuilding = Some(Instant::now());
            }
            (_, Some(table)) => {
                table.add_block(given);
                self.wakes_all = true;
            }
            (_, None) => {}
        }
    }
}

/// Returns the account that a command, or one of a list, may let grow. All of a list are of one session.
fn growing_account(command: &LocksCommand) -> Option<AccountId> {
    match command {
        LocksCommand::Batch(commands) => commands.iter().find_map(LocksCommand::growing_account),
        command => command.growing_account(),
    }
}

fn not_begun(clock_ms: u64) -> Reply {
    Reply { outcome: Err(has_not_begun()), clock_ms, awaits: None }
}

fn has_not_begun() -> CommandError {
    CommandError::Busy("the leader's epoch has not begun, or it does not know yet what the session holds".to_owned())
}

#[cfg(test)]
mod tests;
