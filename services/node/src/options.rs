//! Options of a node.

use std::path::PathBuf;
use std::time::Duration;

use holdfast_auth::ClusterSecret;
use holdfast_cluster::ClusterConfig;
use holdfast_core::limit::MAX_TABLE_BYTES;
use holdfast_core::{Bounds, Rules};
use holdfast_replication::{Clocks, KnownRules, LogLimits, ReadMode, Timing};
use holdfast_storage::Identity;

use crate::machine::MAX_SLICE_COMMANDS;

/// Enough for in-flight data and RocksDB's housekeeping: its log and memtables alone may take 100 MiB.
const DISK_RESERVE: u64 = 256 * 1024 * 1024;

/// Long enough that a node that restarts again and again rarely leads.
const LEADER_RETURN_AFTER: Duration = Duration::from_secs(60);

/// Options of a node.
pub struct NodeOptions {
    /// This node's id in the config.
    pub node_id: String,
    /// The topology.
    pub cluster_config: ClusterConfig,
    /// Shared by all processes of the cluster.
    pub cluster_secret: ClusterSecret,
    /// The data directory.
    pub data_dir: PathBuf,
    /// Heartbeats and elections.
    pub timing: Timing,
    /// How reads are made linearizable.
    pub reads: ReadMode,
    /// Entries after which a replica makes a snapshot.
    pub snapshot_interval_entries: u64,
    /// How long the preferred leader of a group is ready to lead before it gets the leadership back; `None` for never.
    pub leader_return_after: Option<Duration>,
    /// Bytes that stay free on the disk: with less, the node rejects writes and continues to serve reads. 0 for no
    /// limit.
    pub disk_reserve: u64,
    /// Bytes that all accounts together may use on this node: from 80 % on, large accounts get nothing new; at 100 %,
    /// no account does.
    pub memory_limit: u64,
    /// Bytes of the lock tables that are in the memory of this node's leaders and in no log: from 80 % on, large
    /// accounts get nothing new in them; at 100 %, no account does.
    pub soft_memory: u64,
    /// Entries kept behind a snapshot for followers that lag a little.
    pub retain_entries: u64,
    /// The same limits in bytes; the one reached first applies.
    pub log_limits: LogLimits,
    /// The rules that this program knows. Tests of two releases in one cluster set fewer.
    pub rules: KnownRules,
    /// Bounds that replace the bounds of the rules, for tests: the same on every node of the cluster.
    pub bounds: Option<Bounds>,
    /// Commands in an apply slice; tests set fewer.
    pub slice_commands: usize,
    /// The clocks that age what leaders rely on. The wall clock is also stored with grants, for display.
    pub clocks: Clocks,
    /// The program's release: a different release retries an entry that one release can't apply.
    pub release: String,
}

impl NodeOptions {
    /// Creates options with the default timing.
    pub fn new(
        node_id: impl Into<String>,
        cluster_config: ClusterConfig,
        cluster_secret: ClusterSecret,
        data_dir: impl Into<PathBuf>,
    ) -> Self {
        Self {
            node_id: node_id.into(),
            cluster_config,
            cluster_secret,
            data_dir: data_dir.into(),
            timing: Timing::default(),
            reads: ReadMode::Lease,
            leader_return_after: Some(LEADER_RETURN_AFTER),
            disk_reserve: DISK_RESERVE,
            memory_limit: u64::MAX,
            soft_memory: MAX_TABLE_BYTES,
            snapshot_interval_entries: 50_000,
            retain_entries: 10_000,
            log_limits: LogLimits::default(),
            rules: KnownRules { lowest: Rules::LOWEST.0, highest: Rules::HIGHEST.0 },
            bounds: None,
            slice_commands: MAX_SLICE_COMMANDS,
            clocks: Clocks::default(),
            release: env!("CARGO_PKG_VERSION").to_owned(),
        }
    }

    /// Returns the identity that the node's data belongs to.
    pub fn identity(&self) -> Identity {
        Identity { cluster_id: self.cluster_secret.cluster_id(), node_id: self.node_id.clone() }
    }
}
