//! The list of requests that wait.

use serde_json::{Value, json};

use crate::support::{Tenant, create_tenant, server};

const WAITS: &str = "/v1/namespaces/n/waits";

/// Acquires `resources`; with a poll, so that a request that has to wait keeps its place and is answered at once.
async fn acquire_set(tenant: &Tenant, owner: &str, resources: Value, more: Value) -> Value {
    let mut body = json!({"process_id": owner, "ttl_ms": 60_000, "resources": resources});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    tenant.rest.json("POST /v1/namespaces/n/lock-sets/acquire", body).await.ok()
}

fn wait_options() -> Value {
    json!({"wait_ms": 30_000, "poll_ms": 1})
}

#[tokio::test]
async fn who_waits_is_listed_with_whom_it_waits_for() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("n").await;
    assert_eq!(tenant.rest.call(&format!("GET {WAITS}")).await.ok(), json!({"waits": [], "next_page_token": null}));
    acquire_set(&tenant, "h", json!([{"path": ["a", "x"]}]), json!({})).await;
    acquire_set(&tenant, "p", json!([{"path": ["b"], "mode": "READ"}, {"path": ["a"]}]), wait_options()).await;
    acquire_set(&tenant, "q", json!([{"path": ["a"]}]), wait_options()).await;
    let listed = tenant.rest.call(&format!("GET {WAITS}")).await.ok();
    let [first, second] = listed["waits"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!(
        (&first["process_id"], &first["session_id"], &first["upgrade"]),
        (&json!("p"), &Value::Null, &json!(false))
    );
    assert_eq!(first["resources"], json!([{"path": ["b"], "mode": "READ"}, {"path": ["a"], "mode": "WRITE"}]));
    let left = first["remaining_ms"].as_u64().unwrap();
    assert!((1..=30_000).contains(&left) && first["expires_at"].is_string() && first["waiting_since"].is_string());
    assert_eq!((&first["reason"]["code"], &first["reason"]["queue_position"]), (&json!("DESCENDANT"), &json!(0)));
    let blocker = &first["reason"]["blockers"][0];
    assert_eq!((&blocker["process_id"], &blocker["path"]), (&json!("h"), &json!(["a", "x"])));
    assert_eq!((&second["process_id"], &second["reason"]["queue_position"]), (&json!("q"), &json!(1)));

    tenant.rest.json("POST /v1/namespaces/n/lock-sets/release", json!({"process_id": "h", "all": true})).await.ok();
    let listed = tenant.rest.call(&format!("GET {WAITS}")).await.ok();
    let [only] = listed["waits"].as_array().unwrap().as_slice() else { panic!("{listed}") };
    assert_eq!((&only["process_id"], &only["reason"]["code"]), (&json!("q"), &json!("HELD")));
}

#[tokio::test]
async fn waits_come_in_pages() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("n").await;
    acquire_set(&tenant, "h", json!([{"path": ["l"]}]), json!({})).await;
    for owner in ["p", "q", "r"] {
        acquire_set(&tenant, owner, json!([{"path": ["l"]}]), wait_options()).await;
    }
    let mut seen = Vec::new();
    let mut address = format!("GET {WAITS}?page_size=2");
    loop {
        let page = tenant.rest.call(&address).await.ok();
        let owners =
            page["waits"].as_array().unwrap().iter().map(|wait| wait["process_id"].as_str().unwrap().to_owned());
        seen.push(owners.collect::<Vec<_>>());
        let Some(token) = page["next_page_token"].as_str() else { break };
        address = format!("GET {WAITS}?page_size=2&page_token={token}");
    }
    assert_eq!(seen, [vec!["p", "q"], vec!["r"]]);
    let other = tenant.rest.call("GET /v1/namespaces/other/waits").await;
    assert_eq!(other.body["code"], "NAMESPACE_NOT_FOUND");
}
