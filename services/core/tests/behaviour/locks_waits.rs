//! How waits end, who they belong to, and what becomes of a grant whose caller is gone.

use holdfast_core::{
    Acquire, AcquireOutcome, CommandError, Limits, LocksCommand, Query, Reason, ReleaseTarget, Response, Wait,
};

use crate::support::{Shard, assert_nothing_is_left, orders, process};
use crate::wait_requests::{
    at, cancel_command, read, session_owner, session_wait_request, try_request, wait_request, write,
};

pub(crate) fn cancelled(shard: &mut Shard, request: &Acquire) -> (bool, bool) {
    match shard.run(cancel_command(request)) {
        Ok(Response::Cancelled { left_queue, grant_released }) => (left_queue, grant_released),
        other => panic!("not an answer to a cancel: {other:?}"),
    }
}

pub(crate) fn attempt(attempt: u64, request: &Acquire) -> Acquire {
    Acquire { attempt, ..request.clone() }
}

/// A lock with a holder `h`.
pub(crate) fn held() -> Shard {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("l")]));
    shard
}

#[test]
fn a_release_by_its_name_ends_a_request_that_waits() {
    let mut shard = held();
    let named = Acquire { request_id: Some("r".into()), ..wait_request("p", &[write("l")]) };
    shard.enqueued(named);
    shard.queued(wait_request("q", &[write("l")]), Reason::Held);
    let by_name = |request_id: &str| ReleaseTarget::Request { request_id: request_id.into() };
    assert!(!shard.try_release(process("q"), by_name("r")), "the name is another's");
    assert!(shard.try_release(process("p"), by_name("r")));
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::Ended))]);
    assert!(!shard.try_release(process("p"), by_name("r")));
    assert!(!shard.try_release(process("p"), ReleaseTarget::Paths { paths: vec![at("l")], fencing_token: None }));
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["q"]);
}

#[test]
fn a_release_of_everything_ends_what_an_owner_holds_and_awaits() {
    let mut shard = held();
    shard.granted(try_request("p", &[write("m")]));
    shard.enqueued(wait_request("p", &[write("l")]));
    shard.enqueued(wait_request("q", &[write("m")]));
    assert!(shard.try_release(process("p"), ReleaseTarget::All));
    assert_eq!(shard.granted_owners(), ["q"]);
    assert!(!shard.try_release(process("p"), ReleaseTarget::All));
    shard.try_release(process("q"), ReleaseTarget::All);
    shard.release_paths("h", &["l"]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_waiter_whose_time_is_over_is_never_granted() {
    let mut shard = held();
    shard.enqueued(Acquire { wait: Wait::For(100), ..wait_request("p", &[write("l")]) });
    shard.advance_by(100);
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::TimedOut))]);
    shard.release_paths("h", &["l"]);
    assert_eq!((shard.granted_owners(), shard.holders("l")), (vec![], vec![]));
}

#[test]
fn a_lock_that_is_free_at_the_very_end_of_a_wait_is_granted() {
    let mut shard = Shard::new();
    shard.granted(Acquire { ttl_ms: Some(100), ..try_request("h", &[write("l")]) });
    shard.enqueued(Acquire { wait: Wait::For(100), ..wait_request("p", &[write("l")]) });
    shard.advance_by(5_000);
    assert_eq!(shard.granted_owners(), ["p"]);
}

#[test]
fn a_waiter_gets_its_whole_time_from_the_grant() {
    let mut shard = held();
    shard.enqueued(Acquire { ttl_ms: Some(500), ..wait_request("p", &[write("l")]) });
    shard.advance_by(900);
    shard.release_paths("h", &["l"]);
    shard.advance_by(499);
    assert_eq!(shard.holders("l"), ["p"]);
    shard.advance_by(1);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_waiter_whose_session_ends_leaves_at_once() {
    let mut shard = held();
    let number = shard.open_session("se_1").number;
    shard.open_session("se_2");
    shard.enqueued(session_wait_request("se_1", "r", &[write("l")]));
    shard.enqueued(session_wait_request("se_2", "r", &[write("l")]));
    let known_revision = shard.core.revision();
    let ended = shard.run(LocksCommand::ExpireSessions { ids: vec![number], known_revision });
    assert_eq!(ended, Ok(Response::SessionsExpired { ended: vec![number] }));
    assert_eq!(shard.resolved_waits(), [("se_1".into(), Err(Reason::Ended))]);
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_2".into(), message: None };
    assert_eq!(shard.run(close), Ok(Response::Done));
    assert_eq!(shard.resolved_waits(), [("se_2".into(), Err(Reason::Ended))]);
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), [""; 0]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_repeat_finds_its_place_and_takes_the_newest_terms() {
    let mut shard = held();
    let request = Acquire { ttl_ms: Some(1_000), ..wait_request("p", &[write("l"), read("m")]) };
    let first = shard.enqueued(request.clone());
    shard.enqueued(wait_request("q", &[write("l")]));
    let turned = Acquire { claims: request.claims.iter().rev().cloned().collect(), ..request.clone() };
    let again = shard.enqueued(Acquire { ttl_ms: Some(2_000), ..turned });
    assert_eq!((again.wait, again.not_granted.queue_position), (first.wait, Some(0)));
    let why = shard.refused(Acquire { wait: Wait::No, ttl_ms: Some(3_000), ..request });
    assert_eq!((why.reason, why.queue_position), (Reason::Queued, Some(0)));
    assert_eq!(shard.waiting_owners(), ["p", "q"], "the place is kept");
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    shard.advance_by(2_999);
    assert_eq!(shard.holders("l"), ["p"]);
    shard.advance_by(1);
    assert_eq!(shard.granted_owners(), ["q"]);
}

#[test]
fn a_late_cancel_of_an_earlier_attempt_keeps_the_place() {
    let mut shard = held();
    let request = wait_request("p", &[write("l")]);
    shard.enqueued(attempt(1, &request));
    assert_eq!(shard.enqueued(attempt(2, &request)).attempt, 2);
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, false));
    assert_eq!(shard.enqueued(attempt(1, &request)).attempt, 2, "a copy of the first call takes nothing over");
    assert_eq!(shard.waiting_owners(), ["p"]);
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (true, false));
    assert_eq!(shard.waiting_owners(), [""; 0]);
}

