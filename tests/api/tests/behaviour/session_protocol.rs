//! The session protocol: requests, their grants and their ends.

use serde_json::{Value, json};

use crate::support::{Rest, Socket, lock, wait_until};

async fn lock_state(rest: &Rest, name: &str) -> Value {
    rest.call(&format!("GET /v1/namespaces/ns/locks/{name}")).await.ok()["lock"].clone()
}

#[tokio::test]
async fn a_session_is_opened_locks_releases_and_closes() {
    let (rest, mut socket) = Socket::alone().await;
    let metadata = json!({"host": "a"});
    socket.say(json!({"type": "open", "process_id": "worker", "ttl_ms": 30_000, "metadata": metadata})).await;
    let opened = socket.hear().await;
    let session_id = opened["session_id"].as_str().unwrap();
    let mut fields: Vec<&String> = opened.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["epoch", "resumed", "session_id", "ttl_ms", "type"]);
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["metadata"], &shown["process_id"]), (&metadata, &json!("worker")));
    let token = socket.take("a", "x").await;
    let holder = lock_state(&rest, "x").await["write_lock_holder"].clone();
    assert_eq!((&holder["session_id"], &holder["fencing_token"]), (&json!(session_id), &json!(token)));
    socket.say(json!({"type": "keepalive"})).await;
    let kept = socket.hear().await;
    assert!((1..=30_000).contains(&kept["remaining_ms"].as_u64().unwrap()), "{kept}");
    socket.say(json!({"type": "release", "request_id": "a"})).await;
    socket.ready("a").await;
    assert_eq!(lock_state(&rest, "x").await["state"], "UNLOCKED");
    // READY again: the same name may be used once more.
    assert!(socket.take("a", "x").await > token);
    socket.say(json!({"type": "close"})).await;
    assert_eq!(socket.hear().await, json!({"type": "session_ended", "reason": "CLOSED"}));
    assert_eq!(socket.closed().await, 1_000);
    assert_eq!(lock_state(&rest, "x").await["state"], "UNLOCKED");
    rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.refused("SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_browser_brings_its_credential_as_a_subprotocol() {
    let (rest, _) = Socket::alone().await;
    let mut socket = Socket::connect_as_a_browser(&rest).await;
    socket.open(30_000).await;
    socket.take("a", "x").await;
}

#[tokio::test]
async fn a_waiting_request_is_told_of_its_grant_unasked() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    let holder = first.open(30_000).await;
    second.open(30_000).await;
    let token = first.take("a", "x").await;
    second.lock("b", "x").await;
    let enqueued = second.enqueued("b").await;
    assert_eq!(enqueued["queue_position"], 0);
    let blocker = &enqueued["blockers"][0];
    assert_eq!((&blocker["path"], &blocker["waiting"]), (&json!(["x"]), &json!(false)));
    assert_eq!(blocker["session_id"], holder);
    second.hears_nothing_else().await;
    first.say(json!({"type": "release", "request_id": "a"})).await;
    first.ready("a").await;
    assert!(second.acquired("b").await > token);
}

#[tokio::test]
async fn a_set_is_granted_all_together_and_holders_of_a_session_exclude_each_other() {
    let (_, mut socket) = Socket::alone().await;
    socket.open(30_000).await;
    let resources = json!([{"path": ["x", "y"], "mode": "WRITE"}, {"path": ["z"], "mode": "READ"}]);
    let set = |request_id: &str, holder: &str| json!({"type": "lock", "request_id": request_id, "resources": resources, "holder": holder});
    socket.say(set("a", "thread-1")).await;
    socket.acquired("a").await;
    socket.say(set("b", "thread-2")).await;
    assert_eq!(socket.enqueued("b").await["blockers"][0]["holder"], "thread-1");
    socket.say(json!({"type": "release", "request_id": "a"})).await;
    // The order of the two is not promised.
    let told = [socket.hear().await, socket.hear().await];
    let state =
        |request_id: &str| told.iter().find(|state| state["request_id"] == request_id).unwrap()["state"].clone();
    assert_eq!((state("a"), state("b")), (json!("READY"), json!("ACQUIRED")));
}

#[tokio::test]
async fn a_request_that_waits_can_be_released() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    first.open(30_000).await;
    second.open(30_000).await;
    first.take("a", "x").await;
    second.lock("b", "x").await;
    second.enqueued("b").await;
    second.say(json!({"type": "release", "request_id": "b"})).await;
    second.ready("b").await;
    second.hears_nothing_else().await;
    assert_eq!(lock_state(&rest, "x").await["waiting"], 0);
    // An unknown request is as ready as one that was released.
    second.say(json!({"type": "release", "request_id": "unknown"})).await;
    second.ready("unknown").await;
}

#[tokio::test]
async fn release_all_ends_holds_and_waits_and_keeps_the_session() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    first.open(30_000).await;
    let session_id = second.open(30_000).await;
    first.take("a", "x").await;
    second.take("b", "y").await;
    second.lock("c", "x").await;
    second.enqueued("c").await;
    second.say(json!({"type": "release_all"})).await;
    second.ready("b").await;
    second.ready("c").await;
    second.say(json!({"type": "release_all"})).await;
    assert_eq!(second.hear().await, json!({"type": "state", "request_id": null, "state": "READY"}));
    let shown = rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.ok();
    assert_eq!((&shown["holds"], &shown["waiting"]), (&json!(0), &json!(0)));
    second.take("b", "y").await;
}

