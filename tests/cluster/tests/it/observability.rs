//! What an operator sees of a cluster while a node is lost: its status, its metrics, its usage and its audit log.

use std::collections::BTreeSet;

use holdfast_testkit::{Cluster, RestClient, Setup, eventually};
use serde_json::{Value, json};

/// As many as nodes, and each is on every node.
const GROUPS: usize = 3;

async fn get(api: &RestClient, path: &str) -> Value {
    api.fetch(&format!("GET {path}"), None).await.unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the status of a cluster if every shard has a leader on a node that answers, and no replica is behind.
async fn healthy_cluster(operator: &RestClient, replicas: usize) -> Result<Value, String> {
    let cluster = get(operator, "/v1/cluster").await;
    for shard in cluster["shards"].as_array().unwrap() {
        let up = shard["replicas"].as_array().unwrap().iter().filter(|replica| replica["state"].is_string());
        let behind = up.clone().filter(|replica| replica["entries_behind"] != 0).count();
        let leads = up.clone().any(|replica| replica["state"] == "Leader");
        if !leads || shard["leader"].is_null() || up.count() != replicas || behind > 0 {
            return Err(shard.to_string());
        }
    }
    for group in cluster["groups"].as_array().unwrap() {
        let lags = group["replicas"].as_array().unwrap().iter().filter(|replica| replica["lag"] == 0).count();
        if group["leader"].is_null() || lags != replicas || group["failed_shards"] != json!([]) {
            return Err(group.to_string());
        }
    }
    Ok(cluster)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_a_node_is_seen_and_loses_neither_counts_nor_records() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("insight", &["orders"]).await;
    let (api, operator) = (cluster.rest_client(0, &tenant.key), cluster.operator_client(0));
    for number in 0..20 {
        api.acquire("orders", &format!("l-{number}"), "p").await.unwrap();
    }
    api.acquire("orders", "another", "q").await.unwrap();
    let _: Value = api
        .fetch("POST /v1/namespaces/orders/reset", Some(json!({"live_owners": ["p"]})))
        .await
        .unwrap_or_else(|error| panic!("{error}"));
    let usage = get(&api, "/v1/usage").await;
    let audit = get(&api, "/v1/audit").await;
    assert_eq!((&usage["total"]["grants"], &usage["total"]["holds"]), (&json!(21), &json!(20)));
    assert_eq!(audit["entries"][0]["action"], "NAMESPACE_RESET");
    let seen = eventually("all replicas are up to date", async || healthy_cluster(&operator, 3).await).await;
    assert!(seen["nodes"].as_array().unwrap().iter().all(|node| node["ready"] == true), "{seen}");
    assert_eq!(seen["groups"].as_array().unwrap().len(), GROUPS, "{seen}");
    eventually("the leaders count the holds", async || {
        let holds = cluster.metric_sums(&["holdfast_holds"]).await?[0];
        if holds == 20.0 { Ok(()) } else { Err(format!("{holds} holds")) }
    })
    .await;

    let (leader, _, _) = cluster.wait_leader(&cluster.locks_shard(&tenant, "orders")).await;
    let before: Vec<f64> = {
        let mut before = Vec::new();
        for node in 0..3 {
            before.push(cluster.nodes[node].metrics().await.unwrap().sum("holdfast_leader_elections_total"));
        }
        before
    };
    cluster.nodes[leader].kill().await;
    let seen = eventually("others lead", async || healthy_cluster(&operator, 2).await).await;
    let lost = &seen["nodes"][leader];
    assert_eq!((&lost["ready"], &lost["leads"], &lost["config_version"]), (&json!(false), &json!(0), &Value::Null));
    assert!(lost["not_ready_reason"].as_str().unwrap().contains("does not answer"), "{lost}");
    assert_eq!(get(&api, "/v1/usage").await["total"], usage["total"], "counts survive the leader");
    assert_eq!(get(&api, "/v1/audit").await, audit, "records survive the leader");
    api.acquire("orders", "after", "p").await.unwrap();
    let (mut rises, mut committed) = (0.0, false);
    for node in (0..3).filter(|node| *node != leader) {
        let metrics = cluster.nodes[node].metrics().await.unwrap();
        rises += metrics.sum("holdfast_leader_elections_total") - before[node];
        for name in ["holdfast_replica_lag_entries", "holdfast_snapshot_age_seconds"] {
            let groups = metrics.named(name).filter_map(|sample| sample.labels.get("group"));
            assert_eq!(groups.collect::<BTreeSet<_>>().len(), GROUPS, "node {node} has {name} of each group");
        }
        // Only the one that leads the namespace has surely committed something.
        committed |= metrics.contains("holdfast_commit_seconds_count");
    }
    assert!(rises >= 1.0, "somebody took over");
    assert!(committed, "the one that took over has committed something");
}
