//! Sessions that another connection takes up.

use serde_json::{Value, json};

use crate::support::{Rest, Socket, lock, server, tenant};

const TTL_MS: u64 = 60_000;

fn held(path: &str, token: u64) -> Value {
    json!({"path": [path], "mode": "WRITE", "fencing_token": token})
}

fn lock_info(held: &[Value], pending: &[Value]) -> Value {
    json!({"type": "lock_info", "held": held, "pending": pending})
}

async fn state(rest: &Rest, name: &str) -> Value {
    rest.call(&format!("GET /v1/namespaces/ns/locks/{name}")).await.ok()["lock"].clone()
}

#[tokio::test]
async fn the_second_of_two_connections_supersedes_the_first() {
    let (rest, mut first) = Socket::alone().await;
    let session_id = first.open(TTL_MS).await;
    let token = first.take("a", "x").await;
    let mut second = Socket::connect(&rest).await;
    second.resume(&session_id, TTL_MS).await;
    assert_eq!(first.hear().await, json!({"type": "session_ended", "reason": "SUPERSEDED"}));
    assert_eq!(first.closed().await, 1_000);
    second.say(lock_info(&[held("x", token)], &[])).await;
    second.hears_nothing_else().await;
    second.say(json!({"type": "release", "request_id": "a"})).await;
    second.ready("a").await;
    assert_eq!(state(&rest, "x").await["state"], "UNLOCKED");
}

#[tokio::test]
async fn what_is_not_listed_ends_and_what_is_believed_in_vain_is_revoked() {
    let (rest, mut first) = Socket::alone().await;
    let session_id = first.open(TTL_MS).await;
    let kept = first.take("a", "kept").await;
    first.take("b", "unlisted").await;
    let lost = first.take("c", "lost").await;
    drop(first);
    rest.call("DELETE /v1/namespaces/ns/locks/lost").await.ok();
    let body = json!({"process_id": "other", "ttl_ms": 60_000});
    rest.json("POST /v1/namespaces/ns/locks/lost/acquire", body).await.ok();
    let mut second = Socket::connect(&rest).await;
    second.resume(&session_id, TTL_MS).await;
    second.say(lock_info(&[held("kept", kept), held("lost", lost)], &[])).await;
    let revoked = second.hear().await;
    assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["lost"])));
    assert_eq!((&revoked["reason"], &revoked["current_owner"]["process_id"]), (&json!("DUPLICATE"), &json!("other")));
    second.hears_nothing_else().await;
    assert_eq!(state(&rest, "unlisted").await["state"], "UNLOCKED");
    assert_eq!(state(&rest, "kept").await["write_lock_holder"]["fencing_token"], kept);
}

#[tokio::test]
async fn pending_requests_are_taken_up_where_they_stand() {
    let (rest, mut holder) = Socket::alone().await;
    holder.open(TTL_MS).await;
    holder.take("h", "x").await;
    let mut first = Socket::connect(&rest).await;
    let session_id = first.open(TTL_MS).await;
    let granted = first.take("a", "y").await;
    let released = first.take("b", "z").await;
    first.lock("c", "x").await;
    first.enqueued("c").await;
    drop(first);
    let mut behind = Socket::connect(&rest).await;
    behind.open(TTL_MS).await;
    behind.lock("d", "x").await;
    behind.enqueued("d").await;
    let mut second = Socket::connect(&rest).await;
    second.resume(&session_id, TTL_MS).await;
    // The answers to all four were lost on the way, as far as this client knows.
    let release = json!({"type": "release", "request_id": "b"});
    let pending = [lock("a", "y"), release, lock("c", "x"), lock("new", "w")];
    second.say(lock_info(&[held("z", released)], &pending)).await;
    assert_eq!(second.acquired("a").await, granted);
    second.ready("b").await;
    assert_eq!(second.enqueued("c").await["queue_position"], 0, "it kept its place");
    second.acquired("new").await;
    holder.say(json!({"type": "close"})).await;
    second.acquired("c").await;
    assert_eq!(state(&rest, "z").await["state"], "UNLOCKED");
}

