//! Latches, through every way in.

use std::time::{Duration, Instant};

use holdfast_proto::v1;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, connect_new_tenant, create_tenant, server, wait_until};

/// Longer than any test takes.
const WAIT_MS: u64 = 300_000;

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

fn line(verb: &str) -> String {
    format!("POST /v1/namespaces/ns/latches/{verb}")
}

async fn call(rest: &RestClient, verb: &str, body: Value) -> Value {
    rest.json(&line(verb), body).await.ok()
}

async fn expect_error(rest: &RestClient, verb: &str, body: Value, code: &str) -> Value {
    rest.json(&line(verb), body).await.expect_error(code)
}

async fn create(rest: &RestClient, total: u64) -> Value {
    call(rest, "create", json!({"name": "l", "total": total})).await["latch"].clone()
}

#[tokio::test]
async fn a_latch_is_complete_once_each_job_was_reported_however_often() {
    let rest = tenant_with_namespace().await;
    let latch = create(&rest, 2).await;
    assert_eq!((&latch["status"], &latch["done"], &latch["ids"]), (&json!("ACTIVE"), &json!(0), &json!("NAMED")));
    assert_eq!((&latch["name"], &latch["path"], &latch["finished_at"]), (&json!("l"), &json!(["l"]), &json!(null)));
    let id = &latch["id"];
    let count = async |ids: Value| call(&rest, "count_down", json!({"name": "l", "id": id, "ids": ids})).await;
    assert_eq!(count(json!(["a", "a"])).await["counted"], 1);
    assert_eq!(count(json!(["a"])).await["counted"], 0);
    let wait = json!({"name": "l", "id": id});
    assert_eq!(call(&rest, "wait", wait.clone()).await["outcome"], "TIMED_OUT");
    let last = count(json!(["b", "c"])).await;
    assert_eq!((&last["counted"], &last["latch"]["status"]), (&json!(1), &json!("COMPLETED")));
    assert_eq!(count(json!(["d"])).await["counted"], 0, "what is complete counts no more");
    let waited = call(&rest, "wait", wait).await;
    assert_eq!(waited["outcome"], "COMPLETED");
    assert_eq!((&waited["latch"]["remaining_ms"], &waited["latch"]["expires_at"]), (&json!(null), &json!(null)));
    assert!(waited["latch"]["finished_at"].is_string());
}

#[tokio::test]
async fn a_creation_is_answered_201_and_its_repeat_200_and_another_is_refused() {
    let rest = tenant_with_namespace().await;
    let body = json!({"path": ["a", "b"], "total": 3, "description": "d", "metadata": {"k": "v"}, "retain_ms": 60_000});
    let made = rest.json(&line("create"), body.clone()).await;
    assert_eq!(made.status, 201);
    let made = made.ok();
    assert_eq!((&made["latch"]["description"], &made["latch"]["metadata"]), (&json!("d"), &json!({"k": "v"})));
    assert_eq!((&made["latch"]["name"], &made["latch"]["retain_ms"]), (&json!(null), &json!(60_000)));
    let again = rest.json(&line("create"), body).await;
    assert_eq!(again.status, 200);
    assert_eq!(again.ok()["latch"]["id"], made["latch"]["id"]);
    let other = expect_error(&rest, "create", json!({"path": ["a", "b"], "total": 4}), "ALREADY_EXISTS").await;
    assert_eq!((&other["kind"], &other["path"]), (&json!("latch"), &json!(["a", "b"])));
    // A lock of that name is another thing.
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000, "resources": [{"path": ["a", "b"]}]});
    assert_eq!(rest.json("POST /v1/namespaces/ns/lock-sets/acquire", acquire).await.ok()["success"], true);
    assert_eq!(create(&rest, 0).await["status"], "COMPLETED", "there is nothing to do");
}

#[tokio::test]
async fn all_who_wait_are_told_when_it_completes() {
    let rest = tenant_with_namespace().await;
    let id = create(&rest, 1).await["id"].clone();
    let asked = Instant::now();
    let wait = async || call(&rest, "wait", json!({"name": "l", "id": id, "wait_ms": WAIT_MS})).await;
    let complete = async {
        // Some wait by now, most likely; none may be lost either way.
        assert_eq!(call(&rest, "wait", json!({"name": "l", "wait_ms": 200})).await["outcome"], "TIMED_OUT");
        call(&rest, "count_down", json!({"name": "l", "id": id, "ids": ["a"]})).await;
    };
    let (waited, ()) = tokio::join!(futures::future::join_all((0..20).map(|_| wait())), complete);
    assert!(waited.iter().all(|answer| answer["outcome"] == "COMPLETED"), "{waited:?}");
    assert!(asked.elapsed() >= Duration::from_millis(200));
    assert!(asked.elapsed() < Duration::from_millis(WAIT_MS));
}

