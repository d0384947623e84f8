//! The events that watchers of a namespace receive.

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_testkit::{Standalone, scratch};
use serde_json::{Value, json};
use tonic::Code;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, create_tenant, operator_client, server};
use holdfast_testkit::{Event, EventStream};

/// Events that a namespace remembers.
const MAX_RETAINED_EVENTS: usize = 10_000;
/// Claims in one request.
const MAX_CLAIMS: usize = 64;

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

async fn watch(rest: &RestClient, query: &str) -> EventStream {
    EventStream::open(rest, "ns", query, None).await.unwrap()
}

/// Takes paths for writing; the fencing token.
async fn acquire_paths(rest: &RestClient, owner: &str, paths: &[&[&str]]) -> u64 {
    let resources: Vec<Value> = paths.iter().map(|path| json!({"path": path})).collect();
    let body = json!({"process_id": owner, "ttl_ms": 60_000, "resources": resources});
    let answer = rest.json("POST /v1/namespaces/ns/lock-sets/acquire", body).await.ok();
    answer["fencing_token"].as_u64().unwrap_or_else(|| panic!("{answer}"))
}

async fn release_all(rest: &RestClient, owner: &str) {
    let body = json!({"process_id": owner, "all": true});
    rest.json("POST /v1/namespaces/ns/lock-sets/release", body).await.ok();
}

fn kinds(events: &[Event]) -> Vec<&str> {
    events.iter().map(|event| event.kind.as_str()).collect()
}

#[tokio::test]
async fn an_event_says_what_happened_to_whom_and_at_which_revision() {
    let rest = tenant_with_namespace().await;
    let mut events = watch(&rest, "").await;
    let token = acquire_paths(&rest, "p", &[&["a"], &["b", "c"]]).await;
    let acquired = events.next().await;
    assert_eq!((acquired.id, acquired.kind.as_str()), (token, "ACQUIRED"), "the token is the revision of the grant");
    let mut data = acquired.data.clone();
    let at = data["at"].take();
    assert!(at.as_str().unwrap().ends_with('Z'), "{at}");
    let expected = json!({
        "revision": token, "type": "ACQUIRED", "at": null, "process_id": "p", "session_id": null, "holder": null,
        "fencing_token": token,
        "claims": [{"path": ["a"], "mode": "WRITE"}, {"path": ["b", "c"], "mode": "WRITE"}],
    });
    assert_eq!(data, expected);

    rest.json("POST /v1/namespaces/ns/lock-sets/release", json!({"process_id": "p", "resources": [{"path": ["a"]}]}))
        .await
        .ok();
    let released = events.next().await;
    assert_eq!((released.kind.as_str(), &released.data["fencing_token"]), ("RELEASED", &json!(token)));
    assert_eq!(released.data["claims"], json!([{"path": ["a"], "mode": "WRITE"}]));
    rest.json("POST /v1/namespaces/ns/lock-sets/delete", json!({"path": ["b", "c"]})).await;
    assert_eq!(events.next().await.kind, "DELETED");

    let session = json!({"process_id": "s", "ttl_ms": 10_000});
    let session = rest.json("POST /v1/namespaces/ns/sessions", session).await.ok();
    let id = session["session_id"].as_str().unwrap().to_owned();
    rest.json("POST /v1/namespaces/ns/locks/l/acquire", json!({"session_id": id, "holder": "h"})).await.ok();
    rest.call(&format!("DELETE /v1/namespaces/ns/sessions/{id}")).await.ok();
    let told = events.next_n(4).await;
    assert_eq!(kinds(&told), ["SESSION_OPENED", "ACQUIRED", "RELEASED", "SESSION_ENDED"]);
    assert!(told.iter().all(|event| event.data["session_id"] == id.as_str() && event.data["process_id"] == "s"));
    assert_eq!((&told[1].data["holder"], &told[0].data["claims"]), (&json!("h"), &json!([])));
    assert!(told.windows(2).all(|pair| pair[0].id < pair[1].id), "{told:?}");
}

#[tokio::test]
async fn a_watcher_that_comes_back_gets_everything_since_in_order_and_once() {
    let rest = tenant_with_namespace().await;
    let mut events = watch(&rest, "").await;
    let first = acquire_paths(&rest, "p", &[&["a"]]).await;
    release_all(&rest, "p").await;
    let seen = events.next_n(2).await;
    drop(events);
    let third = acquire_paths(&rest, "q", &[&["a"]]).await;
    release_all(&rest, "q").await;

    // What the address says counts for the first connection only.
    let mut events = EventStream::open(&rest, "ns", "?from_revision=1", Some(seen[0].id)).await.unwrap();
    let again = events.next_n(3).await;
    assert_eq!(again[0], seen[1], "it begins after the one named, and is told the same");
    assert_eq!(again[1].id, third);

    let all = watch(&rest, &format!("?from_revision={first}")).await.next_n(4).await;
    assert_eq!((&all[..2], &all[1..]), (&seen[..], &again[..]), "a start is inclusive");
    let mut later = watch(&rest, &format!("?from_revision={}", again[2].id + 1)).await;
    let next = acquire_paths(&rest, "p", &[&["b"]]).await;
    assert_eq!(later.next().await.id, next);
}

