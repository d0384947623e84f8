//! The cluster as the operator sees it: nodes, shards, replicas.

use holdfast_core::shard::Application;
use serde::Serialize;
use utoipa::ToSchema;

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
