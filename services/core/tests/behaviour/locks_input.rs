//! Requests that no frontend passes on: the shard enforces its own bounds.

use holdfast_core::{Acquire, AcquireOutcome, Claim, CommandError, LocksCommand, Reason};

use crate::support::{Shard, assert_nothing_is_left, metadata, orders, request_id};
use crate::wait_requests::{cancel_command, read, try_request, wait_request, write};

fn many(number: usize) -> Vec<Claim> {
    (0..number).map(|index| write(&format!("{index}"))).collect()
}

#[test]
fn an_empty_set_is_refused_and_a_cancel_of_one_does_nothing() {
    let mut shard = Shard::new();
    for request in [try_request("p", &[]), wait_request("p", &[])] {
        assert_eq!(shard.try_acquire(request), Err(CommandError::Malformed("a request has at least one claim".into())));
    }
    shard.run(cancel_command(&try_request("p", &[]))).unwrap();
    assert_nothing_is_left(&shard.core);
}

#[test]
fn sixty_four_claims_are_granted_and_one_more_is_refused_whether_it_would_wait_or_not() {
    let mut shard = Shard::new();
    let refusal = shard.try_acquire(try_request("p", &many(65))).unwrap_err();
    let text = "the number of claims in a request is limited to 64; claim an ancestor of several paths instead";
    assert_eq!(refusal.to_string(), text);
    assert_nothing_is_left(&shard.core);
    shard.granted(try_request("h", &[write("0")]));
    assert_eq!(shard.try_acquire(wait_request("p", &many(65))).unwrap_err().to_string(), text);
    shard.release_paths("h", &["0"]);
    shard.granted(try_request("p", &many(64)));
    let mut repeated = many(64);
    repeated.extend(many(64));
    shard.granted(try_request("p", &repeated));
}

#[test]
fn a_process_finds_its_wait_by_its_request_id_and_only_with_the_same_claims() {
    let mut shard = Shard::new();
    shard.granted(try_request("h", &[write("a"), write("b")]));
    let named = |claims: &[Claim]| Acquire { request_id: Some("r".into()), ..wait_request("p", claims) };
    let first = shard.enqueued(named(&[write("a")]));
    assert_eq!(shard.enqueued(named(&[write("a")])).wait, first.wait);
    assert_eq!(shard.try_acquire(named(&[write("b")])), Err(CommandError::RequestIdTaken("r".into())));
    assert_ne!(shard.enqueued(wait_request("p", &[write("a")])).wait, first.wait, "one without a name is another");
    shard.release_paths("h", &["a", "b"]);
    assert_eq!(shard.granted_owners(), ["p", "p"]);
    shard.granted(named(&[write("b")]));
}

#[test]
fn a_request_to_change_a_mode_has_one_claim() {
    let mut shard = Shard::new();
    let both = Acquire { allow_upgrade: true, ..try_request("p", &[read("a"), read("b")]) };
    assert!(matches!(shard.try_acquire(both), Err(CommandError::Malformed(_))));
    let twice = Acquire { allow_upgrade: true, ..try_request("p", &[read("a"), write("a")]) };
    shard.granted(twice);
}

#[test]
fn a_request_with_a_token_never_waits_and_never_changes_a_mode() {
    let mut shard = Shard::new();
    let token = shard.granted(try_request("p", &[read("a")]));
    shard.granted(try_request("q", &[read("a")]));
    let stronger = Acquire { fencing_token: Some(token), allow_upgrade: true, ..wait_request("p", &[write("a")]) };
    assert_eq!(shard.refused(stronger).reason, Reason::Upgrade);
    let other = Acquire { fencing_token: Some(token + 9), ..wait_request("p", &[read("a")]) };
    assert_eq!(shard.refused(other).reason, Reason::NotHeld);
    let same = Acquire { fencing_token: Some(token), ..wait_request("p", &[read("a")]) };
    assert_eq!(shard.outcome(same), AcquireOutcome::Granted { fencing_token: token });
}

#[test]
fn a_session_without_a_time_to_live_is_refused() {
    let mut shard = Shard::new();
    let open = holdfast_core::OpenSession {
        namespace: orders(),
        session_id: "se_1".into(),
        resume: false,
        request_id: request_id(1),
        process_id: "p".into(),
        ttl_ms: 0,
        metadata: metadata(&[]),
    };
    assert!(matches!(shard.run(LocksCommand::OpenSession(open)), Err(CommandError::Malformed(_))));
    assert_nothing_is_left(&shard.core);
}
