//! Requests of sessions with an id: each is kept until it is released, so there are only so many.

use holdfast_core::{
    Acquire, Claim, Command, CommandError, Limits, LocksCommand, Mode, OpenSession, Owner, Path, Release,
    ReleaseTarget, Response, Rules,
};

use crate::support::{Shard, assert_nothing_is_left, lock_request, metadata, orders, request_id};

fn session(holder: Option<&str>) -> Owner {
    Owner::Session { session_id: "se_1".into(), holder: holder.map(str::to_owned) }
}

fn open_session(shard: &mut Shard) {
    let open = OpenSession {
        namespace: orders(),
        session_id: "se_1".into(),
        resume: false,
        request_id: request_id(1),
        process_id: "host".into(),
        ttl_ms: 10_000,
        metadata: metadata(&[]),
    };
    shard.apply(&Command::Locks(LocksCommand::OpenSession(open))).outcome.unwrap();
}

fn close(shard: &mut Shard) {
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
    assert_eq!(shard.apply(&Command::Locks(close)).outcome, Ok(Response::Done));
}

fn named_request(id: &str, locks: u32) -> Acquire {
    let claim = |number| Claim { path: Path::flat(format!("l{number}")), mode: Mode::Write };
    let (ttl_ms, request_id) = (None, Some(id.to_owned()));
    Acquire {
        owner: session(None),
        ttl_ms,
        request_id,
        claims: (0..locks).map(claim).collect(),
        ..lock_request("", Mode::Write)
    }
}

fn shard(limits: Limits) -> Shard {
    let mut shard = Shard::with_limits(limits);
    shard.rules = Rules::TWO;
    open_session(&mut shard);
    shard
}

fn assert_limited_at(shard: &mut Shard, request: Acquire, max: u64, what: &str) {
    match shard.try_acquire(request) {
        Err(CommandError::QuotaExceeded { what: is, max: at, .. }) => {
            assert_eq!((at, is.contains(what)), (max, true), "{is}")
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn requests_that_only_extend_are_counted() {
    let mut shard = shard(Limits::default());
    let mut refused = 0;
    for number in 0..30_000 {
        match shard.try_acquire(named_request(&format!("r{number}"), 64)) {
            Ok(_) => assert!(number < 64),
            Err(CommandError::QuotaExceeded { max: 64, .. }) => refused += 1,
            other => panic!("neither granted nor refused: {other:?}"),
        }
    }
    assert_eq!((refused, shard.core.footprint().requests), (30_000 - 64, 64));
    assert!(shard.try_acquire(named_request("r7", 64)).is_ok(), "a repeat is no other request");
    let what = ReleaseTarget::Request { request_id: "r7".into() };
    let release = Release { namespace: orders(), owner: session(None), what, message: None };
    shard.apply(&Command::Locks(LocksCommand::Release(release))).outcome.unwrap();
    assert!(shard.try_acquire(named_request("one more", 64)).is_ok());
    close(&mut shard);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_session_has_so_many_requests_and_holders() {
    let mut shard = shard(Limits { max_requests_per_session: 3, max_owners_per_session: 2, ..Limits::default() });
    for number in 0..3 {
        let claims = vec![Claim { path: Path::flat(format!("l{number}")), mode: Mode::Write }];
        assert!(shard.try_acquire(Acquire { claims, ..named_request(&format!("r{number}"), 1) }).is_ok());
    }
    assert_limited_at(&mut shard, named_request("r3", 1), 3, "requests of a session");
    let as_holder = |holder: &str| {
        let claims = vec![Claim { path: Path::flat(holder), mode: Mode::Write }];
        Acquire { owner: session(Some(holder)), request_id: None, claims, ..named_request("", 1) }
    };
    shard.granted(as_holder("h1"));
    assert_limited_at(&mut shard, as_holder("h2"), 2, "holders of a session");
    let release = Release { namespace: orders(), owner: session(Some("h1")), what: ReleaseTarget::All, message: None };
    shard.apply(&Command::Locks(LocksCommand::Release(release))).outcome.unwrap();
    shard.granted(as_holder("h2"));
    close(&mut shard);
    assert_nothing_is_left(&shard.core);
}

/// What was let in by rules 1 stays, and ends as fast as it came.
#[test]
fn as_many_requests_as_rules_1_let_in_end_in_a_moment() {
    let mut shard = shard(Limits::default());
    shard.rules = Rules::ONE;
    let many = 20_000;
    for number in 0..many {
        let transition_ms = 1_000;
        assert!(shard.try_acquire(Acquire { transition_ms, ..named_request(&format!("r{number}"), 4) }).is_ok());
    }
    shard.rules = Rules::TWO;
    assert_limited_at(&mut shard, named_request("one more", 4), 64, "claim one hold");
    let begun = std::time::Instant::now();
    let expire =
        LocksCommand::ExpireSessions { ids: vec![shard.core.sessions().next().unwrap().number], known_revision: 9 };
    shard.apply(&Command::Locks(expire)).outcome.unwrap();
    assert!(begun.elapsed().as_secs() < 5, "{:?}", begun.elapsed());
    assert_eq!(shard.core.footprint().requests, 0);
    shard.advance_by(1_001);
    assert_nothing_is_left(&shard.core);
}