#[tokio::test]
async fn a_latch_says_how_many_wait_for_it_now() {
    let rest = tenant_with_namespace().await;
    let made = create(&rest, 1).await;
    assert_eq!(made["waiters"], Value::Null, "a change does not say");
    call(&rest, "create", json!({"name": "other", "total": 1})).await;
    let waiters = async || call(&rest, "get", json!({"name": "l"})).await["latch"]["waiters"].clone();
    assert_eq!(waiters().await, 0);
    let waits: Vec<_> = (0..3)
        .map(|_| {
            let rest = rest.clone();
            tokio::spawn(async move { call(&rest, "wait", json!({"name": "l", "wait_ms": WAIT_MS})).await })
        })
        .collect();
    wait_until("three wait", async || waiters().await == 3).await;
    let listed = rest.call("GET /v1/namespaces/ns/latches").await.ok();
    let of_each: Vec<&Value> = listed["latches"].as_array().unwrap().iter().map(|latch| &latch["waiters"]).collect();
    assert_eq!(of_each, [&json!(3), &json!(0)]);
    let get = v1::GetLatchRequest { namespace: "ns".into(), name: Some("l".into()), ..Default::default() };
    let mut latches = LatchesServiceClient::new(channel(&rest).await);
    let shown = latches.get_latch(with_key(get, &rest.key)).await.unwrap().into_inner().latch.unwrap();
    assert_eq!(shown.waiters, Some(3));
    let looked = call(&rest, "wait", json!({"name": "l"})).await;
    assert_eq!(looked["latch"]["waiters"], 3, "who only looks is none of them");
    // Whoever gives up is not counted any more.
    waits[0].abort();
    wait_until("two wait", async || waiters().await == 2).await;
    call(&rest, "count_down", json!({"name": "l", "ids": ["a"]})).await;
    for wait in waits.into_iter().skip(1) {
        assert_eq!(wait.await.unwrap()["outcome"], "COMPLETED");
    }
    assert_eq!(waiters().await, 0);
}

#[tokio::test]
async fn a_latch_that_is_not_complete_in_time_expires_and_tells_so() {
    let rest = tenant_with_namespace().await;
    let latch = call(&rest, "create", json!({"name": "l", "total": 1, "expires_in_ms": 1_000})).await["latch"].clone();
    let left_ms = latch["remaining_ms"].as_u64().unwrap();
    assert!((1..=1_000).contains(&left_ms), "{left_ms}");
    let waited = call(&rest, "wait", json!({"name": "l", "wait_ms": WAIT_MS})).await;
    assert_eq!((&waited["outcome"], &waited["latch"]["status"]), (&json!("EXPIRED"), &json!("EXPIRED")));
    assert_eq!(call(&rest, "count_down", json!({"name": "l", "ids": ["a"]})).await["counted"], 0);
    assert_eq!(call(&rest, "set_total", json!({"name": "l", "total": 2})).await["success"], false);
}

#[tokio::test]
async fn whoever_has_the_id_of_a_latch_that_was_made_again_counts_nothing_there() {
    let rest = tenant_with_namespace().await;
    let old = create(&rest, 1).await["id"].clone();
    let wait =
        async || expect_error(&rest, "wait", json!({"name": "l", "wait_ms": WAIT_MS}), "PRIMITIVE_NOT_FOUND").await;
    let delete = async { assert_eq!(rest.json(&line("delete"), json!({"name": "l"})).await.status, 204) };
    tokio::join!(wait(), delete);
    assert_eq!(rest.json(&line("delete"), json!({"name": "l"})).await.status, 204, "a second time, too");
    let new = create(&rest, 1).await["id"].clone();
    assert_ne!(old, new);
    for verb in ["count_down", "get", "wait", "set_total"] {
        let mut body = json!({"name": "l", "id": old});
        match verb {
            "count_down" => body["ids"] = json!(["a"]),
            "set_total" => body["total"] = json!(2),
            _ => {}
        }
        let refused = expect_error(&rest, verb, body, "PRIMITIVE_NOT_FOUND").await;
        assert_eq!((&refused["kind"], &refused["path"]), (&json!("latch"), &json!(["l"])), "{verb}");
    }
    assert_eq!(call(&rest, "get", json!({"name": "l", "id": new})).await["latch"]["done"], 0);
}

