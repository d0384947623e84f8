//! Rows of the table of costs for barriers.

use holdfast_core::{
    ArriveAtBarrier, BarrierCommand, BarrierQuery, ConfigureBarrier, LeaveBarrier, LocksCommand, Metadata, OnLoss,
    Path, Query, Release, ReleaseTarget, Response, WaitAtBarrier,
};

use crate::barriers::arrival;
use crate::cost_table::{Action, SESSION, Setup, command_action, purge_action, query_action};
use crate::support::{Shard, orders, process};
use crate::wait_requests::session_owner;

/// Parties of a barrier with default limits.
const MAX_PARTIES: usize = 1_000;
/// How long arrivals of processes count, and barriers are kept.
const A_MINUTE_MS: u64 = 60_000;

pub(crate) const ROWS: &[(&str, Setup)] = &[
    ("arrival at a new barrier; there are others", |shard, things| {
        barriers(shard, things);
        arrive_action(at("new", "q", Some(2)))
    }),
    ("arrival at a barrier to which others have come", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 2), MAX_PARTIES, OnLoss::Break);
        arrive_action(at("b", "q", None))
    }),
    ("extension of an arrival", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 1), MAX_PARTIES, OnLoss::Break);
        arrive_action(at("b", "p7", None))
    }),
    ("arrival with which all have come", |shard, things| {
        let parties = things.min(MAX_PARTIES);
        gathered(shard, parties - 1, parties, OnLoss::Break);
        arrive_action(at("b", "q", None))
    }),
    ("arrival with which all go inside", |shard, things| {
        let parties = things.min(MAX_PARTIES);
        double(shard, parties);
        (1..parties).for_each(|number| arrive(shard, at("b", &party(number), None)));
        arrive_action(at("b", "q", None))
    }),
    ("leave of one of those inside", |shard, things| {
        let generation = inside(shard, things.min(MAX_PARTIES));
        leave_action("p7", generation)
    }),
    ("leave of the last one inside before all who have come", |shard, things| {
        let parties = things.min(MAX_PARTIES);
        let generation = inside(shard, parties);
        for number in 1..parties {
            run(shard, BarrierCommand::Leave(leave(&party(number), generation)));
            arrive(shard, at("b", &format!("next {number}"), None));
        }
        arrive(shard, at("b", "next", None));
        leave_action(&party(0), generation)
    }),
    ("leave that breaks a barrier", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 1), MAX_PARTIES, OnLoss::Break);
        leave_action("p7", generation_of(shard))
    }),
    ("leave that withdraws", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 1), MAX_PARTIES, OnLoss::Withdraw);
        leave_action("p7", generation_of(shard))
    }),
    ("configure of as few parties as have come", |shard, things| {
        let parties = things.min(MAX_PARTIES - 1);
        gathered(shard, parties, MAX_PARTIES, OnLoss::Break);
        barrier_action(configure("b", parties, false, OnLoss::Break))
    }),
    ("delete of a barrier with parties inside", |shard, things| {
        inside(shard, things.min(MAX_PARTIES));
        barrier_action(BarrierCommand::Delete { namespace: orders(), path: Path::flat("b") })
    }),
    ("close of a session that has arrived at barriers", |shard, things| {
        arrivals_of_session(shard, things);
        command_action(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("release of all that a session has, arrivals", |shard, things| {
        arrivals_of_session(shard, things);
        let (owner, what) = (session_owner(SESSION), ReleaseTarget::All);
        command_action(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
    }),
    ("expiry of arrivals that withdraw, at one instant", |shard, things| {
        for number in 0..things {
            let path = format!("b{}", number / (MAX_PARTIES - 1));
            if number % (MAX_PARTIES - 1) == 0 {
                run(shard, configure(&path, MAX_PARTIES, false, OnLoss::Withdraw));
            }
            arrive(shard, at(&path, &party(number), None));
        }
        Box::new(|shard| shard.advance_by(A_MINUTE_MS))
    }),
    ("expiry of one of those who have come", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 2), MAX_PARTIES, OnLoss::Break);
        arrive(shard, ArriveAtBarrier { ttl_ms: Some(1_000), ..at("b", "q", None) });
        Box::new(|shard| shard.advance_by(1_000))
    }),
    ("end of the retention of barriers at one instant", |shard, things| {
        barriers(shard, things);
        Box::new(|shard| shard.advance_by(A_MINUTE_MS))
    }),
    ("purge of a namespace with barriers", |shard, things| {
        barriers(shard, things);
        purge_action()
    }),
    ("wait at a barrier to which others have come", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 1), MAX_PARTIES, OnLoss::Break);
        let (namespace, path, generation) = (orders(), Path::flat("b"), generation_of(shard));
        let wait = WaitAtBarrier { namespace, path, generation, owner: None, leaves: false, wait_ms: 0 };
        query_action(Query::Barrier(BarrierQuery::Wait(wait)))
    }),
    ("get of a barrier to which others have come", |shard, things| {
        gathered(shard, things.min(MAX_PARTIES - 1), MAX_PARTIES, OnLoss::Break);
        query_action(Query::Barrier(BarrierQuery::Get { namespace: orders(), path: Path::flat("b") }))
    }),
    ("page of 100 barriers", |shard, things| {
        barriers(shard, things);
        let list = BarrierQuery::List { namespace: orders(), prefix: Path::default(), after: None, limit: 100 };
        query_action(Query::Barrier(list))
    }),
];

