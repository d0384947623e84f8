//! Namespaces whose durability is SESSION: sessions on connections lock in the memory of a leader, and what there is not
//! is refused by its field.

use holdfast_proto::v1;
use holdfast_proto::v1::namespaces_service_client::NamespacesServiceClient;
use holdfast_testkit::EventStream;
use serde_json::{Value, json};

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, SessionSocket, create_tenant, server, wait_until};

/// A new tenant whose namespace `ns` has its locks in memory.
async fn soft_tenant() -> RestClient {
    let rest = create_tenant(server()).await.rest;
    let made = rest.json("POST /v1/namespaces", json!({"name": "ns", "durability": "SESSION"})).await.ok();
    assert_eq!(made["durability"], "SESSION");
    rest
}

async fn send_open(socket: &mut SessionSocket, fields: Value) -> Value {
    let mut open = json!({"type": "open", "process_id": "p", "ttl_ms": 30_000});
    for (field, value) in fields.as_object().expect("they are fields") {
        open[field] = value.clone();
    }
    socket.send(open).await;
    socket.receive().await
}

/// A session, and its id.
async fn open(rest: &RestClient) -> (SessionSocket, String) {
    let mut socket = SessionSocket::connect(rest).await;
    let opened = send_open(&mut socket, json!({"keeps_table": true})).await;
    assert_eq!((&opened["type"], &opened["durability"]), (&json!("opened"), &json!("SESSION")), "{opened}");
    assert!(opened["table_epoch"].as_u64() > Some(0), "{opened}");
    let id = opened["session_id"].as_str().expect("an id").to_owned();
    (socket, id)
}

async fn lock_view(rest: &RestClient) -> Value {
    rest.call("GET /v1/namespaces/ns/locks/x").await.ok()["lock"].clone()
}

#[tokio::test]
async fn sessions_lock_wait_and_take_turns() {
    let rest = soft_tenant().await;
    let ((mut first, first_id), (mut second, second_id)) = (open(&rest).await, open(&rest).await);
    let token = first.acquire("a", "x").await;
    second.request_lock("b", "x").await;
    second.expect_enqueued("b").await;
    let held = lock_view(&rest).await;
    assert_eq!(held["write_lock_holder"]["session_id"], first_id, "{held}");
    let waits = rest.call("GET /v1/namespaces/ns/waits").await.ok();
    assert_eq!(waits["waits"].as_array().map(Vec::len), Some(1), "{waits}");
    let session = rest.call(&format!("GET /v1/namespaces/ns/sessions/{first_id}")).await.ok();
    assert_eq!(session["holds"], 1, "{session}");

    first.send(json!({"type": "release", "request_id": "a"})).await;
    first.expect_ready("a").await;
    assert!(second.expect_acquired("b").await > token);
    first.request_lock("c", "x").await;
    first.expect_enqueued("c").await;
    rest.delete(&format!("/v1/namespaces/ns/sessions/{second_id}")).await.expect("a session can be ended");
    first.expect_acquired("c").await;
    first.send(json!({"type": "release_all"})).await;
    first.expect_ready("c").await;
    assert_eq!(lock_view(&rest).await["state"], "UNLOCKED");

    let table = rest.call("GET /v1/namespaces/ns").await.ok()["table"].clone();
    assert_eq!((&table["state"], &table["sessions"], &table["missing"]), (&json!("READY"), &json!(1), &json!(0)));
}

#[tokio::test]
async fn a_namespace_shows_how_far_its_table_is_through_all_frontends() {
    let rest = soft_tenant().await;
    let (_socket, _) = open(&rest).await;
    let shown = rest.call("GET /v1/namespaces/ns").await.ok();
    let table = &shown["table"];
    assert_eq!((&shown["durability"], &table["state"]), (&json!("SESSION"), &json!("READY")), "{shown}");
    assert!(table["since"].as_str() > Some("2000") && table["waiting_for"] == json!([]), "{shown}");
    let mut client = NamespacesServiceClient::new(channel(&rest).await);
    let get = v1::GetNamespaceRequest { name: "ns".into() };
    let same = client.get_namespace(with_key(get, &rest.key)).await.expect("it is there").into_inner();
    assert_eq!(same.durability(), v1::Durability::Session);
    let same = same.table.expect("its leader can be asked");
    assert!(same.state() == v1::namespace::table::State::Ready && same.since.is_some(), "{same:?}");
    assert_eq!((Some(same.epoch), same.sessions, same.missing), (table["epoch"].as_u64(), 1, 0), "{same:?}");

    let listed = rest.call("GET /v1/namespaces").await.ok()["namespaces"][0].clone();
    assert_eq!((&listed["durability"], listed.get("table")), (&json!("SESSION"), None), "{listed}");
    rest.json("POST /v1/namespaces", json!({"name": "full"})).await.ok();
    let full = rest.call("GET /v1/namespaces/full").await.ok();
    assert_eq!((&full["durability"], full.get("table")), (&json!("FULL"), None), "{full}");
}

