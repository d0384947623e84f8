//! Holds of semaphores: who releases them, and which a client is told that it lost.

use holdfast_core::{
    AcquireOutcome, AcquirePermits, CommandError, FencingToken, Kind, LockInfo, LocksCommand, Metadata, Owner, Path,
    PermitCommand, PermitsReport, Query, ReleasePermits, ReportedPermits, Response, Rules, Wait, Wanted,
};

use crate::support::{Shard, orders};

fn shard() -> Shard {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    shard.open_session("se_1");
    shard
}

fn thread(holder: &str) -> Owner {
    Owner::Session { session_id: "se_1".into(), holder: Some(holder.into()) }
}

fn acquire(shard: &mut Shard, holder: &str, request_id: &str) -> FencingToken {
    let acquire = AcquirePermits {
        namespace: orders(),
        path: Path::flat("s"),
        owner: thread(holder),
        request_id: request_id.into(),
        wanted: Wanted::Permits { weight: 1, permits: Some(3) },
        priority: 0,
        ttl_ms: None,
        transition_ms: 0,
        wait: Wait::No,
        metadata: Metadata::new(),
        fencing_token: None,
        attempt: 0,
        abandoned: vec![],
        message: None,
    };
    match shard.run(LocksCommand::Permit(PermitCommand::Acquire(acquire))) {
        Ok(Response::PermitsAcquired { outcome: AcquireOutcome::Granted { fencing_token }, .. }) => fencing_token,
        other => panic!("not granted: {other:?}"),
    }
}

fn is_released(shard: &mut Shard, holder: &str, fencing_token: FencingToken) -> bool {
    let release = ReleasePermits {
        namespace: orders(),
        kind: Kind::Semaphore,
        path: Path::flat("s"),
        owner: thread(holder),
        request_id: None,
        fencing_token: Some(fencing_token),
        members: vec![],
        message: None,
    };
    match shard.run(LocksCommand::Permit(PermitCommand::Release(release))) {
        Ok(Response::PermitsReleased { released, .. }) => released,
        other => panic!("not an answer to a release: {other:?}"),
    }
}

fn reported(request_id: &str, fencing_token: FencingToken) -> ReportedPermits {
    let (kind, path) = (Kind::Semaphore, Path::flat("s"));
    ReportedPermits { kind, path, request_id: request_id.into(), fencing_token }
}

#[test]
fn a_token_releases_only_a_hold_of_the_same_thread() {
    let mut shard = shard();
    let token = acquire(&mut shard, "t1", "a");
    assert!(!is_released(&mut shard, "t2", token));
    assert!(is_released(&mut shard, "t1", token) && !is_released(&mut shard, "t1", token));
}

#[test]
fn reported_holds_are_those_of_the_session_under_their_own_request_ids() {
    let mut shard = shard();
    let token = acquire(&mut shard, "t1", "a");
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    let held = vec![reported("a", token), reported("b", token), reported("a", token + 1)];
    let lost = Ok(Response::PermitsReconciled { lost: held[1..].to_vec(), asked: vec![] });
    let of = |session_id: &str| Query::ReconcilePermits {
        namespace: orders(),
        session_id: session_id.into(),
        held: held.clone(),
    };
    assert_eq!(shard.query(&of("se_1")), lost);
    assert_eq!(shard.query(&of("se_9")), Err(CommandError::SessionNotFound("se_9".into())));
    shard.open_session("se_2");
    assert_eq!(shard.query(&of("se_2")), Ok(Response::PermitsReconciled { lost: held.clone(), asked: vec![] }));
    let report = PermitsReport { namespace, session_id, message: None, held: held.clone() };
    assert_eq!(shard.run(LocksCommand::ReportPermits(report)), lost);
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    let info = LockInfo { namespace, session_id, message: None, held: vec![], pending: vec![] };
    shard.run(LocksCommand::LockInfo(info)).unwrap();
    assert_eq!(shard.query(&of("se_1")), lost, "the listed hold stays");
    shard.core.verify();
}
