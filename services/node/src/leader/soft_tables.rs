//! The lock tables in this leader's memory: the epoch that it has begun for them, and what it writes for them.

use holdfast_core::locks::SoftTable;
use holdfast_core::shard::ShardState;
use holdfast_core::{CommandError, Effect, EntryContext, Query, Reply, Response, Rules, SessionCommand, TableCommand};

/// The tables of one leadership: none until its epoch has begun, which is when there are namespaces for them.
#[derive(Default)]
pub(crate) struct SoftTables {
    table: Option<SoftTable>,
    /// True while a command for them is under way.
    is_writing: bool,
    /// The clock at which a leader task ends what is due next; absent if it sleeps until it is woken.
    scheduled_ms: Option<u64>,
    /// The clock of the last entry, and its wall clock, in milliseconds.
    last_entry: (u64, u64),
}

impl SoftTables {
    /// Returns the moment by which a step is done at this clock.
    fn context(&self, now_ms: u64, rules: Rules) -> EntryContext {
        let (entry_ms, wall_ms) = self.last_entry;
        EntryContext { now_ms, wall_ms: wall_ms.saturating_add(now_ms.saturating_sub(entry_ms)), rules }
    }

    /// Applies a request of a session.
    pub(super) fn apply(
        &mut self,
        core: &ShardState,
        (now_ms, rules): (u64, Rules),
        command: &SessionCommand,
    ) -> Reply {
        let context = self.context(now_ms, rules);
        match &mut self.table {
            Some(table) => table.apply(core, &context, command),
            None => Reply { outcome: Err(not_begun()), clock_ms: now_ms, awaits: None },
        }
    }

    /// Answers a query about the tables. `None` if it is about something else.
    pub(super) fn query(&self, core: &ShardState, now_ms: u64, query: &Query) -> Option<Reply> {
        if !SoftTable::is_about_tables(core, query) {
            return None;
        }
        let answer = self.table.as_ref().and_then(|table| table.query(core, now_ms, query));
        Some(answer.unwrap_or_else(|| Reply { outcome: Err(not_begun()), clock_ms: now_ms, awaits: None }))
    }

    /// Records the clocks of an entry.
    pub(super) fn begin_entry(&mut self, context: &EntryContext) {
        self.last_entry = (context.now_ms, context.wall_ms);
    }

    /// Follows an effect of an entry of the log.
    pub(super) fn follow(&mut self, context: &EntryContext, effect: &Effect) {
        if let Some(table) = &mut self.table {
            table.follow(context, effect);
        }
    }

    /// Ends what is due at this clock. Returns when more is due.
    pub(super) fn advance(&mut self, now_ms: u64, rules: Rules) -> Option<u64> {
        let context = self.context(now_ms, rules);
        let table = self.table.as_mut()?;
        if table.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
            table.advance(&context);
        }
        self.scheduled_ms = table.next_deadline_ms();
        self.scheduled_ms
    }

    /// Takes what its changes mean for others than the callers.
    pub(super) fn take_effects(&mut self) -> Vec<Effect> {
        self.table.as_mut().map(SoftTable::take_effects).unwrap_or_default()
    }

    /// Returns whether there is something to write, or is due before it is expected.
    pub(super) fn needs_wakeup(&self) -> bool {
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
        let command = match self.table.as_ref().filter(|table| table.is_current(core)) {
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
            (TableCommand::BeginEpoch { .. }, table) => *table = SoftTable::begin(core, given),
            (_, Some(table)) => table.add_block(given),
            (_, None) => {}
        }
    }
}

fn not_begun() -> CommandError {
    CommandError::Busy("the leader's epoch of the lock table has not begun".to_owned())
}

#[cfg(test)]
mod tests {
    use holdfast_core::{
        Application, Claim, Command, Durability, Limits, LocksCommand, MessageSeq, Metadata, Mode, NamespaceMessage,
        OpenSession, OpenTableSession, Path, RequestId, SessionAcquire, SessionRequest, Wait,
    };

    use super::*;
    use crate::testing::namespace;

    const CONTEXT: EntryContext = EntryContext { now_ms: 1_000, wall_ms: 5_000, rules: Rules::TWO };