#[test]
fn a_grant_to_a_caller_that_is_gone_is_given_back() {
    let mut shard = held();
    let request = wait_request("p", &[write("l"), write("m")]);
    shard.enqueued(attempt(1, &request));
    shard.enqueued(attempt(2, &request));
    shard.enqueued(wait_request("q", &[write("m")]));
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, false), "another call attached since");
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, true));
    assert_eq!((shard.granted_owners(), shard.holders("l")), (vec!["q".into()], vec![]));
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, false));
}

#[test]
fn a_grant_that_its_owner_knows_of_is_not_given_back() {
    let mut shard = held();
    let request = wait_request("p", &[write("l")]);
    shard.enqueued(attempt(5, &request));
    shard.release_paths("h", &["l"]);
    shard.granted(try_request("p", &[write("l")]));
    assert_eq!(cancelled(&mut shard, &attempt(5, &request)), (false, false));
    assert_eq!(shard.holders("l"), ["p"]);
}

#[test]
fn a_granted_request_of_a_session_is_given_back_by_its_name() {
    let mut shard = held();
    shard.open_session("se_1");
    let request = Acquire { wait: Wait::For(5_000), attempt: 3, ..session_wait_request("se_1", "r", &[write("l")]) };
    shard.enqueued(request.clone());
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["se_1"]);
    assert_eq!(cancelled(&mut shard, &request), (false, true));
    assert_eq!(shard.holders("l"), [""; 0]);
    shard.granted(session_wait_request("se_1", "r", &[read("other")]));
}

#[test]
fn an_upgrade_that_is_given_back_leaves_the_reader() {
    let mut shard = Shard::new();
    shard.granted(try_request("p", &[read("l")]));
    shard.granted(try_request("r", &[read("l")]));
    let upgrade = Acquire { allow_upgrade: true, attempt: 9, ..wait_request("p", &[write("l")]) };
    shard.queued(upgrade.clone(), Reason::Held);
    shard.release_paths("r", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    // This one claims what it has as a writer, and the other lock.
    shard.granted(try_request("h", &[write("m")]));
    shard.queued(wait_request("p", &[write("l"), write("m")]), Reason::Held);
    assert_eq!(cancelled(&mut shard, &upgrade), (false, true));
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::Upgrade))], "it can never be granted any more");
    shard.granted(try_request("r", &[read("l")]));
    assert_eq!(shard.holders("l"), ["p", "r"]);
}

#[test]
fn a_second_upgrade_is_refused_and_the_first_ends_with_its_hold() {
    let mut shard = Shard::new();
    for reader in ["p", "q"] {
        shard.granted(try_request(reader, &[read("l")]));
    }
    let upgrade = |owner: &str| Acquire { allow_upgrade: true, ..wait_request(owner, &[write("l")]) };
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    shard.queued(upgrade("p"), Reason::Held);
    let why = shard.refused(upgrade("q"));
    assert_eq!((why.reason, &*why.blockers[0].holder.process_id), (Reason::Upgrade, "p"));
    shard.release_paths("p", &["l"]);
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::Upgrade))]);
    shard.granted(upgrade("q"));
    assert_eq!(shard.waiting_owners(), ["w"]);
}