#[tokio::test]
async fn a_prefix_narrows_to_what_is_at_it_below_it_or_above_it() {
    let rest = tenant_with_namespace().await;
    let mut events = watch(&rest, "?prefix=a&prefix=b").await;
    let mut expected = Vec::new();
    for (path, is_told) in [
        (vec!["a", "b"], true),
        (vec!["a", "b", "c"], true),
        (vec!["a"], true),
        (vec![], true),
        (vec!["a", "bb"], false),
        (vec!["a", "c"], false),
        (vec!["b"], false),
    ] {
        let token = acquire_paths(&rest, "p", &[&path]).await;
        if is_told {
            expected.push(token);
        }
    }
    expected.push(acquire_paths(&rest, "p", &[&["x"], &["a", "b"]]).await);
    let told: Vec<u64> = events.next_n(4).await.iter().map(|event| event.id).collect();
    assert_eq!(told, expected[..4]);
}

/// Makes at least so many events, and returns the revision of the first one.
async fn produce_events(rest: &RestClient, count: usize) -> u64 {
    let paths: Vec<String> = (0..MAX_CLAIMS).map(|path| path.to_string()).collect();
    let paths: Vec<[&str; 1]> = paths.iter().map(|path| [path.as_str()]).collect();
    let paths: Vec<&[&str]> = paths.iter().map(|path| &path[..]).collect();
    let mut first = None;
    // One for the grant of all, and one for the end of each.
    for _ in 0..count.div_ceil(MAX_CLAIMS + 1) {
        first.get_or_insert(acquire_paths(rest, "p", &paths).await);
        release_all(rest, "p").await;
    }
    first.unwrap()
}

#[tokio::test]
async fn a_start_that_is_forgotten_is_refused_with_the_oldest_left_and_a_reader_that_is_late_harms_nobody() {
    let rest = tenant_with_namespace().await;
    let mut slow = watch(&rest, "").await;
    let mut keen = watch(&rest, "").await;
    let reading = tokio::spawn(async move {
        let mut last = 0;
        for _ in 0..MAX_RETAINED_EVENTS {
            let event = keen.next().await;
            assert!(event.id > last, "{event:?} came after {last}");
            last = event.id;
        }
        last
    });
    let first = produce_events(&rest, MAX_RETAINED_EVENTS + MAX_CLAIMS).await;
    reading.await.unwrap();

    let query = format!("?from_revision={first}");
    let refused = EventStream::open(&rest, "ns", &query, None).await.err().expect("it is forgotten");
    assert_eq!((&refused["code"], &refused["status"]), (&json!("REVISION_COMPACTED"), &json!(410)), "{refused}");
    let oldest: u64 = refused["oldest"].as_u64().unwrap();
    assert!(oldest > first);
    assert_eq!(watch(&rest, &format!("?from_revision={oldest}")).await.next().await.id, oldest);

    let mut locks = LocksServiceClient::new(channel(&rest).await);
    let message = v1::WatchRequest { namespace: "ns".into(), from_revision: Some(first), ..Default::default() };
    let status = locks.watch(with_key(message, &rest.key)).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::OutOfRange, "REVISION_COMPACTED"));

    // A watcher that did not read until now receives everything from its beginning, or the reason why not.
    let event = slow.next().await;
    assert!(event.id == first || event.data["code"] == "REVISION_COMPACTED", "{event:?}");
}

#[tokio::test]
async fn a_stream_ends_with_the_reason_when_its_namespace_or_its_key_is_gone() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let key = tenant.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:read"]})).await.ok();
    let reader = tenant.rest.with_key(key["api_key"].as_str().unwrap());
    let mut events = watch(&reader, "").await;
    tenant.rest.call(&format!("DELETE /v1/api-keys/{}", key["key_id"].as_str().unwrap())).await.ok();
    let last = events.next().await;
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("UNAUTHENTICATED")), "{last:?}");
    assert_eq!(events.try_next().await, None);

    let mut events = watch(&tenant.rest, "").await;
    tenant.rest.call("DELETE /v1/namespaces/ns").await.ok();
    let last = events.next().await;
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("NAMESPACE_NOT_FOUND")), "{last:?}");
    assert_eq!(last.data["detail"], "namespace not found");
    assert_eq!(events.try_next().await, None);

    let refused = EventStream::open(&tenant.rest, "ns", "", None).await.err().expect("it is gone");
    assert_eq!(refused["code"], "NAMESPACE_NOT_FOUND");
    let operator = EventStream::open(&operator_client(server()), "ns", "", None).await.err().expect("it is no tenant");
    assert_eq!(operator["code"], "PERMISSION_DENIED");
    let key = tenant.rest.json("POST /v1/api-keys", json!({"scopes": ["locks:write"]})).await.ok();
    let writer = tenant.rest.with_key(key["api_key"].as_str().unwrap());
    assert_eq!(EventStream::open(&writer, "ns", "", None).await.err().expect("it may not read")["scope"], "locks:read");
}

