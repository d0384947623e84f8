//! Sessions that another connection takes up.

use serde_json::{Value, json};

use crate::support::{RestClient, SessionSocket, connect_new_tenant, create_tenant, lock_message, server};

const TTL_MS: u64 = 60_000;
/// The longest time to live of a session.
const LONG_TTL_MS: u64 = 600_000;

fn held_entry(path: &str, token: u64) -> Value {
    json!({"path": [path], "mode": "WRITE", "fencing_token": token})
}

fn lock_info_message(held: &[Value], pending: &[Value]) -> Value {
    json!({"type": "lock_info", "held": held, "pending": pending})
}

async fn lock_state(rest: &RestClient, name: &str) -> Value {
    rest.call(&format!("GET /v1/namespaces/ns/locks/{name}")).await.ok()["lock"].clone()
}

#[tokio::test]
async fn the_second_of_two_connections_supersedes_the_first() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    let token = first.acquire("a", "x").await;
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    assert_eq!(first.receive().await, json!({"type": "session_ended", "reason": "SUPERSEDED"}));
    assert_eq!(first.expect_close().await, 1_000);
    second.send(lock_info_message(&[held_entry("x", token)], &[])).await;
    second.expect_no_message().await;
    second.send(json!({"type": "release", "request_id": "a"})).await;
    second.expect_ready("a").await;
    assert_eq!(lock_state(&rest, "x").await["state"], "UNLOCKED");
}

#[tokio::test]
async fn what_is_not_listed_ends_and_what_is_believed_in_vain_is_revoked() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    let kept = first.acquire("a", "kept").await;
    first.acquire("b", "unlisted").await;
    let lost = first.acquire("c", "lost").await;
    drop(first);
    rest.call("DELETE /v1/namespaces/ns/locks/lost").await.ok();
    let body = json!({"process_id": "other", "ttl_ms": 60_000});
    rest.json("POST /v1/namespaces/ns/locks/lost/acquire", body).await.ok();
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    second.send(lock_info_message(&[held_entry("kept", kept), held_entry("lost", lost)], &[])).await;
    let revoked = second.receive().await;
    assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["lost"])));
    assert_eq!((&revoked["reason"], &revoked["current_owner"]["process_id"]), (&json!("DUPLICATE"), &json!("other")));
    second.expect_no_message().await;
    assert_eq!(lock_state(&rest, "unlisted").await["state"], "UNLOCKED");
    assert_eq!(lock_state(&rest, "kept").await["write_lock_holder"]["fencing_token"], kept);
}

#[tokio::test]
async fn a_long_list_comes_in_parts() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    let (one, other) = (first.acquire("a", "one").await, first.acquire("b", "other").await);
    first.acquire("c", "unlisted").await;
    drop(first);
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    let part = |number: u32, held: Value, pending: &[Value]| {
        let info = lock_info_message(&[held], pending);
        json!({"type": "lock_info", "held": info["held"], "pending": info["pending"], "part": number, "parts": 3})
    };
    second.send(part(1, held_entry("one", one), &[lock_message("new", "new")])).await;
    second.send(part(2, held_entry("lost", 1), &[])).await;
    let revoked = second.receive().await;
    assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["lost"])));
    assert_eq!(lock_state(&rest, "unlisted").await["state"], "WRITE_LOCKED", "the list is not complete");
    second.send(part(3, held_entry("other", other), &[])).await;
    second.expect_acquired("new").await;
    let states = [("one", "WRITE_LOCKED"), ("other", "WRITE_LOCKED"), ("unlisted", "UNLOCKED")];
    for (name, state) in states {
        assert_eq!(lock_state(&rest, name).await["state"], state, "{name}");
    }
}

#[tokio::test]
async fn a_list_in_the_wrong_order_or_with_too_many_entries_is_refused() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    let token = first.acquire("a", "x").await;
    let release = json!({"type": "release", "request_id": "r"});
    let many = vec![release; 10_001];
    let second_part = json!({"type": "lock_info", "held": [], "pending": [], "part": 2, "parts": 2});
    for (message, code) in [(lock_info_message(&[], &many), "PAYLOAD_TOO_LARGE"), (second_part, "INVALID_ARGUMENT")] {
        let mut next = SessionSocket::connect(&rest).await;
        next.resume_session(&session_id, TTL_MS).await;
        next.send(message).await;
        let error = next.receive().await;
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!(code)), "{error}");
        next.expect_close().await;
    }
    assert_eq!(lock_state(&rest, "x").await["write_lock_holder"]["fencing_token"], token, "it changed nothing");
}

