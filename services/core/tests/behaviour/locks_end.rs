//! How holds end: release, expiry, transition, delete, purge.

use holdfast_core::locks::Footprint;
use holdfast_core::{
    Acquire, Command, CommandError, Limits, LockState, LockView, LocksCommand, Mode, OpenSession, Phase, Query, Reason,
    Response, Revision, Wait,
};

use crate::support::{self, Shard, lock_request, names, namespace, open, orders, purge};
use crate::wait_requests::open_command;

fn assert_nothing_is_left(shard: &Shard) {
    support::assert_nothing_is_left(&shard.core);
}

/// All that a shard keeps of locks, besides the count of what it was asked.
fn retained_state(shard: &Shard, lock: &str) -> (LockView, Footprint, Revision, Option<u64>) {
    let core = &shard.core;
    (shard.get(lock), core.footprint(), core.revision(), core.next_deadline_ms())
}

#[test]
fn a_release_frees_a_write_lock_and_leaves_nothing() {
    let mut shard = Shard::new();
    let token = shard.granted(lock_request("p1", Mode::Write));
    let (released, lock) = shard.release("p1");
    assert!(released);
    assert_eq!((lock.state, lock.locked_at_ms, lock.holders_total), (LockState::Unlocked, None, 0));
    assert!(lock.revision > token);
    assert!(!shard.release("p1").0);
    assert_nothing_is_left(&shard);
}

#[test]
fn a_release_by_a_stranger_changes_nothing() {
    for mode in [Mode::Read, Mode::Write] {
        let mut shard = Shard::new();
        shard.granted(lock_request("p1", mode));
        let before = retained_state(&shard, "l");
        assert_eq!(shard.release("p2"), (false, shard.get("l")));
        assert_eq!(retained_state(&shard, "l"), before);
    }
}

#[test]
fn a_release_of_one_of_two_readers_leaves_the_other() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Read));
    shard.advance_by(5);
    let second = shard.acquire(lock_request("p2", Mode::Read));
    let (released, lock) = shard.release("p1");
    assert!(released);
    assert_eq!(names(&lock.read_lock_holders), ["p2"]);
    assert_eq!(lock.state, LockState::ReadLocked);
    assert_eq!(lock.locked_at_ms, Some(second.lock.read_lock_holders[1].locked_at_ms));
    assert_eq!(lock.revision, shard.core.revision(), "the lock changed with the end of the hold");
    assert!(shard.release("p2").0);
    assert_nothing_is_left(&shard);
}

#[test]
fn get_release_and_delete_of_an_unknown_lock_are_no_errors_and_change_nothing() {
    let mut shard = Shard::new();
    let before = retained_state(&shard, "unknown");
    assert_eq!(shard.get("unknown").state, LockState::Unlocked);
    assert!(!shard.release("p1").0);
    shard.delete("unknown");
    assert_eq!(retained_state(&shard, "unknown"), before);
}

#[test]
fn a_delayed_release_with_an_old_token_frees_nothing() {
    let mut shard = Shard::new();
    let old = shard.granted(lock_request("p1", Mode::Write));
    shard.release("p1");
    let new = shard.granted(lock_request("p1", Mode::Write));
    assert!(!shard.release_with("p1", Some(old)).0);
    assert!(shard.is_current(new));
    assert!(shard.release_with("p1", Some(new)).0);
}

#[test]
fn readers_and_writers_alike_are_held_until_exactly_their_deadline() {
    for mode in [Mode::Read, Mode::Write] {
        let mut shard = Shard::new();
        let token = shard.granted(lock_request("p1", mode));
        shard.advance_by(999);
        assert!(shard.is_current(token));
        assert_eq!(shard.refused(lock_request("p2", Mode::Write)).reason, Reason::Held);
        shard.advance_by(1);
        assert!(!shard.is_current(token));
        assert_eq!(shard.get("l").state, LockState::Unlocked);
        assert_nothing_is_left(&shard);
    }
}

#[test]
fn what_is_due_ends_before_the_commands_of_the_same_entry() {
    let mut shard = Shard::new();
    let first = shard.granted(lock_request("p1", Mode::Write));
    shard.advance_by(500);
    shard.granted(Acquire { ttl_ms: Some(500), ..lock_request("p1", Mode::Write) });
    shard.advance_by(500);
    let second = shard.granted(lock_request("p2", Mode::Write));
    assert_eq!(second, first + 2, "the end of the first hold has the revision in between");
}

#[test]
fn the_running_clock_never_ends_a_hold() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    let reply = shard.core.query(99_000, &Query::Lock { namespace: orders(), path: shard.get("l").path });
    assert_eq!(reply.clock_ms, 99_000);
    let Ok(Response::Lock(lock)) = reply.outcome else { panic!("not a lock") };
    assert_eq!(lock.state, LockState::WriteLocked);
}

