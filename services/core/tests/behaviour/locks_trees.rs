//! Locks in trees: who excludes whom, for every pair of places.

use holdfast_core::{Acquire, Claim, Mode, Reason, ReleaseTarget};

use crate::support::{Shard, assert_nothing_is_left, process};
use crate::wait_requests::{at, read, try_request, wait_request, write};

/// The root, a parent, the path itself, a child of it, and a sibling.
const PATHS: [&str; 5] = ["", "a", "a/b", "a/b/c", "a/d"];

/// A row for each place held, a letter for each place wanted: Held, Ancestor, Descendant, or nothing in the way.
const EXPECTED_REASONS: [&str; 5] = ["HAAAA", "DHAAA", "DDHA-", "DDDH-", "DD--H"];

fn reason(held: usize, wanted: usize) -> Option<Reason> {
    match EXPECTED_REASONS[held].as_bytes()[wanted] {
        b'H' => Some(Reason::Held),
        b'A' => Some(Reason::Ancestor),
        b'D' => Some(Reason::Descendant),
        _ => None,
    }
}

/// Every pair of places with every pair of modes.
fn pairs() -> impl Iterator<Item = (usize, usize, Claim, Claim)> {
    let modes = [Mode::Read, Mode::Write];
    let places = (0..5).flat_map(|held| (0..5).map(move |wanted| (held, wanted)));
    places.flat_map(move |(held, wanted)| {
        let claims = modes.into_iter().flat_map(move |one| modes.into_iter().map(move |other| (one, other)));
        claims.map(move |(one, other)| {
            let claim = |place: usize, mode| Claim { path: at(PATHS[place]), mode };
            (held, wanted, claim(held, one), claim(wanted, other))
        })
    })
}

#[test]
fn another_owner_is_kept_out_by_what_is_above_at_or_below_unless_both_read() {
    for (held, wanted, holds, wants) in pairs() {
        let mut shard = Shard::new();
        shard.granted(try_request("holder", std::slice::from_ref(&holds)));
        let both_read = holds.mode == Mode::Read && wants.mode == Mode::Read;
        match reason(held, wanted).filter(|_| !both_read) {
            None => drop(shard.granted(try_request("other", std::slice::from_ref(&wants)))),
            Some(reason) => {
                let why = shard.refused(try_request("other", std::slice::from_ref(&wants)));
                assert_eq!(why.reason, reason, "{holds:?} is held, {wants:?} is wanted");
                assert_eq!((why.blockers.len(), &why.blockers[0].path), (1, &holds.path));
                shard.queued(wait_request("other", std::slice::from_ref(&wants)), reason);
                shard.release_paths("holder", &[PATHS[held]]);
                assert_eq!(shard.granted_owners(), ["other"], "{wants:?} waits for {holds:?}");
            }
        }
        for owner in ["holder", "other"] {
            shard.try_release(process(owner), ReleaseTarget::All);
        }
        assert_nothing_is_left(&shard.core);
    }
}

#[test]
fn an_owner_never_excludes_itself() {
    for (held, wanted, holds, wants) in pairs() {
        let mut shard = Shard::new();
        shard.granted(try_request("holder", std::slice::from_ref(&holds)));
        if held == wanted && holds.mode != wants.mode {
            assert_eq!(shard.refused(try_request("holder", std::slice::from_ref(&wants))).reason, Reason::Upgrade);
        } else {
            shard.granted(try_request("holder", std::slice::from_ref(&wants)));
        }
        assert!(shard.try_release(process("holder"), ReleaseTarget::All));
        assert_nothing_is_left(&shard.core);
    }
}

#[test]
fn a_path_that_only_begins_alike_is_no_descendant() {
    let mut shard = Shard::new();
    shard.granted(try_request("p1", &[write("user")]));
    shard.granted(try_request("p2", &[write("user2")]));
    shard.granted(try_request("p3", &[write("us/er")]));
    assert_eq!(shard.refused(try_request("p4", &[read("user/2")])).reason, Reason::Ancestor);
}

#[test]
fn sixteen_segments_are_locked_and_one_more_is_refused() {
    let mut shard = Shard::new();
    let deep = vec!["s"; 16].join("/");
    shard.granted(try_request("p1", &[write(&deep)]));
    assert_eq!(shard.refused(try_request("p2", &[read("s/s")])).reason, Reason::Descendant);
    let deeper = vec!["t"; 17].join("/");
    for request in [try_request("p2", &[write(&deeper)]), wait_request("p2", &[write(&deeper), write("s")])] {
        let refusal = shard.try_acquire(request).unwrap_err();
        assert_eq!(refusal.to_string(), "the number of segments in a path is limited to 16; use a shorter path");
    }
}

/// Below a path, one owner may be the only one that excludes readers, and another the only one besides it that excludes
/// writers. Each waits for the other one alone.
#[test]
fn whoever_only_its_own_holds_are_left_for_is_let_in_whatever_else_it_waits_for() {
    let mut shard = Shard::new();
    shard.granted(try_request("p", &[write("a/x/1")]));
    shard.granted(try_request("s", &[write("a/y")]));
    shard.queued(wait_request("s", &[read("")]), Reason::Descendant);
    shard.queued(wait_request("s", &[write("a/x")]), Reason::Descendant);
    shard.granted(Acquire { allow_upgrade: true, ..try_request("p", &[read("a/x/1")]) });
    assert_eq!(shard.holders(""), ["s"]);
    assert_eq!(shard.waiting_owners(), ["s"]);
    shard.core.verify();
}
