//! Tests of the tables of a leader: when they begin, and what waits for them.

use holdfast_core::{
    Application, Bounds, Claim, Command, Durability, Kinds, Limits, MessageSeq, Metadata, Mode, NamespaceMessage,
    OpenSession, Path, RequestId, SessionAcquire, SessionCommand, SessionRequest, TableReport, Wait,
};

use super::*;
use crate::testing::namespace;

const CONTEXT: EntryContext = EntryContext { now_ms: 1_000, wall_ms: 5_000, rules: Rules::TWO };

fn apply(core: &mut ShardState, command: LocksCommand) -> Response {
    core.advance(&CONTEXT);
    core.apply(&CONTEXT, &Command::Locks(command)).outcome.expect("nothing is refused")
}

pub(super) fn core() -> ShardState {
    with_namespace(ShardState::new(Application::Locks, "locks_00"))
}

/// The shard with a namespace whose lock table is in the leader's memory.
pub(super) fn with_namespace(mut core: ShardState) -> ShardState {
    let message = NamespaceMessage::open_durable(namespace(), Limits::default(), Durability::Session);
    apply(&mut core, LocksCommand::Deliver { source: "namespaces_00".into(), number: 1, message });
    core
}

/// Writes what is to be written for the tables.
pub(super) fn write(tables: &mut SoftTables, core: &mut ShardState, attempt: u64) -> TableCommand {
    let command = tables.next_command(core, || Some(attempt)).expect("there is something to write");
    assert_eq!(tables.next_command(core, || Some(attempt + 1)), None, "one at a time");
    let outcome = apply(core, LocksCommand::Table(command.clone()));
    tables.written(core, &command, Some(&outcome));
    command
}

fn opening(number: u8) -> LocksCommand {
    let open = OpenSession {
        namespace: namespace(),
        session_id: format!("se_{number}"),
        resume: false,
        request_id: RequestId([number; 16]),
        process_id: "p".into(),
        ttl_ms: 10_000,
        metadata: Metadata::new(),
    };
    LocksCommand::Table(TableCommand::OpenSession(OpenTableSession { open, transition_ms: 0 }))
}

/// The report of a session that the log does not have.
fn report_of_nobody(table_epoch: u64) -> LocksCommand {
    LocksCommand::Table(TableCommand::Report(TableReport {
        namespace: namespace(),
        session: 7,
        connection_epoch: 1,
        seq: 0,
        table_epoch,
        part: 1,
        parts: 1,
        granted: Vec::new(),
        pending: Vec::new(),
    }))
}

/// Opens a session, and returns what it asks for.
pub(super) fn acquire(core: &mut ShardState, number: u8) -> LocksCommand {
    let Response::TableSessionOpened { session, .. } = apply(core, opening(number)) else { panic!("it is not opened") };
    let request = SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![Claim { path: Path::flat("l"), mode: Mode::Write }],
        transition_ms: 0,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: "r".into(),
    });
    let message = MessageSeq { epoch: session.epoch, seq: 1 };
    LocksCommand::Session(SessionCommand { account: namespace().account, session: session.number, message, request })
}

pub(super) fn outcome(
    tables: &mut SoftTables,
    core: &ShardState,
    command: &LocksCommand,
) -> Result<Response, CommandError> {
    tables.apply(core, (1_000, Rules::TWO), command).expect("it is for the tables").outcome
}

#[test]
fn nothing_is_written_for_a_shard_without_soft_tables() {
    let core = ShardState::new(Application::Locks, "locks_00");
    assert_eq!(SoftTables::default().next_command(&core, || panic!("no attempt is needed")), None);
}

#[test]
fn what_is_for_the_tables_waits_for_the_epoch_and_for_the_end_of_sessions_of_before() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    assert!(tables.must_wait(&core, &opening(1)), "it would be of before");
    assert!(matches!(outcome(&mut tables, &core, &opening(1)), Err(CommandError::Busy(_))));
    let earlier = acquire(&mut core, 1);
    assert!(tables.must_wait(&core, &earlier));
    assert!(matches!(outcome(&mut tables, &core, &earlier), Err(CommandError::Busy(_))));

    assert_eq!(write(&mut tables, &mut core, 7), TableCommand::BeginEpoch { attempt: 7 });
    assert!(tables.needs_wakeup() && !tables.needs_wakeup(), "who waits is woken once");
    assert_eq!(tables.next_command(&core, || Some(8)), None);
    assert!(!tables.must_wait(&core, &opening(2)) && tables.apply(&core, (1_000, Rules::TWO), &opening(2)).is_none());
    let later = acquire(&mut core, 2);
    assert!(tables.must_wait(&core, &later), "the other one may hold something");
    assert!(!tables.must_wait(&core, &earlier), "it hears at once that it has to be reported");
    let unreported = Err(CommandError::Unreported { table_epoch: core.table_epoch() });
    assert_eq!(outcome(&mut tables, &core, &earlier), unreported);
    let close = LocksCommand::CloseSession { namespace: namespace(), session_id: "se_1".into(), message: None };
    assert!(!tables.must_wait(&core, &close));
    apply(&mut core, close);
    assert!(!tables.must_wait(&core, &later));
    assert!(matches!(outcome(&mut tables, &core, &later), Ok(Response::Granted { .. })));
}