#[tokio::test]
async fn a_session_that_is_gone_cannot_be_resumed_and_another_may_be_opened() {
    let (rest, mut first) = Socket::alone().await;
    let session_id = first.open(TTL_MS).await;
    first.say(json!({"type": "close"})).await;
    assert_eq!(first.hear().await["type"], "session_ended");
    let mut second = Socket::connect(&rest).await;
    second.say(json!({"type": "open", "process_id": "p", "ttl_ms": TTL_MS, "session_id": session_id})).await;
    let error = second.hear().await;
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("SESSION_NOT_FOUND")), "{error}");
    assert_ne!(second.open(TTL_MS).await, session_id);
}

#[tokio::test]
async fn a_resume_replaces_the_process_id_and_the_time_to_live() {
    let (rest, mut first) = Socket::alone().await;
    let session_id = first.open(TTL_MS).await;
    let token = first.take("a", "x").await;
    drop(first);
    let mut second = Socket::connect(&rest).await;
    let open = json!({"type": "open", "process_id": "moved", "ttl_ms": 30_000, "session_id": session_id});
    second.say(open).await;
    assert_eq!(second.hear().await["ttl_ms"], 30_000);
    second.say(lock_info(&[held("x", token)], &[])).await;
    second.hears_nothing_else().await;
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["process_id"], &shown["ttl_ms"]), (&json!("moved"), &json!(30_000)));
    assert_eq!(state(&rest, "x").await["write_lock_holder"]["process_id"], "moved");
}

#[tokio::test]
async fn after_a_resume_lock_info_has_to_come_first() {
    let (rest, mut first) = Socket::alone().await;
    let session_id = first.open(TTL_MS).await;
    drop(first);
    let mut second = Socket::connect(&rest).await;
    second.resume(&session_id, TTL_MS).await;
    second.hears_nothing_else().await;
    second.lock("a", "x").await;
    assert_eq!(second.hear().await["code"], "INVALID_ARGUMENT");
    assert_eq!(second.closed().await, 3_000);
}

#[tokio::test]
async fn a_session_with_very_many_holds_is_resumed_with_all_of_them() {
    const HOLDS: usize = 2_500;
    let (rest, mut socket) = Socket::alone().await;
    let session_id = socket.open(60_000).await;
    let mut held = Vec::new();
    for number in 0..HOLDS {
        let path = format!("lock-{number}");
        let token = socket.take(&path, &path).await;
        held.push(json!({"path": [path], "mode": "WRITE", "fencing_token": token}));
    }
    let mut second = Socket::connect(&rest).await;
    second.resume(&session_id, 60_000).await;
    second.say(json!({"type": "lock_info", "held": held, "pending": []})).await;
    // It comes after what was listed, and nothing is said to be lost before it.
    second.take("one more", "one more").await;
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!(shown["holds"], HOLDS + 1);
}

#[tokio::test]
async fn limits_that_were_lowered_meanwhile_keep_nobody_from_resuming() {
    let tenant = tenant(server()).await;
    tenant.namespace("ns").await;
    let mut first = Socket::connect(&tenant.rest).await;
    let session_id = first.open(TTL_MS).await;
    let resources = json!([{"path": ["x", "deep"], "mode": "WRITE"}, {"path": ["y"], "mode": "WRITE"}]);
    let asks = json!({"type": "lock", "request_id": "a", "resources": resources});
    first.say(asks.clone()).await;
    let token = first.hear().await["fencing_token"].clone();
    assert!(token.is_u64());
    drop(first);
    let lower = json!({"max_session_ttl_ms": TTL_MS / 2, "max_claims_per_request": 1, "max_path_depth": 1});
    tenant.change(server(), json!({"limits": lower})).await;
    let mut second = Socket::connect(&tenant.rest).await;
    second.resume(&session_id, TTL_MS).await;
    let listed = |path: &[&str]| json!({"path": path, "mode": "WRITE", "fencing_token": token});
    second.say(lock_info(&[listed(&["x", "deep"]), listed(&["y"])], &[asks])).await;
    let state = second.hear().await;
    assert_eq!((&state["state"], &state["fencing_token"]), (&json!("ACQUIRED"), &token));
    // What is new has to keep them.
    let news = json!([{"path": ["z", "deep"], "mode": "WRITE"}]);
    second.say(json!({"type": "lock", "request_id": "b", "resources": news})).await;
    assert_eq!(second.hear().await["reason"]["code"], "INVALID_ARGUMENT");
}