#[tokio::test]
async fn watchers_are_told_of_sessions_and_locks_in_one_order() {
    let rest = soft_tenant().await;
    let mut events = EventStream::open(&rest, "ns", "", None).await.expect("it can be watched");
    let (mut socket, id) = open(&rest).await;
    let opened = events.next().await;
    assert_eq!((opened.kind.as_str(), &opened.data["session_id"]), ("SESSION_OPENED", &json!(id)), "{opened:?}");
    let token = socket.acquire("a", "x").await;
    let acquired = events.next().await;
    assert_eq!((acquired.kind.as_str(), acquired.id), ("ACQUIRED", token), "{acquired:?}");
    assert_eq!(acquired.data["claims"], json!([{"path": ["x"], "mode": "WRITE"}]), "{acquired:?}");
    assert!(acquired.id > opened.id, "{acquired:?} comes after {opened:?}");
    socket.send(json!({"type": "release", "request_id": "a"})).await;
    socket.expect_ready("a").await;
    rest.delete(&format!("/v1/namespaces/ns/sessions/{id}")).await.expect("a session can be ended");
    let rest_of_it = events.next_n(2).await;
    let kinds: Vec<&str> = rest_of_it.iter().map(|event| event.kind.as_str()).collect();
    assert_eq!(kinds, ["RELEASED", "SESSION_ENDED"]);

    let mut again = EventStream::open(&rest, "ns", "", Some(opened.id)).await.expect("it is remembered");
    let resumed: Vec<u64> = again.next_n(3).await.iter().map(|event| event.id).collect();
    assert_eq!(resumed, [acquired.id, rest_of_it[0].id, rest_of_it[1].id]);
    let of_grant = EventStream::open(&rest, "ns", &format!("?from_revision={token}&prefix=x"), None).await;
    assert_eq!(of_grant.expect("it is remembered").next().await, acquired);
    let used = rest.call("GET /v1/usage").await.ok();
    assert!(used["namespaces"][0]["state_bytes"]["events"].as_u64() > Some(0), "{used}");
}

#[tokio::test]
async fn a_lock_that_is_forced_open_goes_to_the_next() {
    let rest = soft_tenant().await;
    let ((mut first, _), (mut second, _)) = (open(&rest).await, open(&rest).await);
    let token = first.acquire("a", "x").await;
    second.request_lock("b", "x").await;
    second.expect_enqueued("b").await;
    rest.delete("/v1/namespaces/ns/locks/x").await.expect("it is forced open");
    let revoked = first.receive().await;
    assert_eq!((&revoked["type"], &revoked["reason"]), (&json!("revoked"), &json!("DELETED")), "{revoked}");
    assert!(second.expect_acquired("b").await > token);
    rest.delete("/v1/namespaces/ns/locks/free").await.expect("nobody holds it");
    wait_until("the call that ended a hold is in the audit log", || async {
        let page = rest.call("GET /v1/audit").await.ok();
        let entries = page["entries"].as_array().expect("entries");
        entries.iter().filter(|entry| entry["action"] == "LOCK_DELETED").count() == 1
    })
    .await;
}

#[tokio::test]
async fn who_holds_a_lock_is_asked_for_it() {
    let rest = soft_tenant().await;
    let (mut holder, _) = open(&rest).await;
    let token = holder.acquire("a", "x").await;
    let body = json!({"name": "x", "reason": "deploy", "within_ms": 60_000});
    let asked = rest.json("POST /v1/namespaces/ns/lock-sets/ask-release", body).await.ok();
    assert_eq!((&asked["asked"], &asked["truncated"]), (&json!(1), &json!(false)), "{asked}");
    let told = holder.receive().await;
    assert_eq!((&told["type"], &told["fencing_token"]), (&json!("release_requested"), &json!(token)), "{told}");
    assert_eq!((&told["reason"], &told["force"]), (&json!("deploy"), &json!(false)), "{told}");
    let shown = &lock_view(&rest).await["write_lock_holder"];
    assert_eq!(shown["release_requested"]["reason"], "deploy", "{shown}");
    holder.send(json!({"type": "release", "request_id": "a"})).await;
    holder.expect_ready("a").await;
    let body = json!({"name": "x"});
    assert_eq!(rest.json("POST /v1/namespaces/ns/lock-sets/ask-release", body).await.ok()["asked"], 0);
}

