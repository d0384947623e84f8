//! Requests to release, and locks that are kept at least so long, through REST, gRPC and the connection of a session.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::pools_service_client::PoolsServiceClient;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, SessionSocket, connect_new_tenant, create_tenant, server, wait_until};

async fn ask_release(rest: &RestClient, more: Value) -> Value {
    let mut body = json!({"path": ["l"], "reason": "why"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rest.json("POST /v1/namespaces/ns/lock-sets/ask-release", body).await.ok()
}

async fn acquire(rest: &RestClient, owner: &str, more: Value) -> Value {
    let mut body = json!({"process_id": owner, "ttl_ms": 60_000});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    rest.json("POST /v1/namespaces/ns/locks/l/acquire", body).await.ok()
}

async fn holder(rest: &RestClient) -> Value {
    rest.call("GET /v1/namespaces/ns/locks/l").await.ok()["lock"]["write_lock_holder"].clone()
}

/// What a session is told, apart from who asks.
fn release_requested(token: u64, more: Value) -> Value {
    let mut told = json!({"type": "release_requested", "kind": "lock", "path": ["l"], "fencing_token": token});
    told.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    told
}

/// The same without who asks, which is a key of the test.
fn without_key(mut message: Value, rest: &RestClient) -> Value {
    let by = message.as_object_mut().unwrap().remove("by");
    assert_eq!(by, rest.key.split('_').nth(1).map(Value::from), "{message}");
    message
}

#[tokio::test]
async fn who_holds_it_without_a_connection_learns_of_it_with_the_next_extension() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let rest = &tenant.rest;
    let token = acquire(rest, "p", json!({})).await["fencing_token"].clone();
    let asked = ask_release(rest, json!({"within_ms": 60_000})).await;
    assert_eq!((&asked["asked"], &asked["truncated"]), (&json!(1), &json!(false)), "{asked}");
    let extended = acquire(rest, "p", json!({"fencing_token": token})).await;
    let request = &extended["lock"]["write_lock_holder"]["release_requested"];
    assert_eq!((&request["reason"], &request["force"]), (&json!("why"), &json!(false)), "{extended}");
    assert!(request["remaining_ms"].as_u64().unwrap() <= 60_000 && request["requested_at"].is_string(), "{request}");
    rest.json("POST /v1/namespaces/ns/locks/l/release", json!({"process_id": "p"})).await.ok();
    assert_eq!(ask_release(rest, json!({})).await["asked"], 0);
    assert_eq!(acquire(rest, "p", json!({})).await["lock"]["write_lock_holder"]["release_requested"], Value::Null);
}

#[tokio::test]
async fn a_session_is_told_at_once_and_again_after_a_resume() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(60_000).await;
    let token = first.acquire("a", "l").await;
    ask_release(&rest, json!({})).await;
    let expected = release_requested(token, json!({"reason": "why", "force": false}));
    let mut message = without_key(first.receive().await, &rest);
    message.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(message, expected);
    drop(first);
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, 60_000).await;
    let held = json!([{"path": ["l"], "mode": "WRITE", "fencing_token": token}]);
    second.send(json!({"type": "lock_info", "held": held, "pending": []})).await;
    let mut message = without_key(second.receive().await, &rest);
    message.as_object_mut().unwrap().retain(|_, value| !value.is_null());
    assert_eq!(message, expected);
}

#[tokio::test]
async fn force_ends_the_hold_is_written_down_and_needs_its_scope() {
    let (rest, mut session) = connect_new_tenant().await;
    session.open_session(60_000).await;
    session.acquire("a", "l").await;
    let keys = rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read", "locks:write"]})).await.ok();
    let writer = rest.with_key(keys["api_key"].as_str().unwrap());
    let forced = json!({"path": ["l"], "within_ms": 100, "force": true});
    let refused = writer.json("POST /v1/namespaces/ns/lock-sets/ask-release", forced).await;
    assert_eq!(refused.status, 403);
    assert_eq!(ask_release(&writer, json!({})).await["asked"], 1);
    assert_eq!(session.receive().await["type"], "release_requested");
    assert_eq!(ask_release(&rest, json!({"within_ms": 100, "force": true})).await["asked"], 1);
    let message = session.receive().await;
    assert_eq!((&message["type"], &message["force"]), (&json!("release_requested"), &json!(true)), "{message}");
    let revoked = session.receive().await;
    assert_eq!((&revoked["type"], &revoked["reason"]), (&json!("revoked"), &json!("DELETED")), "{revoked}");
    assert_eq!(holder(&rest).await, Value::Null);
    wait_until("it is in the audit log", || async {
        let page = rest.call("GET /v1/audit").await.ok();
        page["entries"].as_array().unwrap().iter().any(|entry| entry["action"] == "RELEASE_FORCED")
    })
    .await;
}

