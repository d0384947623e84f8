use holdfast_core::{
    Application, Bounds, LocksCommand, Metadata, Mode, Path, ReportedHold, ReportedRequest, Response, SessionCommand,
    TableCommand, TableReport,
};

use super::super::tests::{acquire, core, outcome, with_namespace, write};
use super::*;
use crate::testing::namespace;

/// More than two steps enter.
const LOCKS: u64 = 600;

/// Steps of one claim each enter so many.
const SMALL_LOCKS: u64 = 5;

/// A shard whose steps enter one claim each.
fn core_of_small_steps() -> ShardState {
    let bounds = Bounds { ends_per_slice: 1, ..Bounds::of(Rules::TWO) };
    with_namespace(ShardState::with_bounds(Application::Locks, "locks_00", bounds))
}

fn report_of(core: &ShardState, session: &SessionCommand, locks: u64) -> TableReport {
    TableReport {
        namespace: namespace(),
        session: session.session,
        connection_epoch: session.message.epoch,
        seq: 0,
        table_epoch: core.table_epoch(),
        part: 1,
        parts: 1,
        granted: (0..locks).map(request).collect(),
        pending: Vec::new(),
    }
}

fn request(number: u64) -> ReportedRequest {
    let path = Path::flat(format!("l{number}"));
    ReportedRequest {
        request_id: format!("r{number}"),
        holder: None,
        metadata: Metadata::new(),
        claimed: 1,
        claims: vec![ReportedHold { path, mode: Mode::Write, fencing_token: number + 1 }],
    }
}

#[test]
fn a_large_table_is_entered_in_steps_and_who_waits_is_woken_after_the_last() {
    let (mut core, mut tables) = (core(), SoftTables::default());
    write(&mut tables, &mut core, 7);
    let LocksCommand::Session(earlier) = acquire(&mut core, 1) else { panic!("it is of a session") };
    tables.end();
    write(&mut tables, &mut core, 8);
    let later = acquire(&mut core, 2);
    assert!(tables.take_wakes_all() && tables.must_wait(&core, &later));
    let report = LocksCommand::Table(TableCommand::Report(report_of(&core, &earlier, LOCKS)));
    assert_eq!(outcome(&mut tables, &core, &report), Ok(Response::Done));
    assert!(tables.needs_wakeup(), "a task goes on with it");
    for goes_on in [true, false] {
        assert!(tables.must_wait(&core, &later) && !tables.take_wakes_all());
        let due_ms = tables.advance(&core, 1_000, Rules::TWO);
        assert_eq!(due_ms.is_some_and(|due_ms| due_ms <= 1_000), goes_on);
    }
    assert!(!tables.must_wait(&core, &later) && tables.take_wakes_all());
    assert!(matches!(outcome(&mut tables, &core, &later), Ok(Response::Granted { .. })));
}

#[test]
fn steps_of_one_claim_each_go_on_by_themselves_and_wake_who_waits_once() {
    let (mut core, mut tables) = (core_of_small_steps(), SoftTables::default());
    write(&mut tables, &mut core, 7);
    let LocksCommand::Session(earlier) = acquire(&mut core, 1) else { panic!("it is of a session") };
    tables.end();
    write(&mut tables, &mut core, 8);
    assert!(tables.take_wakes_all());
    let report = LocksCommand::Table(TableCommand::Report(report_of(&core, &earlier, SMALL_LOCKS)));
    assert_eq!(outcome(&mut tables, &core, &report), Ok(Response::Done));
    let (mut steps, mut wakeups) = (1, 0);
    loop {
        // The call did the first step. Until a task has gone on, it is to be woken.
        assert!(tables.needs_wakeup() || steps > 1, "a task goes on with it");
        let due_ms = tables.advance(&core, 1_000, Rules::TWO);
        (steps, wakeups) = (steps + 1, wakeups + u64::from(tables.take_wakes_all()));
        assert!(!tables.needs_wakeup(), "the task knows when it goes on");
        if due_ms.is_none_or(|due_ms| due_ms > 1_000) {
            break;
        }
        assert_eq!(wakeups, 0, "after step {steps} of {SMALL_LOCKS}");
    }
    assert_eq!((steps, wakeups), (SMALL_LOCKS, 1));
}
