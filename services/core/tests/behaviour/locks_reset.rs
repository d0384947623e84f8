//! Ending what everybody has who is not said to be alive.

use holdfast_core::{Acquire, Effect, LocksCommand, Reason, Reset, Response, Revision, RevokedReason, SessionEnd};

use crate::support::{Shard, assert_nothing_is_left, orders};
use crate::wait_requests::{session_wait_request, try_request, wait_request, write};

/// How many holds and waits went.
fn reset(shard: &mut Shard, live: &[&str], before_revision: Option<Revision>) -> (u64, u64) {
    let live_owners = live.iter().map(|owner| (*owner).to_owned()).collect();
    match shard.run(LocksCommand::Reset(Reset { namespace: orders(), live_owners, before_revision })) {
        Ok(Response::Reset { removed_holds, removed_waiters }) => (removed_holds, removed_waiters),
        other => panic!("not an answer to a reset: {other:?}"),
    }
}

#[test]
fn nobody_moves_up_who_is_removed_in_the_same_reset() {
    let mut shard = Shard::new();
    shard.granted(try_request("dead", &[write("l")]));
    shard.enqueued(wait_request("dead too", &[write("l")]));
    shard.enqueued(wait_request("live", &[write("l")]));
    assert_eq!(reset(&mut shard, &["live"], None), (1, 1));
    let settled = shard.resolved_waits();
    assert_eq!(settled[0], ("dead too".into(), Err(Reason::Ended)));
    assert!(settled.len() == 2 && settled[1].0 == "live" && settled[1].1.is_ok());
    assert_eq!(shard.holders("l"), ["live"]);
}

#[test]
fn without_a_list_everything_ends_sessions_and_transitions_too() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    shard.open_session("se_2");
    shard.granted(Acquire { transition_ms: 10_000, ..session_wait_request("se_1", "1", &[write("a")]) });
    shard.granted(Acquire { ttl_ms: Some(10), transition_ms: 10_000, ..try_request("p", &[write("b")]) });
    shard.advance_by(10);
    shard.enqueued(wait_request("q", &[write("a"), write("b")]));
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
    let old = shard.granted(try_request("old", &[write("a")]));
    let new = shard.granted(try_request("new", &[write("b")]));
    shard.open_session("se_new");
    shard.granted(session_wait_request("se_old", "1", &[write("c")]));
    shard.granted(session_wait_request("se_new", "1", &[write("d")]));
    shard.granted(try_request("old", &[write("e")]));
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
    shard.granted(Acquire { owner: thread, ..session_wait_request("se_1", "1", &[write("a")]) });
    assert_eq!(reset(&mut shard, &["se_1"], None), (0, 0));
    assert_eq!(reset(&mut shard, &["host of se_1", "t"], None), (1, 0));
    assert_nothing_is_left(&shard.core);
}
