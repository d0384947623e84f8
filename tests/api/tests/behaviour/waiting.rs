//! Calls that wait for their lock.

use std::time::{Duration, Instant};

use futures::future::join_all;
use serde_json::json;
use tokio::select;

use crate::support::{AcquireRequest, FencingLockClient, TestEnv, create_tenant, server, through, wait_until};

through! {
    every_frontend:;
    with_tokens:
        a_waiting_call_is_answered_when_the_lock_is_released,
        a_waiting_call_is_answered_when_the_hold_runs_out,
        whoever_came_first_is_served_first,
        a_reader_that_comes_late_does_not_starve_a_writer,
        a_wait_that_ends_first_is_told_as_such,
        a_poll_that_ends_keeps_the_place,
        a_repeat_that_does_not_wait_keeps_the_place,
        a_caller_that_goes_away_leaves_the_queue,
        a_waited_hold_lasts_its_whole_time_from_its_grant;
}

/// Longer than any test takes.
const WAIT_MS: u64 = 300_000;

async fn a_waiting_call_is_answered_when_the_lock_is_released<D: FencingLockClient>(world: TestEnv<D>) {
    let first = world.client.expect_granted(AcquireRequest::write("l", "p")).await.fencing_token.unwrap();
    let release = async {
        world.wait_for_queue("l", 1).await;
        assert_eq!(world.client.release("l", "p").await.unwrap().released, Some(true));
    };
    let (granted, ()) =
        tokio::join!(world.client.expect_granted(AcquireRequest::write("l", "q").wait_ms(WAIT_MS)), release);
    assert!(granted.fencing_token.unwrap() > first);
    assert_eq!((granted.lock.writer_id(), granted.lock.waiting), ("q", Some(0)));
}

async fn a_waiting_call_is_answered_when_the_hold_runs_out<D: FencingLockClient>(world: TestEnv<D>) {
    let asked = Instant::now();
    world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(300)).await;
    world.client.expect_granted(AcquireRequest::write("l", "q").wait_ms(WAIT_MS)).await;
    assert!(asked.elapsed() >= Duration::from_millis(300), "nobody is let in early");
}

async fn whoever_came_first_is_served_first<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let queue = |place: u64| {
        let world = &world;
        async move {
            world.wait_for_queue("l", place).await;
            let owner = format!("q{place}");
            let granted = world.client.expect_granted(AcquireRequest::write("l", &owner).wait_ms(WAIT_MS)).await;
            world.client.release("l", &owner).await.unwrap();
            (granted.fencing_token.unwrap(), place)
        }
    };
    let release = async {
        world.wait_for_queue("l", 4).await;
        world.client.release("l", "p").await.unwrap();
    };
    let (mut granted, ()) = tokio::join!(join_all((0..4).map(queue)), release);
    granted.sort_unstable();
    let order: Vec<u64> = granted.into_iter().map(|(_, place)| place).collect();
    assert_eq!(order, [0, 1, 2, 3]);
}

async fn a_reader_that_comes_late_does_not_starve_a_writer<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::read("l", "reader")).await;
    let late = async {
        world.wait_for_queue("l", 1).await;
        let refused = world.client.expect_refused(AcquireRequest::read("l", "late")).await;
        assert_eq!((refused.reason.as_deref(), refused.blockers), (Some("QUEUED"), vec!["writer".to_owned()]));
        world.client.release("l", "reader").await.unwrap();
    };
    tokio::join!(world.client.expect_granted(AcquireRequest::write("l", "writer").wait_ms(WAIT_MS)), late);
}

async fn a_wait_that_ends_first_is_told_as_such<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let asked = Instant::now();
    let refused = world.client.expect_refused(AcquireRequest::write("l", "q").wait_ms(200)).await;
    assert_eq!((refused.reason.as_deref(), refused.lock.waiting), (Some("TIMED_OUT"), Some(0)));
    assert!(asked.elapsed() >= Duration::from_millis(200));
    world.client.release("l", "p").await.unwrap();
    world.client.get("l").await.unwrap().assert_free();
}

async fn a_poll_that_ends_keeps_the_place<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let poll = || AcquireRequest::write("l", "q").wait_ms(WAIT_MS).poll_ms(50);
    for _ in 0..2 {
        let queued = world.client.expect_refused(poll()).await;
        assert_eq!((queued.reason.as_deref(), queued.queue_position), (Some("QUEUED"), Some(0)));
        assert_eq!((queued.blockers, queued.lock.waiting), (vec!["p".to_owned()], Some(1)));
    }
    let behind = world.client.expect_refused(AcquireRequest::write("l", "r").wait_ms(WAIT_MS).poll_ms(50)).await;
    assert_eq!(behind.queue_position, Some(1));
    world.client.release("l", "p").await.unwrap();
    world.client.expect_granted(poll()).await;
}

async fn a_repeat_that_does_not_wait_keeps_the_place<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    world.client.expect_refused(AcquireRequest::write("l", "q").wait_ms(WAIT_MS).poll_ms(1)).await;
    let repeated = world.client.expect_refused(AcquireRequest::write("l", "q")).await;
    assert_eq!((repeated.reason.as_deref(), repeated.lock.waiting), (Some("QUEUED"), Some(1)));
}

async fn a_caller_that_goes_away_leaves_the_queue<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    select! {
        answered = world.client.acquire(AcquireRequest::write("l", "q").wait_ms(WAIT_MS)) => panic!("answered: {answered:?}"),
        () = world.wait_for_queue("l", 1) => {}
    }
    world.wait_for_queue("l", 0).await;
    world.client.release("l", "p").await.unwrap();
    world.client.expect_granted(AcquireRequest::write("l", "r")).await;
}

async fn a_waited_hold_lasts_its_whole_time_from_its_grant<D: FencingLockClient>(world: TestEnv<D>) {
    world.client.expect_granted(AcquireRequest::write("l", "p").ttl_ms(500)).await;
    let granted = world.client.expect_granted(AcquireRequest::write("l", "q").ttl_ms(60_000).wait_ms(WAIT_MS)).await;
    let left_ms = granted.lock.writer.unwrap().remaining_ms.unwrap();
    assert!((50_000..=60_000).contains(&left_ms), "{left_ms}");
}

#[tokio::test]
async fn a_revoked_key_and_a_suspended_account_end_waits_and_free_their_places() {
    let account = create_tenant(server()).await;
    account.create_namespace("ns").await;
    let key = account.rest.json("POST /v1/api-keys", json!({})).await.ok();
    let other = account.rest.with_key(key["api_key"].as_str().unwrap());
    let acquire = "POST /v1/namespaces/ns/locks/l/acquire";
    account.rest.json(acquire, json!({"process_id": "p", "ttl_ms": WAIT_MS})).await.ok();
    let ask = |owner: &str| json!({"process_id": owner, "ttl_ms": WAIT_MS, "wait_ms": WAIT_MS});
    let shown = async || account.rest.call("GET /v1/namespaces/ns/locks/l").await.ok()["lock"]["waiting"].clone();
    let revoke = async {
        wait_until("both wait", async || shown().await == 2).await;
        account.rest.call(&format!("DELETE /v1/api-keys/{}", key["key_id"].as_str().unwrap())).await.ok();
        wait_until("one of them is gone", async || shown().await == 1).await;
        account.update(server(), json!({"status": "SUSPENDED"})).await;
    };
    let (revoked, suspended, ()) =
        tokio::join!(other.json(acquire, ask("q")), account.rest.json(acquire, ask("r")), revoke);
    revoked.expect_error("UNAUTHENTICATED");
    suspended.expect_error("PERMISSION_DENIED");
}