fn party(number: usize) -> String {
    format!("p{number}")
}

/// An arrival of a process, for a minute.
fn at(path: &str, owner: &str, parties: Option<u32>) -> ArriveAtBarrier {
    let ttl_ms = Some(A_MINUTE_MS);
    ArriveAtBarrier { path: Path::flat(path), parties, ttl_ms, ..arrival(process(owner)) }
}

fn configure(path: &str, parties: usize, double: bool, on_loss: OnLoss) -> BarrierCommand {
    BarrierCommand::Configure(ConfigureBarrier {
        namespace: orders(),
        path: Path::flat(path),
        parties: u32::try_from(parties).unwrap_or(u32::MAX),
        double,
        on_loss,
        retain_ms: A_MINUTE_MS,
        description: String::new(),
        metadata: Metadata::new(),
    })
}

fn leave(owner: &str, generation: u64) -> LeaveBarrier {
    LeaveBarrier { namespace: orders(), path: Path::flat("b"), owner: process(owner), generation, message: None }
}

fn run(shard: &mut Shard, command: BarrierCommand) -> Response {
    shard.run(LocksCommand::Barrier(command)).expect("it is accepted")
}

fn arrive(shard: &mut Shard, arrive: ArriveAtBarrier) {
    run(shard, BarrierCommand::Arrive(arrive));
}

/// So many barriers with nobody in them, which are gone together.
fn barriers(shard: &mut Shard, things: usize) {
    (0..things).for_each(|number| drop(run(shard, configure(&format!("b{number}"), 2, false, OnLoss::Break))));
}

/// A barrier of so many parties to which some have come.
fn gathered(shard: &mut Shard, arrived: usize, parties: usize, on_loss: OnLoss) {
    run(shard, configure("b", parties, false, on_loss));
    (0..arrived).for_each(|number| arrive(shard, at("b", &party(number), None)));
}

fn double(shard: &mut Shard, parties: usize) {
    run(shard, configure("b", parties, true, OnLoss::Break));
}

/// A double barrier with so many inside. Returns their generation.
fn inside(shard: &mut Shard, parties: usize) -> u64 {
    double(shard, parties);
    let generation = generation_of(shard);
    (0..parties).for_each(|number| arrive(shard, at("b", &party(number), None)));
    generation
}

fn generation_of(shard: &Shard) -> u64 {
    let get = BarrierQuery::Get { namespace: orders(), path: Path::flat("b") };
    match shard.query(&Query::Barrier(get)) {
        Ok(Response::BarrierArrivals { barrier, .. }) => barrier.generation,
        other => panic!("no barrier: {other:?}"),
    }
}

/// A session with so many arrivals, each at a barrier of its own that nobody else has come to.
fn arrivals_of_session(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    for number in 0..things {
        let owner = session_owner(SESSION);
        let (path, request_id) = (format!("b{number}"), Some(format!("r{number}")));
        arrive(shard, ArriveAtBarrier { owner, request_id, ttl_ms: None, ..at(&path, "", Some(2)) });
    }
}

fn barrier_action(command: BarrierCommand) -> Action {
    command_action(LocksCommand::Barrier(command))
}

fn arrive_action(arrive: ArriveAtBarrier) -> Action {
    barrier_action(BarrierCommand::Arrive(arrive))
}

fn leave_action(owner: &str, generation: u64) -> Action {
    barrier_action(BarrierCommand::Leave(leave(owner, generation)))
}
