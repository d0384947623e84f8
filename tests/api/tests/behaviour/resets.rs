//! Ending what owners have that are no more.

use serde_json::json;

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
