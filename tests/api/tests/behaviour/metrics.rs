//! `/metrics` under load, and `/v1/cluster`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::process::Command;

use holdfast_api_tests::scratch;
use serde_json::json;

use crate::support::{RestClient, create_tenant, operator_client, server, wait_until};

/// Labels, and how many values each may have at most: routes, codes and tasks are listed, shards and nodes configured.
const LABEL_VALUE_LIMITS: [(&str, usize); 14] = [
    ("route", 120),
    ("method", 8),
    ("code", 40),
    ("shard", 40),
    ("node", 10),
    ("outcome", 20),
    ("cache", 10),
    ("event", 10),
    ("program", 1),
    ("version", 1),
    ("le", 60),
    ("quantile", 10),
    ("kind", 10),
    ("task", 50),
];

/// What has to be there, whatever else is.
const EXPECTED_METRICS: [&str; 18] = [
    "holdfast_http_requests_total",
    "holdfast_request_seconds",
    "holdfast_acquires_total",
    "holdfast_lock_waits_total",
    "holdfast_lock_wait_seconds",
    "holdfast_holds",
    "holdfast_waiting_requests",
    "holdfast_sessions",
    "holdfast_state_bytes",
    "holdfast_queued_commands",
    "holdfast_commit_seconds",
    "holdfast_apply_seconds",
    "holdfast_apply_slice_seconds",
    "holdfast_storage_sync_seconds",
    "holdfast_leader_elections_total",
    "holdfast_snapshot_age_seconds",
    "holdfast_snapshot_lag_entries",
    "holdfast_shard_leader",
];

struct ScrapedMetrics {
    types: BTreeMap<String, String>,
    described: BTreeSet<String>,
    /// Name, labels, value.
    samples: Vec<(String, BTreeMap<String, String>, f64)>,
}

impl ScrapedMetrics {
    async fn scrape() -> Self {
        let text = RestClient::new(server().address(), "").call("GET /metrics").await.text;
        let mut figures = Self { types: BTreeMap::new(), described: BTreeSet::new(), samples: Vec::new() };
        for line in text.lines().filter(|line| !line.is_empty()) {
            if let Some(rest) = line.strip_prefix("# TYPE ") {
                let (name, kind) = rest.split_once(' ').unwrap();
                figures.types.insert(name.to_owned(), kind.to_owned());
            } else if let Some(rest) = line.strip_prefix("# HELP ") {
                figures.described.insert(rest.split_once(' ').unwrap().0.to_owned());
            } else {
                figures.samples.push(parse_sample(line));
            }
        }
        figures
    }

    fn sum(&self, name: &str) -> f64 {
        self.samples.iter().filter(|(sample, _, _)| sample == name).map(|(_, _, value)| value).sum()
    }
}

fn parse_sample(line: &str) -> (String, BTreeMap<String, String>, f64) {
    let (series, value) = line.rsplit_once(' ').unwrap();
    let (name, labels) = series.split_once('{').map_or((series, ""), |(name, rest)| (name, rest.trim_end_matches('}')));
    // No value of ours has a quotation mark or a comma in it, or it would not be bounded.
    let pairs = labels.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (label, value) = pair.split_once('=').unwrap_or_else(|| panic!("{line}"));
        (label.to_owned(), value.trim_matches('"').to_owned())
    });
    (name.to_owned(), pairs.collect(), value.parse().unwrap_or_else(|_| panic!("{line}")))
}

/// Calls of every kind, many of them with names that nobody has seen before.
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
async fn figures_have_good_names_and_no_label_without_a_bound() {
    generate_load().await;
    wait_until("the holds are counted", async || ScrapedMetrics::scrape().await.sum("holdfast_holds") >= 60.0).await;
    let figures = ScrapedMetrics::scrape().await;
    for name in EXPECTED_METRICS {
        assert!(figures.types.contains_key(name), "{name} is missing");
    }
    for (name, kind) in &figures.types {
        assert!(figures.described.contains(name), "{name} is not described");
        let letters = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_';
        assert!(name.bytes().all(letters), "{name}");
        assert!(name.starts_with("holdfast_") || name.starts_with("process_"), "{name}");
        assert_eq!(kind == "counter", name.ends_with("_total"), "{name} is a {kind}");
        if kind == "histogram" {
            let units = ["_seconds", "_bytes", "_commands", "_operations"];
            assert!(units.iter().any(|unit| name.ends_with(unit)), "{name} has no unit");
        }
    }
    let mut values: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (_, labels, _) in &figures.samples {
        for (label, value) in labels {
            values.entry(label).or_default().insert(value);
        }
    }
    for (label, values) in values {
        let bound = LABEL_VALUE_LIMITS.iter().find(|(known, _)| *known == label).map(|(_, bound)| *bound);
        let bound = bound.unwrap_or_else(|| panic!("the label {label} has no bound here: {values:?}"));
        assert!(values.len() <= bound, "{label} has {} values: {values:?}", values.len());
        assert!(!values.iter().any(|value| value.contains("made-up") || value.contains("MADEUP")), "{values:?}");
    }
    for (name, least) in [("holdfast_lock_waits_total", 60.0), ("holdfast_acquires_total", 180.0)] {
        assert!(figures.sum(name) >= least, "{name}: {}", figures.sum(name));
    }
    assert!(figures.sum("holdfast_lock_wait_seconds_count") >= 60.0);
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

#[tokio::test]
async fn the_operator_sees_nodes_and_shards() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", acquire).await.ok();
    let cluster = operator_client(server()).call("GET /v1/cluster").await.ok();
    let node = &cluster["nodes"][0];
    assert_eq!((&node["ready"], &node["not_ready_reason"]), (&json!(true), &json!(null)), "{node}");
    let shards = cluster["shards"].as_array().unwrap();
    assert_eq!(node["leads"], shards.len());
    for shard in shards {
        assert_eq!(shard["leader_node_id"], node["id"], "{shard}");
        assert_eq!(
            (&shard["replicas"][0]["state"], &shard["replicas"][0]["entries_behind"]),
            (&json!("Leader"), &json!(0))
        );
        assert!(shard["replicas"][0]["applied_index"].as_u64().unwrap() > 0, "{shard}");
    }
    assert!(shards.iter().map(|shard| shard["holds"].as_u64().unwrap()).sum::<u64>() > 0);
    tenant.rest.call("GET /v1/cluster").await.expect_error("PERMISSION_DENIED");
}
