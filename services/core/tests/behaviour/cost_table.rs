//! What each command costs as there is more and more: units, time for each, and how long the longest step keeps others
//! waiting. `HOLDFAST_COST_TABLE=FILE` measures up to 10,000 things and writes the table; otherwise 1,000 are enough to
//! see how the units grow.

use std::fmt::Write;
use std::time::{Duration, Instant};

use holdfast_core::{
    Acquire, Bounds, Claim, Kinds, Limits, LockInfo, LocksCommand, Mode, Owner, Path, Query, Release, ReleaseTarget,
    ReportedHold, Reset, Response, Rules,
};

use crate::support::{Shard, open, orders, process, purge};
use crate::wait_requests::{at, cancel_command, read, session_wait_request, try_request, wait_request, write};
use crate::{cost_of_barriers, cost_of_conditions, cost_of_latches, cost_of_permits};

/// How much of it is measured.
pub(crate) type Action = Box<dyn Fn(&mut Shard)>;
/// Makes a state with so many things, and says what is to be done in it.
pub(crate) type Setup = fn(&mut Shard, usize) -> Action;

/// What it took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    units: u64,
    took: Duration,
    /// Entries of the log, with those that go on with what was begun.
    entries: usize,
    /// Of one entry.
    max_units: u64,
    longest: Duration,
}

pub(crate) const SESSION: &str = "se_1";
/// The least of so many times is taken.
const RUNS: usize = 3;
/// No entry takes more: finding out three times who waits for whom, with what is around it.
const MAX_ENTRY_UNITS: u64 = 40_000;
/// An entry ends or grants this many things at least, if there are more.
const GRANTS_PER_SLICE: usize = Bounds::of(Rules::TWO).grants_per_slice;
/// No entry for other things than locks takes more than a slice.
const A_SLICE: u64 = 4_096;

