//! Owners that wait and are waited for: as many as are let in are answered exactly, and the rest is refused before it
//! joins.

use holdfast_core::{Acquire, AcquireOutcome, Bounds, CommandError, Reason, Response, Rules, Wait};

use crate::support::Shard;
use crate::wait_requests::{read, try_request, wait_request, write};

/// One request stands behind another, whose owner seems to wait for the owner of the first as long as nobody looks who
/// overtakes whom: `y` overtakes `z`, which waits for `t`, because `z` waits for `y`, too.
fn one_behind_another(shard: &mut Shard, between: impl FnOnce(&mut Shard)) -> Acquire {
    for (owner, lock) in [("h", "m"), ("t", "t"), ("y", "y")] {
        shard.granted(try_request(owner, &[write(lock)]));
    }
    shard.queued(wait_request("z", &[write("t"), write("y"), write("m")]), Reason::Held);
    shard.queued(wait_request("y", &[write("m"), write("l")]), Reason::Held);
    between(shard);
    let behind = wait_request("t", &[write("l")]);
    shard.queued(behind.clone(), Reason::Queued);
    behind
}

/// Thousands that wait for the owner of that request, and more and more of whom are waited for: so many that it would
/// take a million steps to find out who waits for it.
fn tangle(shard: &mut Shard, holding: u64, waiting: u64) -> (Acquire, u64) {
    let behind = one_behind_another(shard, |shard| {
        for number in 0..holding {
            let owner = format!("f{number}");
            shard.granted(try_request(&owner, &[write(&format!("f/{number}"))]));
            shard.queued(wait_request(&owner, &[write("t")]), Reason::Held);
        }
    });
    let mut refused = 0;
    for number in 0..waiting {
        match shard.try_acquire(wait_request(&format!("g{number}"), &[write(&format!("f/{number}"))])) {
            Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(_), .. }) => {}
            Err(CommandError::QuotaExceeded { .. }) => refused += 1,
            other => panic!("neither waits nor is refused: {other:?}"),
        }
    }
    (behind, refused)
}

/// The first rules have no limit.
fn shard_by_rules_two() -> Shard {
    Shard::with_bounds(Bounds::of(Rules::TWO))
}

fn assert_rejected(answer: Result<Response, CommandError>) {
    let refusal = answer.expect_err("should be refused");
    assert_eq!(
        refusal.to_string(),
        "the number of owners that wait and are waited for is limited to 256; release before you wait, or give each \
         thread a holder"
    );
}

#[test]
fn a_repeat_among_thousands_that_wait_and_are_waited_for_is_answered_and_a_snapshot_of_it_loads() {
    // What was let in before there was a limit is answered, too.
    repeat_and_restore(Shard::new(), 0);
    // `t`, `y`, and `f0` to `f253` wait and are waited for.
    repeat_and_restore(shard_by_rules_two(), 640 - 254);
}

fn repeat_and_restore(mut shard: Shard, expected: u64) {
    let (behind, refused) = tangle(&mut shard, 1_000, 640);
    assert_eq!(refused, expected);
    let mut restored = shard.restored();
    for shard in [&mut shard, &mut restored] {
        shard.queued(behind.clone(), Reason::Queued);
        shard.release_paths("h", &["m"]);
        shard.release_paths("y", &["m", "l"]);
        assert_eq!(shard.granted_owners(), ["t"], "it was the next");
        shard.core.verify();
    }
    assert!(restored.core.snapshot() == shard.core.snapshot());
}