#[tokio::test]
async fn a_start_that_is_no_revision_is_refused_by_name() {
    let rest = tenant_with_namespace().await;
    for wrong in ["", "x", "-1", "9007199254740992"] {
        rest.call(&format!("GET /v1/namespaces/ns/events?from_revision={wrong}"))
            .await
            .expect_field_error("from_revision");
    }
    rest.call("GET /v1/namespaces/ns/events?prefix=").await.expect_error("INVALID_ARGUMENT");
    rest.call("GET /v1/namespaces/ns/events?since=1").await.expect_field_error("since");
}

#[tokio::test]
async fn events_of_other_kinds_come_to_those_who_ask_for_them() {
    let rest = tenant_with_namespace().await;
    let (mut locks, mut latches) = (watch(&rest, "").await, watch(&rest, "?kinds=latches&prefix=a").await);
    let mut both = watch(&rest, "?kinds=locks,latches").await;
    for (path, total) in [(json!(["b"]), 1), (json!(["a", "x"]), 1)] {
        rest.json("POST /v1/namespaces/ns/latches/create", json!({"path": path, "total": total})).await.ok();
    }
    rest.json("POST /v1/namespaces/ns/latches/count_down", json!({"path": ["a", "x"], "ids": ["j"]})).await.ok();
    acquire_paths(&rest, "p", &[&["a"]]).await;
    let told = latches.next_n(2).await;
    assert_eq!([&told[0].kind, &told[1].kind], ["LATCH_CREATED", "LATCH_COMPLETED"]);
    assert_eq!((&told[0].data["kind"], &told[0].data["path"]), (&json!("latch"), &json!(["a", "x"])));
    let told = locks.next().await;
    assert_eq!((told.kind.as_str(), told.data.get("kind"), told.data.get("path")), ("ACQUIRED", None, None));
    let kinds: Vec<String> = both.next_n(4).await.into_iter().map(|event| event.kind).collect();
    assert_eq!(kinds, ["LATCH_CREATED", "LATCH_CREATED", "LATCH_COMPLETED", "ACQUIRED"]);
    rest.call("GET /v1/namespaces/ns/events?kinds=latch").await.expect_field_error("kinds");
}

#[tokio::test]
async fn watchers_over_grpc_are_told_the_same() {
    let rest = tenant_with_namespace().await;
    let mut events = watch(&rest, "?prefix=a").await;
    let mut locks = LocksServiceClient::new(channel(&rest).await);
    let message = v1::WatchRequest { namespace: "ns".into(), prefix: vec!["a".into()], ..Default::default() };
    let mut stream = locks.watch(with_key(message, &rest.key)).await.unwrap().into_inner();
    let token = acquire_paths(&rest, "p", &[&["a", "b"], &["c"]]).await;
    release_all(&rest, "p").await;
    for shown in events.next_n(2).await {
        let event = stream.message().await.unwrap().expect("the stream goes on");
        assert_eq!((event.revision, event.r#type().as_str_name()), (shown.id, shown.kind.as_str()));
        assert_eq!((event.process_id.as_str(), event.session_id.as_deref()), ("p", None));
        assert_eq!(event.fencing_token, Some(token));
        let paths: Vec<Value> = event.claims.iter().map(|claim| json!({"path": claim.path, "mode": "WRITE"})).collect();
        assert_eq!(shown.data["claims"], json!(paths));
    }
    let message = v1::WatchRequest { namespace: "other".into(), ..Default::default() };
    let status = locks.watch(with_key(message, &rest.key)).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "namespace not found"));
}

#[tokio::test]
async fn streams_end_with_the_reason_when_the_process_stops() {
    let mut server = Standalone::start(&scratch(), &[]);
    let tenant = create_tenant(&server).await;
    tenant.create_namespace("ns").await;
    let mut events = watch(&tenant.rest, "").await;
    let input = server.take_stdin();
    drop(input);
    let last = events.next().await;
    assert_eq!((last.kind.as_str(), &last.data["code"]), ("error", &json!("UNAVAILABLE")), "{last:?}");
    assert_eq!(events.try_next().await, None);
    assert!(server.wait_for_exit(), "no stream keeps the process");
}
