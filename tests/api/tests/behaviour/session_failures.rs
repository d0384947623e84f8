//! What a connection of a session does not take, and what ends it.

use futures::StreamExt;
use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};
use tokio_tungstenite::connect_async;
use tokio_tungstenite::tungstenite::{Error, Message};

use crate::support::{
    RestClient, SessionSocket, connect_new_tenant, create_tenant, lock_message, operator_client, server, wait_until,
};

/// The status of a handshake that is refused.
async fn failed_handshake(rest: &RestClient, namespace: &str, bearer: Option<&str>) -> u16 {
    let mut request = SessionSocket::request(rest);
    let path = format!("ws://{}/v1/namespaces/{namespace}/connect", rest.address);
    *request.uri_mut() = path.parse().unwrap();
    if let Some(bearer) = bearer {
        request.headers_mut().insert("authorization", format!("Bearer {bearer}").parse().unwrap());
    }
    match connect_async(request).await {
        Err(Error::Http(answer)) => answer.status().as_u16(),
        Err(error) => panic!("no answer: {error}"),
        Ok(_) => panic!("connected"),
    }
}

#[tokio::test]
async fn whoever_may_not_connect_is_told_before_there_is_a_connection() {
    let (rest, _socket) = connect_new_tenant().await;
    let reader = rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read"]})).await.ok();
    let elsewhere = rest.json("POST /v1/api-keys", json!({"namespaces": ["other"]})).await.ok();
    assert_eq!(failed_handshake(&rest, "ns", None).await, 401);
    assert_eq!(failed_handshake(&rest, "ns", Some("hf_x_y")).await, 401);
    assert_eq!(failed_handshake(&rest, "ns", reader["api_key"].as_str()).await, 403);
    assert_eq!(failed_handshake(&rest, "ns", elsewhere["api_key"].as_str()).await, 403);
    assert_eq!(failed_handshake(&rest, "unknown", Some(&rest.key)).await, 404);
    rest.call("GET /v1/namespaces/ns/connect").await.expect_error("INVALID_ARGUMENT");
}

#[tokio::test]
async fn a_malformed_message_is_answered_and_the_connection_closed_with_3000() {
    for text in [
        "no json".to_owned(),
        json!(["close", 2]).to_string(),
        json!({"type": "close"}).to_string(),
        json!({"type": "unlock", "seq": 2}).to_string(),
        json!({"type": "release", "seq": 2, "request_id": 7}).to_string(),
        json!({"type": "lock", "seq": 2, "request_id": "a", "resources": [], "ttl_ms": 1}).to_string(),
        json!({"type": "open", "seq": 2, "process_id": "p", "ttl_ms": 5_000}).to_string(),
    ] {
        let (_, mut socket) = connect_new_tenant().await;
        socket.open_session(30_000).await;
        socket.send_text(&text).await;
        let error = socket.receive().await;
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("INVALID_ARGUMENT")), "{text}: {error}");
        assert!(!error["detail"].as_str().unwrap().is_empty());
        assert_eq!(socket.expect_close().await, 3_000, "{text}");
    }
}

#[tokio::test]
async fn the_session_survives_a_malformed_message() {
    let (rest, mut socket) = connect_new_tenant().await;
    let session_id = socket.open_session(30_000).await;
    let token = socket.acquire("a", "x").await;
    socket.send_text("no json").await;
    assert_eq!(socket.receive().await["type"], "error");
    assert_eq!(socket.expect_close().await, 3_000);
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, 30_000).await;
    let held = json!([{"path": ["x"], "mode": "WRITE", "fencing_token": token}]);
    second.send(json!({"type": "lock_info", "held": held, "pending": []})).await;
    second.expect_no_message().await;
}

#[tokio::test]
async fn a_message_that_is_too_large_is_refused_in_words() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    socket.send(json!({"type": "release", "request_id": "x".repeat(64 * 1_024)})).await;
    assert_eq!(socket.receive().await["code"], "PAYLOAD_TOO_LARGE");
    assert_eq!(socket.expect_close().await, 3_000);
}

#[tokio::test]
async fn open_comes_first_and_a_bad_one_may_be_followed_by_a_better_one() {
    let (_, mut socket) = connect_new_tenant().await;
    for (open, part) in [
        (json!({"type": "open", "process_id": "p", "ttl_ms": 999}), "ttl_ms"),
        (json!({"type": "open", "process_id": "", "ttl_ms": 5_000}), "process_id"),
        (json!({"type": "open", "process_id": "p", "ttl_ms": 5_000, "session_id": "x"}), "session_id"),
    ] {
        socket.send(open).await;
        let error = socket.receive().await;
        assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("INVALID_ARGUMENT")), "{error}");
        assert!(error["detail"].as_str().unwrap().starts_with(part), "{error}");
    }
    socket.open_session(5_000).await;
    let (_, mut socket) = connect_new_tenant().await;
    socket.request_lock("a", "x").await;
    assert_eq!(socket.receive().await["code"], "INVALID_ARGUMENT");
    assert_eq!(socket.expect_close().await, 3_000);
}

