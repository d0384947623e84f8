//! Semaphores, through REST and gRPC.

use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_proto::v1;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use serde_json::{Value, json};
use tonic::Code;

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, create_tenant, server, wait_until};

/// Longer than any test takes.
pub(crate) const WAIT_MS: u64 = 300_000;

pub(crate) async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

fn line(verb: &str) -> String {
    format!("POST /v1/namespaces/ns/semaphores/{verb}")
}

pub(crate) async fn call(rest: &RestClient, verb: &str, body: Value) -> Value {
    rest.json(&line(verb), body).await.ok()
}

pub(crate) async fn configure(rest: &RestClient, permits: u64) -> Value {
    call(rest, "configure", json!({"name": "s", "permits": permits})).await["semaphore"].clone()
}

/// A request of a process for permits of `s`, with more fields.
fn request(owner: &str, more: &Value) -> Value {
    let mut body = json!({"name": "s", "process_id": owner, "request_id": "r", "ttl_ms": 60_000});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

async fn acquire(rest: &RestClient, owner: &str, more: Value) -> Value {
    call(rest, "acquire", request(owner, &more)).await
}

pub(crate) async fn granted(rest: &RestClient, owner: &str, more: Value) -> u64 {
    let answer = acquire(rest, owner, more).await;
    assert_eq!(answer["success"], true, "{answer}");
    answer["fencing_token"].as_u64().unwrap()
}

pub(crate) async fn refused(rest: &RestClient, owner: &str, more: Value) -> Value {
    let answer = acquire(rest, owner, more).await;
    assert_eq!(answer["success"], false, "{answer}");
    answer
}

pub(crate) async fn release(rest: &RestClient, owner: &str) -> Value {
    call(rest, "release", json!({"name": "s", "process_id": owner, "request_id": "r"})).await
}

pub(crate) async fn shown(rest: &RestClient) -> Value {
    call(rest, "get", json!({"name": "s"})).await["semaphore"].clone()
}

pub(crate) async fn wait_for_waiters(rest: &RestClient, count: u64) {
    wait_until("they wait", async || shown(rest).await["waiting"] == count).await;
}

#[tokio::test]
async fn no_more_permits_are_in_use_than_there_are() {
    let rest = tenant_with_namespace().await;
    let semaphore = configure(&rest, 3).await;
    assert_eq!((&semaphore["configured"], &semaphore["available"]), (&json!(true), &json!(3)));
    let first = granted(&rest, "p", json!({"weight": 2})).await;
    assert!(granted(&rest, "q", json!({})).await > first);
    let full = refused(&rest, "r", json!({})).await;
    assert_eq!((&full["reason"]["code"], &full["semaphore"]["in_use"]), (&json!("EXHAUSTED"), &json!(3)));
    let holders: Vec<&Value> = full["reason"]["holders"].as_array().unwrap().iter().collect();
    assert_eq!((&holders[0]["process_id"], &holders[0]["weight"]), (&json!("p"), &json!(2)), "the largest first");
    let large = refused(&rest, "r", json!({"weight": 4, "wait_ms": WAIT_MS})).await;
    assert_eq!(large["reason"]["code"], "TOO_LARGE");
    let released = release(&rest, "p").await;
    assert_eq!((&released["released"], &released["semaphore"]["available"]), (&json!(true), &json!(2)));
    assert_eq!(release(&rest, "p").await["released"], false);
    granted(&rest, "r", json!({"weight": 2})).await;
}

#[tokio::test]
async fn a_repeat_is_not_a_second_hold_and_another_id_is() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 2).await;
    let token = granted(&rest, "p", json!({})).await;
    assert_eq!(granted(&rest, "p", json!({})).await, token);
    assert_eq!(shown(&rest).await["in_use"], 1);
    let other = granted(&rest, "p", json!({"request_id": "other"})).await;
    assert!(other > token);
    let check = async |token: u64| call(&rest, "check", json!({"name": "s", "fencing_token": token})).await;
    assert_eq!((&check(token).await["current"], &check(other + 1_000).await["current"]), (&json!(true), &json!(false)));
    let by_token = json!({"name": "s", "process_id": "p", "fencing_token": other});
    assert_eq!(call(&rest, "release", by_token).await["released"], true);
    assert_eq!(granted(&rest, "p", json!({"fencing_token": token})).await, token, "extended");
    release(&rest, "p").await;
    let gone = refused(&rest, "p", json!({"fencing_token": token})).await;
    assert_eq!(gone["reason"]["code"], "NOT_HELD");
}

