//! Rows of the table of costs for conditions of locks.

use holdfast_core::{
    Acquire, AcquireOutcome, AwaitCondition, CancelAwait, ConditionCommand, ConditionQuery, FencingToken, LocksCommand,
    Owner, Path, Query, Release, ReleaseTarget, SignalCondition,
};

use crate::conditions::await_command;
use crate::cost_table::{Action, SESSION, Setup, command_action, purge_action, query_action};
use crate::support::{Shard, orders, process};
use crate::wait_requests::{try_request, wait_request, write};

/// Owners that await one lock with default limits.
const MAX_AWAITING: usize = 1_000;

pub(crate) const ROWS: &[(&str, Setup)] = &[
    ("await of a condition that others await", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING - 1));
        let token = lock(shard, "q");
        condition_action(ConditionCommand::Await(await_command(process("q"), token, "c")))
    }),
    ("await of a condition before those who wait for the lock", |shard, things| {
        let token = lock(shard, "q");
        for number in 0..things {
            shard.enqueued(wait_request(&format!("w{number}"), &[write("l")]));
        }
        condition_action(ConditionCommand::Await(await_command(process("q"), token, "c")))
    }),
    ("repeat of an await", |shard, things| {
        let tokens = awaiting(shard, things.min(MAX_AWAITING));
        condition_action(ConditionCommand::Await(await_command(process("w7"), tokens[7], "c")))
    }),
    ("cancel of an await", |shard, things| {
        let tokens = awaiting(shard, things.min(MAX_AWAITING));
        let (namespace, path, owner) = (orders(), Path::flat("l"), process("w7"));
        let cancel = CancelAwait { namespace, path, owner, fencing_token: tokens[7], attempts: vec![7] };
        condition_action(ConditionCommand::Cancel(cancel))
    }),
    ("signal to one of those who await", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        lock(shard, "s");
        signal_action(false)
    }),
    ("signal to all who await", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        lock(shard, "s");
        signal_action(true)
    }),
    ("signal that nobody awaits; others await another condition", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        lock(shard, "s");
        condition_action(ConditionCommand::Signal(SignalCondition { condition: "d".into(), ..signal(false) }))
    }),
    ("end of the time of all awaits, beside a holder", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        lock(shard, "s");
        Box::new(|shard| shard.advance_by(10_000))
    }),
    ("release of a lock that those wait for who were signalled", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        lock(shard, "s");
        signal_action(true)(shard);
        finish(shard);
        let what = ReleaseTarget::Paths { paths: vec![Path::flat("l")], fencing_token: None };
        let owner = process("s");
        command_action(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
    }),
    ("close of a session that awaits conditions", |shard, things| {
        awaits_of_session(shard, things);
        command_action(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("purge of a namespace with awaits", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        purge_action()
    }),
    ("page of 100 who await", |shard, things| {
        awaiting(shard, things.min(MAX_AWAITING));
        let waits = ConditionQuery::Waits { namespace: orders(), path: None, after: None, limit: 100 };
        query_action(Query::Condition(waits))
    }),
    ("page of 100 conditions", |shard, things| {
        awaits_of_session(shard, things);
        let list = ConditionQuery::List { namespace: orders(), prefix: Path::default(), after: None, limit: 100 };
        query_action(Query::Condition(list))
    }),
];

fn lock(shard: &mut Shard, owner: &str) -> FencingToken {
    shard.granted(try_request(owner, &[write("l")]))
}

fn try_await(shard: &mut Shard, awaits: AwaitCondition) {
    let outcome = shard.try_await(awaits);
    assert!(matches!(outcome, Ok((AcquireOutcome::Enqueued(_), None))), "{outcome:?}");
}

/// So many owners await a condition of one lock. Returns what each gave up.
fn awaiting(shard: &mut Shard, things: usize) -> Vec<FencingToken> {
    let give_up = |number: usize| {
        let owner = format!("w{number}");
        let token = lock(shard, &owner);
        try_await(shard, await_command(process(&owner), token, "c"));
        token
    };
    (0..things).map(give_up).collect()
}

/// So many threads of a session, each of which awaits a condition of a lock of its own.
fn awaits_of_session(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        let owner = Owner::Session { session_id: SESSION.into(), holder: Some(format!("t{number}")) };
        let name = format!("l{number}");
        let token = shard.granted(Acquire { owner: owner.clone(), ttl_ms: None, ..try_request("", &[write(&name)]) });
        try_await(shard, AwaitCondition { path: Path::flat(name), ..await_command(owner, token, "c") });
    }
}

fn signal(all: bool) -> SignalCondition {
    SignalCondition {
        namespace: orders(),
        path: Path::flat("l"),
        owner: process("s"),
        condition: "c".into(),
        all,
        fencing_token: None,
        signal_id: None,
        message: None,
    }
}

fn finish(shard: &mut Shard) {
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
}

fn condition_action(command: ConditionCommand) -> Action {
    command_action(LocksCommand::Condition(command))
}

fn signal_action(all: bool) -> Action {
    condition_action(ConditionCommand::Signal(signal(all)))
}
