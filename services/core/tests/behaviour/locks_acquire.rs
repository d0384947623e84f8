//! Acquiring one lock: grants, extensions, refusals.

use holdfast_core::{
    Acquire, AcquireOutcome, Blocker, CommandError, HolderView, LockState, Mode, Owner, Path, Phase, Reason, Response,
};

use crate::support::{Shard, WALL_AHEAD_MS, lock_request, metadata, names, namespace, orders, process};

#[test]
fn a_writer_gets_an_empty_lock_and_is_shown_with_every_field() {
    let mut shard = Shard::new();
    let request = Acquire {
        transition_ms: 50,
        metadata: metadata(&[("host", "a")]),
        requested_expires_at_ns: Some(123_456_789),
        ..lock_request("p1", Mode::Write)
    };
    let acquired = shard.acquire(request);
    let token = acquired.outcome.unwrap();
    let holder = HolderView {
        owner: process("p1"),
        process_id: "p1".into(),
        mode: Mode::Write,
        fencing_token: token,
        locked_at_ms: WALL_AHEAD_MS + 1_000,
        deadline_ms: Some(2_000),
        requested_expires_at_ns: Some(123_456_789),
        phase: Phase::Held,
        metadata: metadata(&[("host", "a")]),
        release_requested: None,
    };
    assert_eq!(acquired.lock.state, LockState::WriteLocked);
    assert_eq!(acquired.lock.locked_at_ms, Some(WALL_AHEAD_MS + 1_000));
    assert_eq!(acquired.lock.write_lock_holder, Some(holder));
    assert_eq!(acquired.lock.read_lock_holders, []);
    assert_eq!((acquired.lock.holders_total, acquired.lock.waiting), (1, 0));
    assert_eq!(acquired.lock.revision, token);
    assert_eq!(acquired.lock.path, Path::flat("l"));
    assert_eq!(shard.get("l"), acquired.lock);
}

#[test]
fn a_reader_gets_an_empty_lock_and_is_the_only_reader() {
    let mut shard = Shard::new();
    let acquired = shard.acquire(lock_request("p1", Mode::Read));
    assert_eq!(acquired.lock.state, LockState::ReadLocked);
    assert_eq!(acquired.lock.write_lock_holder, None);
    assert_eq!(names(&acquired.lock.read_lock_holders), ["p1"]);
    assert_eq!(acquired.lock.read_lock_holders[0].fencing_token, acquired.outcome.unwrap());
}

#[test]
fn the_same_process_extends_its_hold_and_remains_the_only_holder() {
    for mode in [Mode::Read, Mode::Write] {
        let mut shard = Shard::new();
        let token = shard.granted(Acquire { metadata: metadata(&[("a", "1")]), ..lock_request("p1", mode) });
        let revision = shard.core.revision();
        shard.advance_by(400);
        let again = shard.acquire(Acquire { metadata: metadata(&[("b", "2")]), ..lock_request("p1", mode) });
        assert_eq!(again.outcome, Ok(token));
        let holder = shard.get("l").write_lock_holder.or(shard.get("l").read_lock_holders.first().cloned()).unwrap();
        assert_eq!(holder.deadline_ms, Some(2_400));
        assert_eq!(holder.locked_at_ms, WALL_AHEAD_MS + 1_000);
        assert_eq!(holder.metadata, metadata(&[("b", "2")]));
        assert_eq!(again.lock.holders_total, 1);
        assert_eq!(shard.core.revision(), revision, "an extension is no change of who holds");
        assert!(shard.release("p1").0);
        assert_eq!(shard.get("l").state, LockState::Unlocked, "one release ends what was acquired twice");
    }
}

#[test]
fn an_extension_may_make_a_hold_end_sooner() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    shard.granted(Acquire { ttl_ms: Some(10), ..lock_request("p1", Mode::Write) });
    assert_eq!(shard.core.next_deadline_ms(), Some(1_010));
    shard.advance_by(10);
    assert_eq!(shard.get("l").state, LockState::Unlocked);
}

#[test]
fn a_second_writer_is_refused_and_shown_the_holder() {
    let mut shard = Shard::new();
    shard.granted(lock_request("p1", Mode::Write));
    for mode in [Mode::Read, Mode::Write] {
        let acquired = shard.acquire(lock_request("p2", mode));
        let refused = acquired.outcome.unwrap_err();
        let holder = acquired.lock.write_lock_holder.clone().unwrap();
        assert_eq!(refused.reason, Reason::Held);
        assert_eq!(refused.blockers, [Blocker { path: Path::flat("l"), waiting: false, holder }]);
        assert_eq!(refused.queue_position, None);
        assert_eq!(acquired.lock.holders_total, 1);
    }
}

#[test]
fn readers_share_a_lock_in_order_of_arrival_and_keep_writers_out() {
    let mut shard = Shard::new();
    for owner in ["c", "a", "b"] {
        shard.granted(lock_request(owner, Mode::Read));
        shard.advance_by(1);
    }
    shard.granted(lock_request("c", Mode::Read));
    assert_eq!(names(&shard.get("l").read_lock_holders), ["c", "a", "b"]);
    let refused = shard.refused(lock_request("w", Mode::Write));
    assert_eq!(refused.reason, Reason::Held);
    assert_eq!(refused.blockers.len(), 3);
}

#[test]
fn another_mode_by_the_same_owner_is_refused_as_an_upgrade_even_for_the_sole_reader() {
    for (held, asked) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let mut shard = Shard::new();
        let token = shard.granted(lock_request("p1", held));
        let before = shard.get("l");
        let refused = shard.refused(lock_request("p1", asked));
        assert_eq!(refused.reason, Reason::Upgrade);
        assert_eq!(refused.blockers[0].holder.fencing_token, token);
        assert_eq!(shard.get("l"), before);
    }
}

