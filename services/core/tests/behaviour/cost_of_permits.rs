//! Rows of the table of costs for semaphores and pools.

use std::time::{Duration, Instant};

use holdfast_core::{
    AcquireOutcome, AcquirePermits, Bounds, CancelPermits, ChangePool, ConfigurePool, ConfigureSemaphore, Kind,
    LocksCommand, MemberSpec, Metadata, Path, PermitCommand, PermitQuery, PermitsReport, Query, Release,
    ReleasePermits, ReleaseTarget, ReportedPermits, Response, Rules, Wait, Wanted,
};

use crate::cost_table::{Action, SESSION, Setup, command_action, purge_action, query_action};
use crate::primitives::permits;
use crate::support::{Shard, orders, process};
use crate::wait_requests::session_owner;

/// Members of a pool with default limits, and members that one request takes.
const MAX_MEMBERS: usize = 1_000;
const MAX_TAKEN: usize = 64;
/// The leader splits a report of more holds.
const REPORTED_AT_ONCE: usize = 512;
/// How often something is timed. The least time counts.
const TIMES: usize = 10;

pub(crate) const ROWS: &[(&str, Setup)] = &[
    ("acquire of a permit; others hold some", |shard, things| {
        permit_holds(shard, things);
        acquire_action(want("q", "r", 1))
    }),
    ("try of permits that others hold", |shard, things| {
        all_permits_held(shard, things);
        acquire_action(want("q", "r", 1))
    }),
    ("extension of a permit", |shard, things| {
        permit_holds(shard, things);
        acquire_action(want("p0", "r", 1))
    }),
    ("acquire that joins the queue of a semaphore", |shard, things| {
        permit_queue(shard, things);
        acquire_action(waiting(want("q", "r", 1)))
    }),
    ("repeat of a request that waits for permits", |shard, things| {
        permit_queue(shard, things);
        acquire_action(waiting(want("w7", "r", 1)))
    }),
    ("cancel of a wait for permits", |shard, things| {
        permit_queue(shard, things);
        let (namespace, kind, path, owner) = (orders(), Kind::Semaphore, Path::flat("s"), process("w7"));
        let cancel = CancelPermits { namespace, kind, path, owner, request_id: "r".into(), attempts: vec![0] };
        permit_action(PermitCommand::Cancel(cancel))
    }),
    ("release of a permit; others hold some", |shard, things| {
        permit_holds(shard, things);
        release_action(Kind::Semaphore, "p0")
    }),
    ("release of a permit before those who wait", |shard, things| {
        permit_queue(shard, things);
        release_action(Kind::Semaphore, "holder")
    }),
    ("release of all permits before those who wait", |shard, things| {
        configure_permits(shard, things as u64);
        granted(shard, want("holder", "r", things as u64));
        (0..things).for_each(|number| enqueued(shard, want(&format!("w{number}"), "r", 1)));
        release_action(Kind::Semaphore, "holder")
    }),
    ("configure of a semaphore; others hold some", |shard, things| {
        permit_holds(shard, things);
        permit_action(configure(2 * things as u64))
    }),
    ("configure of too few permits for those who wait", |shard, things| {
        configure_permits(shard, 2);
        granted(shard, want("holder", "r", 2));
        (0..things).for_each(|number| enqueued(shard, want(&format!("w{number}"), "r", 2)));
        permit_action(configure(1))
    }),
    ("delete of a semaphore that is held", |shard, things| {
        permit_holds(shard, things);
        delete_action(Kind::Semaphore)
    }),
    ("delete of a semaphore that is waited for", |shard, things| {
        permit_queue(shard, things);
        delete_action(Kind::Semaphore)
    }),
    ("acquire of an ephemeral semaphore; there are others", |shard, things| {
        for number in 0..things {
            granted(shard, AcquirePermits { path: Path::flat(format!("s{number}")), ..figure(want("p", "r", 1), 1) });
        }
        acquire_action(figure(want("q", "r", 1), 1))
    }),
    ("close of a session with permits", |shard, things| {
        permits_of_session(shard, things);
        command_action(LocksCommand::CloseSession { namespace: orders(), session_id: SESSION.into(), message: None })
    }),
    ("release of all that a session has, permits", |shard, things| {
        permits_of_session(shard, things);
        let (owner, what) = (session_owner(SESSION), ReleaseTarget::All);
        command_action(LocksCommand::Release(Release { namespace: orders(), owner, what, message: None }))
    }),
    ("part of a report of the permits of a session", |shard, things| {
        permits_of_session(shard, things);
        let mut held = reported(shard);
        assert_eq!(held.len(), things);
        held.truncate(REPORTED_AT_ONCE);
        let report = PermitsReport { namespace: orders(), session_id: SESSION.into(), message: None, held };
        command_action(LocksCommand::ReportPermits(report))
    }),
    ("expiry of permits at one instant", |shard, things| {
        permit_holds(shard, things);
        Box::new(|shard| shard.advance_by(60_000))
    }),
    ("timeout of waits for permits at one instant", |shard, things| {
        permit_queue(shard, things);
        Box::new(|shard| shard.advance_by(10_000))
    }),
    ("purge of a namespace with permits", |shard, things| {
        permit_holds(shard, things);
        purge_action()
    }),
    ("check of a permit", |shard, things| {
        permit_holds(shard, things);
        let (kind, path) = (Kind::Semaphore, Path::flat("s"));
        let check = PermitQuery::Check { namespace: orders(), kind, path, fencing_token: 7, member: None };
        query_action(Query::Permit(check))
    }),
    ("page of 100 holders of a semaphore", |shard, things| {
        permit_holds(shard, things);
        let get = PermitQuery::Get { namespace: orders(), path: Path::flat("s"), after: None, limit: 100 };
        query_action(Query::Permit(get))
    }),
    ("page of 100 waits for permits", |shard, things| {
        permit_queue(shard, things);
        query_action(Query::Permit(PermitQuery::Waits { namespace: orders(), after: None, limit: 100 }))
    }),
    ("configure of a pool as it is", |shard, things| {
        pools(shard, things, 0);
        permit_action(configure_pool("p", 0..things.min(MAX_MEMBERS), 0))
    }),
    ("configure of a pool of other members", |shard, things| {
        pools(shard, things, 0);
        let members = things.min(MAX_MEMBERS);
        permit_action(configure_pool("p", members..2 * members, 0))
    }),
    ("change of 100 members of a pool", |shard, things| {
        pools(shard, things, 0);
        let disable = (0..100).map(member_name).collect();
        let (namespace, path) = (orders(), Path::flat("p"));
        let (add, remove, enable) = (vec![], vec![], vec![]);
        permit_action(PermitCommand::ChangePool(ChangePool { namespace, path, add, remove, disable, enable }))
    }),
    ("change of as many members of a pool as it may name", |shard, things| {
        pools(shard, things, 0);
        let members = things.min(MAX_MEMBERS);
        let half = members / 2;
        let spec = |number| MemberSpec { name: member_name(number), disabled: false, metadata: Metadata::new() };
        let add = (members..members + half).map(spec).collect();
        let (namespace, path, remove) = (orders(), Path::flat("p"), (0..half).map(member_name).collect());
        let (disable, enable) = (vec![], vec![]);
        permit_action(PermitCommand::ChangePool(ChangePool { namespace, path, add, remove, disable, enable }))
    }),
    ("take of a member of a pool", |shard, things| {
        pools(shard, things, 0);
        acquire_action(some("q", 1))
    }),
    ("take of 64 members of a pool", |shard, things| {
        pools(shard, things, 0);
        acquire_action(some("q", MAX_TAKEN))
    }),
    ("take of a member by its name", |shard, things| {
        pools(shard, things, 0);
        acquire_action(AcquirePermits { wanted: Wanted::Member(member_name(7)), ..some("q", 1) })
    }),
    ("take that joins the queue of a pool", |shard, things| {
        pool_queue(shard, things);
        acquire_action(waiting(some("q", 1)))
    }),
    ("return of 64 members before those who wait", |shard, things| {
        pool_queue(shard, things);
        release_action(Kind::Pool, "holder")
    }),
    ("return of a member before those who wait for another", |shard, things| {
        pool_queue_for_one(shard, things);
        release_action(Kind::Pool, "holder")
    }),
    ("delete of a pool that is waited for", |shard, things| {
        pool_queue(shard, things);
        delete_action(Kind::Pool)
    }),
    ("expiry of members at one instant", |shard, things| {
        pools(shard, things, 0);
        take_all(shard, things);
        Box::new(|shard| shard.advance_by(60_000))
    }),
    ("end of the rests of members at one instant", |shard, things| {
        pools(shard, things, 60_000);
        take_all(shard, things);
        shard.advance_by(60_000);
        while shard.core.has_backlog() {
            shard.advance_by(0);
        }
        Box::new(|shard| shard.advance_by(60_000))
    }),
    ("page of 100 members of a pool", |shard, things| {
        pools(shard, things, 0);
        let page = PermitQuery::Members { namespace: orders(), path: Path::flat("p"), after: None, limit: 100 };
        query_action(Query::Permit(page))
    }),
];

