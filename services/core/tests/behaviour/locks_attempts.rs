//! Which of the calls for one request count: what one is told of is not taken away when another leaves, and nothing stays
//! when all have left. By rules 2.

use holdfast_core::{
    Acquire, Cancel, CancelAttempts, Claim, CommandError, LocksCommand, Reason, Reattach, ReleaseTarget, Response,
    Rules, Wait,
};

use crate::locks_waits::{attempt, cancelled, held};
use crate::support::{Shard, assert_nothing_is_left, orders, process};
use crate::wait_requests::{read, session_wait_request, try_request, wait_request, write};

fn new() -> Shard {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    shard
}

/// A lock with a holder `h`.
fn held_lock() -> Shard {
    let mut shard = held();
    shard.rules = Rules::TWO;
    shard
}

fn waiting_acquire(claims: &[Claim]) -> Acquire {
    wait_request("p", claims)
}

/// The caller of that attempt goes away; those in `abandoned` did before.
fn cancel_all(shard: &mut Shard, request: &Acquire, left: &[u64]) -> (bool, bool) {
    let Acquire { owner, request_id, claims, attempt, .. } = request.clone();
    let cancel = Cancel { namespace: orders(), owner, request_id, claims, attempt };
    match shard.run(LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned: left.to_vec() })) {
        Ok(Response::Cancelled { left_queue, grant_released }) => (left_queue, grant_released),
        other => panic!("not an answer to a cancel: {other:?}"),
    }
}

fn reattach(shard: &mut Shard, request: &Acquire, left: &[u64]) {
    let command = LocksCommand::Reattach(Reattach { acquire: request.clone(), abandoned: left.to_vec() });
    assert!(matches!(shard.run(command), Ok(Response::Acquired { .. })));
}

#[test]
fn a_renewal_that_is_given_up_leaves_the_hold_to_the_call_that_took_it() {
    let mut shard = new();
    let request = waiting_acquire(&[write("l")]);
    let token = shard.granted(attempt(1, &request));
    assert_eq!(shard.granted(attempt(2, &request)), token);
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, false), "call 1 holds it");
    assert!(shard.is_current(token));
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, true), "nobody is left");
    assert_nothing_is_left(&shard.core);
}

#[test]
fn of_two_that_wait_the_one_that_stays_keeps_the_place_and_the_grant() {
    for first_leaves in [true, false] {
        for before_the_grant in [true, false] {
            let mut shard = held_lock();
            let request = waiting_acquire(&[write("l")]);
            shard.enqueued(attempt(1, &request));
            assert_eq!(shard.enqueued(attempt(2, &request)).attempt, 2);
            let leaves = attempt(if first_leaves { 1 } else { 2 }, &request);
            if before_the_grant {
                assert_eq!(cancelled(&mut shard, &leaves), (false, false));
                assert_eq!(shard.waiting_owners(), ["p"]);
            }
            shard.release_paths("h", &["l"]);
            assert_eq!(shard.granted_owners(), ["p"]);
            if !before_the_grant {
                assert_eq!(cancelled(&mut shard, &leaves), (false, false));
            }
            assert_eq!(shard.holders("l"), ["p"]);
            let stays = attempt(if first_leaves { 2 } else { 1 }, &request);
            assert_eq!(cancelled(&mut shard, &stays), (false, true));
            assert_nothing_is_left(&shard.core);
        }
    }
}

#[test]
fn nothing_is_left_when_the_newer_call_left_and_the_older_is_gone_before_it_hears_of_the_grant() {
    let mut shard = held_lock();
    let request = waiting_acquire(&[write("l"), write("m")]);
    shard.enqueued(attempt(1, &request));
    shard.enqueued(attempt(2, &request));
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, false));
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, true));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_cancel_takes_those_out_who_left_before() {
    let mut shard = held_lock();
    let request = waiting_acquire(&[write("l")]);
    (1..=3).for_each(|number| drop(shard.enqueued(attempt(number, &request))));
    assert_eq!(cancel_all(&mut shard, &attempt(3, &request), &[1]), (false, false), "2 waits");
    assert_eq!(cancel_all(&mut shard, &attempt(2, &request), &[1, 3]), (true, false));
    assert_eq!(shard.waiting_owners(), [""; 0]);
}