#[test]
fn a_report_without_a_session_is_refused_before_and_without_an_epoch() {
    let empty = ShardState::new(Application::Locks, "locks_00");
    for core in [core(), empty] {
        let mut tables = SoftTables::default();
        let report = report_of_nobody(core.table_epoch());
        assert!(!tables.must_wait(&core, &report));
        assert!(matches!(outcome(&mut tables, &core, &report), Err(CommandError::SessionNotFound(_))));
    }
}

#[test]
fn a_report_of_a_later_epoch_says_nothing_of_a_session_that_the_log_does_not_have_yet() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    let later = report_of_nobody(core.table_epoch() + 1);
    assert!(tables.must_wait(&core, &later));
    assert!(matches!(outcome(&mut tables, &core, &later), Err(CommandError::Busy(_))));

    write(&mut tables, &mut core, 7);
    let table_epoch = core.table_epoch();
    let later = report_of_nobody(table_epoch + 1);
    assert_eq!(outcome(&mut tables, &core, &later), Err(CommandError::Unreported { table_epoch }));
    let present = report_of_nobody(table_epoch);
    assert!(matches!(outcome(&mut tables, &core, &present), Err(CommandError::SessionNotFound(_))));
}

#[test]
fn a_session_of_the_epoch_is_granted_its_lock_without_an_entry() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    write(&mut tables, &mut core, 7);
    let acquire = acquire(&mut core, 1);
    let before = core.snapshot();
    let granted = outcome(&mut tables, &core, &acquire);
    assert!(matches!(granted, Ok(Response::Granted { .. })), "{granted:?}");
    assert_eq!(core.snapshot(), before);
    let query = Query::Lock { namespace: namespace(), path: Path::flat("l") };
    let reply = tables.query(&core, 1_000, &query).expect("it is about the tables").finish();
    assert!(matches!(reply.outcome, Ok(Response::Lock(lock)) if lock.holders_total == 1));
    let usage =
        tables.query(&core, 1_000, &Query::Usage { namespace: namespace() }).map(|reply| reply.finish().outcome);
    assert_eq!(usage, Some(Ok(Response::Usage { holds: 1, waiting: 0, sessions: 1 })));
    assert!(tables.query(&core, 1_000, &Query::AccountUsage { account: namespace().account }).is_none());
}

#[test]
fn a_table_without_room_grants_nothing_new_and_takes_what_is_given_up() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    tables.set_memory(Some(NodeMemory::of_tables(9_000)));
    write(&mut tables, &mut core, 7);
    let (first, second) = (acquire(&mut core, 1), acquire(&mut core, 2));
    assert!(outcome(&mut tables, &core, &first).is_ok());
    tables.take_effects();
    assert!(tables.bytes() > 9_000, "{}", tables.bytes());
    let refused = outcome(&mut tables, &core, &second).expect_err("there is no room");
    assert_eq!(refused.limit().map(|limit| limit.name), Some("max_table_bytes"));
    assert!(outcome(&mut tables, &core, &first).is_ok(), "it is a repeat");
    let both = LocksCommand::Batch(vec![second.clone(), first]);
    let Ok(Response::Batch(outcomes)) = outcome(&mut tables, &core, &both) else { panic!("no list") };
    assert!(matches!(&outcomes[..], [Err(CommandError::QuotaExceeded { .. }), Ok(_)]), "{outcomes:?}");

    let close = LocksCommand::CloseSession { namespace: namespace(), session_id: "se_1".into(), message: None };
    apply(&mut core, close);
    for effect in core.take_effects() {
        tables.follow(&effect);
    }
    tables.settle(&core, &CONTEXT);
    tables.take_effects();
    assert!(tables.bytes() < 9_000, "{}", tables.bytes());
    assert!(outcome(&mut tables, &core, &second).is_ok());
}

/// A shard that keeps no events where there is little memory, with the event of a grant. Returns what another asks for.
fn with_events(memory: Option<NodeMemory>) -> (ShardState, SoftTables, LocksCommand) {
    let bounds = Bounds { min_event_bytes: 0, ..Bounds::of(Rules::TWO) };
    let state = ShardState::with_bounds(Application::Locks, "locks_00", bounds);
    let (mut core, mut tables) = (with_namespace(state), SoftTables::default());
    tables.set_memory(memory);
    write(&mut tables, &mut core, 7);
    let (first, second) = (acquire(&mut core, 1), acquire(&mut core, 2));
    assert!(outcome(&mut tables, &core, &first).is_ok());
    tables.take_effects();
    (core, tables, second)
}

