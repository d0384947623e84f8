//! The session protocol: requests, their grants and their ends.

use serde_json::{Value, json};

use crate::support::{RestClient, SessionSocket, connect_new_tenant, lock_message, wait_until};

/// Of sessions that are to expire: longer than what comes before that takes while a disk stalls.
const SHORT_TTL_MS: u64 = 5_000;

async fn lock_state(rest: &RestClient, name: &str) -> Value {
    rest.call(&format!("GET /v1/namespaces/ns/locks/{name}")).await.ok()["lock"].clone()
}

#[tokio::test]
async fn a_session_is_opened_locks_releases_and_closes() {
    let (rest, mut socket) = connect_new_tenant().await;
    let metadata = json!({"host": "a"});
    socket.send(json!({"type": "open", "process_id": "worker", "ttl_ms": 30_000, "metadata": metadata})).await;
    let opened = socket.receive().await;
    let session_id = opened["session_id"].as_str().unwrap();
    let mut fields: Vec<&String> = opened.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["durability", "epoch", "resumed", "session_id", "ttl_ms", "type"]);
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["metadata"], &shown["process_id"]), (&metadata, &json!("worker")));
    let token = socket.acquire("a", "x").await;
    let holder = lock_state(&rest, "x").await["write_lock_holder"].clone();
    assert_eq!((&holder["session_id"], &holder["fencing_token"]), (&json!(session_id), &json!(token)));
    socket.send(json!({"type": "keepalive"})).await;
    let kept = socket.receive().await;
    assert!((1..=30_000).contains(&kept["remaining_ms"].as_u64().unwrap()), "{kept}");
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    socket.expect_ready("a").await;
    assert_eq!(lock_state(&rest, "x").await["state"], "UNLOCKED");
    // READY again: the same name may be used once more.
    assert!(socket.acquire("a", "x").await > token);
    socket.send(json!({"type": "close"})).await;
    assert_eq!(socket.receive().await, json!({"type": "session_ended", "reason": "CLOSED"}));
    assert_eq!(socket.expect_close().await, 1_000);
    assert_eq!(lock_state(&rest, "x").await["state"], "UNLOCKED");
    rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.expect_error("SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_browser_brings_its_credential_as_a_subprotocol() {
    let (rest, _) = connect_new_tenant().await;
    let mut socket = SessionSocket::connect_as_browser(&rest).await;
    socket.open_session(30_000).await;
    socket.acquire("a", "x").await;
}

#[tokio::test]
async fn a_waiting_request_is_told_of_its_grant_unasked() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    let holder = first.open_session(30_000).await;
    second.open_session(30_000).await;
    let token = first.acquire("a", "x").await;
    second.request_lock("b", "x").await;
    let enqueued = second.expect_enqueued("b").await;
    assert_eq!(enqueued["queue_position"], 0);
    let blocker = &enqueued["blockers"][0];
    assert_eq!((&blocker["path"], &blocker["waiting"]), (&json!(["x"]), &json!(false)));
    assert_eq!(blocker["session_id"], holder);
    second.expect_no_message().await;
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    assert!(second.expect_acquired("b").await > token);
}

#[tokio::test]
async fn a_set_is_granted_all_together_and_holders_of_a_session_exclude_each_other() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    let resources = json!([{"path": ["x", "y"], "mode": "WRITE"}, {"path": ["z"], "mode": "READ"}]);
    let set = |request_id: &str, holder: &str| json!({"type": "lock", "request_id": request_id, "resources": resources, "holder": holder});
    socket.send(set("a", "thread-1")).await;
    socket.expect_acquired("a").await;
    socket.send(set("b", "thread-2")).await;
    assert_eq!(socket.expect_enqueued("b").await["blockers"][0]["holder"], "thread-1");
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    // The order of the two is not promised.
    let told = [socket.receive().await, socket.receive().await];
    let state =
        |request_id: &str| told.iter().find(|state| state["request_id"] == request_id).unwrap()["state"].clone();
    assert_eq!((state("a"), state("b")), (json!("READY"), json!("ACQUIRED")));
}

#[tokio::test]
async fn a_request_that_waits_can_be_released() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    first.acquire("a", "x").await;
    second.request_lock("b", "x").await;
    second.expect_enqueued("b").await;
    second.send(json!({"type": "release", "request_id": "b"})).await;
    second.expect_ready("b").await;
    second.expect_no_message().await;
    assert_eq!(lock_state(&rest, "x").await["waiting"], 0);
    // An unknown request is as ready as one that was released.
    second.send(json!({"type": "release", "request_id": "unknown"})).await;
    second.expect_ready("unknown").await;
}

#[tokio::test]
async fn release_all_ends_holds_and_waits_and_keeps_the_session() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    let session_id = second.open_session(30_000).await;
    first.acquire("a", "x").await;
    second.acquire("b", "y").await;
    second.request_lock("c", "x").await;
    second.expect_enqueued("c").await;
    second.send(json!({"type": "release_all"})).await;
    second.expect_ready("b").await;
    second.expect_ready("c").await;
    second.send(json!({"type": "release_all"})).await;
    assert_eq!(second.receive().await, json!({"type": "state", "request_id": null, "state": "READY"}));
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["holds"], &shown["waiting"]), (&json!(0), &json!(0)));
    second.acquire("b", "y").await;
}

#[tokio::test]
async fn a_try_is_refused_with_the_reason_and_does_not_wait() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    first.acquire("a", "x").await;
    let mut attempt = lock_message("b", "x");
    attempt["try"] = true.into();
    second.send(attempt.clone()).await;
    let refused = second.receive().await;
    assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("b")));
    assert_eq!(refused["reason"]["code"], "HELD", "{refused}");
    assert_eq!(refused["reason"]["blockers"][0]["path"], json!(["x"]));
    assert_eq!(lock_state(&rest, "x").await["waiting"], 0);
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    second.send(attempt).await;
    second.expect_acquired("b").await;
}

