//! Permits of semaphores on the connection of a session.

use serde_json::{Value, json};

use crate::support::{RestClient, SessionSocket, connect_new_tenant, wait_until};

fn acquire(request: &str, weight: u64) -> Value {
    json!({"type": "acquire_permits", "request_id": request, "path": ["s"], "weight": weight, "permits": 2})
}

async fn semaphore(rest: &RestClient) -> Value {
    let answer = rest.json("POST /v1/namespaces/ns/semaphores/get", json!({"name": "s"})).await;
    if answer.status == 404 { json!({"in_use": 0, "waiting": 0}) } else { answer.ok()["semaphore"].clone() }
}

async fn two_sessions() -> (RestClient, SessionSocket, SessionSocket) {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    (rest, first, second)
}

#[tokio::test]
async fn a_request_waits_for_its_permits_and_is_told_when_it_has_them() {
    let (rest, mut first, mut second) = two_sessions().await;
    first.send(acquire("a", 2)).await;
    let token = first.expect_acquired("a").await;
    second.send(acquire("b", 1)).await;
    let queued = second.expect_enqueued("b").await;
    assert_eq!((&queued["queue_position"], &queued["blockers"]), (&json!(0), &json!([])));
    assert_eq!((&queued["holders"][0]["weight"], &queued["holders"][0]["request_id"]), (&json!(2), &json!("a")));
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    assert!(second.expect_acquired("b").await > token);
    assert_eq!(semaphore(&rest).await["in_use"], 1);
    second.send(json!({"type": "release_all"})).await;
    second.expect_ready("b").await;
    assert_eq!(semaphore(&rest).await["in_use"], 0);
}

#[tokio::test]
async fn a_try_is_refused_and_what_is_too_large_too() {
    let (rest, mut first, mut second) = two_sessions().await;
    first.send(acquire("a", 2)).await;
    first.expect_acquired("a").await;
    let mut attempt = acquire("b", 1);
    attempt["try"] = true.into();
    second.send(attempt).await;
    let refused = second.receive().await;
    assert_eq!((&refused["type"], &refused["reason"]["code"]), (&json!("refused"), &json!("EXHAUSTED")), "{refused}");
    assert_eq!(refused["reason"]["holders"][0]["request_id"], "a");
    second.send(acquire("c", 3)).await;
    assert_eq!(second.receive().await["reason"]["code"], "TOO_LARGE");
    second.send(json!({"type": "acquire_permits", "request_id": "d", "path": ["s"], "weight": 0})).await;
    assert_eq!(second.receive().await["reason"]["code"], "INVALID_ARGUMENT");
    assert_eq!(semaphore(&rest).await["waiting"], 0);
}

#[tokio::test]
async fn requests_of_all_kinds_share_their_ids() {
    let (_, mut first, _) = two_sessions().await;
    first.acquire("a", "x").await;
    first.send(acquire("a", 1)).await;
    let rejected = first.receive().await;
    assert_eq!(
        (&rejected["type"], &rejected["request_id"], &rejected["code"]),
        (&json!("error"), &json!("a"), &json!("INVALID_ARGUMENT")),
        "it has its lock: {rejected}"
    );
    first.send(acquire("b", 1)).await;
    first.expect_acquired("b").await;
    first.request_lock("b", "y").await;
    let rejected = first.receive().await;
    assert_eq!(
        (&rejected["type"], &rejected["request_id"], &rejected["code"]),
        (&json!("error"), &json!("b"), &json!("INVALID_ARGUMENT")),
        "it has its permit: {rejected}"
    );
}

#[tokio::test]
async fn a_deleted_semaphore_is_revoked_by_the_token_of_each_hold() {
    let (rest, mut first, _) = two_sessions().await;
    first.send(acquire("a", 1)).await;
    let token = first.expect_acquired("a").await;
    rest.json("POST /v1/namespaces/ns/semaphores/delete", json!({"name": "s"})).await.ok();
    let revoked =
        json!({"type": "revoked", "path": ["s"], "reason": "DELETED", "current_owner": null, "fencing_token": token});
    assert_eq!(first.receive().await, revoked);
    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
}

#[tokio::test]
async fn permits_end_with_their_session() {
    let (rest, mut first, mut second) = two_sessions().await;
    first.send(acquire("a", 2)).await;
    first.expect_acquired("a").await;
    second.send(acquire("b", 1)).await;
    second.expect_enqueued("b").await;
    first.send(json!({"type": "close"})).await;
    second.expect_acquired("b").await;
    second.send(json!({"type": "close"})).await;
    wait_until("nothing is left", async || semaphore(&rest).await["in_use"] == 0).await;
}

#[tokio::test]
async fn a_resumed_client_keeps_what_it_lists_and_loses_the_rest() {
    let (rest, mut socket) = connect_new_tenant().await;
    let session_id = socket.open_session(30_000).await;
    socket.send(acquire("a", 1)).await;
    let kept = socket.expect_acquired("a").await;
    socket.send(acquire("b", 1)).await;
    socket.expect_acquired("b").await;
    drop(socket);
    let mut socket = SessionSocket::connect(&rest).await;
    let resume = json!({"type": "open", "process_id": "p", "ttl_ms": 30_000, "session_id": session_id});
    socket.send(resume).await;
    assert_eq!(socket.receive().await["resumed"], true);
    let thing = |request: &str, token: u64| {
        let mut thing = json!({"kind": "semaphore", "path": ["s"], "request_id": request, "weight": 1});
        thing["fencing_token"] = token.into();
        thing
    };
    let things = json!([thing("a", kept), thing("c", kept + 1_000)]);
    let pending = json!([acquire("d", 1)]);
    socket.send(json!({"type": "lock_info", "held": [], "things": things, "pending": pending})).await;
    let lost = socket.receive().await;
    assert_eq!((&lost["reason"], &lost["fencing_token"]), (&json!("DUPLICATE"), &json!(kept + 1_000)), "{lost}");
    socket.expect_acquired("d").await;
    assert_eq!(semaphore(&rest).await["in_use"], 2, "b is gone");
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    socket.expect_ready("a").await;
    assert_eq!(semaphore(&rest).await["in_use"], 1);
}