#[tokio::test]
async fn pending_requests_are_taken_up_where_they_stand() {
    let (rest, mut holder) = connect_new_tenant().await;
    holder.open_session(TTL_MS).await;
    holder.acquire("h", "x").await;
    let mut first = SessionSocket::connect(&rest).await;
    let session_id = first.open_session(TTL_MS).await;
    let granted = first.acquire("a", "y").await;
    let released = first.acquire("b", "z").await;
    first.request_lock("c", "x").await;
    first.expect_enqueued("c").await;
    drop(first);
    let mut behind = SessionSocket::connect(&rest).await;
    behind.open_session(TTL_MS).await;
    behind.request_lock("d", "x").await;
    behind.expect_enqueued("d").await;
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    // The answers to all four were lost on the way, as far as this client knows.
    let release = json!({"type": "release", "request_id": "b"});
    let pending = [lock_message("a", "y"), release, lock_message("c", "x"), lock_message("new", "w")];
    second.send(lock_info_message(&[held_entry("z", released)], &pending)).await;
    assert_eq!(second.expect_acquired("a").await, granted);
    second.expect_ready("b").await;
    assert_eq!(second.expect_enqueued("c").await["queue_position"], 0, "it kept its place");
    second.expect_acquired("new").await;
    holder.send(json!({"type": "close"})).await;
    second.expect_acquired("c").await;
    assert_eq!(lock_state(&rest, "z").await["state"], "UNLOCKED");
}

#[tokio::test]
async fn a_session_that_is_gone_cannot_be_resumed_and_another_may_be_opened() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    first.send(json!({"type": "close"})).await;
    assert_eq!(first.receive().await["type"], "session_ended");
    let mut second = SessionSocket::connect(&rest).await;
    second.send(json!({"type": "open", "process_id": "p", "ttl_ms": TTL_MS, "session_id": session_id})).await;
    let error = second.receive().await;
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("SESSION_NOT_FOUND")), "{error}");
    assert_ne!(second.open_session(TTL_MS).await, session_id);
}

#[tokio::test]
async fn a_resume_replaces_the_process_id_and_the_time_to_live() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    let token = first.acquire("a", "x").await;
    drop(first);
    let mut second = SessionSocket::connect(&rest).await;
    let open = json!({"type": "open", "process_id": "moved", "ttl_ms": 30_000, "session_id": session_id});
    second.send(open).await;
    assert_eq!(second.receive().await["ttl_ms"], 30_000);
    second.send(lock_info_message(&[held_entry("x", token)], &[])).await;
    second.expect_no_message().await;
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["process_id"], &shown["ttl_ms"]), (&json!("moved"), &json!(30_000)));
    assert_eq!(lock_state(&rest, "x").await["write_lock_holder"]["process_id"], "moved");
}

#[tokio::test]
async fn after_a_resume_lock_info_has_to_come_first() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(TTL_MS).await;
    drop(first);
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    second.expect_no_message().await;
    second.request_lock("a", "x").await;
    assert_eq!(second.receive().await["code"], "INVALID_ARGUMENT");
    assert_eq!(second.expect_close().await, 3_000);
}

#[tokio::test]
async fn a_session_with_very_many_holds_is_resumed_with_all_of_them() {
    const HOLDS: usize = 2_500;
    let (rest, mut socket) = connect_new_tenant().await;
    // No keep-alive is sent meanwhile.
    let session_id = socket.open_session(LONG_TTL_MS).await;
    let mut held = Vec::new();
    for number in 0..HOLDS {
        let path = format!("lock-{number}");
        let token = socket.acquire(&path, &path).await;
        held.push(json!({"path": [path], "mode": "WRITE", "fencing_token": token}));
    }
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, LONG_TTL_MS).await;
    second.send(json!({"type": "lock_info", "held": held, "pending": []})).await;
    // It comes after what was listed, and nothing is said to be lost before it.
    second.acquire("one more", "one more").await;
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!(shown["holds"], HOLDS + 1);
}

#[tokio::test]
async fn limits_that_were_lowered_meanwhile_keep_nobody_from_resuming() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let mut first = SessionSocket::connect(&tenant.rest).await;
    let session_id = first.open_session(TTL_MS).await;
    let resources = json!([{"path": ["x", "deep"], "mode": "WRITE"}, {"path": ["y"], "mode": "WRITE"}]);
    let asks = json!({"type": "lock", "request_id": "a", "resources": resources});
    first.send(asks.clone()).await;
    let token = first.receive().await["fencing_token"].clone();
    assert!(token.is_u64());
    drop(first);
    let lower = json!({"max_session_ttl_ms": TTL_MS / 2, "max_claims_per_request": 1, "max_path_depth": 1});
    tenant.update(server(), json!({"limits": lower})).await;
    let mut second = SessionSocket::connect(&tenant.rest).await;
    second.resume_session(&session_id, TTL_MS).await;
    let listed = |path: &[&str]| json!({"path": path, "mode": "WRITE", "fencing_token": token});
    second.send(lock_info_message(&[listed(&["x", "deep"]), listed(&["y"])], &[asks])).await;
    let state = second.receive().await;
    assert_eq!((&state["state"], &state["fencing_token"]), (&json!("ACQUIRED"), &token));
    // What is new has to keep them.
    let news = json!([{"path": ["z", "deep"], "mode": "WRITE"}]);
    second.send(json!({"type": "lock", "request_id": "b", "resources": news})).await;
    assert_eq!(second.receive().await["reason"]["code"], "INVALID_ARGUMENT");
}