#[test]
fn an_upgrade_goes_before_all_who_wait() {
    let mut shard = Shard::new();
    for reader in ["p", "q"] {
        shard.granted(try_request(reader, &[read("l")]));
    }
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    shard.queued(Acquire { allow_upgrade: true, ..wait_request("p", &[write("l")]) }, Reason::Held);
    shard.release_paths("q", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    shard.release_paths("p", &["l"]);
    assert_eq!(shard.granted_owners(), ["w"]);
}

#[test]
fn what_a_waiting_request_stands_like_can_be_asked_while_it_waits() {
    let mut shard = held();
    let request = Acquire { attempt: 4, ..wait_request("p", &[write("l")]) };
    shard.enqueued(wait_request("first", &[write("l")]));
    let told = shard.outcome(request);
    let AcquireOutcome::Enqueued(enqueued) = &told else { panic!("it should wait: {told:?}") };
    let standing = Query::WaitStatus { namespace: orders(), wait: enqueued.wait };
    let lock = shard.get("l");
    assert_eq!(shard.query(&standing), Ok(Response::Acquired { outcome: told.clone(), locks: vec![lock] }));
    shard.release_paths("h", &["l"]);
    let Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(now), .. }) = shard.query(&standing) else {
        panic!("it still waits")
    };
    assert_eq!((now.not_granted.queue_position, &*now.not_granted.blockers[0].holder.process_id), (Some(0), "first"));
    shard.release_paths("first", &["l"]);
    assert_eq!(shard.query(&standing), Err(CommandError::NotWaiting));
}

#[test]
fn the_queue_is_told_with_what_each_waits_for() {
    let mut shard = held();
    shard.open_session("se_1");
    let first = shard.enqueued(session_wait_request("se_1", "r", &[write("l")]));
    let second = shard.enqueued(wait_request("p", &[read("k"), write("l")]));
    let query = |after, limit| Query::Queue { namespace: orders(), after, limit };
    let Ok(Response::Queue { waits, more: false }) = shard.query(&query(None, 10)) else { panic!("not the queue") };
    assert_eq!((waits[0].wait.wait, &waits[0].not_granted), (first.wait, &first.not_granted));
    // What it was told of first is the holder; it is looked at again when the one before it has gone.
    let ahead = &waits[1].not_granted;
    assert_eq!((waits[1].wait.wait, second.not_granted.reason), (second.wait, Reason::Held));
    assert_eq!((ahead.reason, ahead.queue_position), (Reason::Queued, second.not_granted.queue_position));
    assert_eq!((&*ahead.blockers[0].holder.process_id, ahead.blockers[0].waiting), ("host of se_1", true));
    assert_eq!((&*waits[0].process_id, waits[0].wait.owner.clone()), ("host of se_1", session_owner("se_1")));
    assert_eq!(waits[1].wait.claims, [read("k"), write("l")]);
    let Ok(Response::Queue { waits, more: true }) = shard.query(&query(None, 1)) else { panic!("a page of one") };
    let Ok(Response::Queue { waits, more: false }) = shard.query(&query(Some(waits[0].wait.wait), 1)) else {
        panic!("the other one")
    };
    assert_eq!(waits[0].wait.wait, second.wait);
}

#[test]
fn a_full_queue_refuses_one_more_and_harms_nobody_in_it() {
    let limits = Limits { max_waiting_per_lock: 2, max_waiting_per_namespace: 3, ..Default::default() };
    let mut shard = Shard::with_limits(limits);
    shard.granted(try_request("h", &[write("l"), write("m")]));
    shard.enqueued(wait_request("p1", &[write("l")]));
    shard.enqueued(wait_request("p2", &[write("l")]));
    assert!(matches!(
        shard.try_acquire(wait_request("p3", &[write("l")])),
        Err(CommandError::QuotaExceeded { max: 2, .. })
    ));
    shard.enqueued(wait_request("p3", &[write("m")]));
    assert!(matches!(
        shard.try_acquire(wait_request("p4", &[write("m")])),
        Err(CommandError::QuotaExceeded { max: 3, .. })
    ));
    shard.enqueued(wait_request("p1", &[write("l")]));
    assert_eq!(shard.waiting_owners(), ["p1", "p2", "p3"]);
}

#[test]
fn a_session_may_wait_without_a_limit_and_a_process_may_not() {
    let mut shard = held();
    shard.open_session("se_1");
    let end = shard.enqueued(session_wait_request("se_1", "r", &[write("l")])).wait;
    let Ok(Response::Waits { waits: waiting, .. }) =
        shard.query(&Query::Waits { namespace: orders(), after: None, limit: 1 })
    else {
        panic!("not waits")
    };
    assert_eq!((waiting[0].wait, waiting[0].ends_at_ms, &waiting[0].owner), (end, None, &session_owner("se_1")));
    let process = Acquire { wait: Wait::Unlimited, ..wait_request("p", &[write("l")]) };
    assert!(matches!(shard.try_acquire(process), Err(CommandError::Malformed(_))));
}