#[tokio::test]
async fn a_hold_shrinks_at_once_and_grows_only_if_there_is_room() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 3).await;
    let token = granted(&rest, "p", json!({"weight": 2})).await;
    assert_eq!(granted(&rest, "p", json!({"weight": 1})).await, token);
    granted(&rest, "q", json!({})).await;
    assert!(granted(&rest, "p", json!({"weight": 2})).await > token, "what grew has another token");
    assert_eq!(refused(&rest, "p", json!({"weight": 3})).await["reason"]["code"], "EXHAUSTED");
    let page = call(&rest, "get", json!({"name": "s"})).await;
    let weights: Vec<&Value> = page["holders"].as_array().unwrap().iter().map(|holder| &holder["weight"]).collect();
    assert_eq!(weights, [&json!(1), &json!(2)], "in order of token");
}

#[tokio::test]
async fn whoever_came_first_is_served_first_within_a_priority() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 2).await;
    granted(&rest, "p", json!({"weight": 2})).await;
    let wait = async |owner: &'static str, place: u64, more: Value| {
        wait_for_waiters(&rest, place).await;
        let mut more = more;
        more["wait_ms"] = json!(WAIT_MS);
        let token = granted(&rest, owner, more).await;
        release(&rest, owner).await;
        (token, owner)
    };
    let go = async {
        wait_for_waiters(&rest, 3).await;
        let behind = refused(&rest, "late", json!({})).await;
        assert_eq!(behind["reason"]["code"], "EXHAUSTED");
        release(&rest, "p").await;
    };
    let (large, small, urgent, ()) = tokio::join!(
        wait("large", 0, json!({"weight": 2})),
        wait("small", 1, json!({"weight": 1})),
        wait("urgent", 2, json!({"weight": 2, "priority": 9})),
        go
    );
    let mut order = [large, small, urgent];
    order.sort_unstable();
    assert_eq!(order.map(|(_, owner)| owner), ["urgent", "large", "small"]);
}

#[tokio::test]
async fn a_small_request_does_not_pass_a_large_one_that_waits() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 2).await;
    granted(&rest, "p", json!({})).await;
    let poll = json!({"weight": 2, "wait_ms": WAIT_MS, "poll_ms": 50});
    let queued = refused(&rest, "large", poll.clone()).await;
    assert_eq!((&queued["reason"]["code"], &queued["reason"]["queue_position"]), (&json!("QUEUED"), &json!(0)));
    assert_eq!(refused(&rest, "small", json!({})).await["reason"]["code"], "QUEUED");
    let waits = rest.call("GET /v1/namespaces/ns/waits?kinds=locks,semaphores").await.ok()["waits"].clone();
    assert_eq!(
        (&waits[0]["kind"], &waits[0]["path"], &waits[0]["weight"]),
        (&json!("semaphore"), &json!(["s"]), &json!(2))
    );
    assert_eq!((&waits[0]["process_id"], &waits[0]["request_id"]), (&json!("large"), &json!("r")));
    assert_eq!(rest.call("GET /v1/namespaces/ns/waits").await.ok()["waits"], json!([]), "locks only");
    release(&rest, "p").await;
    granted(&rest, "large", poll).await;
}

#[tokio::test]
async fn fewer_permits_drain_and_what_can_never_be_granted_is_refused() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 3).await;
    granted(&rest, "p", json!({"weight": 3})).await;
    let lower = async {
        wait_for_waiters(&rest, 2).await;
        let semaphore = configure(&rest, 1).await;
        assert_eq!((&semaphore["in_use"], &semaphore["available"]), (&json!(3), &json!(0)));
        wait_for_waiters(&rest, 1).await;
        release(&rest, "p").await;
    };
    let (large, small, ()) = tokio::join!(
        refused(&rest, "large", json!({"weight": 2, "wait_ms": WAIT_MS})),
        granted(&rest, "small", json!({"wait_ms": WAIT_MS})),
        lower
    );
    assert_eq!(large["reason"]["code"], "TOO_LARGE");
    assert!(small > 0);
    assert_eq!(configure(&rest, 0).await["permits"], 0);
    assert_eq!(refused(&rest, "q", json!({"weight": 9})).await["reason"]["code"], "EXHAUSTED", "it is paused");
}