#[tokio::test]
async fn several_who_add_jobs_do_not_lose_any() {
    let rest = tenant_with_namespace().await;
    create(&rest, 1).await;
    let set = async |body: Value| call(&rest, "set_total", body).await;
    assert_eq!(set(json!({"name": "l", "total": 3, "if_total": 1})).await["success"], true);
    assert_eq!(set(json!({"name": "l", "total": 3, "if_total": 1})).await["success"], true, "a repeat");
    let late = set(json!({"name": "l", "total": 2, "if_total": 1})).await;
    assert_eq!((&late["success"], &late["latch"]["total"]), (&json!(false), &json!(3)));
    call(&rest, "count_down", json!({"name": "l", "ids": ["a", "b"]})).await;
    expect_error(&rest, "set_total", json!({"name": "l", "total": 1}), "INVALID_ARGUMENT").await;
    assert_eq!(set(json!({"name": "l", "total": 2})).await["latch"]["status"], "COMPLETED");
}

#[tokio::test]
async fn indexes_are_counted_by_ranges_and_shown_by_ranges() {
    let rest = tenant_with_namespace().await;
    call(&rest, "create", json!({"name": "l", "total": 1_000, "ids": "INDEXED"})).await;
    let count = async |ranges: Value| call(&rest, "count_down", json!({"name": "l", "ranges": ranges})).await;
    assert_eq!(count(json!([[0, 9], [5, 14], [20, 20]])).await["counted"], 16);
    let shown = call(&rest, "get", json!({"name": "l", "page_size": 1})).await;
    assert_eq!((&shown["done"], &shown["latch"]["done"]), (&json!([[0, 14]]), &json!(16)));
    let next = json!({"name": "l", "page_size": 1, "page_token": shown["next_page_token"]});
    let shown = call(&rest, "get", next).await;
    assert_eq!((&shown["done"], &shown["next_page_token"]), (&json!([[20, 20]]), &json!(null)));
    for wrong in [json!({"ranges": [[0, 1_000]]}), json!({"ids": ["a"]}), json!({"ranges": [[2, 1]]}), json!({})] {
        let mut body = wrong;
        body["name"] = json!("l");
        expect_error(&rest, "count_down", body, "INVALID_ARGUMENT").await;
    }
    let no_pair = json!({"name": "l", "ranges": [[0, 1, 2]]});
    rest.json(&line("count_down"), no_pair).await.expect_field_error("ranges[0]");
    assert_eq!(count(json!([[0, 999]])).await["latch"]["status"], "COMPLETED");
}

#[tokio::test]
async fn what_is_done_and_the_latches_are_listed_in_order_page_by_page() {
    let rest = tenant_with_namespace().await;
    for path in [json!(["b"]), json!(["a", "y"]), json!(["a", "x"])] {
        call(&rest, "create", json!({"path": path, "total": 9})).await;
    }
    call(&rest, "count_down", json!({"name": "b", "ids": ["3", "1", "2"]})).await;
    let first = call(&rest, "get", json!({"name": "b", "page_size": 2})).await;
    assert_eq!(first["done"], json!(["1", "2"]));
    let next = json!({"name": "b", "page_size": 2, "page_token": first["next_page_token"]});
    assert_eq!(call(&rest, "get", next).await["done"], json!(["3"]));
    let list = async |query: &str| rest.call(&format!("GET /v1/namespaces/ns/latches{query}")).await.ok();
    let paths = |page: &Value| -> Vec<Value> {
        page["latches"].as_array().unwrap().iter().map(|latch| latch["path"].clone()).collect()
    };
    assert_eq!(paths(&list("").await), [json!(["a", "x"]), json!(["a", "y"]), json!(["b"])]);
    assert_eq!(paths(&list("?prefix=a").await), [json!(["a", "x"]), json!(["a", "y"])]);
    let page = list("?page_size=2").await;
    let token = page["next_page_token"].as_str().unwrap();
    assert_eq!(paths(&list(&format!("?page_size=2&page_token={token}")).await), [json!(["b"])]);
}