#[tokio::test]
async fn content_that_is_not_allowed_is_refused_and_the_connection_goes_on() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    let deep: Vec<&str> = vec!["x"; 17];
    let bad = |change: fn(&mut Value)| {
        let mut message = lock_message("a", "x");
        change(&mut message);
        message
    };
    let mut too_deep = lock_message("a", "x");
    too_deep["resources"][0]["path"] = json!(deep);
    for message in [
        too_deep,
        bad(|message| message["resources"] = json!([])),
        bad(|message| message["resources"][0]["path"] = json!([""])),
        bad(|message| message["holder"] = json!("")),
        bad(|message| message["transition_ms"] = json!(600_001)),
    ] {
        socket.send(message.clone()).await;
        let refused = socket.receive().await;
        assert_eq!((&refused["type"], &refused["request_id"]), (&json!("refused"), &json!("a")), "{message}");
        assert_eq!(refused["reason"]["code"], "INVALID_ARGUMENT", "{refused}");
    }
    socket.acquire("a", "x").await;
}

#[tokio::test]
async fn messages_that_do_not_raise_the_number_are_ignored() {
    let (_, mut socket) = connect_new_tenant().await;
    socket.send_text(&json!({"type": "open", "seq": 10, "process_id": "p", "ttl_ms": 30_000}).to_string()).await;
    assert_eq!(socket.receive().await["type"], "opened");
    for seq in [9, 10, 11, 11, 3] {
        let mut message = lock_message(&format!("r{seq}"), &format!("l{seq}"));
        message["seq"] = seq.into();
        socket.send_text(&message.to_string()).await;
    }
    socket.expect_acquired("r11").await;
    socket.send_text(&json!({"type": "release_all", "seq": 12}).to_string()).await;
    socket.expect_ready("r11").await;
}

#[tokio::test]
async fn a_limit_refuses_the_new_request_and_harms_nothing() {
    let account = create_tenant(server()).await;
    account.create_namespace("ns").await;
    let mut socket = SessionSocket::connect(&account.rest).await;
    socket.open_session(30_000).await;
    socket.acquire("a", "x").await;
    account.update(server(), json!({"limits": {"max_holds_per_namespace": 1}})).await;
    loop {
        // The change is on its way to the shard.
        socket.request_lock("b", "y").await;
        let answer = socket.receive().await;
        if answer["type"] == "refused" {
            assert_eq!(answer["reason"]["code"], "QUOTA_EXCEEDED", "{answer}");
            break;
        }
        socket.send(json!({"type": "release", "request_id": "b"})).await;
        socket.expect_ready("b").await;
    }
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    socket.expect_ready("a").await;
}

#[tokio::test]
async fn a_revoked_key_and_a_suspended_account_end_open_connections() {
    let account = create_tenant(server()).await;
    account.create_namespace("ns").await;
    let key = account.rest.json("POST /v1/api-keys", json!({})).await.ok();
    let (other, mut kept) =
        (account.rest.with_key(key["api_key"].as_str().unwrap()), SessionSocket::connect(&account.rest).await);
    let mut ended = SessionSocket::connect(&other).await;
    let (unopened, kept_unopened) = (SessionSocket::connect(&other).await, SessionSocket::connect(&account.rest).await);
    kept.open_session(30_000).await;
    ended.open_session(30_000).await;
    account.rest.call(&format!("DELETE /v1/api-keys/{}", key["key_id"].as_str().unwrap())).await.ok();
    for mut ended in [ended, unopened] {
        assert_eq!(ended.receive().await["code"], "UNAUTHENTICATED");
        assert_eq!(ended.expect_close().await, 1_008);
    }
    kept.expect_no_message().await;
    account.update(server(), json!({"status": "SUSPENDED"})).await;
    for mut ended in [kept, kept_unopened] {
        assert_eq!(ended.receive().await["code"], "PERMISSION_DENIED");
        assert_eq!(ended.expect_close().await, 1_008);
    }
}