#[test]
fn a_clock_that_goes_back_changes_nothing() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    shard.core.advance(&crate::support::at(10));
    assert_eq!(shard.core.clock_ms(), 1_000);
    let deadline = shard.granted(lock_request("p2", Mode::Read).into_other("m"));
    assert!(deadline > 0);
    assert_eq!(shard.core.next_deadline_ms(), Some(2_000));
}

#[test]
fn holds_end_in_order_of_deadline_whatever_the_order_of_grants() {
    let mut shard = Shard::new();
    for (owner, ttl_ms) in [("a", 30), ("b", 10), ("c", 20), ("d", 1_000)] {
        shard.granted(Acquire { ttl_ms: Some(ttl_ms), ..lock_request(owner, Mode::Read) });
    }
    let before = shard.core.revision();
    shard.advance_by(15);
    assert_eq!(names(&shard.get("l").read_lock_holders), ["a", "c", "d"]);
    assert_eq!(shard.get("l").revision, before + 1);
    shard.advance_by(100);
    assert_eq!(names(&shard.get("l").read_lock_holders), ["d"]);
    assert_eq!(shard.get("l").revision, before + 3);
}

#[test]
fn after_its_time_a_hold_with_a_transition_still_excludes_others() {
    let mut shard = Shard::new();
    let token = shard.granted(Acquire { transition_ms: 200, ..lock_request("p1", Mode::Write) });
    shard.advance_by(1_000);
    let lock = shard.get("l");
    let holder = lock.write_lock_holder.unwrap();
    assert_eq!((holder.phase, holder.deadline_ms, holder.fencing_token), (Phase::Transition, Some(2_200), token));
    assert!(!shard.is_current(token));
    assert_eq!(shard.refused(lock_request("p2", Mode::Read)).reason, Reason::Transition);
    shard.advance_by(199);
    assert_eq!(shard.get("l").holders_total, 1);
    shard.advance_by(1);
    assert_nothing_is_left(&shard);
}

#[test]
fn a_hold_of_which_both_phases_are_over_ends_in_one_step() {
    let mut shard = Shard::new();
    shard.granted(Acquire { transition_ms: 200, ..lock_request("p1", Mode::Write) });
    shard.advance_by(5_000);
    assert_nothing_is_left(&shard);
}

#[test]
fn only_the_owner_may_renew_in_transition_and_keeps_its_token() {
    for with_token in [false, true] {
        let mut shard = Shard::new();
        let token = shard.granted(Acquire { transition_ms: 200, ..lock_request("p1", Mode::Write) });
        shard.advance_by(1_100);
        let request = Acquire { fencing_token: with_token.then_some(token), ..lock_request("p1", Mode::Write) };
        let renewed = shard.acquire(request);
        assert_eq!(renewed.outcome, Ok(token));
        let holder = renewed.lock.write_lock_holder.unwrap();
        assert_eq!((holder.phase, holder.deadline_ms), (Phase::Held, Some(3_100)));
        assert!(shard.is_current(token));
        assert_eq!(shard.core.next_deadline_ms(), Some(3_100));
    }
}

#[test]
fn a_release_in_transition_ends_it() {
    let mut shard = Shard::new();
    shard.granted(Acquire { transition_ms: 200, ..lock_request("p1", Mode::Write) });
    shard.advance_by(1_100);
    assert!(shard.release("p1").0);
    assert_nothing_is_left(&shard);
}

#[test]
fn a_reader_in_transition_lets_readers_in_and_keeps_writers_out() {
    let mut shard = Shard::new();
    shard.granted(Acquire { transition_ms: 200, ..lock_request("p1", Mode::Read) });
    shard.advance_by(1_100);
    assert_eq!(shard.refused(lock_request("w", Mode::Write)).reason, Reason::Transition);
    shard.granted(lock_request("p2", Mode::Read));
    assert_eq!(
        shard.refused(lock_request("w", Mode::Write)).reason,
        Reason::Held,
        "not all blockers are in transition"
    );
}

#[test]
fn a_delete_ends_all_holds_in_any_state_and_another_may_take_the_lock() {
    let mut shard = Shard::new();
    shard.granted(Acquire { transition_ms: 10_000, ttl_ms: Some(10), ..lock_request("p1", Mode::Read) });
    shard.granted(lock_request("p2", Mode::Read));
    shard.advance_by(20);
    let before = shard.core.revision();
    shard.delete("l");
    assert_eq!(shard.core.revision(), before + 2, "the end of each hold has a revision of its own");
    shard.delete("l");
    assert_nothing_is_left(&shard);
    shard.granted(lock_request("p3", Mode::Write));
}

