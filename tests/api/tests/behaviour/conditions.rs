//! Conditions of locks, through REST, gRPC and the connection of a session. What `CENTRAL_LOCK2` of JGroups checks of
//! its conditions is checked here: await, signal, signal all, timeouts and callers that go away.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_testkit::EventStream;
use serde_json::{Value, json};
use tokio::task::JoinHandle;

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, SessionSocket, connect_new_tenant, create_tenant, server, wait_until};

/// Longer than any test takes.
const WAIT_MS: u64 = 300_000;

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

async fn call(rest: &RestClient, below: &str, body: Value) -> Value {
    rest.json(&format!("POST /v1/namespaces/ns/{below}"), body).await.ok()
}

async fn lock(rest: &RestClient, owner: &str) -> u64 {
    let body = json!({"process_id": owner, "ttl_ms": 60_000, "wait_ms": WAIT_MS});
    let answer = call(rest, "locks/l/acquire", body).await;
    answer["fencing_token"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

async fn unlock(rest: &RestClient, owner: &str) {
    assert_eq!(call(rest, "locks/l/release", json!({"process_id": owner})).await["released"], true);
}

/// The body of an await, with more fields.
fn await_body(owner: &str, token: u64, more: &Value) -> Value {
    let mut body = json!({
        "name": "l", "process_id": owner, "fencing_token": token, "wait_ms": WAIT_MS, "ttl_ms": 60_000,
    });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

async fn signal(rest: &RestClient, owner: &str, more: Value) -> Value {
    let mut body = json!({"name": "l", "process_id": owner});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    call(rest, "conditions/signal", body).await
}

async fn awaiting(rest: &RestClient) -> u64 {
    let page = rest.call("GET /v1/namespaces/ns/conditions").await.ok();
    page["conditions"].as_array().unwrap().iter().filter_map(|condition| condition["awaiting"].as_u64()).sum()
}

/// Locks, and awaits a condition in another task. Returns the token that was given up.
async fn lock_and_await(rest: &RestClient, owner: &str, more: Value) -> (u64, JoinHandle<Value>) {
    let before = awaiting(rest).await;
    let token = lock(rest, owner).await;
    let (caller, body) = (rest.clone(), await_body(owner, token, &more));
    let call = tokio::spawn(async move { call(&caller, "conditions/await", body).await });
    wait_until("it awaits", async || awaiting(rest).await == before + 1).await;
    (token, call)
}

/// It has the lock again.
fn woken(answer: &Value, why: &str) -> u64 {
    assert_eq!((&answer["success"], &answer["woken"]), (&json!(true), &json!(why)), "{answer}");
    answer["fencing_token"].as_u64().unwrap()
}

#[tokio::test]
async fn whoever_awaits_gives_the_lock_up_and_has_it_again_after_a_signal() {
    let rest = tenant_with_namespace().await;
    let (given_up, waiting) = lock_and_await(&rest, "p", json!({"condition": "c"})).await;
    let page = rest.call("GET /v1/namespaces/ns/conditions").await.ok();
    let shown = &page["conditions"][0];
    assert_eq!((&shown["path"], &shown["condition"], &shown["awaiting"]), (&json!(["l"]), &json!("c"), &json!(1)));
    let waits = rest.call("GET /v1/namespaces/ns/waits?kinds=conditions").await.ok();
    let wait = &waits["waits"][0];
    assert_eq!((&wait["kind"], &wait["path"], &wait["condition"]), (&json!("condition"), &json!(["l"]), &json!("c")));
    assert_eq!(wait["process_id"], "p");
    let other = lock(&rest, "q").await;
    let answer = signal(&rest, "q", json!({"condition": "c"})).await;
    assert_eq!((&answer["success"], &answer["signalled"], &answer["awaiting"]), (&json!(true), &json!(1), &json!(0)));
    assert_eq!(answer["lock"]["waiting"], 1, "the woken one waits for the lock");
    unlock(&rest, "q").await;
    let token = woken(&waiting.await.unwrap(), "SIGNALLED");
    assert!(token > other && other > given_up);
    let again = call(&rest, "conditions/await", await_body("p", given_up, &json!({"condition": "c"}))).await;
    assert_eq!(woken(&again, "SIGNALLED"), token, "a repeat is answered again");
}

#[tokio::test]
async fn a_signal_wakes_the_first_and_a_signal_to_all_wakes_all_in_order() {
    let rest = tenant_with_namespace().await;
    let (_, first) = lock_and_await(&rest, "p", json!({})).await;
    let (_, second) = lock_and_await(&rest, "q", json!({})).await;
    let (_, third) = lock_and_await(&rest, "r", json!({})).await;
    lock(&rest, "s").await;
    let answer = signal(&rest, "s", json!({})).await;
    assert_eq!((&answer["signalled"], &answer["awaiting"]), (&json!(1), &json!(2)));
    let answer = signal(&rest, "s", json!({"all": true})).await;
    assert_eq!((&answer["signalled"], &answer["awaiting"]), (&json!(2), &json!(0)));
    assert_eq!(signal(&rest, "s", json!({"all": true})).await["signalled"], 0, "nobody is left");
    unlock(&rest, "s").await;
    let mut token = 0;
    for (owner, waiting) in [("p", first), ("q", second), ("r", third)] {
        let next = woken(&waiting.await.unwrap(), "SIGNALLED");
        assert!(next > token, "in order");
        token = next;
        unlock(&rest, owner).await;
    }
}

#[tokio::test]
async fn a_signal_without_the_lock_and_an_await_without_it_are_refused() {
    let rest = tenant_with_namespace().await;
    let (_, waiting) = lock_and_await(&rest, "p", json!({})).await;
    let answer = signal(&rest, "q", json!({})).await;
    assert_eq!((&answer["success"], &answer["reason"]["code"]), (&json!(false), &json!("NOT_HELD")), "{answer}");
    let answer = call(&rest, "conditions/await", await_body("q", 5, &json!({}))).await;
    assert_eq!((&answer["success"], &answer["reason"]["code"]), (&json!(false), &json!("NOT_HELD")), "{answer}");
    assert!(!waiting.is_finished());
    waiting.abort();
}

#[tokio::test]
async fn an_await_elapses_and_then_waits_for_the_lock_as_long_as_it_may() {
    let rest = tenant_with_namespace().await;
    let (_, waiting) = lock_and_await(&rest, "p", json!({"wait_ms": 300})).await;
    woken(&waiting.await.unwrap(), "ELAPSED");
    unlock(&rest, "p").await;
    let (_, waiting) = lock_and_await(&rest, "p", json!({"wait_ms": 500, "relock_ms": 50})).await;
    lock(&rest, "q").await;
    let answer = waiting.await.unwrap();
    assert_eq!((&answer["success"], &answer["reason"]["code"]), (&json!(false), &json!("TIMED_OUT")), "{answer}");
    unlock(&rest, "q").await;
}

#[tokio::test]
async fn a_signal_whose_receiver_goes_away_reaches_the_next() {
    let rest = tenant_with_namespace().await;
    let (_, first) = lock_and_await(&rest, "p", json!({})).await;
    let (_, second) = lock_and_await(&rest, "q", json!({})).await;
    lock(&rest, "s").await;
    signal(&rest, "s", json!({})).await;
    call(&rest, "lock-sets/release", json!({"process_id": "p", "all": true})).await;
    assert_eq!(first.await.unwrap()["reason"]["code"], "ENDED");
    unlock(&rest, "s").await;
    woken(&second.await.unwrap(), "SIGNALLED");
}

#[tokio::test]
async fn an_await_in_several_polls_keeps_its_place() {
    let rest = tenant_with_namespace().await;
    let token = lock(&rest, "p").await;
    let poll = json!({"poll_ms": 50});
    let answer = call(&rest, "conditions/await", await_body("p", token, &poll)).await;
    assert_eq!((&answer["success"], &answer["reason"]["code"]), (&json!(false), &json!("QUEUED")), "{answer}");
    lock(&rest, "s").await;
    signal(&rest, "s", json!({})).await;
    let answer = call(&rest, "conditions/await", await_body("p", token, &poll)).await;
    assert_eq!(answer["reason"]["code"], "QUEUED", "it waits for the lock");
    unlock(&rest, "s").await;
    woken(&call(&rest, "conditions/await", await_body("p", token, &json!({}))).await, "SIGNALLED");
}

#[tokio::test]
async fn what_cannot_be_is_rejected() {
    let rest = tenant_with_namespace().await;
    for (more, field) in [
        (json!({"wait_ms": 0}), "wait_ms"),
        (json!({"wait_ms": 600_001}), "wait_ms"),
        (json!({"relock_ms": 0}), "relock_ms"),
        (json!({"condition": "x".repeat(129)}), "condition"),
        (json!({"ttl_ms": null}), "ttl_ms"),
    ] {
        let answer = rest.json("POST /v1/namespaces/ns/conditions/await", await_body("p", 1, &more)).await;
        answer.expect_field_error(field);
    }
}

#[tokio::test]
async fn a_session_awaits_and_signals_on_its_connection() {
    let (rest, mut first) = connect_new_tenant().await;
    let mut second = SessionSocket::connect(&rest).await;
    first.open_session(30_000).await;
    second.open_session(30_000).await;
    let lock = |request_id: &str| json!({"type": "lock", "request_id": request_id, "resources": [{"path": ["l"]}]});
    first.send(lock("x")).await;
    let given_up = first.receive().await["fencing_token"].clone();
    first.send(json!({"type": "await", "request_id": "x", "condition": "c"})).await;
    assert_eq!(first.receive().await["state"], "AWAITING");
    second.send(lock("y")).await;
    assert_eq!(second.receive().await["state"], "ACQUIRED");
    second.send(json!({"type": "signal", "request_id": "y", "condition": "c"})).await;
    let signalled = second.receive().await;
    assert_eq!((&signalled["type"], &signalled["count"]), (&json!("signalled"), &json!(1)), "{signalled}");
    let queued = first.receive().await;
    assert_eq!((&queued["state"], &queued["woken"]), (&json!("ENQUEUED"), &json!("SIGNALLED")), "{queued}");
    second.send(json!({"type": "release", "request_id": "y"})).await;
    second.expect_ready("y").await;
    let acquired = first.receive().await;
    assert_eq!((&acquired["state"], &acquired["woken"]), (&json!("ACQUIRED"), &json!("SIGNALLED")), "{acquired}");
    assert!(acquired["fencing_token"].as_u64() > given_up.as_u64());
    first.send(json!({"type": "await", "request_id": "x", "wait_ms": 100})).await;
    assert_eq!(first.receive().await["state"], "AWAITING");
    let mut acquired = first.receive().await;
    if acquired["state"] == "ENQUEUED" {
        acquired = first.receive().await;
    }
    assert_eq!((&acquired["state"], &acquired["woken"]), (&json!("ACQUIRED"), &json!("ELAPSED")), "{acquired}");
    first.send(json!({"type": "release", "request_id": "x"})).await;
    first.expect_ready("x").await;
}

#[tokio::test]
async fn a_signal_of_a_session_with_an_id_wakes_one_however_often_it_is_sent() {
    let (rest, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    lock_and_await(&rest, "p", json!({})).await;
    lock_and_await(&rest, "q", json!({})).await;
    socket.send(json!({"type": "lock", "request_id": "x", "resources": [{"path": ["l"]}]})).await;
    assert_eq!(socket.receive().await["state"], "ACQUIRED");
    for _ in 0..2 {
        socket.send(json!({"type": "signal", "request_id": "x", "signal_id": "1"})).await;
        assert_eq!(socket.receive().await["count"], 1);
        assert_eq!(awaiting(&rest).await, 1);
    }
    socket.send(json!({"type": "signal", "request_id": "x", "signal_id": ""})).await;
    let error = socket.receive().await;
    assert_eq!((&error["type"], &error["code"]), (&json!("error"), &json!("INVALID_ARGUMENT")), "{error}");
    socket.send(json!({"type": "close"})).await;
}

#[tokio::test]
async fn an_await_that_is_pending_after_a_resume_finds_the_lock_that_it_has_again() {
    let (rest, mut first) = connect_new_tenant().await;
    let session_id = first.open_session(30_000).await;
    first.send(json!({"type": "lock", "request_id": "x", "resources": [{"path": ["l"]}]})).await;
    first.receive().await;
    first.send(json!({"type": "await", "request_id": "x"})).await;
    assert_eq!(first.receive().await["state"], "AWAITING");
    drop(first);
    lock(&rest, "s").await;
    assert_eq!(signal(&rest, "s", json!({})).await["signalled"], 1);
    unlock(&rest, "s").await;
    let mut second = SessionSocket::connect(&rest).await;
    second.resume_session(&session_id, 30_000).await;
    let pending = json!([{"type": "await", "request_id": "x"}]);
    second.send(json!({"type": "lock_info", "held": [], "pending": pending})).await;
    let acquired = second.receive().await;
    assert_eq!((&acquired["state"], &acquired["woken"]), (&json!("ACQUIRED"), &json!("SIGNALLED")), "{acquired}");
    second.send(json!({"type": "await", "request_id": "x"})).await;
    assert_eq!(second.receive().await["state"], "AWAITING", "another await of it is none of before");
    second.send(json!({"type": "close"})).await;
}

#[tokio::test]
async fn a_session_that_ends_awaits_no_more_and_hands_its_signal_on() {
    let (rest, mut first) = connect_new_tenant().await;
    first.open_session(30_000).await;
    first.send(json!({"type": "lock", "request_id": "x", "resources": [{"path": ["l"]}]})).await;
    first.receive().await;
    first.send(json!({"type": "await", "request_id": "x"})).await;
    assert_eq!(first.receive().await["state"], "AWAITING");
    let (_, second) = lock_and_await(&rest, "q", json!({})).await;
    lock(&rest, "s").await;
    assert_eq!(signal(&rest, "s", json!({})).await["awaiting"], 1);
    first.send(json!({"type": "close"})).await;
    wait_until("the signal is handed on", async || awaiting(&rest).await == 0).await;
    unlock(&rest, "s").await;
    woken(&second.await.unwrap(), "SIGNALLED");
}

#[tokio::test]
async fn grpc_answers_as_rest_does() {
    let rest = tenant_with_namespace().await;
    let mut locks = LocksServiceClient::new(channel(&rest).await);
    let (namespace, name) = ("ns".to_owned(), Some("l".to_owned()));
    let token = lock(&rest, "p").await;
    let awaits = v1::AwaitRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some("p".to_owned()),
        fencing_token: token,
        condition: "c".to_owned(),
        wait_ms: WAIT_MS,
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let waiting = tokio::spawn({
        let (mut locks, request) = (locks.clone(), with_key(awaits, &rest.key));
        async move { locks.r#await(request).await.unwrap().into_inner() }
    });
    wait_until("it awaits", async || awaiting(&rest).await == 1).await;
    let list = v1::ListConditionsRequest { namespace: namespace.clone(), ..Default::default() };
    let page = locks.list_conditions(with_key(list, &rest.key)).await.unwrap().into_inner();
    assert_eq!((page.conditions[0].condition.as_str(), page.conditions[0].awaiting), ("c", 1));
    lock(&rest, "q").await;
    let signal = v1::SignalRequest {
        namespace,
        name,
        process_id: Some("q".to_owned()),
        condition: "c".to_owned(),
        ..Default::default()
    };
    let answer = locks.signal(with_key(signal.clone(), &rest.key)).await.unwrap().into_inner();
    assert_eq!((answer.success, answer.signalled, answer.awaiting), (true, 1, 0));
    let of_other = v1::SignalRequest { process_id: Some("r".to_owned()), ..signal };
    let answer = locks.signal(with_key(of_other, &rest.key)).await.unwrap().into_inner();
    assert!(!answer.success && answer.reason.is_some_and(|reason| reason.code() == v1::refusal::Code::NotHeld));
    unlock(&rest, "q").await;
    let answer = waiting.await.unwrap();
    assert_eq!((answer.success, answer.woken()), (true, v1::Woken::Signalled));
    assert!(answer.fencing_token > Some(token));
}

#[tokio::test]
async fn watchers_see_who_awaits_and_why_it_is_woken() {
    let rest = tenant_with_namespace().await;
    let mut events = EventStream::open(&rest, "ns", "?kinds=conditions", None).await.unwrap();
    let (_, waiting) = lock_and_await(&rest, "p", json!({"condition": "c"})).await;
    lock(&rest, "q").await;
    signal(&rest, "q", json!({"condition": "c"})).await;
    unlock(&rest, "q").await;
    waiting.await.unwrap();
    let (awaits, woken) = (events.next().await.data, events.next().await.data);
    assert_eq!((&awaits["type"], &awaits["condition"]), (&json!("AWAITING"), &json!("c")), "{awaits}");
    assert_eq!((&woken["type"], &woken["woken"]), (&json!("SIGNALLED"), &json!("SIGNALLED")), "{woken}");
}
