//! Options of a node's replicas.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_clock::Clocks;
use holdfast_rpc::{Callers, Dialer, Identity};
use holdfast_storage::NodeStore;

use crate::error::ReplicationError;
use crate::log_compaction::LogLimits;
use crate::rules::KnownRules;
use crate::timing::Timing;

/// Another node of the cluster.
#[derive(Debug, Clone)]
pub struct PeerConfig {
    /// The node id.
    pub node: String,
    /// `host:port`.
    pub address: String,
    /// Its replicas in the configuration.
    pub replicas: Vec<u64>,
}

/// Options of a group manager.
pub struct GroupManagerOptions {
    /// This node's id.
    pub node: String,
    /// The cluster id; peers of another cluster are rejected.
    pub cluster_id: String,
    /// This node's replicas in the configuration.
    pub replicas: Vec<u64>,
    /// The rules that this program knows.
    pub rules: KnownRules,
    /// The highest rules that the configuration lets groups be raised to, if set.
    pub allowed_rules: Option<u16>,
    /// The backup that this node's data was restored from. Nodes restored from another one are rejected.
    pub restored_from: Option<String>,
    /// Every other node.
    pub peers: Vec<PeerConfig>,
    /// The node's store.
    pub store: NodeStore,
    /// Opens connections.
    pub dialer: Arc<dyn Dialer>,
    /// This node to its peers: its id, and a run that is drawn at every start.
    pub identity: Arc<Identity>,
    /// The connections of peers to this node.
    pub callers: Arc<Callers>,
    /// Heartbeats, elections and leases of all replicas of this node.
    pub timing: Timing,
}

/// Options of a replica.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// The group's id.
    pub group: String,
    /// The replica id.
    pub replica: u64,
    /// The initial replicas of the group with their nodes, including this one.
    pub members: BTreeMap<u64, String>,
    /// Entries after which a replica makes a snapshot.
    pub snapshot_interval_entries: u64,
    /// Entries kept behind a snapshot for followers that lag a little.
    pub retain_entries: u64,
    /// The same limits in bytes; the one reached first applies.
    pub log_limits: LogLimits,
    /// They age acknowledgements. The wall clock is also stored with grants, for display.
    pub clocks: Clocks,
}

impl GroupOptions {
    /// Returns the error of a replica that has stopped.
    pub(crate) fn stopped(&self, reason: String) -> ReplicationError {
        ReplicationError::Stopped { group: self.group.clone(), replica: self.replica, reason }
    }
}