#[test]
fn a_call_that_comes_in_place_of_others_counts_alone() {
    let mut shard = held_lock();
    let request = waiting_acquire(&[write("l")]);
    shard.enqueued(attempt(1, &request));
    shard.enqueued(attempt(2, &request));
    reattach(&mut shard, &attempt(3, &request), &[1]);
    assert_eq!(cancelled(&mut shard, &attempt(3, &request)), (false, false), "2 waits");
    reattach(&mut shard, &attempt(4, &request), &[2, 3]);
    // The next one comes when the request was granted.
    shard.release_paths("h", &["l"]);
    reattach(&mut shard, &attempt(5, &request), &[4]);
    assert_eq!(cancelled(&mut shard, &attempt(5, &request)), (false, true));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_poll_after_the_other_is_one_call_however_many_they_are() {
    let mut shard = held_lock();
    let request = waiting_acquire(&[write("l")]);
    shard.enqueued(attempt(1, &request));
    (2..=20).for_each(|number| reattach(&mut shard, &attempt(number, &request), &[number - 1]));
    assert_eq!(cancelled(&mut shard, &attempt(20, &request)), (true, false));
}

#[test]
fn a_fifth_call_makes_a_hold_stay() {
    let mut shard = new();
    let request = waiting_acquire(&[write("l")]);
    (1..=4).for_each(|number| assert!(shard.granted(attempt(number, &request)) > 0));
    let mut four = shard.restored();
    assert_eq!(cancel_all(&mut four, &attempt(4, &request), &[1, 2, 3]), (false, true));
    shard.granted(attempt(5, &request));
    assert_eq!(cancel_all(&mut shard, &attempt(5, &request), &[1, 2, 3, 4]), (false, false));
    assert_eq!(shard.holders("l"), ["p"]);
    shard.advance_by(60_000);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_fifth_call_makes_a_place_stay_and_everybody_is_told_of_the_grant() {
    let mut shard = held_lock();
    let request = waiting_acquire(&[write("l")]);
    (1..=5).for_each(|number| assert_eq!(shard.enqueued(attempt(number, &request)).attempt, number));
    assert_eq!(cancel_all(&mut shard, &attempt(5, &request), &[1, 2, 3, 4]), (false, false));
    assert_eq!(shard.enqueued(attempt(6, &request)).attempt, 6);
    let mut restored = shard.restored();
    assert_eq!(restored.core, shard.core);
    restored.advance_by(10_000);
    assert_eq!(restored.resolved_waits(), [("p".into(), Err(Reason::TimedOut))]);
    shard.release_paths("h", &["l"]);
    assert_eq!(shard.granted_owners(), ["p"]);
    assert_eq!(cancelled(&mut shard, &attempt(6, &request)), (false, false));
    assert_eq!(shard.holders("l"), ["p"]);
}

#[test]
fn a_call_that_cannot_leave_makes_a_hold_stay() {
    let mut shard = new();
    let request = waiting_acquire(&[write("l")]);
    shard.granted(attempt(1, &request));
    shard.granted(attempt(2, &request));
    shard.granted(try_request("p", &[write("l")]));
    shard.granted(attempt(3, &request));
    assert_eq!(cancel_all(&mut shard, &attempt(3, &request), &[1, 2]), (false, false));
    assert_eq!(shard.holders("l"), ["p"]);
}

#[test]
fn an_upgrade_that_is_given_up_leaves_the_reader_to_those_who_were_told_of_it() {
    let mut shard = new();
    let (reads, writes) =
        (waiting_acquire(&[read("l")]), Acquire { allow_upgrade: true, ..waiting_acquire(&[write("l")]) });
    let token = shard.granted(attempt(1, &reads));
    shard.granted(attempt(2, &reads));
    shard.granted(attempt(3, &writes));
    let mut other = shard.restored();
    assert_eq!(other.core, shard.core);
    assert_eq!(cancelled(&mut shard, &attempt(3, &writes)), (false, true));
    shard.granted(try_request("r", &[read("l")]));
    assert_eq!(shard.holders("l"), ["p", "r"], "it is a reader again");
    assert_eq!(cancelled(&mut shard, &attempt(1, &reads)), (false, false));
    assert_eq!(cancelled(&mut shard, &attempt(2, &reads)), (false, true));
    assert_eq!(shard.holders("l"), ["r"]);
    // The readers leave first: then nobody is left with the upgrade.
    assert_eq!(cancel_all(&mut other, &attempt(1, &reads), &[2]), (false, false));
    assert!(!other.is_current(token) && other.holders("l") == ["p"]);
    assert_eq!(cancelled(&mut other, &attempt(3, &writes)), (false, true));
    assert_nothing_is_left(&other.core);
}

#[test]
fn a_writer_that_becomes_a_reader_is_held_by_all_who_counted_on_it() {
    let mut shard = new();
    let (reads, writes) =
        (waiting_acquire(&[read("l")]), Acquire { allow_upgrade: true, ..waiting_acquire(&[write("l")]) });
    shard.granted(attempt(1, &reads));
    shard.granted(attempt(2, &writes));
    shard.granted(attempt(3, &Acquire { allow_upgrade: true, ..reads.clone() }));
    shard.granted(try_request("r", &[read("l")]));
    assert_eq!(cancel_all(&mut shard, &attempt(3, &reads), &[2]), (false, false));
    assert_eq!(shard.holders("l"), ["p", "r"]);
    assert_eq!(cancelled(&mut shard, &attempt(1, &reads)), (false, true));
    assert_eq!(shard.holders("l"), ["r"]);
}

#[test]
fn a_named_request_of_a_session_is_given_back_with_the_last_of_its_calls() {
    let mut shard = held_lock();
    shard.open_session("se_1");
    let request = Acquire { wait: Wait::For(5_000), ..session_wait_request("se_1", "r", &[write("l")]) };
    shard.enqueued(attempt(1, &request));
    shard.enqueued(attempt(2, &request));
    shard.release_paths("h", &["l"]);
    shard.granted(attempt(3, &request));
    assert_eq!(shard.restored().core, shard.core);
    assert_eq!(cancel_all(&mut shard, &attempt(3, &request), &[1]), (false, false), "2 was told");
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, true));
    assert_eq!(shard.holders("l"), [""; 0]);
}

