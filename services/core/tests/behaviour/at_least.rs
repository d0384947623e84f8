//! Holds that are kept from other owners until so long after their grant.

use holdfast_core::{
    Acquire, AcquireOutcome, CommandError, FencingToken, LockInfo, LocksCommand, Mode, Phase, Query, Reason,
    ReleaseTarget, ReportedHold, Response, Rules, SessionAcquire, SessionCommand, SessionRequest, SessionTerms, Wait,
};

use crate::conditions::await_command;
use crate::support::{ACCOUNT, Shard, assert_nothing_is_left, orders, process};
use crate::wait_requests::{at, read, session_owner, session_wait_request, try_request, wait_request, write};

const AT_LEAST_MS: u64 = 10_000;

fn shard() -> Shard {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    shard
}

fn outcome(shard: &mut Shard, request: Acquire) -> AcquireOutcome {
    match shard.run(LocksCommand::acquire(request, vec![], AT_LEAST_MS)) {
        Ok(Response::Acquired { outcome, .. }) => outcome,
        other => panic!("not an answer to an acquire: {other:?}"),
    }
}

fn granted(shard: &mut Shard, request: Acquire) -> FencingToken {
    match outcome(shard, request) {
        AcquireOutcome::Granted { fencing_token } => fencing_token,
        other => panic!("it is not granted: {other:?}"),
    }
}

fn release(shard: &mut Shard, owner: &str) -> bool {
    shard.try_release(process(owner), ReleaseTarget::Paths { paths: vec![at("l")], fencing_token: None })
}

/// The phase of the one holder, and when that ends.
fn phase(shard: &Shard) -> Option<(Phase, Option<u64>)> {
    shard.get("l").write_lock_holder.map(|holder| (holder.phase, holder.deadline_ms))
}

#[test]
fn a_released_hold_is_kept_from_others_until_its_time_is_over() {
    let mut shard = shard();
    granted(&mut shard, try_request("p1", &[write("l")]));
    shard.advance_by(1_000);
    assert!(release(&mut shard, "p1"));
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(1_000 + AT_LEAST_MS))));
    assert_eq!(shard.refused(try_request("p2", &[write("l")])).reason, Reason::Transition);
    shard.queued(wait_request("p2", &[read("l")]), Reason::Transition);
    assert!(!release(&mut shard, "p1"), "a release of the hold in that transition does not end it");
    let mut restored = shard.restored();
    for shard in [&mut shard, &mut restored] {
        shard.advance_by(AT_LEAST_MS - 1_001);
        assert_eq!(shard.holders("l"), ["p1"]);
        shard.advance_by(1);
        assert_eq!(shard.holders("l"), ["p2"]);
        shard.core.verify();
    }
}

#[test]
fn after_its_time_a_release_is_an_ordinary_one() {
    let mut shard = shard();
    granted(&mut shard, try_request("p1", &[write("l")]));
    shard.advance_by(AT_LEAST_MS);
    assert!(release(&mut shard, "p1"));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn an_expired_hold_is_in_transition_until_the_later_of_both_times() {
    for (transition_ms, until_ms) in [(0, 1_000 + AT_LEAST_MS), (60_000, 1_000 + 500 + 60_000)] {
        let mut shard = shard();
        granted(&mut shard, Acquire { ttl_ms: Some(500), transition_ms, ..try_request("p1", &[write("l")]) });
        shard.advance_by(500);
        assert_eq!(phase(&shard), Some((Phase::Transition, Some(until_ms))));
        shard.advance_by(until_ms - 1_501);
        assert_eq!(shard.holders("l"), ["p1"]);
        shard.advance_by(1);
        assert_nothing_is_left(&shard.core);
    }
}

#[test]
fn the_end_of_the_session_keeps_it_too() {
    let mut shard = shard();
    shard.open_session("se_1");
    granted(&mut shard, session_wait_request("se_1", "r", &[write("l")]));
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
    assert_eq!(shard.run(close), Ok(Response::Done));
    assert_eq!(shard.refused(try_request("p2", &[write("l")])).reason, Reason::Transition);
    shard.advance_by(AT_LEAST_MS);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn its_owner_takes_it_again_as_a_new_hold_that_is_kept_no_shorter() {
    let mut shard = shard();
    let first = granted(&mut shard, try_request("p1", &[write("l")]));
    shard.advance_by(4_000);
    assert!(release(&mut shard, "p1"));
    let extension = Acquire { fencing_token: Some(first), ..try_request("p1", &[write("l")]) };
    assert_eq!(shard.refused(extension).reason, Reason::NotHeld);
    // Without a time of its own: what is left of the old one goes on.
    let second = shard.granted(try_request("p1", &[write("l")]));
    assert!(second > first);
    assert_eq!(phase(&shard).map(|(phase, _)| phase), Some(Phase::Held));
    assert!(release(&mut shard, "p1"));
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(1_000 + AT_LEAST_MS))));
    // With one, from then on.
    assert!(granted(&mut shard, try_request("p1", &[write("l")])) > second);
    assert!(release(&mut shard, "p1"));
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(5_000 + AT_LEAST_MS))));
    shard.core.verify();
}

