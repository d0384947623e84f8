//! The cluster as its nodes report it, for the operator.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use holdfast_api::{ApiResult, ClusterInfo, GroupInfo, GroupReplicaInfo, NodeInfo, PoisonInfo, ReplicaInfo, ShardInfo};
use holdfast_cluster::{Application, ClusterConfig, GroupConfig, Node, Replica, Shard};
use holdfast_proto::internal::{Poison, ReplicaStatus, StatusAnswer};

use crate::{AuthContext, CallContext, Service};

/// The state of a row of a failed shard.
const FAILED: &str = "failed";

impl Service {
    /// Returns nodes, groups, shards, leaders, and the lag of replicas, as every node reports them now.
    ///
    /// # Errors
    /// Those of every call. The response includes nodes that do not reply.
    pub async fn cluster(&self, caller: &AuthContext, context: &CallContext) -> ApiResult<ClusterInfo> {
        caller.require_operator()?;
        let router = &self.inner.router;
        let looks = router.node_statuses(context.deadline).await;
        Ok(cluster_info(&router.cluster_config(), &looks))
    }
}

fn cluster_info(config: &ClusterConfig, looks: &[(Node, Result<StatusAnswer, String>)]) -> ClusterInfo {
    let said = looks.iter().filter_map(|(_, said)| said.as_ref().ok());
    let said = Statuses::new(said.flat_map(|said| &said.replicas));
    let mut shards = Vec::new();
    for application in &config.applications {
        for shard in &application.shards {
            let replicas = config.group(&shard.group).map(|group| &group.replicas[..]).unwrap_or_default();
            shards.push(shard_info(application.name, shard, replicas, &said));
        }
    }
    let nodes = looks.iter().map(|(node, said)| node_info(node, said, &shards)).collect();
    let groups = config.groups.iter().map(|group| group_info(group, config, &said)).collect();
    ClusterInfo { config_version: config.version, nodes, groups, shards }
}

/// What the nodes say of their replicas: a row for each shard of each replica.
struct Statuses<'a> {
    rows: HashMap<(&'a str, u64), &'a ReplicaStatus>,
    /// One row of each replica, of a shard that has not failed there if there is one.
    replicas: HashMap<u64, &'a ReplicaStatus>,
}

impl<'a> Statuses<'a> {
    fn new(said: impl Iterator<Item = &'a ReplicaStatus>) -> Self {
        let mut rows = HashMap::new();
        let mut replicas: HashMap<u64, &ReplicaStatus> = HashMap::new();
        for row in said {
            rows.insert((row.shard.as_str(), row.replica), row);
            match replicas.entry(row.replica) {
                Entry::Vacant(entry) => {
                    entry.insert(row);
                }
                Entry::Occupied(mut entry) if has_failed(entry.get()) => {
                    entry.insert(row);
                }
                Entry::Occupied(_) => {}
            }
        }
        Self { rows, replicas }
    }

    fn row(&self, shard: &str, replica: u64) -> Option<&'a ReplicaStatus> {
        self.rows.get(&(shard, replica)).copied()
    }

    fn replica(&self, replica: u64) -> Option<&'a ReplicaStatus> {
        self.replicas.get(&replica).copied()
    }
}

/// Returns true if the shard of the row does not run on the replica.
fn has_failed(row: &ReplicaStatus) -> bool {
    row.state == FAILED || row.poison.is_some()
}

/// Returns the row of the leader if its node replies, and the leader's id. Of several replicas that claim to lead, the
/// one with the highest term leads.
fn leader_of<'a>(rows: &[&'a ReplicaStatus]) -> (Option<&'a ReplicaStatus>, Option<u64>) {
    let leader = rows.iter().copied().filter(|row| row.leader == row.replica).max_by_key(|row| row.term);
    // The followers know a leader whose node does not reply.
    let follower = rows.iter().copied().filter(|row| row.leader != 0).max_by_key(|row| row.term);
    (leader, leader.or(follower).map(|row| row.leader))
}

fn node_of(replicas: &[Replica], id: u64) -> Option<String> {
    replicas.iter().find(|replica| replica.id == id).map(|replica| replica.node_id.clone())
}

/// Returns how many entries the replica is behind, as the leader knows.
fn entries_behind(leader: &ReplicaStatus, replica: u64) -> Option<u64> {
    let follower = leader.followers.iter().find(|follower| follower.replica == replica);
    if leader.replica == replica { Some(0) } else { follower.map(|follower| follower.entries_behind) }
}

