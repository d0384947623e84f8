//! Invalid times, at every frontend: rejected with the name of the field, and nothing changes.

use std::time::Duration;

use serde_json::json;

use crate::support::frontends::{Failure, instant_ns};
use crate::support::{AcquireRequest, LockClient, TestEnv, frontends, through};

through! {
    every_frontend:
        past_instants_are_refused,
        instants_too_far_ahead_are_refused,
        a_refused_extension_leaves_the_hold_as_it_was;
    with_tokens:
        times_to_live_out_of_bounds_are_refused,
        transitions_out_of_bounds_are_refused;
}

const DAY_MS: u64 = 24 * 60 * 60 * 1_000;

#[track_caller]
fn assert_field_error(refused: Failure, field: &str) {
    assert_eq!((refused.code.as_str(), refused.ids["field"].as_str()), ("INVALID_ARGUMENT", field), "{refused:?}");
    assert!(refused.detail.starts_with(&format!("{field}: ")), "{}", refused.detail);
}

async fn past_instants_are_refused<D: LockClient>(world: TestEnv<D>) {
    let now = instant_ns(Duration::ZERO);
    for past in [now - 1_000_000_000, now - 1, 1, 0, -1, i64::MIN / 2] {
        let refused = world.client.acquire(AcquireRequest::write("l", "p").expires_at(past)).await.unwrap_err();
        assert_field_error(refused, "expires_at");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

async fn instants_too_far_ahead_are_refused<D: LockClient>(world: TestEnv<D>) {
    let day = i64::try_from(DAY_MS).unwrap() * 1_000_000;
    for ahead in [instant_ns(Duration::ZERO) + day + 60_000_000_000, i64::MAX] {
        assert_field_error(
            world.client.acquire(AcquireRequest::write("l", "p").expires_at(ahead)).await.unwrap_err(),
            "expires_at",
        );
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    world
        .client
        .expect_granted(AcquireRequest::write("l", "p").expires_at(instant_ns(Duration::ZERO) + day - 60_000_000_000))
        .await;
}

async fn a_refused_extension_leaves_the_hold_as_it_was<D: LockClient>(world: TestEnv<D>) {
    let before = world.client.expect_granted(AcquireRequest::write("l", "p")).await.lock;
    let past = instant_ns(Duration::ZERO) - 1_000_000_000;
    world.client.acquire(AcquireRequest::write("l", "p").expires_at(past)).await.unwrap_err();
    let after = world.client.get("l").await.unwrap();
    assert_eq!((after.state, after.revision, after.locked_at_ms), (before.state, before.revision, before.locked_at_ms));
    let (before, after) = (before.writer.unwrap(), after.writer.unwrap());
    assert!((after.expires_at_ms - before.expires_at_ms).abs() <= 5_000, "{before:?} {after:?}");
}

async fn times_to_live_out_of_bounds_are_refused<D: LockClient>(world: TestEnv<D>) {
    for ttl_ms in [0, 1, 99, DAY_MS + 1, u64::MAX / 2] {
        assert_field_error(
            world.client.acquire(AcquireRequest::write("l", "p").ttl_ms(ttl_ms)).await.unwrap_err(),
            "ttl_ms",
        );
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    world.client.expect_granted(AcquireRequest::write("shortest", "p").ttl_ms(100)).await;
    world.client.expect_granted(AcquireRequest::write("longest", "p").ttl_ms(DAY_MS)).await;
    let soon = instant_ns(Duration::from_millis(50));
    assert_field_error(
        world.client.acquire(AcquireRequest::write("l", "p").expires_at(soon)).await.unwrap_err(),
        "expires_at",
    );
}

async fn transitions_out_of_bounds_are_refused<D: LockClient>(world: TestEnv<D>) {
    for transition_ms in [600_001, u64::MAX] {
        let refused =
            world.client.acquire(AcquireRequest::write("l", "p").transition_ms(transition_ms)).await.unwrap_err();
        assert_field_error(refused, "transition_ms");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    world.client.expect_granted(AcquireRequest::write("l", "p").transition_ms(600_000)).await;
}

#[tokio::test]
async fn a_durability_has_one_of_two_names() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    for durability in ["session", "NONE", ""] {
        let body = json!({"name": "soft", "durability": durability});
        let detail = world.rest.json("POST /v1/namespaces", body).await.expect_field_error("durability");
        assert!(detail.contains("must be FULL or SESSION"), "{detail}");
    }
    let made = world.rest.json("POST /v1/namespaces", json!({"name": "full", "durability": "FULL"})).await.ok();
    assert_eq!(made["durability"], "FULL");
    assert_eq!(world.rest.call("GET /v1/namespaces/ns").await.ok()["durability"], "FULL");
}

#[tokio::test]
async fn both_and_neither_of_ttl_and_expires_at_are_refused() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let line = "POST /v1/namespaces/ns/locks/l/acquire";
    let neither = json!({"process_id": "p"});
    let both = json!({"process_id": "p", "ttl_ms": 60_000, "expires_at": "2099-01-01T00:00:00Z"});
    for (body, word) in [(neither, "one of ttl_ms and expires_at is needed"), (both, "only one of")] {
        let detail = world.rest.json(line, body).await.expect_field_error("ttl_ms");
        assert!(detail.contains(word), "{detail}");
    }
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn an_instant_may_have_any_offset_and_fraction() {
    let world = TestEnv::<frontends::rest::Client>::open().await;
    let at = frontends::rest::rfc3339(instant_ns(Duration::from_secs(60)));
    let (seconds, _) = at.split_once('.').unwrap();
    for (number, text) in [
        format!("{seconds}Z"),
        format!("{seconds}.5Z"),
        format!("{seconds}.123456789Z"),
        format!("{}+00:00", seconds.to_lowercase()),
    ]
    .into_iter()
    .enumerate()
    {
        let line = format!("POST /v1/namespaces/ns/locks/l{number}/acquire");
        let taken = world.rest.json(&line, json!({"process_id": "p", "expires_at": text})).await.ok();
        let left_ms = taken["lock"]["write_lock_holder"]["remaining_ms"].as_u64().unwrap();
        assert!((50_000..=61_000).contains(&left_ms), "{text}: {left_ms}");
    }
}