#[test]
fn neither_an_extension_nor_a_downgrade_restarts_or_shortens_it() {
    let mut shard = shard();
    let token = granted(&mut shard, try_request("p1", &[write("l")]));
    shard.advance_by(2_000);
    let request = try_request("p1", &[write("l")]);
    assert_eq!(granted(&mut shard, Acquire { fencing_token: Some(token), ..request.clone() }), token);
    shard.granted(Acquire { claims: vec![read("l")], allow_upgrade: true, ..request });
    assert!(release(&mut shard, "p1"));
    let reader = shard.get("l").read_lock_holders.remove(0);
    assert_eq!((reader.phase, reader.deadline_ms), (Phase::Transition, Some(1_000 + AT_LEAST_MS)));
    assert_eq!(shard.refused(try_request("p2", &[write("l")])).reason, Reason::Transition);
}

#[test]
fn a_repeat_of_a_request_that_waits_keeps_its_time() {
    let mut shard = shard();
    shard.granted(try_request("h", &[write("l")]));
    let waits = wait_request("p1", &[write("l")]);
    assert!(matches!(outcome(&mut shard, waits.clone()), AcquireOutcome::Enqueued(_)));
    // As a gateway of rules 1 repeats it.
    shard.enqueued(waits);
    assert!(release(&mut shard, "h"));
    assert_eq!(shard.granted_owners(), ["p1"]);
    assert!(release(&mut shard, "p1"));
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(1_000 + AT_LEAST_MS))));
}

#[test]
fn a_released_hold_is_none_of_a_resumed_session() {
    let mut shard = shard();
    shard.open_session("se_1");
    let token = granted(&mut shard, session_wait_request("se_1", "r", &[write("l")]));
    assert!(shard.try_release(session_owner("se_1"), ReleaseTarget::Request { request_id: "r".into() }));
    let held = vec![ReportedHold { path: at("l"), mode: Mode::Write, fencing_token: token }];
    let query = Query::ReconcileHolds { namespace: orders(), session_id: "se_1".into(), held: held.clone() };
    let Ok(Response::Reconciled { lost, .. }) = shard.query(&query) else { panic!("it is open") };
    assert_eq!(lost.len(), 1);
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    let info = LockInfo { namespace, session_id, message: None, held: vec![], pending: vec![] };
    let answer = shard.run(LocksCommand::LockInfo(info));
    assert!(matches!(answer, Ok(Response::Reconciled { ended_holds: 0, .. })), "{answer:?}");
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(1_000 + AT_LEAST_MS))));
}

#[test]
fn a_kept_hold_closes_no_cycle_of_waits() {
    let mut shard = shard();
    granted(&mut shard, try_request("p1", &[write("l")]));
    assert!(release(&mut shard, "p1"));
    shard.granted(try_request("p2", &[write("m")]));
    shard.queued(wait_request("p2", &[write("l")]), Reason::Transition);
    // p2 waits for time, not for p1.
    shard.queued(wait_request("p1", &[write("m")]), Reason::Held);
    shard.advance_by(AT_LEAST_MS);
    assert_eq!(shard.holders("l"), ["p2"]);
    shard.core.verify();
}

#[test]
fn a_deletion_ends_what_is_kept() {
    let mut shard = shard();
    granted(&mut shard, try_request("p1", &[write("l")]));
    assert!(release(&mut shard, "p1"));
    shard.delete("l");
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_connected_session_asks_for_it_too() {
    let mut shard = shard();
    let session = shard.open_session("se_1");
    let acquire = SessionAcquire {
        holder: None,
        claims: vec![write("l")],
        transition_ms: 0,
        wait: Wait::No,
        allow_upgrade: false,
        request_id: "r".into(),
    };
    let mut seq = 0;
    let mut run = |shard: &mut Shard, request| -> Result<Response, CommandError> {
        seq += 1;
        let message = holdfast_core::MessageSeq { epoch: session.epoch, seq };
        let command = SessionCommand { account: ACCOUNT, session: session.number, message, request };
        shard.run(LocksCommand::Session(command))
    };
    let terms = SessionTerms { at_least_ms: AT_LEAST_MS, ..SessionTerms::default() };
    let request = SessionRequest::AcquireWith { acquire, terms };
    assert!(matches!(run(&mut shard, request), Ok(Response::Granted { .. } | Response::Acquired { .. })));
    let release = SessionRequest::Release { request_id: "r".into(), is_known: true };
    assert!(run(&mut shard, release).is_ok());
    assert_eq!(phase(&shard), Some((Phase::Transition, Some(1_000 + AT_LEAST_MS))));
}

#[test]
fn others_get_at_once_what_its_owner_gives_up_to_await_a_condition() {
    let mut shard = shard();
    let token = granted(&mut shard, try_request("p1", &[write("l")]));
    shard.queued(wait_request("p2", &[write("l")]), Reason::Held);
    let awaits = await_command(process("p1"), token, "c");
    assert!(matches!(shard.try_await(awaits), Ok((AcquireOutcome::Enqueued(_), None))));
    assert_eq!(shard.holders("l"), ["p2"]);
    assert_eq!(phase(&shard).map(|(phase, _)| phase), Some(Phase::Held));
    shard.core.verify();
}
