//! The end of a time to live: never early, hardly late, the same for readers and writers, and without a visitor.

use std::time::{Duration, Instant};

use holdfast_testkit::{Metrics, Standalone, scratch};

use crate::support::frontends::instant_ns;
use crate::support::{
    AcquireRequest, FencingLockClient, LockClient, Mode, RestClient, TestEnv, frontends, through, wait_until,
};

through! {
    every_frontend:
        a_hold_ends_when_its_time_is_over_and_not_before,
        an_expired_lock_can_be_taken_and_its_old_holder_is_a_stranger,
        an_expired_reader_leaves_the_others;
    with_tokens:
        a_ttl_is_counted_from_the_grant,
        an_expired_hold_cannot_be_extended_by_its_token;
}

/// What the service may be late on an idle machine.
const MAX_LATENESS_MS: u64 = 50;
/// How much later this machine may make it, busy as it is with other tests.
const BUSY_MACHINE_SLACK_MS: u64 = 950;
/// Both clocks are cut to whole milliseconds.
const ROUNDING_ERROR_MS: u64 = 2;
/// A disk that stalls, or a process that is not run for a while, makes any one hold late, but not so many in a row.
const MAX_TRIES: usize = 20;

/// When a lock was last seen held, and first seen gone: the calls' beginning and end.
struct ObservedExpiry {
    last_held: Instant,
    first_gone: Instant,
    /// The least time remaining that was shown.
    min_remaining_ms: u64,
}

/// Reads the list, which neither ends nor extends anything.
async fn wait_until_gone(rest: &RestClient, lock: &str) -> ObservedExpiry {
    let (mut last_held, mut min_remaining_ms) = (Instant::now(), u64::MAX);
    loop {
        let asked = Instant::now();
        let page = rest.call("GET /v1/namespaces/ns/locks").await.ok();
        let found = page["locks"].as_array().unwrap().iter().find(|shown| shown["name"] == lock);
        let Some(found) = found else {
            return ObservedExpiry { last_held, first_gone: Instant::now(), min_remaining_ms };
        };
        last_held = asked;
        let holder =
            if found["state"] == "WRITE_LOCKED" { &found["write_lock_holder"] } else { &found["read_lock_holders"][0] };
        let left_ms = holder["remaining_ms"].as_u64().unwrap();
        assert!(left_ms <= min_remaining_ms, "the time remaining never grows by itself");
        min_remaining_ms = left_ms;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Lets holds end, one after the other, until one was seen held and then ended in good time. None may end early.
/// `acquire` takes the lock of that name, and returns the earliest and the latest end of its time.
async fn expect_timely_end<D: LockClient>(
    world: &TestEnv<D>,
    mode: Mode,
    ttl_ms: u64,
    acquire: impl AsyncFn(String) -> (Instant, Instant),
) {
    let mut late_by = Vec::new();
    while late_by.len() < MAX_TRIES {
        let lock = format!("{mode:?}-{}", late_by.len());
        let (earliest, latest) = acquire(lock.clone()).await;
        let seen = wait_until_gone(&world.rest, &lock).await;
        let early = earliest.saturating_duration_since(seen.first_gone);
        assert!(early <= Duration::from_millis(ROUNDING_ERROR_MS), "{lock}: {early:?} early");
        world.client.get(&lock).await.unwrap().assert_free();
        assert_eq!(world.held_locks().await, [""; 0], "nothing is stored after an expiry");
        let late = seen.last_held.saturating_duration_since(latest);
        let was_seen_held = seen.min_remaining_ms < ttl_ms;
        if was_seen_held && late <= Duration::from_millis(MAX_LATENESS_MS + BUSY_MACHINE_SLACK_MS) {
            return;
        }
        late_by.push(late);
    }
    panic!("{mode:?}: no hold was seen and ended in good time: {late_by:?} late");
}

async fn a_hold_ends_when_its_time_is_over_and_not_before<D: LockClient>(world: TestEnv<D>) {
    const TTL: Duration = Duration::from_millis(600);
    for mode in [Mode::Write, Mode::Read] {
        let acquire = async |lock: String| {
            let before = Instant::now();
            let until = instant_ns(TTL);
            world.client.expect_granted(AcquireRequest::new(&lock, "p", mode).expires_at(until)).await;
            (before + TTL, before + TTL)
        };
        expect_timely_end(&world, mode, 600, acquire).await;
    }
}

async fn a_ttl_is_counted_from_the_grant<D: LockClient>(world: TestEnv<D>) {
    const TTL: Duration = Duration::from_millis(500);
    for mode in [Mode::Write, Mode::Read] {
        let acquire = async |lock: String| {
            let before = Instant::now();
            let taken = world.client.expect_granted(AcquireRequest::new(&lock, "p", mode).ttl_ms(500)).await;
            let after = Instant::now();
            let holder = taken.lock.writer.as_ref().unwrap_or_else(|| &taken.lock.readers[0]);
            assert!(holder.remaining_ms.unwrap() <= 500);
            (before + TTL, after + TTL)
        };
        expect_timely_end(&world, mode, 500, acquire).await;
    }
}

async fn an_expired_lock_can_be_taken_and_its_old_holder_is_a_stranger<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(150)).await;
    let client = &world.client;
    wait_until("another takes the lock", async || {
        client.acquire(AcquireRequest::write("l", "q")).await.unwrap().success
    })
    .await;
    let released = world.client.release("l", "p").await.unwrap();
    assert_eq!(released.lock.writer_id(), "q");
    world.client.expect_refused(AcquireRequest::write("l", "p")).await;
}

async fn an_expired_reader_leaves_the_others<D: LockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "short").ttl_ms(150)).await;
    world.client.expect_granted(AcquireRequest::read("l", "long")).await;
    let client = &world.client;
    wait_until("the short one is gone", async || client.get("l").await.unwrap().reader_ids() == ["long"]).await;
}

async fn an_expired_hold_cannot_be_extended_by_its_token<D: FencingLockClient>(world: TestEnv<D>) {
    // Long enough to be checked while it lasts, also while a disk stalls.
    let token = world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(3_000)).await.fencing_token.unwrap();
    assert!(world.client.check("l", token).await.unwrap());
    wait_until_gone(&world.rest, "l").await;
    assert!(!world.client.check("l", token).await.unwrap());
    let refused = world.client.expect_refused(AcquireRequest::write("l", "p").fencing_token(token)).await;
    assert_eq!(refused.reason.as_deref(), Some("NOT_HELD"));
    refused.lock.assert_free();
    let released = world.client.release_token("l", "p", token).await.unwrap();
    assert_eq!(released.released, Some(false));
}

/// How many holds there are; the leaders of the shards count them from time to time.
async fn holds_metric(rest: &RestClient) -> f64 {
    Metrics::read(rest.address).await.unwrap().sum("holdfast_holds")
}

#[tokio::test]
async fn an_expiry_needs_no_visitor() {
    let server = Standalone::start(&scratch(), &[]);
    let world = TestEnv::<frontends::rest::Client>::open_in(&server).await;
    world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(10_000)).await;
    let rest = &world.rest;
    wait_until("the hold is counted", async || holds_metric(rest).await == 1.0).await;
    wait_until("it has ended by itself", async || holds_metric(rest).await == 0.0).await;
    assert_eq!(world.held_locks().await, [""; 0]);
}
