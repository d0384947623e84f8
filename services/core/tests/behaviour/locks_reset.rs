//! Ending what everybody has who is not said to be alive.

use holdfast_core::{Acquire, Answer, Effect, LocksCommand, Reason, Reset, Revision, RevokedReason, SessionEnd};

use crate::support::{Shard, assert_nothing_is_left, orders};
use crate::waiting::{asks, session_waits, waits, write};

/// How many holds and waits went.
fn reset(shard: &mut Shard, live: &[&str], before_revision: Option<Revision>) -> (u64, u64) {
    let live_owners = live.iter().map(|owner| (*owner).to_owned()).collect();
    match shard.run(LocksCommand::Reset(Reset { namespace: orders(), live_owners, before_revision })) {
        Ok(Answer::Reset { removed_holds, removed_waiters }) => (removed_holds, removed_waiters),
        other => panic!("not an answer to a reset: {other:?}"),
    }
}

#[test]
fn nobody_moves_up_who_is_removed_in_the_same_reset() {
    let mut shard = Shard::new();
    shard.granted(asks("dead", &[write("l")]));
    shard.enqueued(waits("dead too", &[write("l")]));
    shard.enqueued(waits("live", &[write("l")]));
    assert_eq!(reset(&mut shard, &["live"], None), (1, 1));
    let settled = shard.settled();
    assert_eq!(settled[0], ("dead too".into(), Err(Reason::Ended)));
    assert!(settled.len() == 2 && settled[1].0 == "live" && settled[1].1.is_ok());
    assert_eq!(shard.holders("l"), ["live"]);
}

#[test]
fn without_a_list_everything_ends_sessions_and_transitions_too() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    shard.open_session("se_2");
    shard.granted(Acquire { transition_ms: 10_000, ..session_waits("se_1", "1", &[write("a")]) });
    shard.granted(Acquire { ttl_ms: Some(10), transition_ms: 10_000, ..asks("p", &[write("b")]) });
    shard.pass(10);
    shard.enqueued(waits("q", &[write("a"), write("b")]));
    assert_eq!(reset(&mut shard, &[], None), (2, 1));
    let effects = shard.core.take_effects();
    let ended = effects.iter().filter(|it| matches!(it, Effect::SessionEnded { reason: SessionEnd::Reset, .. }));
    let revoked = effects.iter().filter(|it| matches!(it, Effect::Revoked { reason: RevokedReason::Reset, .. }));
    assert_eq!((ended.count(), revoked.count()), (2, 1));
    assert_nothing_is_left(&shard.core);
    assert_eq!(reset(&mut shard, &[], None), (0, 0));
}

#[test]
fn only_the_owners_of_before_a_revision_are_removed() {
    let mut shard = Shard::new();
    shard.open_session("se_old");
    let old = shard.granted(asks("old", &[write("a")]));
    let new = shard.granted(asks("new", &[write("b")]));
    shard.open_session("se_new");
    shard.granted(session_waits("se_old", "1", &[write("c")]));
    shard.granted(session_waits("se_new", "1", &[write("d")]));
    shard.granted(asks("old", &[write("e")]));
    assert!(old < new);
    assert_eq!(reset(&mut shard, &[], Some(new)), (3, 0), "an owner is as old as the oldest it has");
    let left = ["a", "b", "c", "d", "e"].map(|path| shard.holders(path).len());
    assert_eq!(left, [0, 1, 0, 1, 0]);
    assert!(shard.open_session_as("se_old", true, 2).is_err());
    assert!(shard.open_session_as("se_new", true, 2).is_ok());
}

#[test]
fn a_live_session_keeps_what_all_its_threads_have_and_its_process_id_protects_nobody() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let thread = holdfast_core::Owner::Session { session_id: "se_1".into(), holder: Some("t".into()) };
    shard.granted(Acquire { owner: thread, ..session_waits("se_1", "1", &[write("a")]) });
    assert_eq!(reset(&mut shard, &["se_1"], None), (0, 0));
    assert_eq!(reset(&mut shard, &["host of se_1", "t"], None), (1, 0));
    assert_nothing_is_left(&shard.core);
}
