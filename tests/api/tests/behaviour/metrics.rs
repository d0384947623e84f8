//! `/metrics` under load.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::Command;

use holdfast_proto::v1;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_testkit::{Metrics, scratch};
use serde_json::json;

use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{RestClient, create_tenant, server, wait_until};

/// Labels, and how many values each may have at most: routes, codes and tasks are listed, shards, groups
/// and nodes configured.
const LABEL_VALUE_LIMITS: [(&str, usize); 17] = [
    ("route", 160),
    ("method", 8),
    ("code", 40),
    ("shard", 40),
    ("group", 1),
    ("node", 10),
    ("router", 2),
    ("outcome", 24),
    ("cache", 10),
    ("event", 10),
    ("program", 1),
    ("version", 1),
    ("le", 60),
    ("quantile", 10),
    ("kind", 10),
    ("task", 50),
    ("limit", 100),
];

/// The document with the table of metrics.
const OPERATIONS: &str = include_str!("../../../../docs/operations.md");

/// What has to be there, whatever else is.
const EXPECTED_METRICS: [&str; 24] = [
    "holdfast_http_requests_total",
    "holdfast_request_seconds",
    "holdfast_refusals_total",
    "holdfast_acquires_total",
    "holdfast_lock_waits_total",
    "holdfast_lock_wait_seconds",
    "holdfast_holds",
    "holdfast_waiting_requests",
    "holdfast_sessions",
    "holdfast_state_bytes",
    "holdfast_table_bytes",
    "holdfast_queued_commands",
    "holdfast_shard_apply_queue_commands",
    "holdfast_commit_seconds",
    "holdfast_apply_seconds",
    "holdfast_apply_slice_cpu_seconds",
    "holdfast_apply_slice_seconds",
    "holdfast_storage_sync_seconds",
    "holdfast_leader_elections_total",
    "holdfast_snapshot_age_seconds",
    "holdfast_snapshot_lag_bytes",
    "holdfast_snapshot_lag_entries",
    "holdfast_snapshot_parts_total",
    "holdfast_shard_leader",
];

/// What is said of the log: of a group, and not of each of its shards.
const GROUP_METRICS: [&str; 4] = [
    "holdfast_apply_lag_entries",
    "holdfast_snapshot_lag_entries",
    "holdfast_snapshot_lag_bytes",
    "holdfast_snapshot_age_seconds",
];

async fn scrape() -> Metrics {
    Metrics::read(server().address()).await.unwrap()
}

/// Calls of every kind, many of them with new names.
async fn generate_load() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let session = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/ns/sessions", session).await.ok();
    for number in 0..60 {
        let lock = format!("/v1/namespaces/ns/locks/made-up-{number}");
        let acquire = json!({"process_id": format!("p{number}"), "ttl_ms": 60_000});
        tenant.rest.json(&format!("POST {lock}/acquire"), acquire.clone()).await.ok();
        let waits = json!({"process_id": "q", "ttl_ms": 60_000, "wait_ms": 5, "mode": "READ"});
        tenant.rest.json(&format!("POST {lock}/acquire"), waits).await.ok();
        tenant.rest.json(&format!("POST {lock}/acquire"), json!({"process_id": "r", "ttl_ms": 60_000})).await.ok();
        tenant.rest.call(&format!("GET /v1/nowhere/{number}")).await.expect_error("NOT_FOUND");
        tenant.rest.call(&format!("MADEUP{number} /v1/namespaces")).await.expect_error("METHOD_NOT_ALLOWED");
        tenant.rest.call(&format!("GET /v1/namespaces/unknown-{number}")).await.expect_error("NAMESPACE_NOT_FOUND");
    }
}