fn node_info(node: &Node, said: &Result<StatusAnswer, String>, shards: &[ShardInfo]) -> NodeInfo {
    let reason = match said {
        Ok(said) => Some(said.not_ready.clone()).filter(|reason| !reason.is_empty()),
        Err(reason) => Some(format!("the node does not answer: {reason}")),
    };
    let leads = shards.iter().filter(|shard| shard.leader.as_deref() == Some(&node.id)).count();
    NodeInfo {
        id: node.id.clone(),
        address: node.address.clone(),
        gateway_address: node.gateway_address.clone(),
        ready: reason.is_none(),
        not_ready_reason: reason,
        config_version: said.as_ref().ok().map(|said| said.config_version),
        leads: u32::try_from(leads).unwrap_or(u32::MAX),
    }
}

fn group_info(group: &GroupConfig, config: &ClusterConfig, said: &Statuses<'_>) -> GroupInfo {
    let rows: Vec<_> = group.replicas.iter().filter_map(|replica| said.replica(replica.id)).collect();
    let (leader, leader_id) = leader_of(&rows);
    let replica_info = |replica: &Replica| {
        let row = said.replica(replica.id);
        GroupReplicaInfo {
            id: replica.id,
            node: replica.node_id.clone(),
            state: row.map(|row| row.state.clone()),
            lag: row.and(leader).and_then(|leader| entries_behind(leader, replica.id)),
        }
    };
    let is_failed =
        |shard: &&Shard| group.replicas.iter().filter_map(|replica| said.row(&shard.id, replica.id)).any(has_failed);
    GroupInfo {
        id: group.id.clone(),
        leader: leader_id.and_then(|id| node_of(&group.replicas, id)),
        replicas: group.replicas.iter().map(replica_info).collect(),
        failed_shards: config
            .shards()
            .filter(|shard| shard.group == group.id)
            .filter(is_failed)
            .map(|shard| shard.id.clone())
            .collect(),
    }
}

fn shard_info(application: Application, shard: &Shard, replicas: &[Replica], said: &Statuses<'_>) -> ShardInfo {
    let rows: Vec<_> = replicas.iter().filter_map(|replica| said.row(&shard.id, replica.id)).collect();
    let (leader, leader_id) = leader_of(&rows);
    let leader_node = leader_id.and_then(|id| node_of(replicas, id));
    ShardInfo {
        id: shard.id.clone(),
        application,
        lower_bound: format!("{:08x}", shard.lower_bound),
        upper_bound: format!("{:08x}", shard.upper_bound),
        group: shard.group.clone(),
        // No key has changed its group yet.
        generation: 0,
        leader: leader_node.clone(),
        leader_node_id: leader_node,
        term: rows.iter().map(|row| row.term).max().unwrap_or(0),
        rules: leader.map(|leader| leader.rules),
        holds: leader.map_or(0, |leader| leader.holds),
        waiting: leader.map_or(0, |leader| leader.waiting),
        sessions: leader.map_or(0, |leader| leader.sessions),
        replicas: replicas
            .iter()
            .map(|replica| replica_info(replica, said.row(&shard.id, replica.id), leader))
            .collect(),
    }
}

fn replica_info(replica: &Replica, said: Option<&ReplicaStatus>, leader: Option<&ReplicaStatus>) -> ReplicaInfo {
    ReplicaInfo {
        id: replica.id,
        node_id: replica.node_id.clone(),
        state: said.map(|said| said.state.clone()),
        entries_behind: leader.and_then(|leader| entries_behind(leader, replica.id)),
        applied_index: said.map(|said| said.applied_index),
        committed_index: said.map(|said| said.committed_index),
        snapshot_index: said.map(|said| said.snapshot_index),
        snapshot_age_ms: said.map(|said| said.snapshot_age_ms),
        poison: said.and_then(|said| said.poison.clone()).map(poison_info),
    }
}

fn poison_info(poison: Poison) -> PoisonInfo {
    let Poison { term, index, step, namespace, command, message, backtrace, release } = poison;
    PoisonInfo { term, index, step, namespace, command, message, backtrace, release }
}

#[cfg(test)]
#[path = "cluster_tests.rs"]
mod tests;