    fn apply(core: &mut ShardState, command: LocksCommand) -> Response {
        core.advance(&CONTEXT);
        core.apply(&CONTEXT, &Command::Locks(command)).outcome.expect("nothing is refused")
    }

    fn core() -> ShardState {
        let mut core = ShardState::new(Application::Locks, "locks_00");
        let message = NamespaceMessage::open_durable(namespace(), Limits::default(), Durability::Session);
        apply(&mut core, LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
        core
    }

    /// Writes what is to be written for the tables.
    fn write(tables: &mut SoftTables, core: &mut ShardState, attempt: u64) -> TableCommand {
        let command = tables.next_command(core, || Some(attempt)).expect("there is something to write");
        assert_eq!(tables.next_command(core, || Some(attempt + 1)), None, "one at a time");
        let outcome = apply(core, LocksCommand::Table(command.clone()));
        tables.written(core, &command, Some(&outcome));
        command
    }

    fn acquire(core: &mut ShardState) -> SessionCommand {
        let open = OpenSession {
            namespace: namespace(),
            session_id: "se_1".into(),
            resume: false,
            request_id: RequestId([0; 16]),
            process_id: "p".into(),
            ttl_ms: 10_000,
            metadata: Metadata::new(),
        };
        let open = TableCommand::OpenSession(OpenTableSession { open, transition_ms: 0 });
        let Response::TableSessionOpened { session, .. } = apply(core, LocksCommand::Table(open)) else {
            panic!("it is not opened")
        };
        let request = SessionRequest::Acquire(SessionAcquire {
            holder: None,
            claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
            transition_ms: 0,
            wait: Wait::No,
            allow_upgrade: false,
            request_id: "r".into(),
        });
        let message = MessageSeq { epoch: session.epoch, seq: 1 };
        SessionCommand { account: namespace().account, session: session.number, message, request }
    }

    #[test]
    fn nothing_is_written_for_a_shard_without_soft_tables() {
        let core = ShardState::new(Application::Locks, "locks_00");
        assert_eq!(SoftTables::default().next_command(&core, || panic!("no attempt is needed")), None);
    }

    #[test]
    fn a_leader_grants_once_its_epoch_has_begun() {
        let (mut core, mut tables) = (core(), SoftTables::default());
        let acquire = acquire(&mut core);
        let apply =
            |tables: &mut SoftTables, core: &ShardState| tables.apply(core, (1_000, Rules::TWO), &acquire).outcome;
        assert!(matches!(apply(&mut tables, &core), Err(CommandError::Busy(_))));
        assert_eq!(write(&mut tables, &mut core, 7), TableCommand::BeginEpoch { attempt: 7 });
        assert!(matches!(apply(&mut tables, &core), Err(CommandError::Busy(_))), "the session is of before");
        assert_eq!(tables.next_command(&core, || Some(8)), None);
    }

    #[test]
    fn a_session_of_the_epoch_is_granted_its_lock_without_an_entry() {
        let (mut core, mut tables) = (core(), SoftTables::default());
        write(&mut tables, &mut core, 7);
        let acquire = acquire(&mut core);
        let before = core.snapshot();
        let reply = tables.apply(&core, (1_000, Rules::TWO), &acquire);
        assert!(matches!(reply.outcome, Ok(Response::Granted { .. })), "{reply:?}");
        assert_eq!(core.snapshot(), before);
        let query = Query::Lock { namespace: namespace(), path: Path::flat("l") };
        let reply = tables.query(&core, 1_000, &query).expect("it is about the tables");
        assert!(matches!(reply.outcome, Ok(Response::Lock(lock)) if lock.holders_total == 1));
    }

    #[test]
    fn an_outcome_that_is_not_known_is_found_out_by_another_attempt() {
        let (mut core, mut tables) = (core(), SoftTables::default());
        let lost = tables.next_command(&core, || Some(7)).expect("it begins");
        apply(&mut core, LocksCommand::Table(lost.clone()));
        tables.written(&core, &lost, None);
        assert_eq!(write(&mut tables, &mut core, 8), TableCommand::BeginEpoch { attempt: 8 });
        let session = acquire(&mut core);
        let reply = tables.apply(&core, (1_000, Rules::TWO), &session);
        assert!(reply.outcome.is_ok(), "{reply:?}");
    }
}