/// A request for permits of the configured semaphore, for a minute.
fn want(owner: &str, request_id: &str, weight: u64) -> AcquirePermits {
    let wanted = Wanted::Permits { weight, permits: None };
    AcquirePermits { wanted, ttl_ms: Some(60_000), ..permits(process(owner), request_id, weight) }
}

/// The same, which makes an ephemeral semaphore of so many permits.
fn figure(request: AcquirePermits, permits: u64) -> AcquirePermits {
    let weight = request.wanted.weight();
    AcquirePermits { wanted: Wanted::Permits { weight, permits: Some(permits) }, ..request }
}

fn waiting(request: AcquirePermits) -> AcquirePermits {
    AcquirePermits { wait: Wait::For(10_000), ..request }
}

/// A request for so many members of the first pool, for a minute.
fn some(owner: &str, count: usize) -> AcquirePermits {
    let wanted = Wanted::Members { count: count as u64, prefer: None };
    AcquirePermits { path: Path::flat("p"), wanted, ..want(owner, "r", 1) }
}

fn run(shard: &mut Shard, command: PermitCommand) -> Response {
    shard.run(LocksCommand::Permit(command)).expect("it is accepted")
}

fn granted(shard: &mut Shard, request: AcquirePermits) {
    let answer = run(shard, PermitCommand::Acquire(request));
    let is_granted = matches!(answer, Response::PermitsAcquired { outcome: AcquireOutcome::Granted { .. }, .. });
    assert!(is_granted, "{answer:?}");
}