#[tokio::test]
async fn holders_of_permits_and_members_are_asked() {
    let (rest, mut session) = connect_new_tenant().await;
    session.open_session(60_000).await;
    let members = json!({"name": "p", "members": [{"name": "m"}, {"name": "n"}]});
    rest.json("POST /v1/namespaces/ns/pools/configure", members).await.ok();
    session.send(json!({"type": "acquire_permits", "request_id": "a", "path": ["s"], "permits": 2})).await;
    session.expect_acquired("a").await;
    session.send(json!({"type": "take", "request_id": "b", "path": ["p"], "member": "m"})).await;
    let taken = session.receive().await;
    let token = taken["fencing_token"].as_u64().expect("a token");
    let expected = json!({"type": "state", "request_id": "b", "state": "ACQUIRED", "fencing_token": token,
        "members": ["m"]});
    assert_eq!(taken, expected);
    for (kind, call, body, request_id) in [
        ("semaphore", "semaphores", json!({"name": "s"}), "a"),
        ("pool", "pools", json!({"name": "p", "member": "m"}), "b"),
    ] {
        let asked = rest.json(&format!("POST /v1/namespaces/ns/{call}/ask-release"), body).await.ok();
        assert_eq!(asked["asked"], 1, "{asked}");
        let message = session.receive().await;
        assert_eq!((&message["kind"], &message["request_id"]), (&json!(kind), &json!(request_id)), "{message}");
    }
    let free = json!({"name": "p", "member": "n"});
    assert_eq!(rest.json("POST /v1/namespaces/ns/pools/ask-release", free).await.ok()["asked"], 0);
    let unknown = rest.json("POST /v1/namespaces/ns/pools/ask-release", json!({"name": "z"})).await;
    assert_eq!(unknown.status, 404);
}

#[tokio::test]
async fn who_has_permits_or_members_without_a_connection_learns_of_it_with_the_next_extension() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let rest = &tenant.rest;
    let call = async |verb: &str, body: Value| rest.json(&format!("POST /v1/namespaces/ns/{verb}"), body).await.ok();
    call("pools/configure", json!({"name": "x", "members": [{"name": "m"}]})).await;
    for (kind, verb, more) in [("semaphores", "acquire", json!({"permits": 2})), ("pools", "take", json!({}))] {
        let mut body = json!({"name": "x", "process_id": "p", "request_id": "r", "ttl_ms": 60_000});
        body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let acquire = async || call(&format!("{kind}/{verb}"), body.clone()).await;
        let granted = acquire().await;
        assert_eq!((&granted["success"], &granted["release_requested"]), (&json!(true), &Value::Null), "{granted}");
        let ask = json!({"name": "x", "reason": "why", "within_ms": 60_000});
        assert_eq!(call(&format!("{kind}/ask-release"), ask).await["asked"], 1);
        let extended = acquire().await;
        assert_eq!(extended["fencing_token"], granted["fencing_token"]);
        let request = without_key(extended["release_requested"].clone(), rest);
        assert_eq!((&request["reason"], &request["force"]), (&json!("why"), &json!(false)), "{request}");
        assert!(request["remaining_ms"].as_u64().unwrap() <= 60_000, "{request}");
        let release = json!({"name": "x", "process_id": "p", "request_id": "r"});
        assert_eq!(call(&format!("{kind}/release"), release).await["released"], true);
        assert_eq!(acquire().await["release_requested"], Value::Null, "another hold");
    }
    let mut semaphores = SemaphoresServiceClient::new(channel(rest).await);
    let ask = json!({"name": "x", "reason": "again"});
    assert_eq!(call("semaphores/ask-release", ask).await["asked"], 1);
    let acquire = v1::AcquirePermitsRequest {
        namespace: "ns".into(),
        name: Some("x".into()),
        process_id: Some("p".into()),
        request_id: "r".into(),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let extended = semaphores.acquire_permits(with_key(acquire, &rest.key)).await.unwrap().into_inner();
    assert_eq!(extended.release_requested.unwrap().reason, "again");
    let mut pools = PoolsServiceClient::new(channel(rest).await);
    let ask = json!({"name": "x", "reason": "again"});
    assert_eq!(call("pools/ask-release", ask).await["asked"], 1);
    let take = v1::TakeMembersRequest {
        namespace: "ns".into(),
        name: Some("x".into()),
        process_id: Some("p".into()),
        request_id: "r".into(),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let extended = pools.take_members(with_key(take, &rest.key)).await.unwrap().into_inner();
    assert_eq!(extended.release_requested.unwrap().reason, "again");
}

#[tokio::test]
async fn a_released_lock_is_kept_from_others_and_its_owner_takes_it_anew() {
    let (rest, mut session) = connect_new_tenant().await;
    session.open_session(60_000).await;
    let lock = json!({"type": "lock", "request_id": "a", "resources": [{"path": ["l"]}], "at_least_ms": 60_000});
    session.send(lock.clone()).await;
    let first = session.expect_acquired("a").await;
    session.send(json!({"type": "release", "request_id": "a"})).await;
    session.expect_ready("a").await;
    assert_eq!(holder(&rest).await["phase"], "TRANSITION");
    assert_eq!(acquire(&rest, "q", json!({})).await["reason"]["code"], "TRANSITION");
    session.send(lock).await;
    assert!(session.expect_acquired("a").await > first);
    assert_eq!(holder(&rest).await["phase"], "HELD");
    let too_long = json!({"process_id": "q", "ttl_ms": 1_000, "at_least_ms": 100_000_000});
    assert_eq!(rest.json("POST /v1/namespaces/ns/locks/m/acquire", too_long).await.status, 400);
}

#[tokio::test]
async fn grpc_tells_no_time_from_none() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    acquire(&tenant.rest, "p", json!({})).await;
    let mut locks = LocksServiceClient::new(channel(&tenant.rest).await);
    for within_ms in [None, Some(0)] {
        let (namespace, name) = ("ns".to_owned(), Some("l".to_owned()));
        let request = v1::AskReleaseRequest { namespace, name, within_ms, ..Default::default() };
        let lock = locks.ask_release(with_key(request, &tenant.rest.key)).await.unwrap().into_inner().lock.unwrap();
        let asked = lock.write_lock_holder.unwrap().release_requested.unwrap();
        assert_eq!((asked.within_ms, asked.remaining_ms), (within_ms, within_ms));
    }
}