const ROWS: &[(&str, Setup)] = &[
    ("acquire of a free lock; others are held", |shard, things| {
        holds(shard, "p", things);
        acquire_action(try_request("q", &[write("new")]))
    }),
    ("acquire of 64 free locks", |shard, things| {
        holds(shard, "p", things);
        let claims: Vec<Claim> = (0..64).map(|number| write(&format!("new/{number}"))).collect();
        acquire_action(try_request("q", &claims))
    }),
    ("try that readers are in the way of", |shard, things| {
        readers(shard, things);
        acquire_action(try_request("q", &[write("l")]))
    }),
    ("try of everything, under which others hold", |shard, things| {
        holds(shard, "p", things);
        acquire_action(try_request("q", &[write("")]))
    }),
    ("try among those who wait and are waited for", |shard, things| {
        tangled(shard, things);
        acquire_action(try_request("q", &[write("l1")]))
    }),
    ("acquire that joins a queue", |shard, things| {
        queue(shard, things);
        acquire_action(wait_request("q", &[write("l")]))
    }),
    ("acquire that joins those who wait and are waited for", |shard, things| {
        tangled(shard, things);
        acquire_action(wait_request("q", &[write("l1"), write("l2")]))
    }),
    ("repeat of a request that waits", |shard, things| {
        queue(shard, things);
        acquire_action(wait_request("w7", &[write("l")]))
    }),
    ("extension by an owner that holds much", |shard, things| {
        holds(shard, "p", things);
        acquire_action(try_request("p", &[write("h/p/0")]))
    }),
    ("release before one that waits", |shard, things| {
        queue(shard, things);
        release_action(process("holder"), Some("l"))
    }),
    ("release before a crowd of readers", |shard, things| {
        queue_of_readers(shard, things);
        release_action(process("holder"), Some("l"))
    }),
    ("release under those who wait for all", |shard, things| {
        root_waiters(shard, things);
        release_action(process("h3"), Some("l/3"))
    }),
    ("release by one who is waited for by many who are too", |shard, things| {
        tangled(shard, things);
        release_action(process("h"), Some("l1"))
    }),
    ("cancel", |shard, things| {
        queue(shard, things);
        command_action(cancel_command(&wait_request("w7", &[write("l")])))
    }),
    ("release of all", |shard, things| {
        holds(shard, "p", things);
        release_action(process("p"), None)
    }),
    ("close of a session", |shard, things| {
        session_with(shard, things);
        command_action(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("expiry of all at one instant", |shard, things| {
        holds(shard, "p", things);
        Box::new(|shard| shard.advance_by(60_000))
    }),
    ("timeout of all at one instant", |shard, things| {
        queue(shard, things);
        Box::new(|shard| shard.advance_by(10_000))
    }),
    ("timeout of all requests for 64 locks each", |shard, things| {
        queue_for_many(shard, things, |number| wait_request(&format!("w{number}"), &[]));
        Box::new(|shard| shard.advance_by(10_000))
    }),
    ("close of a session that waits for many locks", |shard, things| {
        shard.open_session(SESSION);
        queue_for_many(shard, things, |number| {
            let owner = Owner::Session { session_id: SESSION.into(), holder: Some(format!("t{number}")) };
            Acquire { owner, ..session_wait_request(SESSION, &format!("r{number}"), &[]) }
        });
        command_action(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("delete of a lock with many readers", |shard, things| {
        readers(shard, things);
        command_action(LocksCommand::Delete { namespace: orders(), path: Path::flat("l") })
    }),
    ("reset", |shard, things| {
        holds(shard, "p", things);
        command_action(LocksCommand::Reset(Reset {
            namespace: orders(),
            live_owners: vec![],
            before_revision: Some(u64::MAX),
        }))
    }),
    ("lock info that lists all", |shard, things| {
        session_with(shard, things);
        let held = (0..things).map(|number| reported_hold(shard, number)).collect();
        command_action(lock_info(held))
    }),
    ("lock info that lists nothing", |shard, things| {
        session_with(shard, things);
        command_action(lock_info(vec![]))
    }),
    ("open of a session; there are others", |shard, things| {
        for number in 0..things {
            shard.open_session(&format!("se_x{number}"));
        }
        Box::new(|shard| drop(shard.open_session("se_new")))
    }),
    ("purge of a namespace with holds", |shard, things| {
        holds(shard, "p", things);
        purge_action()
    }),
    ("purge of a namespace with waits", |shard, things| {
        queue(shard, things);
        purge_action()
    }),
    ("get of a lock with many readers", |shard, things| {
        readers(shard, things);
        query_action(Query::Lock { namespace: orders(), path: Path::flat("l") })
    }),
    ("check", |shard, things| {
        holds(shard, "p", things);
        query_action(Query::Check { namespace: orders(), path: at("h/p/1"), fencing_token: 1 })
    }),
    ("keep-alive of a session of many holders", |shard, things| {
        holders_of_session(shard, things);
        query_action(Query::KeepAlive { namespace: orders(), session_id: SESSION.into(), epoch: None })
    }),
    ("page of 100 locks", |shard, things| {
        holds(shard, "p", things);
        query_action(Query::Locks { namespace: orders(), prefix: Path::default(), after: None, limit: 100 })
    }),
    ("page of 100 waits", |shard, things| {
        queue(shard, things);
        query_action(Query::Waits { namespace: orders(), after: None, limit: 100 })
    }),
    ("page of 100 sessions", |shard, things| {
        for number in 0..things {
            shard.open_session(&format!("se_x{number}"));
        }
        query_action(Query::Sessions { namespace: orders(), after: None, limit: 100 })
    }),
    ("events of a prefix that nothing matches", |shard, things| {
        holds(shard, "p", things);
        let prefix = Path::flat("nowhere");
        query_action(Query::Events {
            namespace: orders(),
            from_revision: Some(2),
            prefix,
            kinds: Kinds::LOCKS,
            limit: 100,
        })
    }),
];

/// The rows of other things than locks, and of conditions of locks.
fn of_things() -> Vec<(&'static str, Setup)> {
    [cost_of_permits::ROWS, cost_of_latches::ROWS, cost_of_barriers::ROWS, cost_of_conditions::ROWS].concat()
}

fn holds(shard: &mut Shard, owner: &str, things: usize) {
    let claims: Vec<Claim> = (0..things).map(|number| write(&format!("h/{owner}/{number}"))).collect();
    for claims in claims.chunks(64) {
        shard.granted(try_request(owner, claims));
    }
}

fn session_with(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        shard.granted(session_wait_request(SESSION, &format!("r{number}"), &[write(&held(number))]));
    }
}

fn holders_of_session(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        let owner = Owner::Session { session_id: SESSION.into(), holder: Some(format!("t{number}")) };
        shard.granted(Acquire {
            owner,
            ..session_wait_request(SESSION, &format!("r{number}"), &[write(&held(number))])
        });
    }
}

fn held(number: usize) -> String {
    format!("s/{number}")
}

fn reported_hold(shard: &Shard, number: usize) -> ReportedHold {
    let path = at(&held(number));
    let Ok(Response::Lock(lock)) = shard.query(&Query::Lock { namespace: orders(), path: path.clone() }) else {
        panic!("not a lock")
    };
    let fencing_token = lock.write_lock_holder.map_or(0, |holder| holder.fencing_token);
    ReportedHold { path, mode: Mode::Write, fencing_token }
}

fn readers(shard: &mut Shard, things: usize) {
    for number in 0..things {
        shard.granted(try_request(&format!("r{number}"), &[read("l")]));
    }
}

fn queue(shard: &mut Shard, things: usize) {
    shard.granted(try_request("holder", &[write("l")]));
    for number in 0..things {
        shard.enqueued(wait_request(&format!("w{number}"), &[write("l")]));
    }
}

/// Requests with 64 claims each, so many claims together.
fn queue_for_many(shard: &mut Shard, things: usize, request: impl Fn(usize) -> Acquire) {
    shard.granted(try_request("holder", &[write("l")]));
    for number in 0..things.div_ceil(64) {
        let others = (1..64).map(|claim| write(&format!("w/{number}/{claim}")));
        let claims = std::iter::once(write("l")).chain(others).collect();
        shard.enqueued(Acquire { claims, ..request(number) });
    }
}

fn queue_of_readers(shard: &mut Shard, things: usize) {
    shard.granted(try_request("holder", &[write("l")]));
    for number in 0..things {
        shard.enqueued(wait_request(&format!("w{number}"), &[read("l")]));
    }
}

fn root_waiters(shard: &mut Shard, things: usize) {
    for number in 0..16 {
        shard.granted(try_request(&format!("h{number}"), &[write(&format!("l/{number}"))]));
    }
    for number in 0..things {
        shard.enqueued(wait_request(&format!("w{number}"), &[read("l")]));
    }
}

/// Owners with 40 things each: holds that are awaited, and two requests. There are at most 200 of them.
fn tangled(shard: &mut Shard, things: usize) {
    shard.granted(try_request("h", &[write("l1"), write("l2")]));
    for number in 0..(things / 40).clamp(1, 200) {
        let owner = format!("f{number}");
        holds(shard, &owner, 36);
        shard.enqueued(wait_request(&owner, &[write("l1"), write("m1")]));
        shard.enqueued(wait_request(&owner, &[write("l2"), write("m2")]));
    }
}

pub(crate) fn command_action(command: LocksCommand) -> Action {
    Box::new(move |shard| {
        let answer = shard.run(command.clone());
        assert!(answer.is_ok(), "{answer:?}");
    })
}

fn acquire_action(request: Acquire) -> Action {
    command_action(LocksCommand::Acquire(request))
}

fn release_action(owner: Owner, path: Option<&str>) -> Action {
    let what = match path {
        Some(path) => ReleaseTarget::Paths { paths: vec![at(path)], fencing_token: None },
        None => ReleaseTarget::All,
    };
    command_action(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
}

fn lock_info(held: Vec<ReportedHold>) -> LocksCommand {
    LocksCommand::LockInfo(LockInfo {
        namespace: orders(),
        session_id: SESSION.into(),
        message: None,
        held,
        pending: vec![],
    })
}

pub(crate) fn purge_action() -> Action {
    Box::new(|shard| drop(shard.apply(&purge(3, orders()))))
}

pub(crate) fn query_action(query: Query) -> Action {
    Box::new(move |shard| {
        let answer = shard.query(&query);
        assert!(answer.is_ok(), "{answer:?}");
    })
}

/// The least of several times, each in a state of its own.
fn cost(make: Setup, things: usize) -> Cost {
    let costs = (0..RUNS).map(|_| cost_once(make, things));
    costs.min_by_key(|cost| cost.longest).expect("it is done some times")
}

fn cost_once(make: Setup, things: usize) -> Cost {
    let mut shard = Shard::with_bounds(Bounds::of(Rules::TWO));
    shard.rules = Rules::TWO;
    let limits = Limits {
        max_waiting_per_lock: 100_000,
        max_readers_per_lock: 10_000,
        // Those who wait count with those who hold.
        max_holds_per_semaphore: 20_000,
        max_waiting_per_semaphore: 20_000,
        max_latches_per_namespace: 20_000,
        max_semaphores_per_namespace: 20_000,
        max_barriers_per_namespace: 20_000,
        ..Limits::default()
    };
    shard.apply(&open(2, orders(), limits));
    let act = make(&mut shard, things);
    let mut cost = Cost { units: 0, took: Duration::ZERO, entries: 0, max_units: 0, longest: Duration::ZERO };
    let mut first = Some(&act);
    while cost.entries == 0 || shard.core.has_backlog() {
        let (units, began) = (shard.core.units(), Instant::now());
        match first.take() {
            Some(act) => act(&mut shard),
            None => shard.advance_by(0),
        }
        let (took, purged) = (began.elapsed(), shard.core.take_purged());
        // What a namespace spent goes with it.
        let units = shard.core.units().saturating_sub(units);
        drop(purged);
        cost.units += units;
        cost.took += took;
        cost.entries += 1;
        (cost.max_units, cost.longest) = (cost.max_units.max(units), cost.longest.max(took));
    }
    cost
}

fn table(rows: &[(&str, usize, Cost)]) -> String {
    let mut text = String::from(
        "# What commands cost\n\n\
         Written by `make cost`. A *unit* is one visit of a path, a hold, an owner, a claim or an entry of a queue; reads \
         count none. Each row is done in a state with so many things (holds, waits, readers, sessions, members, latches, \
         jobs, barriers, awaits; of those who wait and are waited for 40 things each, 200 at most; a pool has 1,000 \
         members, a barrier 1,000 parties, and 1,000 await a lock at most), three times, of which the best counts. What \
         takes more than a slice goes on in further entries. Times are of one machine, beside other work: read them as \
         orders of magnitude.\n\n\
         | command | things | units | ns a unit | entries | units of the longest entry | longest entry in µs |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, things, cost) in rows {
        let a_unit = cost.took.as_nanos() / u128::from(cost.units.max(1));
        let longest = cost.longest.as_secs_f64() * 1e6;
        let Cost { units, entries, max_units, .. } = cost;
        writeln!(text, "| {name} | {things} | {units} | {a_unit} | {entries} | {max_units} | {longest:.0} |")
            .expect("text can be written to");
    }
    text
}

#[test]
fn no_entry_costs_more_than_its_bound_however_much_there_is() {
    let file = std::env::var_os("HOLDFAST_COST_TABLE");
    let sizes: &[usize] = if file.is_some() { &[100, 1_000, 10_000] } else { &[100, 1_000] };
    let of_things = of_things();
    let bounded = ROWS.iter().map(|row| (*row, MAX_ENTRY_UNITS)).chain(of_things.into_iter().map(|row| (row, A_SLICE)));
    let mut rows = Vec::new();
    for ((name, make), max_units) in bounded {
        for things in sizes {
            let cost = cost(make, *things);
            println!("{name}, {things}: {cost:?}");
            assert!(cost.max_units <= max_units, "{name}, {things}: {cost:?}");
            assert!(cost.entries <= things / GRANTS_PER_SLICE + 3, "{name}, {things}: {cost:?}");
            rows.push((name, *things, cost));
        }
    }
    if let Some(file) = file {
        std::fs::write(file, table(&rows)).expect("the table can be written");
    }
}

/// A slice has 256 ends or 128 grants at most, and takes 4,096 units.
#[test]
fn no_slice_of_ends_or_grants_of_locks_counts_more_than_its_units_and_none_counts_far_less() {
    for (name, each) in [
        ("release before a crowd of readers", 11..=16),
        ("timeout of all at one instant", 6..=8),
        ("expiry of all at one instant", 4..=8),
        ("release of all", 4..=8),
        ("delete of a lock with many readers", 4..=8),
    ] {
        let (_, make) = ROWS.iter().find(|(row, _)| *row == name).expect("a row");
        let cost = cost_once(*make, 1_000);
        assert!(each.contains(&(cost.units / 1_000)), "{name}: {cost:?}");
        assert!(cost.max_units <= A_SLICE, "{name}: {cost:?}");
    }
}

/// 100 requests for 64 locks each are more than a slice ends.
#[test]
fn requests_for_many_locks_end_in_slices_that_count_their_claims() {
    for name in ["timeout of all requests for 64 locks each", "close of a session that waits for many locks"] {
        let (_, make) = ROWS.iter().find(|(row, _)| *row == name).expect("a row");
        let cost = cost_once(*make, 6_400);
        assert!(cost.max_units <= A_SLICE, "{name}: {cost:?}");
        assert!(cost.units >= 2 * 6_400 && cost.entries > 3, "{name}: {cost:?}");
    }
}

/// What ends without an event is work too.
#[test]
fn every_end_at_an_instant_counts_as_work() {
    for (name, make) in ROWS.iter().copied().chain(of_things()) {
        if name.ends_with("at one instant") {
            let cost = cost_once(make, 100);
            // As many as a slice ends take no more units than it has.
            assert!((200..=800).contains(&cost.units), "{name}: {cost:?}");
        }
    }
}