fn enqueued(shard: &mut Shard, request: AcquirePermits) {
    let answer = run(shard, PermitCommand::Acquire(waiting(request)));
    let waits = matches!(answer, Response::PermitsAcquired { outcome: AcquireOutcome::Enqueued(_), .. });
    assert!(waits, "{answer:?}");
}

fn configure(permits: u64) -> PermitCommand {
    let (namespace, path, metadata) = (orders(), Path::flat("s"), Metadata::new());
    PermitCommand::Configure(ConfigureSemaphore { namespace, path, permits, description: String::new(), metadata })
}

fn configure_permits(shard: &mut Shard, permits: u64) {
    run(shard, configure(permits));
}

/// A semaphore with so many holders, and room for another.
fn permit_holds(shard: &mut Shard, things: usize) {
    configure_permits(shard, things as u64 + 1);
    (0..things).for_each(|number| granted(shard, want(&format!("p{number}"), "r", 1)));
}

fn all_permits_held(shard: &mut Shard, things: usize) {
    configure_permits(shard, things as u64);
    (0..things).for_each(|number| granted(shard, want(&format!("p{number}"), "r", 1)));
}

fn permit_queue(shard: &mut Shard, things: usize) {
    configure_permits(shard, 1);
    granted(shard, want("holder", "r", 1));
    (0..things).for_each(|number| enqueued(shard, want(&format!("w{number}"), "r", 1)));
}

fn permits_of_session(shard: &mut Shard, things: usize) {
    shard.open_session(SESSION);
    configure_permits(shard, things as u64);
    for number in 0..things {
        let owner = session_owner(SESSION);
        granted(shard, AcquirePermits { owner, ttl_ms: None, ..want("", &format!("r{number}"), 1) });
    }
}

fn reported(shard: &Shard) -> Vec<ReportedPermits> {
    let (mut after, mut held) = (None, Vec::new());
    loop {
        let get = PermitQuery::Get { namespace: orders(), path: Path::flat("s"), after, limit: 1_000 };
        let Ok(Response::SemaphoreHolders { holders, more, .. }) = shard.query(&Query::Permit(get)) else {
            panic!("not its holders")
        };
        after = holders.last().map(|holder| holder.fencing_token);
        held.extend(holders.into_iter().map(|holder| ReportedPermits {
            kind: Kind::Semaphore,
            path: Path::flat("s"),
            request_id: holder.request_id,
            fencing_token: holder.fencing_token,
        }));
        if !more {
            return held;
        }
    }
}

fn member_name(number: usize) -> String {
    format!("m{number:05}")
}

fn configure_pool(path: &str, members: std::ops::Range<usize>, cooldown_ms: u64) -> PermitCommand {
    let spec = |number| MemberSpec { name: member_name(number), disabled: false, metadata: Metadata::new() };
    PermitCommand::ConfigurePool(ConfigurePool {
        namespace: orders(),
        path: Path::flat(path),
        members: members.map(spec).collect(),
        cooldown_ms,
        description: String::new(),
        metadata: Metadata::new(),
    })
}