#[tokio::test]
async fn a_try_is_refused_with_the_reason_and_does_not_wait() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    first.open(30_000).await;
    second.open(30_000).await;
    first.take("a", "x").await;
    let mut attempt = lock("b", "x");
    attempt["try"] = true.into();
    second.say(attempt.clone()).await;
    let refused = second.hear().await;
    assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("b")));
    assert_eq!(refused["reason"]["code"], "HELD", "{refused}");
    assert_eq!(refused["reason"]["blockers"][0]["path"], json!(["x"]));
    assert_eq!(lock_state(&rest, "x").await["waiting"], 0);
    first.say(json!({"type": "release", "request_id": "a"})).await;
    first.ready("a").await;
    second.say(attempt).await;
    second.acquired("b").await;
}

#[tokio::test]
async fn a_deadlock_is_refused_at_once() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    first.open(30_000).await;
    second.open(30_000).await;
    first.take("a", "x").await;
    second.take("b", "y").await;
    first.lock("c", "y").await;
    first.enqueued("c").await;
    second.lock("d", "x").await;
    let refused = second.hear().await;
    assert_eq!((&refused["type"], &refused["reason"]["code"]), (&json!("refused"), &json!("DEADLOCK")), "{refused}");
}

#[tokio::test]
async fn a_request_id_with_other_claims_is_refused_and_a_repeat_finds_its_grant() {
    let (_, mut socket) = Socket::alone().await;
    socket.open(30_000).await;
    let token = socket.take("a", "x").await;
    assert_eq!(socket.take("a", "x").await, token);
    socket.lock("a", "y").await;
    let refused = socket.hear().await;
    assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("a")));
    assert_eq!(refused["reason"]["code"], "INVALID_ARGUMENT", "{refused}");
    socket.say(json!({"type": "release", "request_id": "a"})).await;
    socket.ready("a").await;
}

#[tokio::test]
async fn a_waiter_whose_session_ends_makes_way() {
    let (rest, mut first) = Socket::alone().await;
    let (mut second, mut third) = (Socket::connect(&rest).await, Socket::connect(&rest).await);
    first.open(30_000).await;
    let waiting = second.open(30_000).await;
    third.open(30_000).await;
    first.take("a", "x").await;
    second.lock("b", "x").await;
    second.enqueued("b").await;
    third.lock("c", "x").await;
    assert_eq!(third.enqueued("c").await["queue_position"], 1);
    rest.call(&format!("DELETE /v1/namespaces/ns/sessions/{waiting}")).await.ok();
    let mut told = second.hear().await;
    if told["type"] == "refused" {
        assert_eq!(told["reason"]["code"], "ENDED");
        told = second.hear().await;
    }
    assert_eq!(told, json!({"type": "session_ended", "reason": "CLOSED"}));
    assert_eq!(second.closed().await, 1_000);
    first.say(json!({"type": "release", "request_id": "a"})).await;
    first.ready("a").await;
    third.acquired("c").await;
}

#[tokio::test]
async fn a_deleted_lock_is_revoked_and_its_request_still_has_to_be_released() {
    let (rest, mut first) = Socket::alone().await;
    let mut second = Socket::connect(&rest).await;
    first.open(30_000).await;
    let next = second.open(30_000).await;
    first.take("a", "x").await;
    second.lock("b", "x").await;
    second.enqueued("b").await;
    rest.call("DELETE /v1/namespaces/ns/locks/x").await.ok();
    second.acquired("b").await;
    let revoked = first.hear().await;
    assert_eq!((&revoked["type"], &revoked["path"]), (&json!("revoked"), &json!(["x"])));
    assert_eq!((&revoked["reason"], &revoked["current_owner"]["session_id"]), (&json!("DELETED"), &json!(next)));
    first.say(json!({"type": "release", "request_id": "a"})).await;
    first.ready("a").await;
    assert_eq!(lock_state(&rest, "x").await["write_lock_holder"]["session_id"], next);
}

#[tokio::test]
async fn a_silent_connection_loses_its_session_and_is_told_so() {
    let (rest, mut socket) = Socket::alone().await;
    let session_id = socket.open(1_000).await;
    socket.take("a", "x").await;
    let revoked = socket.hear().await;
    assert_eq!(revoked, json!({"type": "revoked", "path": ["x"], "reason": "EXPIRED", "current_owner": null}));
    assert_eq!(socket.hear().await, json!({"type": "session_ended", "reason": "EXPIRED"}));
    assert_eq!(socket.closed().await, 1_000);
    rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.refused("SESSION_NOT_FOUND");
}

#[tokio::test]
async fn a_connection_that_ends_without_a_close_leaves_the_session_to_its_time() {
    let (rest, mut socket) = Socket::alone().await;
    socket.open(1_000).await;
    socket.take("a", "x").await;
    drop(socket);
    assert_eq!(lock_state(&rest, "x").await["state"], "WRITE_LOCKED");
    wait_until("the session expired", || async { lock_state(&rest, "x").await["state"] == "UNLOCKED" }).await;
}

#[tokio::test]
async fn all_that_was_said_before_the_client_went_away_is_done() {
    let (rest, mut socket) = Socket::alone().await;
    let session_id = socket.open(600_000).await;
    for request in 0..50 {
        socket.lock(&format!("r{request}"), &format!("l{request}")).await;
    }
    socket.say(json!({"type": "close"})).await;
    drop(socket);
    wait_until("the session is closed", || async {
        rest.call(&format!("GET /v1/namespaces/ns/sessions/{session_id}")).await.status == 404
    })
    .await;
}

#[tokio::test]
async fn many_requests_are_answered_in_their_order() {
    let (_, mut socket) = Socket::alone().await;
    socket.open(60_000).await;
    for request in 0..200 {
        socket.lock(&format!("r{request}"), &format!("l{request}")).await;
    }
    let mut last = 0;
    for request in 0..200 {
        let token = socket.acquired(&format!("r{request}")).await;
        assert!(token > last);
        last = token;
    }
}
