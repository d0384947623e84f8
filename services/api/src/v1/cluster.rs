//! Converts the state of the cluster to messages.

use holdfast_proto::v1;

use crate::{ClusterInfo, GroupInfo, GroupReplicaInfo, NodeInfo, PoisonInfo, ReplicaInfo, ShardInfo};

/// Converts the state of the cluster. The messages have no older names of fields.
pub fn info(cluster: ClusterInfo) -> v1::Cluster {
    v1::Cluster {
        config_version: cluster.config_version,
        nodes: cluster.nodes.into_iter().map(node).collect(),
        groups: cluster.groups.into_iter().map(group).collect(),
        shards: cluster.shards.into_iter().map(shard).collect(),
    }
}

fn node(node: NodeInfo) -> v1::cluster::Node {
    let NodeInfo { id, address, gateway_address, ready, not_ready_reason, config_version, leads } = node;
    v1::cluster::Node { id, address, gateway_address, ready, not_ready_reason, config_version, leads }
}

fn group(group: GroupInfo) -> v1::cluster::Group {
    let GroupInfo { id, leader, replicas, failed_shards } = group;
    let replicas = replicas.into_iter().map(group_replica).collect();
    v1::cluster::Group { id, leader, replicas, failed_shards }
}

fn group_replica(replica: GroupReplicaInfo) -> v1::cluster::GroupReplica {
    let GroupReplicaInfo { id, node, state, lag } = replica;
    v1::cluster::GroupReplica { id, node, state, lag }
}

fn shard(shard: ShardInfo) -> v1::cluster::Shard {
    v1::cluster::Shard {
        id: shard.id,
        application: shard.application.name().to_owned(),
        lower_bound: shard.lower_bound,
        upper_bound: shard.upper_bound,
        group: shard.group,
        generation: shard.generation,
        leader: shard.leader,
        term: shard.term,
        rules: shard.rules,
        holds: shard.holds,
        waiting: shard.waiting,
        sessions: shard.sessions,
        replicas: shard.replicas.into_iter().map(replica).collect(),
    }
}

fn replica(replica: ReplicaInfo) -> v1::cluster::Replica {
    v1::cluster::Replica {
        id: replica.id,
        node_id: replica.node_id,
        state: replica.state,
        entries_behind: replica.entries_behind,
        applied_index: replica.applied_index,
        committed_index: replica.committed_index,
        snapshot_index: replica.snapshot_index,
        snapshot_age_ms: replica.snapshot_age_ms,
        poison: replica.poison.map(poison),
    }
}

fn poison(poison: PoisonInfo) -> v1::cluster::Poison {
    let PoisonInfo { term, index, step, namespace, command, message, backtrace, release } = poison;
    v1::cluster::Poison { term, index, step, namespace, command, message, backtrace, release }
}

#[cfg(test)]
mod tests {
    use holdfast_types::Application;

    use super::*;

    fn failed_replica() -> ReplicaInfo {
        let text = str::to_owned;
        ReplicaInfo {
            id: 3,
            node_id: text("nd_3"),
            state: Some(text("Follower")),
            entries_behind: Some(4),
            applied_index: Some(5),
            committed_index: Some(6),
            snapshot_index: Some(7),
            snapshot_age_ms: Some(8),
            poison: Some(PoisonInfo {
                term: 1,
                index: 2,
                step: text("command 0"),
                namespace: text("ns"),
                command: text("Acquire"),
                message: text("panic"),
                backtrace: text("0: apply"),
                release: text("0.1.0"),
            }),
        }
    }

    fn led_shard() -> ShardInfo {
        ShardInfo {
            id: "locks_00".into(),
            application: Application::Locks,
            lower_bound: "00000000".into(),
            upper_bound: "ffffffff".into(),
            group: "g1".into(),
            generation: 1,
            leader: Some("nd_1".into()),
            leader_node_id: Some("nd_1".into()),
            term: 2,
            rules: Some(3),
            holds: 4,
            waiting: 5,
            sessions: 6,
            replicas: vec![failed_replica()],
        }
    }

    #[test]
    fn a_message_says_of_shards_and_replicas_what_the_answer_says() {
        let shard = shard(led_shard());
        assert_eq!((shard.id.as_str(), shard.application.as_str()), ("locks_00", "Locks"));
        assert_eq!((shard.lower_bound.as_str(), shard.upper_bound.as_str()), ("00000000", "ffffffff"));
        assert_eq!((shard.group.as_str(), shard.leader.as_deref()), ("g1", Some("nd_1")));
        assert_eq!((shard.generation, shard.term, shard.rules), (1, 2, Some(3)));
        assert_eq!((shard.holds, shard.waiting, shard.sessions), (4, 5, 6));
        let replica = &shard.replicas[0];
        assert_eq!((replica.id, replica.node_id.as_str(), replica.state.as_deref()), (3, "nd_3", Some("Follower")));
        let indexes = [replica.entries_behind, replica.applied_index, replica.committed_index, replica.snapshot_index];
        assert_eq!((indexes, replica.snapshot_age_ms), ([4, 5, 6, 7].map(Some), Some(8)));
        let poison = replica.poison.as_ref().expect("it is there");
        assert_eq!((poison.term, poison.index, poison.step.as_str()), (1, 2, "command 0"));
        assert_eq!((poison.namespace.as_str(), poison.release.as_str()), ("ns", "0.1.0"));
    }

    #[test]
    fn what_is_not_known_is_absent() {
        let node = NodeInfo {
            id: "nd_1".into(),
            address: "127.0.0.1:7000".into(),
            gateway_address: None,
            ready: false,
            not_ready_reason: Some("it is down".into()),
            config_version: None,
            leads: 0,
        };
        let replica = GroupReplicaInfo { id: 1, node: "nd_1".into(), state: None, lag: None };
        let failed_shards = vec!["locks_00".to_owned()];
        let group = GroupInfo { id: "g1".into(), leader: None, replicas: vec![replica], failed_shards };
        let shards = vec![ShardInfo { leader: None, rules: None, ..led_shard() }];
        let shown = info(ClusterInfo { config_version: 9, nodes: vec![node], groups: vec![group], shards });
        assert_eq!(shown.config_version, 9);
        let (node, group) = (&shown.nodes[0], &shown.groups[0]);
        assert_eq!((node.ready, node.not_ready_reason.as_deref()), (false, Some("it is down")));
        assert_eq!((node.config_version, &node.gateway_address), (None, &None));
        assert_eq!((&group.leader, group.failed_shards.as_slice()), (&None, ["locks_00".to_owned()].as_slice()));
        assert_eq!((&group.replicas[0].state, group.replicas[0].lag), (&None, None));
        assert_eq!((&shown.shards[0].leader, shown.shards[0].rules), (&None, None));
    }
}