/// The path of the pool with such a member.
fn pool_of(member: usize) -> String {
    let number = member / MAX_MEMBERS;
    if number == 0 { "p".to_owned() } else { format!("p{number}") }
}

/// So many members, in as many pools as they take. The first one is `p`.
fn pools(shard: &mut Shard, things: usize, cooldown_ms: u64) {
    for first in (0..things).step_by(MAX_MEMBERS) {
        run(shard, configure_pool(&pool_of(first), first..things.min(first + MAX_MEMBERS), cooldown_ms));
    }
}

/// Each member has a holder of its own.
fn take_all(shard: &mut Shard, things: usize) {
    for member in 0..things {
        granted(shard, AcquirePermits { path: Path::flat(pool_of(member)), ..some(&format!("p{member}"), 1) });
    }
}

fn pool_queue(shard: &mut Shard, things: usize) {
    run(shard, configure_pool("p", 0..MAX_TAKEN, 0));
    granted(shard, some("holder", MAX_TAKEN));
    (0..things).for_each(|number| enqueued(shard, some(&format!("w{number}"), 1)));
}

/// They wait for the first of two members; the other one comes back.
fn pool_queue_for_one(shard: &mut Shard, things: usize) {
    run(shard, configure_pool("p", 0..2, 0));
    let one = |owner: &str, number| AcquirePermits { wanted: Wanted::Member(member_name(number)), ..some(owner, 1) };
    granted(shard, one("first", 0));
    granted(shard, one("holder", 1));
    (0..things).for_each(|number| enqueued(shard, one(&format!("w{number}"), 0)));
}

fn permit_action(command: PermitCommand) -> Action {
    command_action(LocksCommand::Permit(command))
}

fn acquire_action(request: AcquirePermits) -> Action {
    permit_action(PermitCommand::Acquire(request))
}

fn release_action(kind: Kind, owner: &str) -> Action {
    let path = Path::flat(if kind == Kind::Pool { "p" } else { "s" });
    permit_action(PermitCommand::Release(ReleasePermits {
        namespace: orders(),
        kind,
        path,
        owner: process(owner),
        request_id: Some("r".to_owned()),
        fencing_token: None,
        members: vec![],
        message: None,
    }))
}

fn delete_action(kind: Kind) -> Action {
    let path = Path::flat(if kind == Kind::Pool { "p" } else { "s" });
    permit_action(PermitCommand::Delete { namespace: orders(), kind, path })
}

/// The least time of several.
fn least_time(mut act: impl FnMut() -> Duration) -> Duration {
    (0..TIMES).map(|_| act()).min().unwrap_or_default()
}

fn timed(shard: &mut Shard, act: &Action) -> Duration {
    let began = Instant::now();
    act(shard);
    began.elapsed()
}

fn shard_by_rules_two() -> Shard {
    let mut shard = Shard::with_bounds(Bounds::of(Rules::TWO));
    shard.rules = Rules::TWO;
    shard
}

/// The place in the queue is part of the answer.
#[test]
fn who_joins_a_long_queue_is_answered_about_as_fast_as_who_joins_a_short_one() {
    let least = |things: usize| {
        let mut shard = shard_by_rules_two();
        permit_queue(&mut shard, things);
        let join = acquire_action(waiting(want("q", "r", 1)));
        least_time(|| timed(&mut shard, &join))
    };
    let (short, long) = (least(100), least(9_000));
    println!("{short:?} to join a short queue, {long:?} to join a long one");
    assert!(long < 4 * short, "{short:?} in a short queue and {long:?} in a long one");
}

/// A slice is as long whatever makes the holds end.
#[test]
fn a_slice_of_expired_permits_takes_about_as_long_as_one_of_a_session_that_ends() {
    const A_SLICE: usize = 256;
    let expiry = least_time(|| {
        let mut shard = shard_by_rules_two();
        permit_holds(&mut shard, A_SLICE);
        let began = Instant::now();
        shard.advance_by(60_000);
        began.elapsed()
    });
    let end = least_time(|| {
        let mut shard = shard_by_rules_two();
        permits_of_session(&mut shard, A_SLICE);
        let (namespace, session_id) = (orders(), SESSION.to_owned());
        timed(&mut shard, &command_action(LocksCommand::CloseSession { namespace, session_id, message: None }))
    });
    println!("{expiry:?} for a slice of expired permits, {end:?} for those of a session");
    assert!(expiry < 3 * end, "{expiry:?} for expired permits and {end:?} for those of a session");
}