#[tokio::test]
async fn permits_come_back_when_their_time_is_over() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 1).await;
    let asked = Instant::now();
    granted(&rest, "p", json!({"ttl_ms": 300})).await;
    granted(&rest, "q", json!({"wait_ms": WAIT_MS})).await;
    assert!(asked.elapsed() >= Duration::from_millis(300), "nobody is let in early");
    let ended = refused(&rest, "r", json!({"wait_ms": 100})).await;
    assert_eq!(ended["reason"]["code"], "TIMED_OUT");
    assert_eq!(shown(&rest).await["waiting"], 0);
}

#[tokio::test]
async fn a_semaphore_without_configuration_is_gone_with_its_last_hold() {
    let rest = tenant_with_namespace().await;
    let unknown = rest.json(&line("acquire"), request("p", &json!({}))).await.expect_error("PRIMITIVE_NOT_FOUND");
    assert_eq!((&unknown["kind"], &unknown["path"]), (&json!("semaphore"), &json!(["s"])));
    granted(&rest, "p", json!({"permits": 2})).await;
    assert_eq!(shown(&rest).await["configured"], false);
    rest.json(&line("acquire"), request("q", &json!({"permits": 3}))).await.expect_field_error("permits");
    granted(&rest, "q", json!({})).await;
    release(&rest, "p").await;
    release(&rest, "q").await;
    rest.json(&line("get"), json!({"name": "s"})).await.expect_error("PRIMITIVE_NOT_FOUND");
    granted(&rest, "p", json!({"permits": 2})).await;
    assert_eq!(configure(&rest, 5).await["in_use"], 1, "it is taken over with its holds");
    granted(&rest, "q", json!({"permits": 7})).await;
    assert_eq!(shown(&rest).await["permits"], 5, "what is configured counts");
}

#[tokio::test]
async fn a_deletion_ends_holds_and_waits_and_is_told_to_the_audit_log() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 1).await;
    let token = granted(&rest, "p", json!({})).await;
    let delete = async {
        wait_for_waiters(&rest, 1).await;
        assert_eq!(rest.json(&line("delete"), json!({"name": "s"})).await.status, 204);
    };
    let (ended, ()) = tokio::join!(refused(&rest, "q", json!({"wait_ms": WAIT_MS})), delete);
    assert_eq!(ended["reason"]["code"], "ENDED");
    let check = json!({"name": "s", "fencing_token": token});
    assert_eq!(call(&rest, "check", check).await["current"], false);
    let audit = rest.call("GET /v1/audit").await.ok();
    let told = audit["entries"].as_array().unwrap().iter().map(|entry| entry["action"].as_str().unwrap());
    let told: Vec<&str> = told.filter(|action| action.starts_with("SEMAPHORE")).collect();
    assert_eq!(told, ["SEMAPHORE_DELETED", "SEMAPHORE_CONFIGURED"]);
    let usage = rest.call("GET /v1/usage").await.ok();
    let namespace = &usage["namespaces"][0];
    assert_eq!((&namespace["semaphores"], &namespace["permit_holds"]), (&json!(0), &json!(0)));
}

#[tokio::test]
async fn a_caller_that_goes_away_leaves_the_queue() {
    let rest = tenant_with_namespace().await;
    configure(&rest, 1).await;
    granted(&rest, "p", json!({})).await;
    tokio::select! {
        answer = acquire(&rest, "q", json!({"wait_ms": WAIT_MS})) => panic!("answered: {answer}"),
        () = wait_for_waiters(&rest, 1) => {}
    }
    wait_for_waiters(&rest, 0).await;
    release(&rest, "p").await;
    granted(&rest, "r", json!({})).await;
}

#[tokio::test]
async fn a_body_has_no_figures_out_of_bounds() {
    let rest = tenant_with_namespace().await;
    for (more, field) in [
        (json!({"weight": 0}), "weight"),
        (json!({"weight": 1_000_000_001}), "weight"),
        (json!({"permits": 0}), "permits"),
        (json!({"priority": 10}), "priority"),
        (json!({"request_id": ""}), "request_id"),
        (json!({"ttl_ms": 1}), "ttl_ms"),
        (json!({"ttl_ms": null}), "ttl_ms"),
        (json!({"fencing_token": 7, "wait_ms": 5}), "fencing_token"),
        (json!({"path": ["s"]}), "path"),
        (json!({"mode": "READ"}), "mode"),
    ] {
        rest.json(&line("acquire"), request("p", &more)).await.expect_field_error(field);
    }
    let unnamed = json!({"name": "s", "process_id": "p"});
    rest.json(&line("release"), unnamed.clone()).await.expect_field_error("request_id");
    rest.json(&line("acquire"), unnamed).await.expect_field_error("request_id");
    let many = json!({"name": "s", "permits": 1_000_000_001});
    rest.json(&line("configure"), many).await.expect_field_error("permits");
}