#[tokio::test]
async fn a_resumed_session_has_what_its_client_lists() {
    let rest = soft_tenant().await;
    let (mut socket, id) = open(&rest).await;
    let token = socket.acquire("a", "x").await;
    socket.acquire("b", "y").await;
    let mut resumed = SessionSocket::connect(&rest).await;
    let opened = send_open(&mut resumed, json!({"keeps_table": true, "session_id": id})).await;
    assert_eq!((&opened["type"], &opened["resumed"]), (&json!("opened"), &json!(true)), "{opened}");
    let held = json!([{"path": ["x"], "mode": "WRITE", "fencing_token": token}]);
    resumed.send(json!({"type": "lock_info", "held": held, "pending": []})).await;
    resumed.acquire("c", "z").await;
    let page = rest.call("GET /v1/namespaces/ns/locks").await.ok();
    let names: Vec<&str> =
        page["locks"].as_array().expect("locks").iter().filter_map(|it| it["name"].as_str()).collect();
    assert_eq!(names, ["x", "z"], "{page}");
}

#[tokio::test]
async fn what_such_a_namespace_does_not_have_is_refused_by_its_field() {
    let rest = soft_tenant().await;
    let (mut socket, id) = open(&rest).await;
    for (line, body, field) in [
        ("locks/x/acquire", json!({"process_id": "p", "ttl_ms": 10_000}), "process_id"),
        ("locks/x/acquire", json!({"session_id": id}), "session_id"),
        ("locks/x/release", json!({"session_id": id}), "session_id"),
        ("sessions", json!({"process_id": "p", "ttl_ms": 10_000}), "keeps_table"),
        ("lock-sets/ask-release", json!({"name": "x", "force": true}), "force"),
        ("semaphores/ask-release", json!({"name": "s"}), "namespace"),
        ("semaphores/configure", json!({"name": "s", "permits": 1}), "namespace"),
        ("barriers/configure", json!({"name": "b", "parties": 2}), "namespace"),
    ] {
        let refused = rest.json(&format!("POST /v1/namespaces/ns/{line}"), body).await.expect_field_error(field);
        assert!(refused.contains("SESSION"), "{line}: {refused}");
    }

    for (field, value) in [("transition_ms", json!(5)), ("at_least_ms", json!(5)), ("allow_upgrade", json!(true))] {
        let mut lock = json!({"type": "lock", "request_id": "r", "resources": [{"path": ["x"]}]});
        lock[field] = value;
        socket.send(lock).await;
        let refused = socket.receive().await;
        let reason = &refused["reason"];
        assert_eq!((&refused["type"], &reason["code"]), (&json!("refused"), &json!("INVALID_ARGUMENT")), "{refused}");
        assert!(reason["detail"].as_str().is_some_and(|text| text.starts_with(field)), "{refused}");
    }
    socket.acquire("r", "x").await;
}

#[tokio::test]
async fn a_session_of_it_keeps_a_table_and_has_bounded_times() {
    let rest = soft_tenant().await;
    let mut socket = SessionSocket::connect(&rest).await;
    for (fields, named) in [
        (json!({}), "keeps_table"),
        (json!({"keeps_table": true, "ttl_ms": 1_999}), "ttl_ms"),
        (json!({"keeps_table": true, "ttl_ms": 60_001}), "ttl_ms"),
        (json!({"keeps_table": true, "transition_ms": 600_001}), "transition_ms"),
    ] {
        let refused = send_open(&mut socket, fields).await;
        assert_eq!((&refused["type"], &refused["code"]), (&json!("error"), &json!("INVALID_ARGUMENT")), "{refused}");
        assert!(refused["detail"].as_str().is_some_and(|text| text.starts_with(named)), "{refused}");
    }
    let opened = send_open(&mut socket, json!({"keeps_table": true, "transition_ms": 600_000})).await;
    assert_eq!(opened["type"], "opened", "{opened}");

    let full = create_tenant(server()).await;
    full.create_namespace("ns").await;
    let mut socket = SessionSocket::connect(&full.rest).await;
    let refused = send_open(&mut socket, json!({"keeps_table": true, "transition_ms": 5})).await;
    assert!(refused["detail"].as_str().is_some_and(|text| text.starts_with("transition_ms")), "{refused}");
    let opened = send_open(&mut socket, json!({"keeps_table": true})).await;
    assert_eq!((&opened["type"], &opened["durability"]), (&json!("opened"), &json!("FULL")), "{opened}");
    assert_eq!(opened.get("table_epoch"), None, "{opened}");
}