#[tokio::test]
async fn a_deleted_namespace_ends_the_sessions_in_it() {
    let (rest, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    socket.wait_followed(&rest).await;
    socket.acquire("a", "x").await;
    rest.call("DELETE /v1/namespaces/ns").await.ok();
    let mut told = socket.receive().await;
    while told["type"] == "revoked" {
        told = socket.receive().await;
    }
    assert_eq!(told, json!({"type": "session_ended", "reason": "NAMESPACE_DELETED"}));
    assert_eq!(socket.expect_close().await, 1_000);
}

#[tokio::test]
async fn a_reset_ends_sessions_that_are_not_listed() {
    let (rest, mut listed) = connect_new_tenant().await;
    let mut other = SessionSocket::connect(&rest).await;
    let session_id = listed.open_session(30_000).await;
    other.open_session(30_000).await;
    other.wait_followed(&rest).await;
    listed.acquire("a", "x").await;
    other.acquire("b", "y").await;
    rest.json("POST /v1/namespaces/ns/reset", json!({"live_owners": [session_id]})).await.ok();
    let revoked = other.receive().await;
    assert_eq!((&revoked["type"], &revoked["reason"]), (&json!("revoked"), &json!("RESET")), "{revoked}");
    assert_eq!(other.receive().await, json!({"type": "session_ended", "reason": "RESET"}));
    listed.expect_no_message().await;
    // The operator is no tenant.
    assert_eq!(failed_handshake(&rest, "ns", Some(&operator_client(server()).key)).await, 403);
}

#[tokio::test]
async fn a_process_that_stops_sends_its_connections_elsewhere() {
    let mut process = Standalone::start(&scratch(), &[]);
    let rest = RestClient::new(process.address(), &process.secret("demo.key"));
    rest.json("POST /v1/namespaces", json!({"name": "ns"})).await.ok();
    let mut socket = SessionSocket::connect(&rest).await;
    socket.open_session(30_000).await;
    drop(process.take_stdin());
    let error = socket.receive().await;
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("UNAVAILABLE")), "{error}");
    assert_eq!(socket.expect_close().await, 1_001);
    assert!(process.wait_for_exit(), "a connection does not hold up the end of its process");
}

#[tokio::test]
async fn what_is_held_is_told_again_and_a_session_resumed_whatever_the_rate() {
    let account = create_tenant(server()).await;
    account.create_namespace("ns").await;
    let mut socket = SessionSocket::connect(&account.rest).await;
    let session_id = socket.open_session(30_000).await;
    let token = socket.acquire("a", "x").await;
    account.update(server(), json!({"limits": {"max_requests_per_second": 1}})).await;
    for _ in 0..8 {
        assert_eq!(socket.acquire("a", "x").await, token);
    }
    // What the rate allows is used up.
    let look = async || account.rest.call("GET /v1/namespaces/ns/locks/x").await.status;
    wait_until("the rate is used up", async || look().await == 429).await;
    let mut again = SessionSocket::connect(&account.rest).await;
    again.resume_session(&session_id, 30_000).await;
    again.send(json!({"type": "lock_info", "held": [], "pending": [lock_message("a", "x")]})).await;
    assert_eq!(again.expect_acquired("a").await, token);
}

/// Connects as a browser does, which sends its key as a subprotocol. Returns what it hears, and the code of the close.
async fn connect_as_browser(rest: &RestClient, namespace: &str, key: &str) -> (Value, u16) {
    let mut request = SessionSocket::request(rest);
    let path = format!("ws://{}/v1/namespaces/{namespace}/connect", rest.address);
    *request.uri_mut() = path.parse().unwrap();
    request.headers_mut().remove("authorization");
    request.headers_mut().insert("sec-websocket-protocol", format!("bearer, {key}").parse().unwrap());
    let (mut socket, _) = connect_async(request).await.expect("the upgrade is accepted");
    let first = match socket.next().await {
        Some(Ok(Message::Text(text))) => serde_json::from_str(&text).unwrap(),
        other => panic!("no text: {other:?}"),
    };
    match socket.next().await {
        Some(Ok(Message::Close(Some(frame)))) => (first, frame.code.into()),
        other => panic!("no close: {other:?}"),
    }
}

#[tokio::test]
async fn a_browser_that_may_not_connect_is_told_why_on_the_connection() {
    let (rest, _socket) = connect_new_tenant().await;
    let reader = rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read"]})).await.ok();
    let reader = reader["api_key"].as_str().unwrap();
    for (namespace, key, code) in [
        ("ns", "hf_x_y", "UNAUTHENTICATED"),
        ("ns", reader, "PERMISSION_DENIED"),
        ("unknown", &rest.key, "NAMESPACE_NOT_FOUND"),
    ] {
        let (said, closed) = connect_as_browser(&rest, namespace, key).await;
        assert_eq!((&said["type"], &said["code"]), (&json!("error"), &json!(code)), "{said}");
        assert_eq!(closed, 1_008, "{said}");
    }
}
