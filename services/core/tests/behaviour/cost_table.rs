//! What each command costs as there is more and more: units, time for each, and how long the longest step keeps others
//! waiting. `HOLDFAST_COST_TABLE=FILE` measures up to 10,000 things and writes the table; otherwise 1,000 are enough to
//! see how the units grow.

use std::fmt::Write;
use std::time::{Duration, Instant};

use holdfast_core::{
    Acquire, Answer, BelievedHold, Bounds, Claim, Limits, LockInfo, LocksCommand, Mode, Owner, Path, Query, Release,
    Reset, Rules, ToRelease,
};

use crate::support::{Shard, open, orders, process, purge};
use crate::waiting::{asks, at, gone, read, session_waits, waits, write};

/// How much of it is measured.
type Act = Box<dyn Fn(&mut Shard)>;
/// Makes a state with so many things, and says what is to be done in it.
type Make = fn(&mut Shard, usize) -> Act;

/// What it took.
#[derive(Clone, Copy, Debug)]
struct Cost {
    units: u64,
    took: Duration,
    /// Entries of the log, with those that go on with what was begun.
    entries: usize,
    /// Of one entry.
    most_units: u64,
    longest: Duration,
}

const SESSION: &str = "se_1";
/// The least of so many times is taken.
const TIMES: usize = 3;
/// No entry takes more: finding out three times who waits for whom, with what is around it.
const MOST_UNITS: u64 = 40_000;

