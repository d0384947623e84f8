//! What the operator sees of a cluster whose nodes say these things.

use holdfast_proto::internal::Follower;

use super::*;

const TERM: u64 = 3;

/// Three nodes. The accounts shard and the first locks shard are in `g1`, with the replicas 1, 2, 3 on nodes 1, 2, 3.
fn config() -> ClusterConfig {
    let nodes = (1..=3).map(|number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number)));
    let mut config = ClusterConfig::generate(nodes.collect(), 2, 3).unwrap();
    config.nodes[1].gateway_address = Some("gateway-2.example.com:8080".to_owned());
    let ids: Vec<_> = config.group("g1").unwrap().replicas.iter().map(|replica| replica.id).collect();
    assert_eq!((ids, shards_of(&config, "g1")), (vec![1, 2, 3], vec!["accounts_00", "locks_00"]));
    config
}

fn shards_of<'a>(config: &'a ClusterConfig, group: &str) -> Vec<&'a str> {
    let shards = config.applications.iter().flat_map(|application| &application.shards);
    shards.filter(|shard| shard.group == group).map(|shard| shard.id.as_str()).collect()
}

/// The row of a shard of `g1` at a follower of replica 1.
fn row(shard: &str, replica: u64) -> ReplicaStatus {
    ReplicaStatus {
        shard: shard.to_owned(),
        group: "g1".to_owned(),
        replica,
        term: TERM,
        leader: 1,
        state: "Follower".to_owned(),
        ..ReplicaStatus::default()
    }
}

/// The row of a shard of `g1` at replica 1, which leads. Replica 2 is 4 entries behind, and replica 3 is 9 behind.
fn leader_row(shard: &str, holds: u64) -> ReplicaStatus {
    let followers = [(2, 4), (3, 9)].map(|(replica, entries_behind)| Follower { replica, entries_behind });
    ReplicaStatus { state: "Leader".to_owned(), followers: followers.into(), holds, ..row(shard, 1) }
}

fn failed_row(shard: &str, replica: u64) -> ReplicaStatus {
    let failed = ReplicaStatus::default();
    ReplicaStatus {
        shard: shard.to_owned(),
        replica,
        state: FAILED.to_owned(),
        poison: Some(Poison::default()),
        ..failed
    }
}

/// The cluster, with the rows that each node says; `None` of a node that does not answer.
fn cluster(said: [Option<Vec<ReplicaStatus>>; 3]) -> ClusterInfo {
    let config = config();
    let looks = config.nodes.iter().cloned().zip(said).map(|(node, rows)| {
        let status = rows.map(|replicas| StatusAnswer { replicas, ..StatusAnswer::default() });
        (node, status.ok_or_else(|| "it is down".to_owned()))
    });
    cluster_info(&config, &looks.collect::<Vec<_>>())
}

fn g1(cluster: &ClusterInfo) -> &GroupInfo {
    cluster.groups.iter().find(|group| group.id == "g1").unwrap()
}

fn shard<'a>(cluster: &'a ClusterInfo, id: &str) -> &'a ShardInfo {
    cluster.shards.iter().find(|shard| shard.id == id).unwrap()
}

fn replicas(group: &GroupInfo) -> Vec<(u64, &str, Option<&str>, Option<u64>)> {
    group.replicas.iter().map(|one| (one.id, one.node.as_str(), one.state.as_deref(), one.lag)).collect()
}

#[test]
fn shards_of_a_group_share_its_replicas_and_have_their_own_figures() {
    let cluster = cluster([
        Some(vec![leader_row("accounts_00", 0), leader_row("locks_00", 5)]),
        Some(vec![row("accounts_00", 2), row("locks_00", 2)]),
        None,
    ]);
    let group = g1(&cluster);
    assert_eq!((group.leader.as_deref(), group.failed_shards.len()), (Some("nd_1"), 0));
    let expected =
        [(1, "nd_1", Some("Leader"), Some(0)), (2, "nd_2", Some("Follower"), Some(4)), (3, "nd_3", None, None)];
    assert_eq!(replicas(group), expected);
    for (id, holds) in [("accounts_00", 0), ("locks_00", 5)] {
        let shard = shard(&cluster, id);
        assert_eq!((shard.group.as_str(), shard.generation, shard.holds), ("g1", 0, holds));
        assert_eq!((shard.leader.as_deref(), shard.term), (Some("nd_1"), TERM));
        assert_eq!(shard.leader_node_id, shard.leader, "its older name");
        let behind: Vec<_> = shard.replicas.iter().map(|replica| (replica.id, replica.entries_behind)).collect();
        assert_eq!(behind, [(1, Some(0)), (2, Some(4)), (3, Some(9))]);
    }
    assert_eq!((cluster.nodes[0].leads, cluster.nodes[1].leads), (2, 0));
    let gateways: Vec<_> = cluster.nodes.iter().map(|node| node.gateway_address.as_deref()).collect();
    assert_eq!(gateways, [None, Some("gateway-2.example.com:8080"), None]);
}

#[test]
fn failed_shards_are_listed_and_replicas_shown_by_their_other_shards() {
    let cluster = cluster([
        Some(vec![failed_row("accounts_00", 1), leader_row("locks_00", 5)]),
        Some(vec![row("accounts_00", 2), row("locks_00", 2)]),
        Some(vec![failed_row("accounts_00", 3), failed_row("locks_00", 3)]),
    ]);
    let group = g1(&cluster);
    assert_eq!(group.leader.as_deref(), Some("nd_1"));
    assert_eq!(group.failed_shards, ["accounts_00", "locks_00"]);
    let states: Vec<_> = replicas(group).into_iter().map(|(_, _, state, _)| state.unwrap()).collect();
    assert_eq!(states, ["Leader", "Follower", FAILED]);
    let failed = shard(&cluster, "accounts_00");
    assert_eq!((failed.leader.as_deref(), failed.holds), (Some("nd_1"), 0), "as the followers know");
    assert!(failed.replicas[0].poison.is_some() && failed.replicas[1].poison.is_none());
}

#[test]
fn a_group_without_an_answer_has_no_leader() {
    let cluster = cluster([None, None, None]);
    assert_eq!(g1(&cluster).leader, None);
    let shard = shard(&cluster, "locks_00");
    assert_eq!((&shard.leader, &shard.leader_node_id), (&None, &None));
    assert!(g1(&cluster).failed_shards.is_empty());
}
