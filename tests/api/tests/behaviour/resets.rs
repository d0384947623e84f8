//! Ending what owners have that are no more.

use serde_json::{Value, json};

use crate::support::{Ask, Door, World, doors, wait_until};

async fn world() -> World<doors::rest::Client> {
    World::open().await
}

#[tokio::test]
async fn a_reset_ends_the_holds_of_every_owner_that_is_not_listed() {
    let world = world().await;
    for (lock, owner) in [("a", "live"), ("b", "dead"), ("c", "dead"), ("d", "gone")] {
        world.door.take(Ask::write(lock, owner)).await;
    }
    let removed = world.post("reset", json!({"live_owners": ["live", "never-seen"]})).await;
    assert_eq!(removed, json!({"removed_holds": 3, "removed_waiters": 0}));
    assert_eq!(world.held().await, ["a"]);
    let removed = world.post("reset", json!({"live_owners": []})).await;
    assert_eq!(removed, json!({"removed_holds": 1, "removed_waiters": 0}));
    assert_eq!(world.held().await, [""; 0]);
}

#[tokio::test]
async fn a_reset_ends_waits_and_never_promotes_who_is_removed() {
    let world = world().await;
    world.door.take(Ask::write("l", "dead")).await;
    let reset = async {
        world.wait_for_queue("l", 1).await;
        world.door.is_refused(Ask::write("l", "live").waiting(300_000).polling(1)).await;
        world.post("reset", json!({"live_owners": ["live"]})).await
    };
    let (ended, removed) = tokio::join!(world.door.is_refused(Ask::write("l", "dead too").waiting(300_000)), reset);
    assert_eq!(ended.reason.as_deref(), Some("ENDED"));
    assert_eq!(removed, json!({"removed_holds": 1, "removed_waiters": 1}));
    let door = &world.door;
    wait_until("the live owner has it", async || door.get("l").await.unwrap().writer_id() == "live").await;
}

#[tokio::test]
async fn a_reset_may_spare_the_young() {
    let world = world().await;
    world.door.take(Ask::write("old", "p")).await;
    let young = world.door.take(Ask::write("young", "q")).await.fencing_token.unwrap();
    let removed = world.post("reset", json!({"live_owners": [], "before_revision": young})).await;
    assert_eq!(removed["removed_holds"], 1);
    assert_eq!(world.held().await, ["young"]);
}

/// Holds of one owner, in sets of 64.
async fn take_many(world: &World<doors::rest::Client>, owner: &str, sets: usize) {
    for set in 0..sets {
        let resources: Vec<Value> = (0..64).map(|hold| json!({"path": [owner, format!("{set}-{hold}")]})).collect();
        let body = json!({"process_id": owner, "ttl_ms": 60_000, "resources": resources});
        world.post("lock-sets/acquire", body).await;
    }
}

/// How many locks are held, up to 1,000.
async fn count(world: &World<doors::rest::Client>) -> usize {
    let page = world.rest.call("GET /v1/namespaces/ns/locks?page_size=1000").await.ok();
    page["locks"].as_array().unwrap().len()
}

/// More than the shard ends in one step: each answer comes once all of it has ended.
#[tokio::test]
async fn what_takes_many_steps_is_answered_after_the_last() {
    let world = world().await;
    for (owner, sets) in [("live", 1), ("dead", 9), ("all", 9)] {
        take_many(&world, owner, sets).await;
    }
    let released = world.post("lock-sets/release", json!({"process_id": "all", "all": true})).await;
    assert_eq!(released["released"], true, "{released}");
    assert_eq!(count(&world).await, 10 * 64);
    let removed = world.post("reset", json!({"live_owners": ["live"]})).await;
    assert_eq!(removed, json!({"removed_holds": 9 * 64, "removed_waiters": 0}));
    assert_eq!(count(&world).await, 64);
    world.door.take(Ask::write("l", "dead")).await;
}

#[tokio::test]
async fn a_reset_says_who_stays_and_needs_the_scope_to_force() {
    let world = world().await;
    world.door.take(Ask::write("l", "p")).await;
    let line = "POST /v1/namespaces/ns/reset";
    world.rest.json(line, json!({})).await.refused_field("live_owners");
    world.rest.json(line, json!({"live_owners": ["p", ""]})).await.refused_field("live_owners[1]");
    let key = world.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read", "locks:write"]})).await.ok();
    let writer = world.rest.with_key(key["api_key"].as_str().unwrap());
    writer.json(line, json!({"live_owners": []})).await.refused("PERMISSION_DENIED");
    assert_eq!(world.held().await, ["l"]);
}
