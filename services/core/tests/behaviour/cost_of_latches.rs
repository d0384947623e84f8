//! Rows of the table of costs for latches.

use holdfast_core::{
    CountDown, CreateLatch, Jobs, LatchCommand, LatchIds, LatchQuery, LatchRef, LocksCommand, Path, Query, Response,
};

use crate::cost_table::{Action, Setup, command_action, purge_action, query_action};
use crate::primitives::create;
use crate::support::{Shard, orders};

/// Ids that one call counts.
const MAX_IDS: usize = 100;

pub(crate) const ROWS: &[(&str, Setup)] = &[
    ("create of a latch; there are others", |shard, things| {
        latches(shard, things);
        latch_action(LatchCommand::Create(create("new", 1, LatchIds::Named)))
    }),
    ("count-down of 100 ids; others are done", |shard, things| {
        named(shard, things, things + 2 * MAX_IDS);
        count_action(ids(things..things + MAX_IDS))
    }),
    ("count-down of 100 ids that were counted", |shard, things| {
        named(shard, things, things + 1);
        count_action(ids(0..MAX_IDS))
    }),
    ("count-down of the last id", |shard, things| {
        named(shard, things, things + 1);
        count_action(ids(things..things + 1))
    }),
    ("count-down of a range of all indexes", |shard, things| {
        indexed(shard, things);
        count_action(Jobs::Indexed(vec![(0, things as u64 - 1)]))
    }),
    ("count-down of 100 ranges of indexes", |shard, things| {
        indexed(shard, things);
        let each = things as u64 / MAX_IDS as u64;
        let range = |number: u64| (number * each, (number + 1) * each - 1);
        count_action(Jobs::Indexed((0..MAX_IDS as u64).map(range).collect()))
    }),
    ("growth of the total of an indexed latch", |shard, things| {
        indexed(shard, things);
        latch_action(LatchCommand::SetTotal { latch: latch(), total: 2 * things as u64, if_total: None })
    }),
    ("delete of a latch with ids that are done", |shard, things| {
        named(shard, things, things + 1);
        latch_action(LatchCommand::Delete(latch()))
    }),
    ("expiry of latches at one instant", |shard, things| {
        latches(shard, things);
        Box::new(|shard| shard.advance_by(10_000))
    }),
    ("end of the retention of latches at one instant", |shard, things| {
        latches(shard, things);
        shard.advance_by(10_000);
        while shard.core.has_backlog() {
            shard.advance_by(0);
        }
        Box::new(|shard| shard.advance_by(60_000))
    }),
    ("purge of a namespace with latches", |shard, things| {
        latches(shard, things);
        purge_action()
    }),
    ("wait for a latch with ids that are done", |shard, things| {
        named(shard, things, things + 1);
        query_action(Query::Latch(LatchQuery::Wait { latch: latch(), wait_ms: 0 }))
    }),
    ("page of 100 ids of a latch", |shard, things| {
        named(shard, things, things + 1);
        query_action(Query::Latch(LatchQuery::Get { latch: latch(), after: None, limit: 100 }))
    }),
    ("page of 100 ranges of a latch", |shard, things| {
        indexed(shard, 2 * things);
        for first in (0..things).step_by(MAX_IDS) {
            let one = |number: usize| (2 * number as u64, 2 * number as u64);
            count(shard, Jobs::Indexed((first..things.min(first + MAX_IDS)).map(one).collect()));
        }
        query_action(Query::Latch(LatchQuery::Get { latch: latch(), after: None, limit: 100 }))
    }),
    ("page of 100 latches", |shard, things| {
        latches(shard, things);
        let list = LatchQuery::List { namespace: orders(), prefix: Path::default(), after: None, limit: 100 };
        query_action(Query::Latch(list))
    }),
];

fn latch() -> LatchRef {
    LatchRef { namespace: orders(), path: Path::flat("l"), id: None }
}

fn run(shard: &mut Shard, command: LatchCommand) -> Response {
    shard.run(LocksCommand::Latch(command)).expect("it is accepted")
}

/// So many latches that expire together.
fn latches(shard: &mut Shard, things: usize) {
    for number in 0..things {
        run(shard, LatchCommand::Create(create(&format!("l{number}"), 1, LatchIds::Named)));
    }
}

/// A latch of which so many ids are done.
fn named(shard: &mut Shard, done: usize, total: usize) {
    run(shard, LatchCommand::Create(lasting(create("l", total as u64, LatchIds::Named))));
    for first in (0..done).step_by(MAX_IDS) {
        count(shard, ids(first..done.min(first + MAX_IDS)));
    }
}

fn indexed(shard: &mut Shard, total: usize) {
    run(shard, LatchCommand::Create(lasting(create("l", total as u64, LatchIds::Indexed))));
}

fn lasting(create: CreateLatch) -> CreateLatch {
    CreateLatch { expires_in_ms: 600_000, ..create }
}

fn ids(numbers: std::ops::Range<usize>) -> Jobs {
    Jobs::Named(numbers.map(|number| format!("job-{number:06}")).collect())
}

fn count(shard: &mut Shard, jobs: Jobs) {
    run(shard, LatchCommand::CountDown(CountDown { latch: latch(), jobs }));
}

fn latch_action(command: LatchCommand) -> Action {
    command_action(LocksCommand::Latch(command))
}

fn count_action(jobs: Jobs) -> Action {
    latch_action(LatchCommand::CountDown(CountDown { latch: latch(), jobs }))
}
