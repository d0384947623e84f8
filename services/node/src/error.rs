//! Errors that prevent a node from starting.

use std::io;
use std::path::PathBuf;

use holdfast_cluster::ConfigError;
use holdfast_replication::{KnownRules, ReplicationError};
use holdfast_storage::StorageError;

use crate::restore::RestoreError;

/// A node can't start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The cluster config is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The config doesn't contain the node.
    #[error("node {node} is not in the cluster config, which has {known}; check --node-id and --cluster-config")]
    UnknownNode {
        /// The given node id.
        node: String,
        /// The node ids in the config.
        known: String,
    },
    /// The stored config is damaged.
    #[error(
        "{}: is damaged, since its checksum does not match; rebuild the node from its peers: `holdfast-admin node rebuild`",
        path.display()
    )]
    ConfigDamaged {
        /// The stored config.
        path: PathBuf,
    },
    /// The config makes other groups than the one that the node ran with.
    #[error(
        "{}: the node has run with other groups: {kept}; the file given makes {given}. Give it the file that it had, or \
         this one; the order of shards and replicas in a file names the groups", path.display()
    )]
    OtherGroups {
        /// The stored config.
        path: PathBuf,
        /// Its groups.
        kept: String,
        /// The groups of the config given.
        given: String,
    },
    /// The config of the first start, or one received while the node ran, can't be stored.
    #[error("can't write {}: {reason}; free some space or correct its permissions", path.display())]
    ConfigNotStored {
        /// The path of the file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
    /// A backup can't be restored, or its restore is incomplete.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The address can't be bound.
    #[error("can't listen on {address}: {reason}; stop the process that uses it, or change the address of the node")]
    Listen {
        /// The address.
        address: String,
        /// The I/O error.
        reason: io::Error,
    },
    /// A later release wrote the data.
    #[error(
        "{}: its data goes by rules {seen}, and this program knows rules {known}; start the node with the release that \
         it ran before, or a later one", data_dir.display()
    )]
    UnsupportedRules {
        /// The data directory.
        data_dir: PathBuf,
        /// The highest rules that a replica here has used.
        seen: u16,
        /// The rules that this program knows.
        known: KnownRules,
    },
    /// The data directory can't be opened.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A replica can't start.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
}