#[tokio::test]
async fn a_deadlock_is_refused_at_once() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    first.acquire("a", "x").await;
    second.acquire("b", "y").await;
    first.request_lock("c", "y").await;
    first.expect_enqueued("c").await;
    second.request_lock("d", "x").await;
    let refused = second.receive().await;
    assert_eq!((&refused["type"], &refused["reason"]["code"]), (&json!("refused"), &json!("DEADLOCK")), "{refused}");
}

#[tokio::test]
async fn a_request_id_with_other_claims_is_rejected_and_a_repeat_finds_its_grant() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    let token = socket.acquire("a", "x").await;
    assert_eq!(socket.acquire("a", "x").await, token);
    socket.request_lock("a", "y").await;
    let rejected = socket.receive().await;
    assert_eq!(
        (&rejected["type"], &rejected["code"], &rejected["request_id"]),
        (&json!("error"), &json!("INVALID_ARGUMENT"), &json!("a")),
        "it keeps what it has: {rejected}"
    );
    assert_eq!(socket.acquire("a", "x").await, token);
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    socket.expect_ready("a").await;
}

#[tokio::test]
async fn a_waiter_whose_session_ends_makes_way() {
    let (rest, mut first) = connect_new_tenant().await;
    let (mut second, mut third) = (SessionSocket::connect(&rest).await, SessionSocket::connect(&rest).await);
    first.open_session(30_000).await;
    let waiting = second.open_session(30_000).await;
    third.open_session(30_000).await;
    first.acquire("a", "x").await;
    second.request_lock("b", "x").await;
    second.expect_enqueued("b").await;
    third.request_lock("c", "x").await;
    assert_eq!(third.expect_enqueued("c").await["queue_position"], 1);
    rest.call(&format!("DELETE /v1/namespaces/ns/sessions/{waiting}")).await.ok();
    let mut told = second.receive().await;
    if told["type"] == "refused" {
        assert_eq!(told["reason"]["code"], "ENDED");
        told = second.receive().await;
    }
    assert_eq!(told, json!({"type": "session_ended", "reason": "CLOSED"}));
    assert_eq!(second.expect_close().await, 1_000);
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    third.expect_acquired("c").await;
}

#[tokio::test]
async fn a_deleted_lock_is_revoked_and_its_request_still_has_to_be_released() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    let next = second.open_session(30_000).await;
    let of_a_thread = json!({"type": "lock", "request_id": "a", "resources": [{"path": ["x"]}], "holder": "t1",
        "metadata": {"leader": "t1:80"}});
    first.send(of_a_thread).await;
    let token = first.expect_acquired("a").await;
    assert_eq!(lock_state(&rest, "x").await["write_lock_holder"]["metadata"], json!({"leader": "t1:80"}));
    second.request_lock("b", "x").await;
    second.expect_enqueued("b").await;
    rest.call("DELETE /v1/namespaces/ns/locks/x").await.ok();
    second.expect_acquired("b").await;
    let revoked = first.receive().await;
    assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["x"])));
    assert_eq!((&revoked["holder"], &revoked["fencing_token"]), (&json!("t1"), &json!(token)), "{revoked}");
    assert_eq!((&revoked["reason"], &revoked["current_owner"]["session_id"]), (&json!("DELETED"), &json!(next)));
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    assert_eq!(lock_state(&rest, "x").await["write_lock_holder"]["session_id"], next);
}

#[tokio::test]
async fn a_silent_connection_loses_its_session_and_is_told_so() {
    let (rest, mut socket) = connect_new_tenant().await;
    let session_id = socket.open_session(SHORT_TTL_MS).await;
    let token = socket.acquire("a", "x").await;
    let revoked = socket.receive().await;
    let expected =
        json!({"type": "revoked", "path": ["x"], "reason": "EXPIRED", "current_owner": null, "fencing_token": token});
    assert_eq!(revoked, expected);
    assert_eq!(socket.receive().await, json!({"type": "session_ended", "reason": "EXPIRED"}));
    assert_eq!(socket.expect_close().await, 1_000);
    rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.expect_error("SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_connection_that_ends_without_a_close_leaves_the_session_to_its_time() {
    let (rest, mut socket) = connect_new_tenant().await;
    socket.open_session(SHORT_TTL_MS).await;
    socket.acquire("a", "x").await;
    drop(socket);
    assert_eq!(lock_state(&rest, "x").await["state"], "WRITE_LOCKED");
    wait_until("the session expired", || async { lock_state(&rest, "x").await["state"] == "UNLOCKED" }).await;
}

#[tokio::test]
async fn all_that_was_said_before_the_client_went_away_is_done() {
    let (rest, mut socket) = connect_new_tenant().await;
    let session_id = socket.open_session(600_000).await;
    for request in 0..50 {
        socket.request_lock(&format!("r{request}"), &format!("l{request}")).await;
    }
    socket.send(json!({"type": "close"})).await;
    socket.end_sending().await;
    wait_until("the session is closed", || async {
        rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.status == 404
    })
    .await;
}

#[tokio::test]
async fn many_requests_are_answered_in_their_order() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.open_session(60_000).await;
    for request in 0..200 {
        socket.request_lock(&format!("r{request}"), &format!("l{request}")).await;
    }
    let mut last = 0;
    for request in 0..200 {
        let token = socket.expect_acquired(&format!("r{request}")).await;
        assert!(token > last);
        last = token;
    }
}