#[test]
fn a_purge_ends_everything_and_a_new_incarnation_starts_empty() {
    let mut shard = Shard::new();
    let old = shard.granted(lock_request("p1", Mode::Write));
    shard.apply(&purge(2, orders()));
    assert_eq!(shard.core.next_deadline_ms(), None);
    assert_eq!(shard.try_acquire(lock_request("p1", Mode::Write)), Err(CommandError::NamespaceNotFound));
    shard.apply(&open(3, namespace("orders", 9), Limits::default()));
    assert_eq!(
        shard.try_acquire(lock_request("p1", Mode::Write)),
        Err(CommandError::NamespaceNotFound),
        "the old life is over"
    );
    let request = Acquire { namespace: namespace("orders", 9), ..lock_request("p2", Mode::Write) };
    assert!(shard.granted(request) > old);
}

#[test]
fn the_memory_of_what_was_purged_is_left_to_be_freed_elsewhere() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    assert!(shard.core.take_purged().is_empty());
    shard.apply(&purge(2, orders()));
    assert_nothing_is_left(&shard);
    assert!(shard.core.take_purged().is_empty(), "nobody was told yet");
    shard.core.drop_effects();
    assert!(!shard.core.purge_indexes(10), "there is nothing in the shard's indexes");
    assert!(!shard.core.take_purged().is_empty());
    assert!(shard.core.take_purged().is_empty(), "it is given once");
    shard.apply(&open(3, namespace("orders", 9), Limits::default()));
    shard.apply(&purge(4, namespace("orders", 9)));
    shard.advance_by(1);
    assert!(shard.core.take_purged().is_empty(), "what nobody takes goes with the next entry");
}

/// Others are let in between.
#[test]
fn whoever_was_in_what_is_purged_is_told_some_at_a_time() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p", Mode::Write));
    for number in 0..3 {
        shard.open_session(&format!("se_{number}"));
        shard.enqueued(Acquire { wait: Wait::For(1_000), ..lock_request(&format!("w{number}"), Mode::Write) });
    }
    shard.core.drop_effects();
    shard.apply(&purge(2, orders()));
    assert_nothing_is_left(&shard);
    let told: Vec<usize> = (0..4).map(|_| shard.core.take_effects_up_to(2).len()).collect();
    assert_eq!((told, shard.core.has_effects()), (vec![2, 2, 2, 1], false), "waits, sessions, and that it is gone");
    shard.apply(&open(3, namespace("orders", 9), Limits::default()));
    for number in 0..3 {
        let request =
            OpenSession { namespace: namespace("orders", 9), ..open_command(&format!("se_{number}"), false, 1) };
        assert!(shard.run(LocksCommand::OpenSession(request)).is_ok());
    }
    shard.apply(&purge(4, namespace("orders", 9)));
    shard.core.drop_effects();
    assert!(shard.core.purge_indexes(2), "one session is left in the index");
    shard.core.verify();
    let gone: Vec<u64> = (1..=shard.core.revision()).collect();
    let known_revision = shard.core.revision();
    let expired = shard.apply_now(&Command::Locks(LocksCommand::ExpireSessions { ids: gone, known_revision }));
    assert_eq!(expired.outcome, Ok(Response::SessionsExpired { ended: vec![] }), "what is left finds nothing");
    assert!(!shard.core.purge_indexes(2));
}

#[test]
fn a_repeated_message_is_ignored() {
    let mut shard = Shard::new();
    shard.apply(&purge(2, orders()));
    assert_eq!(shard.apply(&open(1, orders(), Limits::default())).outcome, Ok(Response::Done));
    assert_eq!(shard.try_acquire(lock_request("p1", Mode::Write)), Err(CommandError::NamespaceNotFound));
    shard.apply(&open(3, namespace("orders", 2), Limits::default()));
    let request = Acquire { namespace: namespace("orders", 2), ..lock_request("p1", Mode::Write) };
    shard.granted(request);
    let before = shard.core.clone();
    shard.apply(&purge(2, namespace("orders", 2)));
    assert_eq!(shard.core, before);
}

#[test]
fn an_open_of_a_newer_incarnation_ends_an_older_one_and_never_the_other_way_round() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    shard.apply(&open(2, namespace("orders", 5), Limits::default()));
    assert_eq!(shard.try_acquire(lock_request("p1", Mode::Write)), Err(CommandError::NamespaceNotFound));
    assert_eq!(shard.core.next_deadline_ms(), None);
    shard.apply(&open(3, orders(), Limits::default()));
    shard.apply(&purge(4, orders()));
    shard.granted(Acquire { namespace: namespace("orders", 5), ..lock_request("p1", Mode::Write) });
}

/// Another lock than `l`.
trait IntoOther {
    fn into_other(self, name: &str) -> Self;
}

impl IntoOther for Acquire {
    fn into_other(mut self, name: &str) -> Self {
        self.claims[0].path = holdfast_core::Path::flat(name);
        self
    }
}
