//! Sessions by single calls: created, kept alive, read, listed, closed.

use serde_json::{Value, json};

use crate::support::{RestClient, create_tenant, server, wait_until};
use holdfast_testkit::eventually;

const SESSIONS: &str = "/v1/namespaces/ns/sessions";

async fn tenant_with_namespace() -> RestClient {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    tenant.rest
}

async fn create_session(rest: &RestClient, process_id: &str, ttl_ms: u64) -> Value {
    let body = json!({"process_id": process_id, "ttl_ms": ttl_ms});
    let made = rest.json(&format!("POST {SESSIONS}"), body).await;
    assert_eq!(made.status, 201, "{}", made.text);
    made.body
}

fn id(session: &Value) -> String {
    session["session_id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_is_made_kept_alive_shown_and_ended() {
    let rest = tenant_with_namespace().await;
    let body = json!({"process_id": "worker", "ttl_ms": 60_000, "metadata": {"host": "a"}});
    let made = rest.json(&format!("POST {SESSIONS}"), body).await;
    assert_eq!(made.status, 201);
    let session_id = id(&made.body);
    let mut fields: Vec<&String> = made.body.as_object().unwrap().keys().collect();
    fields.sort();
    assert_eq!(fields, ["process_id", "remaining_ms", "session_id", "ttl_ms"]);
    let rest_of_id = session_id.strip_prefix("se_").unwrap();
    assert!(rest_of_id.len() >= 26 && rest_of_id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit()));
    let kept = rest.call(&format!("POST {SESSIONS}/{session_id}/keepalive")).await.ok();
    let remaining = kept["remaining_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&remaining) && kept.as_object().unwrap().len() == 1, "{kept}");
    let shown = rest.call(&format!("GET {SESSIONS}/{session_id}")).await.ok();
    assert_eq!((&shown["process_id"], &shown["metadata"]), (&json!("worker"), &json!({"host": "a"})));
    assert_eq!((&shown["holds"], &shown["waiting"]), (&json!(0), &json!(0)));
    assert!(shown["opened_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(rest.call(&format!("DELETE {SESSIONS}/{session_id}")).await.status, 204);
    for line in ["GET", "DELETE"] {
        rest.call(&format!("{line} {SESSIONS}/{session_id}")).await.expect_error("SESSION_NOT_FOUND");
    }
    let gone = rest.call(&format!("POST {SESSIONS}/{session_id}/keepalive")).await.expect_error("SESSION_NOT_FOUND");
    assert_eq!(gone["session_id"], session_id);
}

#[tokio::test]
async fn what_a_session_holds_by_single_calls_ends_with_it() {
    let rest = tenant_with_namespace().await;
    let session_id = id(&create_session(&rest, "worker", 60_000).await);
    let take = json!({"session_id": session_id, "holder": "thread-1"});
    let taken = rest.json("POST /v1/namespaces/ns/locks/l/acquire", take).await.ok();
    assert_eq!(taken["success"], true, "{taken}");
    let holder = &taken["lock"]["write_lock_holder"];
    assert_eq!((&holder["session_id"], &holder["process_id"]), (&json!(session_id), &json!("worker")));
    assert_eq!((&holder["holder"], &holder["remaining_ms"]), (&json!("thread-1"), &Value::Null));
    assert_eq!(rest.call(&format!("GET {SESSIONS}/{session_id}")).await.ok()["holds"], 1);
    rest.call(&format!("DELETE {SESSIONS}/{session_id}")).await.ok();
    let lock = rest.call("GET /v1/namespaces/ns/locks/l").await.ok();
    assert_eq!(lock["lock"]["state"], "UNLOCKED");
}

#[tokio::test]
async fn a_silent_session_expires_and_frees_what_it_holds() {
    let rest = tenant_with_namespace().await;
    // Long enough for the acquire, also while a disk stalls.
    let session_id = id(&create_session(&rest, "worker", 5_000).await);
    rest.json("POST /v1/namespaces/ns/locks/l/acquire", json!({"session_id": session_id})).await.ok();
    wait_until("the session is gone", || async {
        rest.call(&format!("GET {SESSIONS}/{session_id}")).await.status == 404
    })
    .await;
    assert_eq!(rest.call("GET /v1/namespaces/ns/locks/l").await.ok()["lock"]["state"], "UNLOCKED");
    rest.call(&format!("POST {SESSIONS}/{session_id}/keepalive")).await.expect_error("SESSION_NOT_FOUND");
}

#[tokio::test]
async fn sessions_are_listed_in_pages_in_order_of_id() {
    let rest = tenant_with_namespace().await;
    let mut made = Vec::new();
    for number in 0..3 {
        made.push(id(&create_session(&rest, &format!("p{number}"), 60_000).await));
    }
    made.sort();
    let first = rest.call(&format!("GET {SESSIONS}?page_size=2")).await.ok();
    let token = first["next_page_token"].as_str().unwrap();
    let second = rest.call(&format!("GET {SESSIONS}?page_size=2&page_token={token}")).await.ok();
    assert_eq!(second["next_page_token"], Value::Null);
    let pages = [&first, &second].into_iter().flat_map(|page| page["sessions"].as_array().unwrap());
    assert_eq!(pages.map(id).collect::<Vec<_>>(), made);
    rest.call("GET /v1/namespaces/ns/locks?page_token=x").await.expect_field_error("page_token");
}

#[tokio::test]
async fn a_list_shows_the_time_that_remains_as_each_session_does() {
    let rest = tenant_with_namespace().await;
    let session_id = id(&create_session(&rest, "p", 60_000).await);
    let remaining_ms = |shown: &Value| shown["remaining_ms"].as_u64().unwrap();
    let mut before_ms = 60_000;
    eventually("time has passed", async || {
        let shown = rest.call(&format!("GET {SESSIONS}/{session_id}")).await.ok();
        before_ms = remaining_ms(&shown);
        if before_ms < 60_000 { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
    let listed = rest.call(&format!("GET {SESSIONS}")).await.ok();
    assert!((1..=before_ms).contains(&remaining_ms(&listed["sessions"][0])), "{before_ms}: {listed}");
}

#[tokio::test]
async fn a_creation_with_an_idempotency_key_answers_as_the_first_did() {
    let rest = tenant_with_namespace().await;
    let body = json!({"process_id": "p", "ttl_ms": 60_000}).to_string();
    let headers = [("content-type", "application/json"), ("idempotency-key", "k")];
    let line = format!("POST {SESSIONS}");
    let first = rest.send(&line, &headers, body.clone().into()).await.ok();
    let second = rest.send(&line, &headers, body.into()).await.ok();
    assert_eq!(id(&first), id(&second));
    assert_ne!(id(&first), id(&create_session(&rest, "p", 60_000).await));
}

#[tokio::test]
async fn bad_sessions_are_refused_by_the_name_of_the_field() {
    let rest = tenant_with_namespace().await;
    let line = format!("POST {SESSIONS}");
    for (body, field) in [
        (json!({"ttl_ms": 5_000}), "process_id"),
        (json!({"process_id": "se_x", "ttl_ms": 5_000}), "process_id"),
        (json!({"process_id": "p"}), "ttl_ms"),
        (json!({"process_id": "p", "ttl_ms": 999}), "ttl_ms"),
        (json!({"process_id": "p", "ttl_ms": 600_001}), "ttl_ms"),
        (json!({"process_id": "p", "ttl_ms": 5_000, "metadata": {"k": "x".repeat(1_024)}}), "metadata"),
        (json!({"process_id": "p", "ttl_ms": 5_000, "holder": "h"}), "holder"),
    ] {
        rest.json(&line, body).await.expect_field_error(field);
    }
    rest.call(&format!("GET {SESSIONS}/worker")).await.expect_field_error("session_id");
    rest.json("POST /v1/namespaces/other/sessions", json!({"process_id": "p", "ttl_ms": 5_000}))
        .await
        .expect_error("NAMESPACE_NOT_FOUND");
}

#[tokio::test]
async fn looking_needs_read_and_everything_else_write() {
    let rest = tenant_with_namespace().await;
    let session_id = id(&create_session(&rest, "p", 60_000).await);
    let key = |scope: &str| rest.json("POST /v1/api-keys", json!({"scopes": [scope]}));
    let reader = rest.with_key(key("locks:read").await.ok()["api_key"].as_str().unwrap());
    let writer = rest.with_key(key("locks:write").await.ok()["api_key"].as_str().unwrap());
    reader.call(&format!("GET {SESSIONS}")).await.ok();
    reader.call(&format!("GET {SESSIONS}/{session_id}")).await.ok();
    reader.call(&format!("POST {SESSIONS}/{session_id}/keepalive")).await.expect_error("PERMISSION_DENIED");
    reader.call(&format!("DELETE {SESSIONS}/{session_id}")).await.expect_error("PERMISSION_DENIED");
    let body = json!({"process_id": "p", "ttl_ms": 60_000});
    reader.json(&format!("POST {SESSIONS}"), body).await.expect_error("PERMISSION_DENIED");
    writer.call(&format!("GET {SESSIONS}")).await.expect_error("PERMISSION_DENIED");
    writer.call(&format!("POST {SESSIONS}/{session_id}/keepalive")).await.ok();
    writer.call(&format!("DELETE {SESSIONS}/{session_id}")).await.ok();
}