#[tokio::test]
async fn a_body_names_one_latch_and_has_no_figures_out_of_bounds() {
    let rest = tenant_with_namespace().await;
    for (body, field) in [
        (json!({"total": 1}), "name"),
        (json!({"name": "l", "path": ["l"], "total": 1}), "path"),
        (json!({"path": [], "total": 1}), "path"),
        (json!({"name": "l"}), "total"),
        (json!({"name": "l", "total": -1}), "total"),
        (json!({"name": "l", "total": 1, "ids": "OTHER"}), "ids"),
        (json!({"name": "l", "total": 1, "expires_in_ms": 999}), "expires_in_ms"),
        (json!({"name": "l", "total": 1, "retain_ms": 59_999}), "retain_ms"),
        (json!({"name": "l", "total": 1, "ttl_ms": 1}), "ttl_ms"),
    ] {
        rest.json(&line("create"), body).await.expect_field_error(field);
    }
    let many = vec!["x"; 101];
    rest.json(&line("count_down"), json!({"name": "l", "ids": many})).await.expect_field_error("ids");
    rest.json(&line("wait"), json!({"name": "l", "wait_ms": u64::from(u32::MAX)})).await.expect_field_error("wait_ms");
    let quota = expect_error(&rest, "create", json!({"name": "l", "total": 100_001}), "QUOTA_EXCEEDED").await;
    assert_eq!(quota["limit"], "max_latch_ids");
    expect_error(&rest, "wait", json!({"name": "l"}), "PRIMITIVE_NOT_FOUND").await;
}

#[tokio::test]
async fn grpc_answers_as_rest_does() {
    let rest = tenant_with_namespace().await;
    let mut latches = LatchesServiceClient::new(channel(&rest).await);
    let (namespace, name) = ("ns".to_owned(), Some("l".to_owned()));
    let create =
        v1::CreateLatchRequest { namespace: namespace.clone(), name: name.clone(), total: 2, ..Default::default() };
    let made = latches.create_latch(with_key(create.clone(), &rest.key)).await.unwrap().into_inner();
    assert!(made.created);
    assert!(!latches.create_latch(with_key(create, &rest.key)).await.unwrap().into_inner().created);
    let id = Some(made.latch.unwrap().id);
    let ids = vec!["a".to_owned(), "b".to_owned()];
    let count =
        v1::CountDownRequest { namespace: namespace.clone(), name: name.clone(), id, ids, ..Default::default() };
    assert_eq!(latches.count_down(with_key(count, &rest.key)).await.unwrap().into_inner().counted, 2);
    let wait = v1::WaitForLatchRequest { namespace: namespace.clone(), name: name.clone(), id, ..Default::default() };
    let waited = latches.wait_for_latch(with_key(wait, &rest.key)).await.unwrap().into_inner();
    assert_eq!(waited.outcome().as_str_name(), "COMPLETED");
    let get = v1::GetLatchRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    let shown = latches.get_latch(with_key(get, &rest.key)).await.unwrap().into_inner();
    assert_eq!((shown.done, shown.done_ranges.len()), (vec!["a".to_owned(), "b".to_owned()], 0));
    let delete = v1::DeleteLatchRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    latches.delete_latch(with_key(delete, &rest.key)).await.unwrap();
    let wait = v1::WaitForLatchRequest { namespace, name, ..Default::default() };
    let status = latches.wait_for_latch(with_key(wait, &rest.key)).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::NotFound, "PRIMITIVE_NOT_FOUND"));
}

#[tokio::test]
async fn a_session_counts_down_on_its_connection() {
    let (rest, mut socket) = connect_new_tenant().await;
    socket.open_session(30_000).await;
    let id = create(&rest, 2).await["id"].clone();
    let count = |request: &str, ids: Value| {
        let mut message = json!({"type": "count_down", "request_id": request, "path": ["l"], "ids": ids});
        message["id"] = id.clone();
        message
    };
    socket.send(count("a", json!(["x"]))).await;
    let counted = json!({"type": "counted", "request_id": "a", "counted": 1, "total": 2, "done": 1});
    assert_eq!(socket.receive().await, counted);
    socket.send(count("b", json!([]))).await;
    let refused = socket.receive().await;
    assert_eq!((&refused["type"], &refused["reason"]["code"]), (&json!("refused"), &json!("INVALID_ARGUMENT")));
    socket.send(json!({"type": "count_down", "request_id": "c", "path": ["other"], "ids": ["x"]})).await;
    let refused = socket.receive().await;
    assert_eq!((&refused["request_id"], &refused["reason"]["code"]), (&json!("c"), &json!("PRIMITIVE_NOT_FOUND")));
    // What was counted stays when the session ends.
    socket.send(json!({"type": "close"})).await;
    wait_until("it is closed", async || {
        rest.call("GET /v1/namespaces/ns/sessions").await.ok()["sessions"] == json!([])
    })
    .await;
    assert_eq!(call(&rest, "get", json!({"name": "l"})).await["latch"]["done"], 1);
}
