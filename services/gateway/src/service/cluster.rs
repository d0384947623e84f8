//! The cluster as its nodes see it, for the operator.

use std::collections::HashMap;

use holdfast_cluster::{Application, Node, Shard};
use holdfast_proto::internal::{Poison, ReplicaStatus, StatusAnswer};
use serde::Serialize;
use utoipa::ToSchema;

use super::{AuthContext, CallContext, Service};
use crate::error::ApiResult;

/// Nodes and shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Cluster)]
pub struct ClusterInfo {
    /// The version of the topology that this gateway has.
    pub config_version: u64,
    /// In the order of the topology.
    pub nodes: Vec<NodeInfo>,
    /// In order of applications and bounds.
    pub shards: Vec<ShardInfo>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeInfo {
    /// As in the topology.
    pub id: String,
    /// Where it is reached.
    pub address: String,
    /// Whether it can serve.
    pub ready: bool,
    /// Why not, or why nobody can say.
    pub not_ready_reason: Option<String>,
    /// The version of the topology that it has; absent when it does not answer.
    pub config_version: Option<u64>,
    /// How many of its replicas lead.
    pub leads: u32,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Shard)]
pub struct ShardInfo {
    /// As in the topology.
    pub id: String,
    /// What it keeps.
    #[schema(value_type = String)]
    pub application: Application,
    /// The first key that is its, as 8 hex digits.
    pub lower_bound: String,
    /// The last key that is its, as 8 hex digits.
    pub upper_bound: String,
    /// The node that leads it; absent when no node that answers knows one.
    pub leader_node_id: Option<String>,
    /// The highest term that a replica knows of.
    pub term: u64,
    /// The rules by which the leader applies its next entry; absent when no leader answers.
    pub rules: Option<u32>,
    /// Holds in any state, as the leader has them.
    pub holds: u64,
    /// Waiting requests, as the leader has them.
    pub waiting: u64,
    /// Sessions, as the leader has them.
    pub sessions: u64,
    /// In the order of the topology.
    pub replicas: Vec<ReplicaInfo>,
}

/// A replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Replica)]
pub struct ReplicaInfo {
    /// As in the topology.
    pub id: u64,
    /// Where it is.
    pub node_id: String,
    /// What it is doing: `Leader`, `Follower`, `Candidate`, …; absent when its node does not answer.
    pub state: Option<String>,
    /// Entries that it is behind, as the leader knows; 0 for the leader, absent when nobody knows.
    pub entries_behind: Option<u64>,
    /// The last entry that it applied; absent like all that follows when its node does not answer.
    pub applied_index: Option<u64>,
    /// The last entry that it knows to be committed.
    pub committed_index: Option<u64>,
    /// The last entry in its snapshot.
    pub snapshot_index: Option<u64>,
    /// How long ago that was made, or its process was started when it is older than that.
    pub snapshot_age_ms: Option<u64>,
    /// The entry that it can't get past, so that it does not run with this release; absent when all is well.
    pub poison: Option<PoisonInfo>,
}

/// An entry that a replica could not apply, twice in a row.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Poison)]
pub struct PoisonInfo {
    /// The term of the entry.
    pub term: u64,
    /// Its index.
    pub index: u64,
    /// Where in the entry: `what is due`, or `command 3`, counted from 0.
    pub step: String,
    /// The namespace that the command is about; empty when it is about none, or there is no command.
    pub namespace: String,
    /// The command in words, cut when it is long.
    pub command: String,
    /// What happened.
    pub message: String,
    /// Where in the program; empty when not known.
    pub backtrace: String,
    /// The release that could not apply it.
    pub release: String,
}

impl Service {
    /// Nodes, shards, leaders, and how far replicas are behind: what every node says of itself now.
    ///
    /// # Errors
    /// Those of every call. Nodes that do not answer are part of the answer.
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

/// Of several that believe to lead, the one of the highest term does.
fn shard_info(application: Application, shard: &Shard, said: &HashMap<u64, &ReplicaStatus>) -> ShardInfo {
    let replicas = || shard.replicas.iter().filter_map(|replica| said.get(&replica.id).copied());
    let leader = replicas().filter(|replica| replica.leader == replica.replica).max_by_key(|replica| replica.term);
    // A leader whose node does not answer is known to its followers.
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