/// Returns whether a reader gets all events of the epoch.
fn has_events(core: &ShardState, tables: &SoftTables) -> bool {
    let (from_revision, prefix, kinds, limit) = (Some(core.table_epoch()), Path::default(), Kinds::LOCKS, 10);
    let query = Query::Events { namespace: namespace(), from_revision, prefix, kinds, limit };
    assert!(!tables.must_wait_to_answer(core, &namespace(), &query));
    tables.query(core, 1_000, &query).expect("it is about the tables").finish().outcome.is_ok()
}

#[test]
fn events_give_way_to_locks_where_there_is_little_memory() {
    for (memory, has_room) in [(None, true), (Some(NodeMemory::of_tables(9_000)), false)] {
        let (core, tables, _) = with_events(memory);
        assert_eq!(has_events(&core, &tables), has_room);
    }
}

#[test]
fn an_account_over_its_limit_loses_its_own_events_and_no_others() {
    for (over, stay) in [(AccountId(999), true), (namespace().account, false)] {
        let node = NodeMemory::of_tables(u64::MAX);
        let (core, mut tables, second) = with_events(Some(node.clone()));
        let other = ShardMemory::new(node);
        other.update(&[Charge { account: over, bytes: 1 << 60, max: 1 }]);
        tables.apply(&core, (1_000, Rules::TWO), &second).expect("it is for the tables");
        tables.take_effects();
        assert_eq!(has_events(&core, &tables), stay, "{over:?} is over its limit");
    }
}

#[test]
fn events_give_way_to_what_other_shards_take_before_a_lock_is_refused_and_while_nobody_calls() {
    let limit = 1_000_000;
    for is_idle in [true, false] {
        let node = NodeMemory::of_tables(limit);
        let (core, mut tables, second) = with_events(Some(node.clone()));
        assert!(has_events(&core, &tables));
        let (other, bytes) = (ShardMemory::new(node), limit - tables.bytes());
        other.update(&[Charge { account: AccountId(999), bytes, max: limit }]);
        if is_idle {
            tables.advance(&core, 1_000, Rules::TWO);
            tables.take_effects();
        } else {
            let second = outcome(&mut tables, &core, &second);
            assert!(!matches!(second, Err(CommandError::QuotaExceeded { .. })), "there is room now: {second:?}");
        }
        assert!(!has_events(&core, &tables));
    }
}

#[test]
fn who_waits_for_revisions_is_woken_once_there_are_more() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    write(&mut tables, &mut core, 7);
    assert!(tables.needs_wakeup() && !tables.needs_wakeup());
    let Some((epoch, after)) = tables.table.as_ref().map(|table| (table.epoch(), u64::MAX)) else { panic!("begun") };
    let reserve = TableCommand::ReserveBlock { epoch, after };
    let given = apply(&mut core, LocksCommand::Table(reserve.clone()));
    tables.written(&core, &reserve, Some(&given));
    assert!(tables.needs_wakeup() && !tables.needs_wakeup());
}

#[test]
fn only_the_leader_says_that_its_table_has_begun() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    let query = Query::TableState { namespace: namespace() };
    let is_ready = |tables: &SoftTables, core: &ShardState| {
        let mut response = core.query(1_000, &query).outcome.expect("it is open");
        tables.complete(core, &query, &mut response);
        match response {
            Response::TableState(state) => (state.is_ready(), state.since_ms),
            other => panic!("no state: {other:?}"),
        }
    };
    assert_eq!(is_ready(&tables, &core), (false, 0));
    tables.begin_entry(&CONTEXT);
    write(&mut tables, &mut core, 7);
    assert_eq!(is_ready(&tables, &core), (true, 5_000));
    apply(&mut core, LocksCommand::Table(TableCommand::BeginEpoch { attempt: 8 }));
    assert_eq!(is_ready(&tables, &core), (false, 0), "it is of an earlier epoch");
}

#[test]
fn an_outcome_that_is_not_known_is_found_out_by_another_attempt() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    let lost = tables.next_command(&core, || Some(7)).expect("it begins");
    apply(&mut core, LocksCommand::Table(lost.clone()));
    tables.written(&core, &lost, None);
    assert_eq!(write(&mut tables, &mut core, 8), TableCommand::BeginEpoch { attempt: 8 });
    let acquire = acquire(&mut core, 1);
    assert!(outcome(&mut tables, &core, &acquire).is_ok());
}