#[test]
fn a_token_only_extends_and_takes_nothing_when_its_hold_is_gone() {
    let mut shard = Shard::new();
    let first = shard.granted(lock_request("p1", Mode::Write));
    let with_token = |token| Acquire { fencing_token: Some(token), ..lock_request("p1", Mode::Write) };
    assert_eq!(shard.granted(with_token(first)), first);
    assert_eq!(shard.refused(with_token(first + 1)).reason, Reason::NotHeld);
    shard.release("p1");
    assert_eq!(shard.refused(with_token(first)).reason, Reason::NotHeld);
    assert_eq!(shard.get("l").state, LockState::Unlocked);
    let second = shard.granted(lock_request("p1", Mode::Write));
    assert!(second > first);
    assert_eq!(shard.refused(with_token(first)).reason, Reason::NotHeld);
    let others = Acquire { fencing_token: Some(second), ..lock_request("p2", Mode::Write) };
    assert_eq!(shard.refused(others).reason, Reason::NotHeld);
}

#[test]
fn tokens_rise_across_release_expiry_and_delete() {
    let mut shard = Shard::new();
    let mut last = 0;
    for round in 0..9 {
        let token = shard.granted(lock_request("p1", Mode::Write));
        assert!(token > last);
        last = token;
        match round % 3 {
            0 => assert!(shard.release("p1").0),
            1 => shard.advance_by(1_000),
            _ => shard.delete("l"),
        }
    }
}

#[test]
fn names_with_slashes_and_siblings_do_not_concern_one_another() {
    let mut shard = Shard::new();
    for segments in [&["a"][..], &["a/b"], &["b", "a"], &[".."]] {
        let claims = vec![holdfast_core::Claim { path: crate::support::path(segments), mode: Mode::Write }];
        let owner = process(&segments.join(","));
        shard.granted(Acquire { claims, owner, ..lock_request("", Mode::Write) });
    }
    assert_eq!(shard.list(&[], None, 10).0.len(), 4);
}

#[test]
fn any_but_the_open_incarnation_is_not_found() {
    let mut shard = Shard::new();
    for unknown in [namespace("orders", 2), namespace("other", 1)] {
        let request = Acquire { namespace: unknown, ..lock_request("p1", Mode::Write) };
        let refusal = shard.try_acquire(request).unwrap_err();
        assert_eq!(refusal, CommandError::NamespaceNotFound);
        assert_eq!(refusal.to_string(), "namespace not found");
    }
}

#[test]
fn what_no_door_lets_through_is_refused_as_malformed() {
    let mut shard = Shard::new();
    let session = Owner::Session { session_id: "se_1".into(), holder: None };
    for request in [
        Acquire { claims: vec![], ..lock_request("p1", Mode::Write) },
        Acquire { ttl_ms: None, ..lock_request("p1", Mode::Write) },
        Acquire { ttl_ms: Some(0), ..lock_request("p1", Mode::Write) },
        Acquire { owner: session, ..lock_request("p1", Mode::Write) },
    ] {
        assert!(matches!(shard.try_acquire(request), Err(CommandError::Malformed(_))));
    }
    assert_eq!(shard.get("l").state, LockState::Unlocked);
}

#[test]
fn times_to_live_beyond_the_end_of_time_do_no_harm() {
    let mut shard = Shard::new();
    let request = Acquire { ttl_ms: Some(u64::MAX), transition_ms: u64::MAX, ..lock_request("p1", Mode::Write) };
    shard.granted(request);
    assert_eq!(shard.core.next_deadline_ms(), Some(u64::MAX));
    shard.advance_by(u64::MAX - 1_000);
    assert_eq!(shard.get("l").state, LockState::Unlocked);
}

#[test]
fn several_claims_are_granted_together_or_not_at_all() {
    let claim = |name: &str, mode| holdfast_core::Claim { path: Path::flat(name), mode };
    let mut shard = Shard::new();
    let claims = vec![claim("b", Mode::Read), claim("a", Mode::Write), claim("b", Mode::Write), claim("b", Mode::Read)];
    let answer = shard.try_acquire(Acquire { claims, ..lock_request("p1", Mode::Write) }).unwrap();
    let Response::Acquired { outcome: AcquireOutcome::Granted { fencing_token: token }, locks } = answer else {
        panic!("should be granted")
    };
    assert_eq!(locks.iter().map(|lock| &lock.path).collect::<Vec<_>>(), [&Path::flat("a"), &Path::flat("b")]);
    for lock in &locks {
        assert_eq!(lock.state, LockState::WriteLocked, "the strongest mode asked for counts");
        assert_eq!(lock.write_lock_holder.as_ref().unwrap().fencing_token, token);
    }
    let claims = vec![claim("c", Mode::Write), claim("a", Mode::Read)];
    let refused = shard.refused(Acquire { claims, ..lock_request("p2", Mode::Write) });
    assert_eq!(refused.reason, Reason::Held);
    assert_eq!(refused.blockers[0].path, Path::flat("a"));
    assert_eq!(shard.get("c").state, LockState::Unlocked);
    let claims = vec![claim("a", Mode::Write), claim("c", Mode::Write)];
    let newer = shard.granted(Acquire { claims, namespace: orders(), ..lock_request("p1", Mode::Write) });
    assert!(newer > token);
    assert_eq!(shard.get("a").write_lock_holder.unwrap().fencing_token, token, "what is held keeps its token");
    assert_eq!(shard.get("c").write_lock_holder.unwrap().fencing_token, newer);
}
