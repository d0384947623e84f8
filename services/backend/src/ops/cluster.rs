//! The cluster as its nodes report it, for the operator.

use std::collections::HashMap;

use holdfast_api::{ApiResult, ClusterInfo, NodeInfo, PoisonInfo, ReplicaInfo, ShardInfo};
use holdfast_cluster::{Application, Node, Shard};
use holdfast_proto::internal::{Poison, ReplicaStatus, StatusAnswer};

use crate::{AuthContext, CallContext, Service};

impl Service {
    /// Returns nodes, shards, leaders, and the lag of replicas, as every node reports them now.
    ///
    /// # Errors
    /// Those of every call. The response includes nodes that do not reply.
    pub async fn cluster(&self, caller: &AuthContext, context: &CallContext) -> ApiResult<ClusterInfo> {
        caller.require_operator()?;
        let router = &self.inner.router;
        let looks = router.node_statuses(context.deadline).await;
        let said = looks.iter().filter_map(|(_, said)| said.as_ref().ok());
        let replicas: HashMap<u64, &ReplicaStatus> =
            said.flat_map(|said| &said.replicas).map(|replica| (replica.replica, replica)).collect();
        let config = router.cluster_config();
        let shards = config.applications.iter().flat_map(|application| {
            let replicas = &replicas;
            application.shards.iter().map(move |shard| shard_info(application.name, shard, replicas))
        });
        let shards: Vec<ShardInfo> = shards.collect();
        let nodes = looks.iter().map(|(node, said)| node_info(node, said, &shards)).collect();
        Ok(ClusterInfo { config_version: config.version, nodes, shards })
    }
}

fn node_info(node: &Node, said: &Result<StatusAnswer, String>, shards: &[ShardInfo]) -> NodeInfo {
    let reason = match said {
        Ok(said) => Some(said.not_ready.clone()).filter(|reason| !reason.is_empty()),
        Err(reason) => Some(format!("the node does not answer: {reason}")),
    };
    let leads = shards.iter().filter(|shard| shard.leader_node_id.as_deref() == Some(&node.id)).count();
    NodeInfo {
        id: node.id.clone(),
        address: node.address.clone(),
        ready: reason.is_none(),
        not_ready_reason: reason,
        config_version: said.as_ref().ok().map(|said| said.config_version),
        leads: u32::try_from(leads).unwrap_or(u32::MAX),
    }
}

/// Of several replicas that claim to lead, the one with the highest term leads.
fn shard_info(application: Application, shard: &Shard, said: &HashMap<u64, &ReplicaStatus>) -> ShardInfo {
    let replicas = || shard.replicas.iter().filter_map(|replica| said.get(&replica.id).copied());
    let leader = replicas().filter(|replica| replica.leader == replica.replica).max_by_key(|replica| replica.term);
    // The followers know a leader whose node does not reply.
    let leader_id = replicas().filter(|replica| replica.leader != 0).max_by_key(|replica| replica.term);
    let leader_id = leader.or(leader_id).map(|replica| replica.leader);
    let node_of =
        |id: u64| shard.replicas.iter().find(|replica| replica.id == id).map(|replica| replica.node_id.clone());
    ShardInfo {
        id: shard.id.clone(),
        application,
        lower_bound: format!("{:08x}", shard.lower_bound),
        upper_bound: format!("{:08x}", shard.upper_bound),
        leader_node_id: leader_id.and_then(node_of),
        term: replicas().map(|replica| replica.term).max().unwrap_or(0),
        rules: leader.map(|leader| leader.rules),
        holds: leader.map_or(0, |leader| leader.holds),
        waiting: leader.map_or(0, |leader| leader.waiting),
        sessions: leader.map_or(0, |leader| leader.sessions),
        replicas: shard
            .replicas
            .iter()
            .map(|replica| replica_info(replica.id, &replica.node_id, said.get(&replica.id).copied(), leader))
            .collect(),
    }
}

fn replica_info(id: u64, node_id: &str, said: Option<&ReplicaStatus>, leader: Option<&ReplicaStatus>) -> ReplicaInfo {
    let behind = |leader: &ReplicaStatus| {
        let follower = leader.followers.iter().find(|follower| follower.replica == id);
        if leader.replica == id { Some(0) } else { follower.map(|follower| follower.entries_behind) }
    };
    ReplicaInfo {
        id,
        node_id: node_id.to_owned(),
        state: said.map(|said| said.state.clone()),
        entries_behind: leader.and_then(behind),
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