#[test]
fn a_request_of_a_stream_stays_whatever_calls_leave() {
    let mut shard = held_lock();
    shard.open_session("se_1");
    let request = session_wait_request("se_1", "r", &[write("l")]);
    shard.enqueued(request.clone());
    shard.enqueued(Acquire { wait: Wait::For(5_000), ..attempt(7, &request) });
    assert_eq!(cancelled(&mut shard, &attempt(7, &request)), (false, false));
    assert_eq!(shard.waiting_owners(), ["se_1"]);
    shard.release_paths("h", &["l"]);
    assert_eq!(cancelled(&mut shard, &attempt(7, &request)), (false, false));
    assert_eq!(shard.holders("l"), ["se_1"]);
}

#[test]
fn a_state_in_the_middle_goes_on_from_its_snapshot() {
    let mut shard = held_lock();
    let (request, other) = (waiting_acquire(&[write("l")]), waiting_acquire(&[write("m")]));
    (1..=3).for_each(|number| drop(shard.enqueued(attempt(number, &request))));
    (4..=7).for_each(|number| assert!(shard.granted(attempt(number, &other)) > 0));
    let mut restored = shard.restored();
    assert_eq!(restored.core, shard.core);
    restored.core.verify();
    for shard in [&mut shard, &mut restored] {
        assert_eq!(cancel_all(shard, &attempt(4, &other), &[6, 7]), (false, false));
        assert_eq!(cancelled(shard, &attempt(5, &other)), (false, true));
        assert_eq!(cancel_all(shard, &attempt(1, &request), &[3]), (false, false));
        assert_eq!(cancelled(shard, &attempt(2, &request)), (true, false));
    }
    assert_eq!(restored.core, shard.core);
}

#[test]
fn what_began_by_rules_1_goes_on_by_its_newest_attempt() {
    let mut shard = held();
    let request = waiting_acquire(&[write("l")]);
    shard.enqueued(attempt(1, &request));
    shard.enqueued(attempt(2, &request));
    shard.rules = Rules::TWO;
    shard.enqueued(attempt(3, &request));
    assert_eq!(cancelled(&mut shard, &attempt(3, &request)), (false, false));
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, false), "it was replaced by 2");
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (true, false));
}

#[test]
fn by_rules_1_the_newest_call_alone_counts() {
    let mut shard = Shard::new();
    let request = waiting_acquire(&[write("l")]);
    shard.granted(attempt(1, &request));
    shard.granted(attempt(2, &request));
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, false));
    assert_eq!(cancelled(&mut shard, &attempt(2, &request)), (false, true));
}

#[test]
fn commands_of_later_rules_change_nothing_by_rules_1() {
    let mut shard = Shard::new();
    let request = attempt(1, &waiting_acquire(&[write("l")]));
    let before = shard.core.clone();
    let reattach = LocksCommand::Reattach(Reattach { acquire: request.clone(), abandoned: vec![] });
    assert!(matches!(shard.run(reattach), Err(CommandError::Malformed(_))));
    let Acquire { namespace, owner, request_id, claims, attempt, .. } = request;
    let cancel = Cancel { namespace, owner, request_id, claims, attempt };
    let several = LocksCommand::CancelAttempts(CancelAttempts { cancel, abandoned: vec![] });
    assert!(matches!(shard.run(several), Err(CommandError::Malformed(_))));
    assert_eq!(shard.core, before);
}

#[test]
fn what_was_released_and_taken_again_is_not_the_former_callers() {
    let mut shard = new();
    let request = waiting_acquire(&[write("l")]);
    shard.granted(attempt(1, &request));
    assert!(shard.try_release(process("p"), ReleaseTarget::All));
    let token = shard.granted(attempt(2, &request));
    assert_eq!(cancelled(&mut shard, &attempt(1, &request)), (false, false));
    assert!(shard.is_current(token));
}
