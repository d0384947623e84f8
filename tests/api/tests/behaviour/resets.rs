//! Ending what owners have that are no more.

use serde_json::{Value, json};

use crate::support::{AcquireRequest, LockClient, TestEnv, frontends, wait_until};

async fn test_env() -> TestEnv<frontends::rest::Client> {
    TestEnv::open().await
}

#[tokio::test]
async fn a_reset_ends_the_holds_of_every_owner_that_is_not_listed() {
    let world = test_env().await;
    for (lock, owner) in [("a", "live"), ("b", "dead"), ("c", "dead"), ("d", "gone")] {
        world.client.expect_granted(AcquireRequest::write(lock, owner)).await;
    }
    let removed = world.post("reset", json!({"live_owners": ["live", "never-seen"]})).await;
    assert_eq!(removed, json!({"removed_holds": 3, "removed_waiters": 0}));
    assert_eq!(world.held_locks().await, ["a"]);
    let removed = world.post("reset", json!({"live_owners": []})).await;
    assert_eq!(removed, json!({"removed_holds": 1, "removed_waiters": 0}));
    assert_eq!(world.held_locks().await, [""; 0]);
}

#[tokio::test]
async fn a_reset_ends_waits_and_never_promotes_who_is_removed() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("l", "dead")).await;
    let reset = async {
        world.wait_for_queue("l", 1).await;
        world.client.expect_refused(AcquireRequest::write("l", "live").wait_ms(300_000).poll_ms(1)).await;
        world.post("reset", json!({"live_owners": ["live"]})).await
    };
    let (ended, removed) =
        tokio::join!(world.client.expect_refused(AcquireRequest::write("l", "dead too").wait_ms(300_000)), reset);
    assert_eq!(ended.reason.as_deref(), Some("ENDED"));
    assert_eq!(removed, json!({"removed_holds": 1, "removed_waiters": 1}));
    let client = &world.client;
    wait_until("the live owner has it", async || client.get("l").await.unwrap().writer_id() == "live").await;
}

#[tokio::test]
async fn a_reset_may_spare_the_young() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("old", "p")).await;
    let young = world.client.expect_granted(AcquireRequest::write("young", "q")).await.fencing_token.unwrap();
    let removed = world.post("reset", json!({"live_owners": [], "before_revision": young})).await;
    assert_eq!(removed["removed_holds"], 1);
    assert_eq!(world.held_locks().await, ["young"]);
}

/// Holds of one owner, in sets of 64.
async fn acquire_sets(world: &TestEnv<frontends::rest::Client>, owner: &str, sets: usize) {
    for set in 0..sets {
        let resources: Vec<Value> = (0..64).map(|hold| json!({"path": [owner, format!("{set}-{hold}")]})).collect();
        let body = json!({"process_id": owner, "ttl_ms": 60_000, "resources": resources});
        world.post("lock-sets/acquire", body).await;
    }
}

/// How many locks are held, up to 1,000.
async fn count_held_locks(world: &TestEnv<frontends::rest::Client>) -> usize {
    let page = world.rest.call("GET /v1/namespaces/ns/locks?page_size=1000").await.ok();
    page["locks"].as_array().unwrap().len()
}

/// More than the shard ends in one step: each answer comes once all of it has ended.
#[tokio::test]
async fn what_takes_many_steps_is_answered_after_the_last() {
    let world = test_env().await;
    for (owner, sets) in [("live", 1), ("dead", 9), ("all", 9)] {
        acquire_sets(&world, owner, sets).await;
    }
    let released = world.post("lock-sets/release", json!({"process_id": "all", "all": true})).await;
    assert_eq!(released["released"], true, "{released}");
    assert_eq!(count_held_locks(&world).await, 10 * 64);
    let removed = world.post("reset", json!({"live_owners": ["live"]})).await;
    assert_eq!(removed, json!({"removed_holds": 9 * 64, "removed_waiters": 0}));
    assert_eq!(count_held_locks(&world).await, 64);
    world.client.expect_granted(AcquireRequest::write("l", "dead")).await;
}

#[tokio::test]
async fn a_reset_says_who_stays_and_needs_the_scope_to_force() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("l", "p")).await;
    let line = "POST /v1/namespaces/ns/reset";
    world.rest.json(line, json!({})).await.expect_field_error("live_owners");
    world.rest.json(line, json!({"live_owners": ["p", ""]})).await.expect_field_error("live_owners[1]");
    let key = world.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read", "locks:write"]})).await.ok();
    let writer = world.rest.with_key(key["api_key"].as_str().unwrap());
    writer.json(line, json!({"live_owners": []})).await.expect_error("PERMISSION_DENIED");
    assert_eq!(world.held_locks().await, ["l"]);
}
