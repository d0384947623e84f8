//! Several paths at once: all of them or none.

use serde_json::{Value, json};

use crate::support::{AcquireRequest, LockClient, TestEnv, frontends};

async fn test_env() -> TestEnv<frontends::rest::Client> {
    TestEnv::open().await
}

/// An acquire of flat names for writing.
fn write_set(process_id: &str, names: &[&str]) -> Value {
    let resources: Vec<Value> = names.iter().map(|name| json!({"path": [name]})).collect();
    json!({"process_id": process_id, "ttl_ms": 60_000, "resources": resources})
}

fn lock_names(answer: &Value) -> Vec<&str> {
    answer["locks"].as_array().unwrap().iter().map(|lock| lock["name"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn a_set_is_taken_as_a_whole_or_not_at_all() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("b", "other")).await;
    let refused = world.post("lock-sets/acquire", write_set("p", &["c", "b", "a"])).await;
    assert_eq!((&refused["success"], &refused["reason"]["code"]), (&json!(false), &json!("HELD")));
    assert_eq!((&refused["reason"]["blockers"][0]["path"], lock_names(&refused)), (&json!(["b"]), vec!["a", "b", "c"]));
    assert_eq!(world.held_locks().await, ["b"]);
    world.client.release("b", "other").await.unwrap();
    let taken = world.post("lock-sets/acquire", write_set("p", &["c", "b", "a", "a"])).await;
    assert_eq!((&taken["success"], lock_names(&taken)), (&json!(true), vec!["a", "b", "c"]));
    let token = &taken["fencing_token"];
    assert!(taken["locks"].as_array().unwrap().iter().all(|lock| &lock["write_lock_holder"]["fencing_token"] == token));
    assert_eq!(world.held_locks().await, ["a", "b", "c"]);
}

#[tokio::test]
async fn a_path_named_twice_is_held_in_the_stronger_mode() {
    let world = test_env().await;
    let resources = json!([{"path": ["a"], "mode": "READ"}, {"path": ["a"], "mode": "WRITE"}]);
    let body = json!({"process_id": "p", "ttl_ms": 60_000, "resources": resources});
    let taken = world.post("lock-sets/acquire", body).await;
    assert_eq!((lock_names(&taken), &taken["locks"][0]["state"]), (vec!["a"], &json!("WRITE_LOCKED")));
}

#[tokio::test]
async fn what_was_held_keeps_its_token() {
    let world = test_env().await;
    let first = world.client.expect_granted(AcquireRequest::write("a", "p")).await.fencing_token.unwrap();
    let taken = world.post("lock-sets/acquire", write_set("p", &["a", "b"])).await;
    let second = taken["fencing_token"].as_u64().unwrap();
    assert!(second > first);
    let tokens = [0, 1].map(|index: usize| taken["locks"][index]["write_lock_holder"]["fencing_token"].as_u64());
    assert_eq!(tokens, [Some(first), Some(second)]);
}

#[tokio::test]
async fn a_set_waits_as_a_whole_and_is_granted_as_a_whole() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("a", "p")).await;
    world.client.expect_granted(AcquireRequest::write("b", "q")).await;
    let mut body = write_set("r", &["a", "b"]);
    body["wait_ms"] = json!(300_000);
    let release = async {
        world.wait_for_queue("b", 1).await;
        world.client.release("a", "p").await.unwrap();
        // It holds nothing while it waits, but it came first.
        let late = world.client.expect_refused(AcquireRequest::write("a", "late")).await;
        assert_eq!((late.reason.as_deref(), late.blockers), (Some("QUEUED"), vec!["r".to_owned()]));
        world.client.release("b", "q").await.unwrap();
    };
    let (granted, ()) = tokio::join!(world.post("lock-sets/acquire", body), release);
    assert_eq!(granted["success"], true, "{granted}");
    assert_eq!(world.held_locks().await, ["a", "b"]);
}

#[tokio::test]
async fn some_of_a_set_are_released_or_everything_of_an_owner() {
    let world = test_env().await;
    world.post("lock-sets/acquire", write_set("p", &["a", "b", "c"])).await;
    world.client.expect_granted(AcquireRequest::write("d", "q")).await;
    let some = json!({"process_id": "p", "resources": [{"path": ["b"]}, {"path": ["d"]}, {"path": ["none"]}]});
    let released = world.post("lock-sets/release", some.clone()).await;
    assert_eq!((&released["released"], lock_names(&released)), (&json!(true), vec!["b", "d", "none"]));
    assert_eq!(world.held_locks().await, ["a", "c", "d"]);
    assert_eq!(world.post("lock-sets/release", some).await["released"], false);
    let mut wait = write_set("p", &["d"]);
    wait["wait_ms"] = json!(300_000);
    wait["poll_ms"] = json!(1);
    world.post("lock-sets/acquire", wait).await;
    let released = world.post("lock-sets/release", json!({"process_id": "p", "all": true})).await;
    assert_eq!(released["released"], true);
    assert_eq!(world.held_locks().await, ["d"]);
    world.wait_for_queue("d", 0).await;
}

#[tokio::test]
async fn a_request_id_belongs_to_one_set_of_claims() {
    let world = test_env().await;
    world.client.expect_granted(AcquireRequest::write("a", "p")).await;
    let request = |names: &[&str]| {
        let mut body = write_set("q", names);
        body["wait_ms"] = json!(300_000);
        body["poll_ms"] = json!(1);
        body["request_id"] = json!("r");
        body
    };
    for _ in 0..2 {
        let queued = world.post("lock-sets/acquire", request(&["a"])).await;
        assert_eq!((&queued["reason"]["code"], &queued["locks"][0]["waiting"]), (&json!("QUEUED"), &json!(1)));
    }
    let line = "POST /v1/namespaces/ns/lock-sets/acquire";
    world.rest.json(line, request(&["a", "b"])).await.expect_field_error("request_id");
}

#[tokio::test]
async fn sets_that_are_none_are_refused_by_the_resource_that_is_wrong() {
    let world = test_env().await;
    let many: Vec<Value> = (0..65).map(|number| json!({"path": [number.to_string()]})).collect();
    let deep = vec!["s"; 17];
    for (resources, field) in [
        (json!([]), "resources"),
        (json!({}), "resources"),
        (json!(many), "resources"),
        (json!([{"path": ["a"]}, {"path": [""]}]), "resources[1].path"),
        (json!([{"path": deep}]), "resources[0].path"),
        (json!([{"path": ["a"], "mode": "write"}]), "resources[0].mode"),
        (json!([{"mode": "READ"}]), "resources[0].path"),
    ] {
        let body = json!({"process_id": "p", "ttl_ms": 60_000, "resources": resources});
        world.rest.json("POST /v1/namespaces/ns/lock-sets/acquire", body).await.expect_field_error(field);
    }
    assert_eq!(world.held_locks().await, [""; 0]);
    let most: Vec<Value> = (0..64).map(|number| json!({"path": [number.to_string()]})).collect();
    let body = json!({"process_id": "p", "ttl_ms": 60_000, "resources": most});
    assert_eq!(world.post("lock-sets/acquire", body).await["success"], true);
}
