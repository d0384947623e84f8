//! The cluster, as the operator sees it over REST and gRPC.

use holdfast_proto::v1;
use holdfast_proto::v1::accounts_service_client::AccountsServiceClient;
use serde_json::{Value, json};
use tonic::{Code, Request};

use crate::support::frontends::Failure;
use crate::support::frontends::grpc::{channel, with_key};
use crate::support::{create_tenant, operator_client, server};

/// What other tests change between two calls, and the older name, which only REST has.
const NOT_COMPARED: [&str; 8] = [
    "holds",
    "waiting",
    "sessions",
    "applied_index",
    "committed_index",
    "snapshot_index",
    "snapshot_age_ms",
    "leader_node_id",
];

#[tokio::test]
async fn the_operator_sees_nodes_groups_and_shards() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", acquire).await.ok();
    let cluster = operator_client(server()).call("GET /v1/cluster").await.ok();
    let node = &cluster["nodes"][0];
    assert_eq!((&node["ready"], &node["not_ready_reason"]), (&json!(true), &json!(null)), "{node}");
    let shards = cluster["shards"].as_array().unwrap();
    assert_eq!(node["leads"], shards.len());
    let group = &cluster["groups"][0];
    assert_eq!(cluster["groups"].as_array().unwrap().len(), 1, "one process has one group: {cluster}");
    assert_eq!((&group["leader"], &group["failed_shards"]), (&node["id"], &json!([])), "{group}");
    assert_eq!((&group["replicas"][0]["state"], &group["replicas"][0]["lag"]), (&json!("Leader"), &json!(0)));
    for shard in shards {
        assert_eq!((&shard["leader"], &shard["group"]), (&node["id"], &group["id"]), "{shard}");
        assert_eq!(shard["leader_node_id"], shard["leader"], "its older name: {shard}");
        assert_eq!(
            (&shard["replicas"][0]["state"], &shard["replicas"][0]["entries_behind"]),
            (&json!("Leader"), &json!(0))
        );
        assert!(shard["replicas"][0]["applied_index"].as_u64().unwrap() > 0, "{shard}");
    }
    assert!(shards.iter().map(|shard| shard["holds"].as_u64().unwrap()).sum::<u64>() > 0);
    tenant.rest.call("GET /v1/cluster").await.expect_error("PERMISSION_DENIED");
}

/// The response without what is not compared.
fn comparable(mut response: Value) -> Value {
    match &mut response {
        Value::Array(items) => items.iter_mut().for_each(|item| *item = comparable(item.take())),
        Value::Object(members) => {
            for name in NOT_COMPARED {
                members.remove(name);
            }
            members.values_mut().for_each(|member| *member = comparable(member.take()));
        }
        _ => {}
    }
    response
}

fn comparable_group_replica(replica: &v1::cluster::GroupReplica) -> Value {
    json!({"id": replica.id, "node": replica.node, "state": replica.state, "lag": replica.lag})
}

/// The message as the JSON of REST, without what is not compared.
fn comparable_message(cluster: &v1::Cluster) -> Value {
    let nodes = cluster.nodes.iter().map(|node| {
        json!({
            "id": node.id, "address": node.address, "gateway_address": node.gateway_address, "ready": node.ready,
            "not_ready_reason": node.not_ready_reason, "config_version": node.config_version, "leads": node.leads,
        })
    });
    let groups = cluster.groups.iter().map(|group| {
        let replicas: Vec<Value> = group.replicas.iter().map(comparable_group_replica).collect();
        json!({"id": group.id, "leader": group.leader, "replicas": replicas, "failed_shards": group.failed_shards})
    });
    let replica = |replica: &v1::cluster::Replica| {
        assert_eq!(replica.poison, None);
        json!({
            "id": replica.id, "node_id": replica.node_id, "state": replica.state,
            "entries_behind": replica.entries_behind, "poison": null,
        })
    };
    let shards = cluster.shards.iter().map(|shard| {
        let replicas: Vec<Value> = shard.replicas.iter().map(replica).collect();
        json!({
            "id": shard.id, "application": shard.application, "lower_bound": shard.lower_bound,
            "upper_bound": shard.upper_bound, "group": shard.group, "generation": shard.generation,
            "leader": shard.leader, "term": shard.term, "rules": shard.rules, "replicas": replicas,
        })
    });
    json!({
        "config_version": cluster.config_version,
        "nodes": nodes.collect::<Vec<Value>>(),
        "groups": groups.collect::<Vec<Value>>(),
        "shards": shards.collect::<Vec<Value>>(),
    })
}

#[tokio::test]
async fn grpc_shows_the_cluster_that_rest_shows() {
    let tenant = create_tenant(server()).await;
    tenant.create_namespace("ns").await;
    let acquire = json!({"process_id": "p", "ttl_ms": 60_000});
    tenant.rest.json("POST /v1/namespaces/ns/locks/l/acquire", acquire).await.ok();
    let operator = operator_client(server());
    let mut client = AccountsServiceClient::new(channel(&operator).await);
    let request = with_key(v1::GetClusterRequest {}, &operator.key);
    let cluster = client.get_cluster(request).await.unwrap().into_inner();
    let by_rest = operator.call("GET /v1/cluster").await.ok();
    assert_eq!(comparable_message(&cluster), comparable(by_rest));
    assert!(cluster.shards.iter().map(|shard| shard.holds).sum::<u64>() > 0);
    for shard in &cluster.shards {
        assert!(shard.leader.is_some(), "{shard:?}");
        let replica = &shard.replicas[0];
        assert!(replica.applied_index > Some(0) && replica.committed_index > Some(0), "{replica:?}");
        assert!(replica.snapshot_index.is_some() && replica.snapshot_age_ms.is_some(), "{replica:?}");
    }
}

#[tokio::test]
async fn grpc_shows_the_cluster_to_the_operator_only_as_rest_does() {
    let tenant = create_tenant(server()).await;
    let token = tenant.rest.json("POST /v1/tokens", json!({})).await.ok();
    let channel = channel(&tenant.rest).await;
    let denied = (Code::PermissionDenied, "PERMISSION_DENIED");
    let unknown = (Code::Unauthenticated, "UNAUTHENTICATED");
    let callers = [
        (tenant.rest.key.as_str(), denied),
        (token["token"].as_str().unwrap(), denied),
        ("nonsense", unknown),
        ("", unknown),
    ];
    for (key, expected) in callers {
        let message = v1::GetClusterRequest {};
        let request = if key.is_empty() { Request::new(message) } else { with_key(message, key) };
        let status = AccountsServiceClient::new(channel.clone()).get_cluster(request).await.unwrap_err();
        let (grpc_code, failure) = (status.code(), Failure::from_status(status));
        assert_eq!((grpc_code, failure.code.as_str()), expected);
        tenant.rest.with_key(key).call("GET /v1/cluster").await.expect_error(expected.1);
    }
}