const ROWS: &[(&str, Make)] = &[
    ("acquire of a free lock; others are held", |shard, things| {
        holds(shard, "p", things);
        acquires(asks("q", &[write("new")]))
    }),
    ("acquire of 64 free locks", |shard, things| {
        holds(shard, "p", things);
        let claims: Vec<Claim> = (0..64).map(|number| write(&format!("new/{number}"))).collect();
        acquires(asks("q", &claims))
    }),
    ("try that readers are in the way of", |shard, things| {
        readers(shard, things);
        acquires(asks("q", &[write("l")]))
    }),
    ("try of everything, under which others hold", |shard, things| {
        holds(shard, "p", things);
        acquires(asks("q", &[write("")]))
    }),
    ("try among those who wait and are waited for", |shard, things| {
        tangled(shard, things);
        acquires(asks("q", &[write("l1")]))
    }),
    ("acquire that joins a queue", |shard, things| {
        queue(shard, things);
        acquires(waits("q", &[write("l")]))
    }),
    ("acquire that joins those who wait and are waited for", |shard, things| {
        tangled(shard, things);
        acquires(waits("q", &[write("l1"), write("l2")]))
    }),
    ("repeat of a request that waits", |shard, things| {
        queue(shard, things);
        acquires(waits("w7", &[write("l")]))
    }),
    ("extension by an owner that holds much", |shard, things| {
        holds(shard, "p", things);
        acquires(asks("p", &[write("h/p/0")]))
    }),
    ("release before one that waits", |shard, things| {
        queue(shard, things);
        releases(process("holder"), Some("l"))
    }),
    ("release before a crowd of readers", |shard, things| {
        crowd(shard, things);
        releases(process("holder"), Some("l"))
    }),
    ("release under those who wait for all", |shard, things| {
        above(shard, things);
        releases(process("h3"), Some("l/3"))
    }),
    ("release by one who is waited for by many who are too", |shard, things| {
        tangled(shard, things);
        releases(process("h"), Some("l1"))
    }),
    ("cancel", |shard, things| {
        queue(shard, things);
        does(gone(&waits("w7", &[write("l")])))
    }),
    ("release of all", |shard, things| {
        holds(shard, "p", things);
        releases(process("p"), None)
    }),
    ("close of a session", |shard, things| {
        session_with(shard, things);
        does(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("expiry of all at one instant", |shard, things| {
        holds(shard, "p", things);
        Box::new(|shard| shard.pass(60_000))
    }),
    ("timeout of all at one instant", |shard, things| {
        queue(shard, things);
        Box::new(|shard| shard.pass(10_000))
    }),
    ("delete of a lock with many readers", |shard, things| {
        readers(shard, things);
        does(LocksCommand::Delete { namespace: orders(), path: Path::flat("l") })
    }),
    ("reset", |shard, things| {
        holds(shard, "p", things);
        does(LocksCommand::Reset(Reset { namespace: orders(), live_owners: vec![], before_revision: Some(u64::MAX) }))
    }),
    ("lock info that lists all", |shard, things| {
        session_with(shard, things);
        let held = (0..things).map(|number| believed(shard, number)).collect();
        does(info(held))
    }),
    ("lock info that lists nothing", |shard, things| {
        session_with(shard, things);
        does(info(vec![]))
    }),
    ("open of a session; there are others", |shard, things| {
        for number in 0..things {
            shard.open_session(&format!("se_x{number}"));
        }
        Box::new(|shard| drop(shard.open_session("se_new")))
    }),
    ("purge of a namespace with holds", |shard, things| {
        holds(shard, "p", things);
        purges()
    }),
    ("purge of a namespace with waits", |shard, things| {
        queue(shard, things);
        purges()
    }),
    ("get of a lock with many readers", |shard, things| {
        readers(shard, things);
        asks_for(Query::Lock { namespace: orders(), path: Path::flat("l") })
    }),
    ("check", |shard, things| {
        holds(shard, "p", things);
        asks_for(Query::Check { namespace: orders(), path: at("h/p/1"), fencing_token: 1 })
    }),
    ("keep-alive of a session of many holders", |shard, things| {
        holders_of_session(shard, things);
        asks_for(Query::KeepAlive { namespace: orders(), session_id: SESSION.into(), epoch: None })
    }),
    ("page of 100 locks", |shard, things| {
        holds(shard, "p", things);
        asks_for(Query::Locks { namespace: orders(), prefix: Path::default(), after: None, limit: 100 })
    }),
    ("page of 100 waits", |shard, things| {
        queue(shard, things);
        asks_for(Query::Waits { namespace: orders(), after: None, limit: 100 })
    }),
    ("page of 100 sessions", |shard, things| {
        for number in 0..things {
            shard.open_session(&format!("se_x{number}"));
        }
        asks_for(Query::Sessions { namespace: orders(), after: None, limit: 100 })
    }),
    ("events of a prefix that nothing matches", |shard, things| {
        holds(shard, "p", things);
        let prefix = Path::flat("nowhere");
        asks_for(Query::Events { namespace: orders(), from_revision: Some(2), prefix, limit: 100 })
    }),
];

fn holds(shard: &mut Shard, owner: &str, things: usize) {
    let claims: Vec<Claim> = (0..things).map(|number| write(&format!("h/{owner}/{number}"))).collect();
    for claims in claims.chunks(64) {
        shard.granted(asks(owner, claims));
    }
}

fn session_with(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        shard.granted(session_waits(SESSION, &format!("r{number}"), &[write(&held(number))]));
    }
}

fn holders_of_session(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        let owner = Owner::Session { session_id: SESSION.into(), holder: Some(format!("t{number}")) };
        shard.granted(Acquire { owner, ..session_waits(SESSION, &format!("r{number}"), &[write(&held(number))]) });
    }
}

fn held(number: usize) -> String {
    format!("s/{number}")
}

fn believed(shard: &Shard, number: usize) -> BelievedHold {
    let path = at(&held(number));
    let Ok(Answer::Lock(lock)) = shard.query(&Query::Lock { namespace: orders(), path: path.clone() }) else {
        panic!("not a lock")
    };
    let fencing_token = lock.write_lock_holder.map_or(0, |holder| holder.fencing_token);
    BelievedHold { path, mode: Mode::Write, fencing_token }
}

fn readers(shard: &mut Shard, things: usize) {
    for number in 0..things {
        shard.granted(asks(&format!("r{number}"), &[read("l")]));
    }
}

fn queue(shard: &mut Shard, things: usize) {
    shard.granted(asks("holder", &[write("l")]));
    for number in 0..things {
        shard.enqueued(waits(&format!("w{number}"), &[write("l")]));
    }
}

fn crowd(shard: &mut Shard, things: usize) {
    shard.granted(asks("holder", &[write("l")]));
    for number in 0..things {
        shard.enqueued(waits(&format!("w{number}"), &[read("l")]));
    }
}

fn above(shard: &mut Shard, things: usize) {
    for number in 0..16 {
        shard.granted(asks(&format!("h{number}"), &[write(&format!("l/{number}"))]));
    }
    for number in 0..things {
        shard.enqueued(waits(&format!("w{number}"), &[read("l")]));
    }
}

/// Owners with 40 things each: holds that are awaited, and two requests. There are at most 200 of them.
fn tangled(shard: &mut Shard, things: usize) {
    shard.granted(asks("h", &[write("l1"), write("l2")]));
    for number in 0..(things / 40).clamp(1, 200) {
        let owner = format!("f{number}");
        holds(shard, &owner, 36);
        shard.enqueued(waits(&owner, &[write("l1"), write("m1")]));
        shard.enqueued(waits(&owner, &[write("l2"), write("m2")]));
    }
}

fn does(command: LocksCommand) -> Act {
    Box::new(move |shard| {
        let answer = shard.run(command.clone());
        assert!(answer.is_ok(), "{answer:?}");
    })
}

fn acquires(request: Acquire) -> Act {
    does(LocksCommand::Acquire(request))
}

fn releases(owner: Owner, path: Option<&str>) -> Act {
    let what = match path {
        Some(path) => ToRelease::Paths { paths: vec![at(path)], fencing_token: None },
        None => ToRelease::All,
    };
    does(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
}

fn info(held: Vec<BelievedHold>) -> LocksCommand {
    LocksCommand::LockInfo(LockInfo {
        namespace: orders(),
        session_id: SESSION.into(),
        message: None,
        held,
        pending: vec![],
    })
}

fn purges() -> Act {
    Box::new(|shard| drop(shard.apply(&purge(3, orders()))))
}

fn asks_for(query: Query) -> Act {
    Box::new(move |shard| {
        let answer = shard.query(&query);
        assert!(answer.is_ok(), "{answer:?}");
    })
}

/// The least of several times, each in a state of its own.
fn cost(make: Make, things: usize) -> Cost {
    let costs = (0..TIMES).map(|_| cost_once(make, things));
    costs.min_by_key(|cost| cost.longest).expect("it is done some times")
}

fn cost_once(make: Make, things: usize) -> Cost {
    let mut shard = Shard::within(Bounds::of(Rules::TWO));
    shard.rules = Rules::TWO;
    let limits = Limits { max_waiting_per_lock: 100_000, max_readers_per_lock: 10_000, ..Limits::default() };
    shard.apply(&open(2, orders(), limits));
    let act = make(&mut shard, things);
    let mut cost = Cost { units: 0, took: Duration::ZERO, entries: 0, most_units: 0, longest: Duration::ZERO };
    let mut first = Some(&act);
    while cost.entries == 0 || shard.core.has_jobs() {
        let (units, began) = (shard.core.units(), Instant::now());
        match first.take() {
            Some(act) => act(&mut shard),
            None => shard.pass(0),
        }
        let (took, purged) = (began.elapsed(), shard.core.take_purged());
        // What a namespace spent goes with it.
        let units = shard.core.units().saturating_sub(units);
        drop(purged);
        cost.units += units;
        cost.took += took;
        cost.entries += 1;
        (cost.most_units, cost.longest) = (cost.most_units.max(units), cost.longest.max(took));
    }
    cost
}

fn table(rows: &[(&str, usize, Cost)]) -> String {
    let mut text = String::from(
        "# What commands cost\n\n\
         Written by `make cost`. A *unit* is one visit of a path, a hold, an owner, a claim or an entry of a queue; reads \
         count none. Each row is done in a state with so many things (holds, waits, readers, sessions; of those who wait \
         and are waited for 40 things each, 200 at most), three times, of which the best counts. What takes more than a \
         slice goes on in further entries. Times are of one machine, beside other work: read them as orders of \
         magnitude.\n\n\
         | command | things | units | ns a unit | entries | units of the longest entry | longest entry in µs |\n\
         |---|---|---|---|---|---|---|\n",
    );
    for (name, things, cost) in rows {
        let a_unit = cost.took.as_nanos() / u128::from(cost.units.max(1));
        let longest = cost.longest.as_secs_f64() * 1e6;
        let Cost { units, entries, most_units, .. } = cost;
        writeln!(text, "| {name} | {things} | {units} | {a_unit} | {entries} | {most_units} | {longest:.0} |")
            .expect("text can be written to");
    }
    text
}

#[test]
fn no_entry_costs_more_than_its_bound_however_much_there_is() {
    let file = std::env::var_os("HOLDFAST_COST_TABLE");
    let sizes: &[usize] = if file.is_some() { &[100, 1_000, 10_000] } else { &[100, 1_000] };
    let mut rows = Vec::new();
    for (name, make) in ROWS {
        for things in sizes {
            let cost = cost(*make, *things);
            println!("{name}, {things}: {cost:?}");
            assert!(cost.most_units <= MOST_UNITS, "{name}, {things}: {cost:?}");
            assert!(cost.entries <= things / 256 + 3, "{name}, {things}: {cost:?}");
            rows.push((*name, *things, cost));
        }
    }
    if let Some(file) = file {
        std::fs::write(file, table(&rows)).expect("the table can be written");
    }
}