#[test]
fn whoever_would_be_one_too_many_is_refused_before_it_joins() {
    let mut shard = shard_by_rules_two();
    for number in 0..300 {
        shard.granted(try_request(&format!("f{number}"), &[write(&format!("f/{number}"))]));
        if number < 299 {
            // Nobody waits for it yet.
            shard.granted(try_request("root of all", &[write(&format!("t/{number}"))]));
            shard.queued(wait_request(&format!("f{number}"), &[write(&format!("t/{number}"))]), Reason::Held);
        }
    }
    for number in 0..256 {
        shard.queued(wait_request(&format!("g{number}"), &[write(&format!("f/{number}"))]), Reason::Held);
    }
    let before = shard.core.snapshot();
    assert_rejected(shard.try_acquire(wait_request("g256", &[write("f/256")])));
    assert_rejected(shard.try_acquire(wait_request("all", &[write("f")])));
    assert!(shard.core.snapshot() == before, "nothing is left of what was refused");
    shard.core.verify();
    // It adds nothing to wait where nobody waits, for whom others wait already, or not at all.
    shard.queued(wait_request("g256", &[write("f/299")]), Reason::Held);
    shard.queued(wait_request("g257", &[write("f/0")]), Reason::Held);
    assert_eq!(shard.refused(try_request("g258", &[write("f/256")])).reason, Reason::Held);
    // One that waits no more makes room for another.
    shard.release_paths("root of all", &["t/7"]);
    assert_eq!(shard.granted_owners(), ["f7"]);
    shard.queued(wait_request("g259", &[write("f/256")]), Reason::Held);
    assert_rejected(shard.try_acquire(wait_request("g260", &[write("f/257")])));
}

#[test]
fn a_second_request_of_an_owner_counts_and_one_of_many_claims_counts_as_many() {
    let mut shard = Shard::with_bounds(Bounds { tangled_owners: 8, tangled_claims: 100, ..Bounds::of(Rules::TWO) });
    shard.granted(try_request("h", &[write("a"), write("b")]));
    for number in 0..8 {
        shard.queued(wait_request(&format!("p{number}"), &[write("a")]), Reason::Held);
        shard.queued(wait_request(&format!("p{number}"), &[write("b")]), Reason::Held);
    }
    shard.queued(wait_request("q", &[write("a")]), Reason::Held);
    assert!(matches!(
        shard.try_acquire(wait_request("q", &[write("b")])),
        Err(CommandError::QuotaExceeded { max: 8, .. })
    ));
    // 16 claims wait; two requests of 42 claims are 84 more.
    let many = |request: u64| {
        let claims: Vec<_> = (0..41).map(|number| read(&format!("c/{request}/{number}"))).chain([write("a")]).collect();
        wait_request("p0", &claims)
    };
    shard.queued(many(0), Reason::Held);
    shard.queued(many(1), Reason::Held);
    let refusal = shard.try_acquire(wait_request("p1", &[write("a/x")])).expect_err("100 are enough");
    assert_eq!(
        refusal.to_string(),
        "the number of claims of owners that wait and are waited for is limited to 100; release before you wait, or \
         give each thread a holder"
    );
    shard.core.verify();
}

/// What it holds already is awaited, so all that it holds under that is.
#[test]
fn a_grant_to_somebody_who_waits_is_refused_when_it_adds_too_much() {
    let (holds_of_waiting_owner, tangled_holds) = (u64::MAX, u64::MAX);
    let bounds = Bounds { holds_of_waiting_owner, tangled_holds, ..Bounds::of(Rules::TWO) };
    let mut shard = Shard::with_bounds(bounds);
    shard.granted(try_request("h", &[write("h")]));
    shard.granted(try_request("t", &[write("t")]));
    shard.queued(wait_request("t", &[write("h")]), Reason::Held);
    shard.queued(wait_request("w", &[write("t")]), Reason::Held);
    let under = |request: u64| {
        let claims: Vec<_> = (0..64).map(|number| write(&format!("t/{request}/{number}"))).collect();
        try_request("t", &claims)
    };
    // It waits with one claim, and one hold of it is awaited.
    for request in 0..63 {
        shard.granted(under(request));
    }
    let refusal = shard.try_acquire(under(63)).expect_err("2 + 4,096 are too many");
    assert!(matches!(&refusal, CommandError::QuotaExceeded { max: 4_096, .. }), "{refusal}");
    shard.granted(Acquire { wait: Wait::No, ..under(0) });
    shard.granted(try_request("t", &[write("elsewhere")]));
    shard.core.verify();
}
