//! Pools: memory that is asked for, and what a unit takes.

use std::time::Instant;

use holdfast_core::{
    AcquirePermits, ConfigurePool, Kind, LocksCommand, MemberSpec, Metadata, Owner, Path, PermitCommand, PermitQuery,
    Query, ReleasePermits, Response, Wait, Wanted,
};
use stats_alloc::Region;

use crate::shard::{Shard, namespace};
use crate::{ALLOCATOR, exclusive};

fn permits(shard: &mut Shard, command: PermitCommand) -> Response {
    shard.apply(LocksCommand::Permit(command))
}

fn configure(shard: &mut Shard, members: u64) {
    let spec = |number| MemberSpec { name: format!("member-{number:06}"), disabled: false, metadata: Metadata::new() };
    let configure = ConfigurePool {
        namespace: namespace(),
        path: Path::flat("pool"),
        members: (0..members).map(spec).collect(),
        cooldown_ms: 0,
        description: String::new(),
        metadata: Metadata::new(),
    };
    permits(shard, PermitCommand::ConfigurePool(configure));
}

fn take(shard: &mut Shard, request_id: &str, count: u64) {
    let request = AcquirePermits {
        namespace: namespace(),
        path: Path::flat("pool"),
        owner: Owner::Process("process".to_owned()),
        request_id: request_id.to_owned(),
        wanted: Wanted::Members { count, prefer: None },
        priority: 0,
        ttl_ms: Some(60_000),
        transition_ms: 0,
        wait: Wait::No,
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    };
    let answer = permits(shard, PermitCommand::Acquire(request));
    assert!(matches!(answer, Response::PermitsAcquired { members, .. } if members.len() as u64 == count));
}

fn release(shard: &mut Shard, request_id: &str) {
    let release = ReleasePermits {
        namespace: namespace(),
        kind: Kind::Pool,
        path: Path::flat("pool"),
        owner: Owner::Process("process".to_owned()),
        request_id: Some(request_id.to_owned()),
        fencing_token: None,
        members: Vec::new(),
        message: None,
    };
    assert!(matches!(
        permits(shard, PermitCommand::Release(release)),
        Response::PermitsReleased { released: true, .. }
    ));
}

#[test]
fn a_page_of_members_does_not_copy_what_their_holder_has_for_each() {
    let _alone = exclusive();
    let mut shard = Shard::new();
    configure(&mut shard, 64);
    take(&mut shard, "r", 64);
    let (namespace, path, after) = (namespace(), Path::flat("pool"), None);
    let query = Query::Permit(PermitQuery::Members { namespace, path, after, limit: 100 });
    let region = Region::new(ALLOCATOR);
    let reply = shard.core.query(0, &query);
    let change = region.change();
    let Ok(Response::PoolMembers { members, .. }) = reply.outcome else { panic!("not a page: {reply:?}") };
    assert_eq!(members.len(), 64);
    let each = change.allocations as f64 / 64.0;
    println!("allocations of a member in a page: {each:.1}");
    assert!(each < 16.0, "{each}");
}

#[test]
#[ignore = "prints figures"]
fn what_a_unit_of_a_pool_takes() {
    let _alone = exclusive();
    println!("| command | units | ns a unit |\n|---|---|---|");
    let mut shard = Shard::new();
    let mut timed = |what: &str, act: &mut dyn FnMut(&mut Shard)| {
        let (before, start) = (shard.core.units(), Instant::now());
        act(&mut shard);
        let (took, units) = (start.elapsed(), shard.core.units() - before);
        println!("| {what} | {units} | {} |", took.as_nanos() as u64 / units.max(1));
    };
    timed("configuration of 1,000 members", &mut |shard| configure(shard, 1_000));
    timed("the same again", &mut |shard| configure(shard, 1_000));
    for round in 0..3 {
        timed("take of 64 members, 15 times", &mut |shard| {
            (0..15).for_each(|number| take(shard, &format!("{round} {number}"), 64));
        });
        timed("release of all of them", &mut |shard| {
            (0..15).for_each(|number| release(shard, &format!("{round} {number}")));
        });
    }
    timed("configuration that removes 999 members", &mut |shard| configure(shard, 1));
}