#[tokio::test]
async fn semaphores_and_holders_are_listed_page_by_page() {
    let rest = tenant_with_namespace().await;
    for path in [json!(["b"]), json!(["a", "y"]), json!(["a", "x"])] {
        call(&rest, "configure", json!({"path": path, "permits": 9, "description": "d"})).await;
    }
    let list = async |query: &str| rest.call(&format!("GET /v1/namespaces/ns/semaphores{query}")).await.ok();
    let paths = |page: &Value| -> Vec<Value> {
        page["semaphores"].as_array().unwrap().iter().map(|semaphore| semaphore["path"].clone()).collect()
    };
    assert_eq!(paths(&list("?prefix=a").await), [json!(["a", "x"]), json!(["a", "y"])]);
    let page = list("?page_size=2").await;
    let token = page["next_page_token"].as_str().unwrap();
    assert_eq!(paths(&list(&format!("?page_size=2&page_token={token}")).await), [json!(["b"])]);
    configure(&rest, 9).await;
    join_all(["p", "q", "r"].map(|owner| granted(&rest, owner, json!({})))).await;
    let first = call(&rest, "get", json!({"name": "s", "page_size": 2})).await;
    assert_eq!(first["holders"].as_array().unwrap().len(), 2);
    let next = json!({"name": "s", "page_size": 2, "page_token": first["next_page_token"]});
    let last = call(&rest, "get", next).await;
    assert_eq!((last["holders"].as_array().unwrap().len(), &last["next_page_token"]), (1, &json!(null)));
}

#[tokio::test]
async fn grpc_answers_as_rest_does() {
    let rest = tenant_with_namespace().await;
    let mut semaphores = SemaphoresServiceClient::new(channel(&rest).await);
    let (namespace, name) = ("ns".to_owned(), Some("s".to_owned()));
    let acquire = |owner: &str, permits| v1::AcquirePermitsRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        process_id: Some(owner.to_owned()),
        request_id: "r".to_owned(),
        permits,
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    let status = semaphores.acquire_permits(with_key(acquire("p", None), &rest.key)).await.unwrap_err();
    assert_eq!((status.code(), Failure::from_status(status).code.as_str()), (Code::NotFound, "PRIMITIVE_NOT_FOUND"));
    let first = semaphores.acquire_permits(with_key(acquire("p", Some(1)), &rest.key)).await.unwrap().into_inner();
    assert!(first.success && first.semaphore.unwrap().in_use == 1);
    let full = semaphores.acquire_permits(with_key(acquire("q", None), &rest.key)).await.unwrap().into_inner();
    let reason = full.reason.unwrap();
    assert_eq!((reason.code().as_str_name(), reason.holders[0].process_id.as_str()), ("EXHAUSTED", "p"));
    let token = first.fencing_token.unwrap();
    let check = v1::CheckPermitsRequest {
        namespace: namespace.clone(),
        name: name.clone(),
        fencing_token: token,
        ..Default::default()
    };
    assert!(semaphores.check_permits(with_key(check, &rest.key)).await.unwrap().into_inner().current);
    let get = v1::GetSemaphoreRequest { namespace: namespace.clone(), name: name.clone(), ..Default::default() };
    let shown = semaphores.get_semaphore(with_key(get, &rest.key)).await.unwrap().into_inner();
    assert_eq!((shown.holders.len(), shown.holders[0].fencing_token), (1, token));
    let delete = v1::DeleteSemaphoreRequest { namespace: namespace.clone(), name, ..Default::default() };
    semaphores.delete_semaphore(with_key(delete, &rest.key)).await.unwrap();
    let list = v1::ListSemaphoresRequest { namespace, ..Default::default() };
    assert!(semaphores.list_semaphores(with_key(list, &rest.key)).await.unwrap().into_inner().semaphores.is_empty());
}
