//! What an account uses.

use std::process::Command;

use holdfast_testkit::executable;
use serde_json::{Value, json};

use crate::support::{Tenant, create_tenant, operator_client, server};

async fn acquire_lock(tenant: &Tenant, namespace: &str, lock: &str, body: Value) -> Value {
    tenant.rest.json(&format!("POST /v1/namespaces/{namespace}/locks/{lock}/acquire"), body).await.ok()
}

#[tokio::test]
async fn operations_holds_waits_and_peaks_are_told_for_each_namespace_and_the_account() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("a").await;
    tenant.create_namespace("b").await;
    for lock in ["x", "y"] {
        acquire_lock(&tenant, "a", lock, json!({"process_id": "p", "ttl_ms": 60_000})).await;
    }
    let waits = json!({"process_id": "q", "ttl_ms": 60_000, "wait_ms": 30_000, "poll_ms": 1});
    assert_eq!(acquire_lock(&tenant, "a", "x", waits).await["reason"]["code"], "QUEUED");
    tenant.rest.json("POST /v1/namespaces/a/locks/y/release", json!({"process_id": "p"})).await.ok();
    acquire_lock(&tenant, "b", "z", json!({"process_id": "p", "mode": "READ", "ttl_ms": 60_000})).await;
    let usage = tenant.rest.call("GET /v1/usage").await.ok();
    assert_eq!(usage["account_id"], tenant.account);
    assert_eq!(usage["limits"]["max_holds_per_namespace"], 1_000_000);
    let a = json!({
        "name": "a", "id": usage["namespaces"][0]["id"], "holds": 1, "waiting": 1, "sessions": 0, "latches": 0,
        "semaphores": 0, "permit_holds": 0, "permit_waits": 0, "pools": 0, "barriers": 0, "arrivals": 0, "awaiting": 0,
        "operations": 4, "grants": 2, "waits": 1, "sessions_opened": 0,
        "peak_holds": 2, "peak_waiting": 1, "peak_sessions": 0,
        "state_bytes": usage["namespaces"][0]["state_bytes"],
    });
    assert_eq!(usage["namespaces"][0], a);
    assert_eq!(usage["namespaces"][1]["name"], "b");
    let total = &usage["total"];
    assert_eq!((&total["holds"], &total["operations"], &total["grants"]), (&json!(2), &json!(5), &json!(3)));
    assert_eq!(total["peak_holds"], 2, "the highest of one namespace");
    assert_eq!(usage["deleted_namespaces"]["operations"], 0);
    let bytes = |index: usize, kind: &str| usage["namespaces"][index]["state_bytes"][kind].as_u64().unwrap();
    assert_eq!((bytes(0, "holds"), bytes(1, "holds"), bytes(1, "waiting")), (152, 152, 0));
    assert!(bytes(0, "waiting") > 640 && bytes(0, "events") > 0);
    assert_eq!(usage["state_bytes"]["total"].as_u64().unwrap(), bytes(0, "total") + bytes(1, "total"));
    assert_eq!(usage["limits"]["max_state_bytes"], 512 << 20);
    let rows = usage["limit_usage"].as_array().unwrap();
    let used = |limit: &str| rows.iter().find(|row| row["limit"] == limit).unwrap()["used"].as_u64().unwrap();
    let limits = ["max_holds_per_namespace", "max_waiting_per_namespace", "max_number_of_namespaces"];
    assert_eq!(limits.map(used), [1, 1, 2], "of the namespace that has most");
    assert_eq!(used("max_state_bytes"), usage["state_bytes_of_fullest_shard"].as_u64().unwrap());
    let of_locks = rows.iter().find(|row| row["limit"] == "max_readers_per_lock").unwrap();
    let shown = json!({"limit": "max_readers_per_lock", "each": "lock", "max": 1_000, "of_this_gateway": false});
    assert_eq!(*of_locks, shown, "each lock has it, and no use is shown");
}

#[tokio::test]
async fn what_was_done_in_a_namespace_is_told_after_its_end() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("gone").await;
    acquire_lock(&tenant, "gone", "x", json!({"process_id": "p", "ttl_ms": 60_000})).await;
    tenant.rest.call("DELETE /v1/namespaces/gone").await.ok();
    let usage = tenant.rest.call("GET /v1/usage").await.ok();
    assert_eq!(usage["namespaces"], json!([]));
    assert_eq!((&usage["deleted_namespaces"]["grants"], &usage["total"]["grants"]), (&json!(1), &json!(1)));
    assert_eq!(usage["total"]["holds"], 0);
}

#[tokio::test]
async fn a_key_sees_its_own_namespaces_and_the_operator_any_account() {
    let (own, other) = (create_tenant(server()).await, create_tenant(server()).await);
    own.create_namespace("a").await;
    own.create_namespace("b").await;
    let key = own.rest.json("POST /v1/api-keys", json!({"namespaces": ["b"]})).await.ok();
    let narrow = own.rest.with_key(key["api_key"].as_str().unwrap()).call("GET /v1/usage").await.ok();
    assert_eq!(narrow["namespaces"].as_array().unwrap().len(), 1);
    assert_eq!((&narrow["namespaces"][0]["name"], &narrow["deleted_namespaces"]), (&json!("b"), &json!(null)));
    let line = format!("GET /v1/usage?account={}", own.account);
    other.rest.call(&line).await.expect_error("PERMISSION_DENIED");
    let seen = operator_client(server()).call(&line).await.ok();
    assert_eq!(seen["namespaces"].as_array().unwrap().len(), 2);
    assert!(
        operator_client(server()).call("GET /v1/usage").await.expect_field_error("account").contains("name an account")
    );
    let unknown = "GET /v1/usage?account=0000000000000001";
    operator_client(server()).call(unknown).await.expect_error("ACCOUNT_NOT_FOUND");
}

#[tokio::test]
async fn the_usage_of_all_accounts_can_be_exported() {
    let own = create_tenant(server()).await;
    own.create_namespace("ns").await;
    acquire_lock(&own, "ns", "l", json!({"process_id": "p", "ttl_ms": 60_000})).await;
    let export = |flags: &[&str]| {
        let mut command = Command::new(executable("holdfast-admin"));
        command.env_clear().args(["usage", "--output", "json", "--url", &format!("http://{}", server().address())]);
        let output = command.args(flags).env("HOLDFAST_OPERATOR_TOKEN", server().secret("operator.token")).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let lines = String::from_utf8(output.stdout).unwrap();
        lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
    };
    for lines in [export(&[]), export(&["--account-id", &own.account])] {
        let line = lines.iter().find(|line| line["account_id"] == own.account).unwrap();
        assert_eq!((&line["email"], &line["total"]["grants"]), (&json!(own.email), &json!(1)), "{line}");
    }
}
