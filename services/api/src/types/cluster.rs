//! The cluster as the operator sees it: nodes, groups, shards, replicas.

use holdfast_types::Application;
use serde::Serialize;
use utoipa::ToSchema;

/// Nodes, groups and shards.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Cluster)]
pub struct ClusterInfo {
    /// The version of the topology that this gateway has.
    pub config_version: u64,
    /// In the order of the topology.
    pub nodes: Vec<NodeInfo>,
    /// In the order of the topology.
    pub groups: Vec<GroupInfo>,
    /// In order of applications and bounds.
    pub shards: Vec<ShardInfo>,
}

/// A node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Node)]
pub struct NodeInfo {
    /// As in the topology.
    pub id: String,
    /// Its network address.
    pub address: String,
    /// The address of the gateway in its process, as in the topology; absent when it has none for clients.
    pub gateway_address: Option<String>,
    /// Whether it can serve.
    pub ready: bool,
    /// Why it is not ready, or why its state is unknown.
    pub not_ready_reason: Option<String>,
    /// The version of the topology that it has; absent when it does not reply.
    pub config_version: Option<u64>,
    /// How many shards it leads.
    pub leads: u32,
}

/// A group: the shards that share a log, a leader and replicas.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Group)]
pub struct GroupInfo {
    /// As in the topology.
    pub id: String,
    /// The node that leads it; absent when no node that replies knows one.
    pub leader: Option<String>,
    /// In the order of the topology.
    pub replicas: Vec<GroupReplicaInfo>,
    /// Its shards that have failed on a replica.
    pub failed_shards: Vec<String>,
}

/// A replica of a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = GroupReplica)]
pub struct GroupReplicaInfo {
    /// As in the topology.
    pub id: u64,
    /// Its node.
    pub node: String,
    /// Its Raft state: `Leader`, `Follower`, `Candidate`, …; absent when its node does not reply.
    pub state: Option<String>,
    /// How many entries it is behind, as the leader knows; 0 for the leader, absent when unknown or when its node does
    /// not reply.
    pub lag: Option<u64>,
}

/// A shard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Shard)]
pub struct ShardInfo {
    /// As in the topology.
    pub id: String,
    /// The application whose state it keeps.
    #[schema(value_type = String)]
    pub application: Application,
    /// Its first key, as 8 hex digits.
    pub lower_bound: String,
    /// Its last key, as 8 hex digits.
    pub upper_bound: String,
    /// The group that holds it.
    pub group: String,
    /// The highest generation of its keys: that of a key rises whenever the key comes from another group.
    pub generation: u64,
    /// The node that leads its group; absent when no node that replies knows one.
    pub leader: Option<String>,
    /// The older name of `leader`, with the same value; kept for one release.
    #[schema(deprecated)]
    pub leader_node_id: Option<String>,
    /// The highest term that a replica knows of.
    pub term: u64,
    /// The rules by which the leader applies its next entry; absent when no leader replies.
    pub rules: Option<u32>,
    /// Holds in any state, as the leader has them.
    pub holds: u64,
    /// Waiting requests, as the leader has them.
    pub waiting: u64,
    /// Sessions, as the leader has them.
    pub sessions: u64,
    /// The replicas of its group, in the order of the topology.
    pub replicas: Vec<ReplicaInfo>,
}

/// A replica of the group, and the shard's state there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Replica)]
pub struct ReplicaInfo {
    /// As in the topology.
    pub id: u64,
    /// Its node.
    pub node_id: String,
    /// Its Raft state: `Leader`, `Follower`, `Candidate`, …; absent when its node does not reply.
    pub state: Option<String>,
    /// How many entries it is behind, as the leader knows; 0 for the leader, absent when unknown.
    pub entries_behind: Option<u64>,
    /// The last entry that it applied; like all following fields, absent when its node does not reply.
    pub applied_index: Option<u64>,
    /// The last entry that it knows to be committed.
    pub committed_index: Option<u64>,
    /// The last entry in its snapshot.
    pub snapshot_index: Option<u64>,
    /// Time since that snapshot, or since the start of its process if the snapshot is older.
    pub snapshot_age_ms: Option<u64>,
    /// The entry that it cannot apply, so that the shard does not run there with this release; absent normally.
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
    /// The failed step of the entry: `what is due`, or `command 3`, counted from 0.
    pub step: String,
    /// The namespace of the command; empty when it concerns none, or there is no command.
    pub namespace: String,
    /// The command as text, truncated if long.
    pub command: String,
    /// The error.
    pub message: String,
    /// The position in the program; empty when unknown.
    pub backtrace: String,
    /// The release that could not apply it.
    pub release: String,
}