#[tokio::test]
async fn metrics_have_good_names_and_a_row_in_the_documents_and_no_label_without_a_bound() {
    generate_load().await;
    wait_until("the holds are counted", async || scrape().await.sum("holdfast_holds") >= 60.0).await;
    let metrics = scrape().await;
    for name in EXPECTED_METRICS {
        assert!(metrics.kinds.contains_key(name), "{name} is missing");
    }
    for (name, kind) in &metrics.kinds {
        assert!(metrics.described.contains(name), "{name} is not described");
        let has_row = OPERATIONS.contains(&format!("`{name}`")) || name.starts_with("process_");
        assert!(has_row, "{name} has no row in docs/operations.md");
        let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(letters), "{name}");
        assert!(name.starts_with("holdfast_") || name.starts_with("process_"), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        if kind == "histogram" {
            let units = ["_seconds", "_bytes", "_commands", "_shards", "_operations"];
            assert!(units.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
        }
    }
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for sample in &metrics.samples {
        for (label, value) in &sample.labels {
            values.entry(label).or_default().insert(value);
        }
    }
    for (label, values) in values {
        let bound = LABEL_VALUE_LIMITS.iter().find(|(known, _)| *known == label).map(|(_, bound)| *bound);
        let bound = bound.unwrap_or_else(|| panic!("the label {label} has no bound here: {values:?}"));
        assert!(values.len() <= bound, "{label} has {} values: {values:?}", values.len());
        assert!(!values.iter().any(|value| value.contains("made-up") || value.contains("MADEUP")), "{values:?}");
    }
    for name in GROUP_METRICS {
        assert!(metrics.named(name).all(|sample| sample.labels.keys().eq(["group"])), "{name} is of a group");
    }
    for (name, least) in [("holdfast_lock_waits_total", 60.0), ("holdfast_acquires_total", 180.0)] {
        assert!(metrics.sum(name) >= least, "{name}: {}", metrics.sum(name));
    }
    assert!(metrics.sum("holdfast_lock_wait_seconds_count") >= 60.0);
}

#[tokio::test]
async fn a_refusal_is_counted_by_the_name_of_its_limit() {
    let refused = async || {
        let metrics = scrape().await;
        let is_of_limit = |limit: Option<&String>| limit.is_some_and(|limit| limit == "max_path_depth");
        let counts = metrics.named("holdfast_refusals_total").filter(|sample| is_of_limit(sample.labels.get("limit")));
        counts.map(|sample| sample.value).sum::<f64>()
    };
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let before = refused().await;
    let resources = json!([{"path": vec!["a"; 17], "mode": "WRITE"}]);
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000, "resources": resources});
    let problem = tenant.rest.json("POST /v1/namespaces/ns/lock-sets/acquire", acquire).await;
    let problem = problem.expect_error("INVALID_ARGUMENT");
    assert_eq!((&problem["limit"], &problem["max"]), (&json!("max_path_depth"), &json!(16)));
    let after_rest = refused().await;
    assert!(after_rest > before, "other tests may reach it too");
    let mut grpc = LocksServiceClient::new(channel(&tenant.rest).await);
    let deep = v1::AcquireLockRequest {
        namespace: "ns".into(),
        path: vec!["a".into(); 17],
        process_id: Some("p".into()),
        ttl_ms: Some(60_000),
        ..Default::default()
    };
    grpc.acquire_lock(with_key(deep, &tenant.rest.key)).await.unwrap_err();
    assert!(refused().await > after_rest);
}

/// What Prometheus itself finds wrong with names, kinds and descriptions.
#[tokio::test]
async fn prometheus_itself_finds_no_fault_with_the_figures() {
    let Ok(program) = std::env::var("HOLDFAST_PROMTOOL") else {
        return eprintln!("skipped: HOLDFAST_PROMTOOL names no promtool; `make deploy` fetches it");
    };
    generate_load().await;
    let text = RestClient::new(server().address(), "").call("GET /metrics").await.text;
    let file = scratch();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(&program);
    let checked = command.args(["check", "metrics"]).stdin(File::open(&file).unwrap()).output();
    let checked = checked.unwrap_or_else(|error| panic!("{program}: {error}"));
    let said = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}
