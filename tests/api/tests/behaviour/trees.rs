//! Locks of paths: what is above and below excludes, siblings do not.

use serde_json::{Value, json};

use crate::support::{AcquireRequest, LockClient, TestEnv, frontends};

async fn test_env() -> TestEnv<frontends::rest::Client> {
    TestEnv::open().await
}

fn acquire_body(process_id: &str, mode: &str, path: &[&str]) -> Value {
    json!({"process_id": process_id, "ttl_ms": 60_000, "resources": [{"path": path, "mode": mode}]})
}

async fn expect_granted(world: &TestEnv<frontends::rest::Client>, process_id: &str, mode: &str, path: &[&str]) -> u64 {
    let taken = world.post("lock-sets/acquire", acquire_body(process_id, mode, path)).await;
    assert_eq!(taken["success"], true, "{taken}");
    taken["fencing_token"].as_u64().unwrap()
}

async fn expect_refused(
    world: &TestEnv<frontends::rest::Client>,
    process_id: &str,
    mode: &str,
    path: &[&str],
) -> String {
    let refused = world.post("lock-sets/acquire", acquire_body(process_id, mode, path)).await;
    assert_eq!(refused["success"], false, "{refused}");
    refused["reason"]["code"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_writer_excludes_others_from_everything_above_and_below() {
    let world = test_env().await;
    expect_granted(&world, "p", "WRITE", &["user", "it"]).await;
    for mode in ["READ", "WRITE"] {
        assert_eq!(expect_refused(&world, "q", mode, &["user", "it", "ann"]).await, "ANCESTOR");
        assert_eq!(expect_refused(&world, "q", mode, &["user"]).await, "DESCENDANT");
        assert_eq!(expect_refused(&world, "q", mode, &[]).await, "DESCENDANT");
        assert_eq!(expect_refused(&world, "q", mode, &["user", "it"]).await, "HELD");
    }
    expect_granted(&world, "q", "WRITE", &["user", "its"]).await;
    expect_granted(&world, "q", "WRITE", &["it"]).await;
    // An owner is never in its own way.
    expect_granted(&world, "p", "WRITE", &["user", "it", "ann"]).await;
}

#[tokio::test]
async fn readers_share_a_tree_and_keep_writers_out_of_it() {
    let world = test_env().await;
    expect_granted(&world, "p", "READ", &["user"]).await;
    expect_granted(&world, "q", "READ", &["user", "it"]).await;
    expect_granted(&world, "q", "READ", &[]).await;
    assert_eq!(expect_refused(&world, "r", "WRITE", &["user", "it", "ann"]).await, "ANCESTOR");
    assert_eq!(expect_refused(&world, "r", "WRITE", &["elsewhere"]).await, "ANCESTOR");
}

#[tokio::test]
async fn a_flat_name_is_the_path_of_one_segment_whatever_it_contains() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("a/b", "p")).await;
    expect_granted(&world, "q", "WRITE", &["a", "b"]).await;
    assert_eq!(expect_refused(&world, "q", "WRITE", &["a/b"]).await, "HELD");
    assert_eq!(expect_refused(&world, "r", "READ", &["a"]).await, "DESCENDANT");
}

#[tokio::test]
async fn any_path_is_shown_checked_deleted_and_listed() {
    let world = test_env().await;
    let token = expect_granted(&world, "p", "WRITE", &["t", "x", "y"]).await;
    expect_granted(&world, "p", "READ", &["t"]).await;
    let path = json!(["t", "x", "y"]);
    let shown = world.post("lock-sets/get", json!({"path": path})).await;
    assert_eq!((&shown["lock"]["name"], &shown["lock"]["path"]), (&Value::Null, &path));
    assert_eq!(shown["lock"]["write_lock_holder"]["fencing_token"], token);
    let check = json!({"path": path, "fencing_token": token});
    assert_eq!(world.post("lock-sets/check", check.clone()).await["current"], true);
    let page = world.rest.call("GET /v1/namespaces/ns/locks?prefix=t&prefix=x").await.ok();
    assert_eq!((page["locks"].as_array().unwrap().len(), &page["locks"][0]["path"]), (1, &path));
    assert_eq!(world.post("lock-sets/delete", json!({"path": path})).await, Value::Null);
    let checked = world.post("lock-sets/check", check).await;
    assert_eq!((&checked["current"], &checked["lock"]["state"]), (&json!(false), &json!("UNLOCKED")));
    // Only that very path is deleted, not what is above it.
    assert_eq!(world.held_locks().await, ["t"]);
}

#[tokio::test]
async fn the_empty_path_is_the_whole_namespace() {
    let world = test_env().await;
    let token = expect_granted(&world, "p", "WRITE", &[]).await;
    assert_eq!(world.client.expect_refused(AcquireRequest::read("l", "q")).await.reason.as_deref(), Some("ANCESTOR"));
    let shown = world.post("lock-sets/get", json!({"path": []})).await;
    assert_eq!((&shown["lock"]["state"], &shown["lock"]["path"]), (&json!("WRITE_LOCKED"), &json!([])));
    let checked = world.post("lock-sets/check", json!({"path": [], "fencing_token": token})).await;
    assert_eq!(checked["current"], true);
    let released = world.post("lock-sets/release", json!({"process_id": "p", "resources": [{"path": []}]})).await;
    assert_eq!(released["released"], true);
    world.client.expect_granted(AcquireRequest::read("l", "q")).await;
}
