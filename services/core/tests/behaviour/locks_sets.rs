//! Several claims in one request: all of them, or none.

use holdfast_core::{Acquire, Claim, Mode, Owner, Query, Reason, ReleaseTarget, Response};

use crate::support::{Shard, assert_nothing_is_left, orders, process};
use crate::wait_requests::{at, read, session_owner, try_request, wait_request, write};

#[test]
fn sets_that_overlap_in_part_exclude_one_another_and_take_nothing_when_refused() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a"), write("b")]));
    let why = shard.refused(try_request("p2", &[write("c"), write("b")]));
    assert_eq!((why.reason, &why.blockers[0].path), (Reason::Held, &at("b")));
    assert_eq!(shard.holders("c"), [""; 0]);
    shard.granted(try_request("p3", &[write("c"), read("d")]));
    shard.granted(try_request("p4", &[read("d")]));
}

#[test]
fn the_reason_is_that_of_the_first_claim_that_fails() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a/x")]));
    shard.granted(try_request("p2", &[write("b")]));
    assert_eq!(shard.refused(try_request("p3", &[read("c"), write("b/y"), write("a")])).reason, Reason::Ancestor);
    assert_eq!(shard.refused(try_request("p3", &[read("c"), write("a"), write("b/y")])).reason, Reason::Descendant);
}

#[test]
fn a_path_claimed_twice_is_one_hold_in_the_strongest_mode_and_shadowed_claims_are_holds_too() {
    let mut shard = Shard::new();
    let token = shard.granted(try_request("p1", &[read("a"), write("a"), write("a/b"), read("a/b/c")]));
    let (locks, more) = shard.list(&[], None, 10);
    let shown = locks.iter().map(|lock| (lock.path.clone(), lock.write_lock_holder.is_some()));
    let expected = [(at("a"), true), (at("a/b"), true), (at("a/b/c"), false)];
    assert_eq!((shown.collect::<Vec<_>>(), more), (expected.to_vec(), false));
    let tokens = locks.iter().flat_map(|lock| lock.write_lock_holder.iter().chain(&lock.read_lock_holders));
    assert!(tokens.into_iter().all(|holder| holder.fencing_token == token), "one grant, one token");
    shard.release_paths("p1", &["a"]);
    assert_eq!(shard.refused(try_request("p2", &[read("a/b")])).reason, Reason::Held);
}

#[test]
fn a_read_parent_with_a_written_child_lets_readers_of_other_children_in() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[read("a"), write("a/b")]));
    assert_eq!(shard.refused(try_request("p2", &[read("a")])).reason, Reason::Descendant);
    assert_eq!(shard.refused(try_request("p2", &[write("a/c")])).reason, Reason::Ancestor);
    shard.granted(try_request("p2", &[read("a/c")]));
}

#[test]
fn the_root_in_a_set_excludes_everybody() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a"), write("")]));
    assert_eq!(shard.refused(try_request("p2", &[read("z/1")])).reason, Reason::Ancestor);
    shard.release_paths("p1", &[""]);
    shard.granted(try_request("p2", &[read("z/1")]));
    assert_eq!(shard.refused(try_request("p3", &[read("")])).reason, Reason::Descendant);
}

#[test]
fn a_set_that_waits_is_granted_with_its_last_claim_and_holds_nothing_before() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a")]));
    shard.granted(try_request("p2", &[write("b")]));
    shard.queued(wait_request("p3", &[write("a"), write("b"), read("c")]), Reason::Held);
    shard.release_paths("p1", &["a"]);
    assert_eq!((shard.granted_owners(), shard.holders("a"), shard.holders("c")), (vec![], vec![], vec![]));
    assert_eq!(shard.refused(try_request("p4", &[write("a")])).reason, Reason::Queued, "it is awaited");
    shard.release_paths("p2", &["b"]);
    assert_eq!(shard.granted_owners(), ["p3"]);
    for path in ["a", "b", "c"] {
        assert_eq!(shard.holders(path), ["p3"]);
    }
    shard.try_release(process("p3"), ReleaseTarget::All);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn what_an_owner_has_of_a_set_goes_on_and_the_rest_is_new() {
    let mut shard = Shard::new();
    let first = shard.granted(try_request("p1", &[write("a")]));
    let second = shard.granted(try_request("p1", &[write("a"), write("b")]));
    let (locks, _) = shard.list(&[], None, 10);
    let tokens = locks.iter().filter_map(|lock| lock.write_lock_holder.as_ref()).map(|holder| holder.fencing_token);
    assert_eq!(tokens.collect::<Vec<_>>(), [first, second]);
    assert_eq!(shard.refused(try_request("p1", &[read("a"), write("c")])).reason, Reason::Upgrade);
    assert_eq!(locks[0].write_lock_holder.as_ref().map(|holder| holder.mode), Some(Mode::Write));
}

#[test]
fn whether_an_owner_holds_all_that_it_names_is_told_by_path_mode_and_phase() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("a"), read("b/c")]));
    let holds = |shard: &Shard, owner: Owner, claims: &[Claim]| {
        shard.query(&Query::Holds { namespace: orders(), owner, claims: claims.to_vec() })
    };
    for (claims, all) in [
        (&[write("a"), read("b/c")][..], true),
        (&[read("b/c")], true),
        (&[write("a"), write("b/c")], false),
        (&[read("a")], false),
        (&[write("a"), read("b")], false),
        (&[write("a"), read("d")], false),
    ] {
        assert_eq!(holds(&shard, process("p1"), claims), Ok(Response::Holds(all)), "{claims:?}");
        assert_eq!(holds(&shard, process("p2"), claims), Ok(Response::Holds(false)));
        assert_eq!(holds(&shard, session_owner("p1"), claims), Ok(Response::Holds(false)));
    }
    shard.granted(Acquire { transition_ms: 5_000, ..try_request("p3", &[write("e")]) });
    shard.advance_by(60_000);
    assert_eq!(holds(&shard, process("p3"), &[write("e")]), Ok(Response::Holds(false)), "it is in transition");
}
