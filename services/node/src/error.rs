//! Why a node can't start.

use std::io;
use std::path::PathBuf;

use holdfast_cluster::ConfigError;
use holdfast_replication::{KnownRules, ReplicationError};
use holdfast_storage::StorageError;

use crate::restore::RestoreError;

/// A node can't start. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The cluster config is refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The node is not in it.
    #[error("node {node} is not in the cluster config, which has {known}; check --node-id and --cluster-config")]
    UnknownNode {
        /// As given.
        node: String,
        /// Those that are.
        known: String,
    },
    /// A config that came while the node ran can't be kept.
    #[error("can't write {}: {reason}; free some space or correct its permissions", path.display())]
    ConfigNotStored {
        /// Where.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// A backup can't be restored, or was not restored to the end.
    #[error(transparent)]
    Restore(#[from] RestoreError),
    /// The address can't be listened on.
    #[error("can't listen on {address}: {reason}; stop the process that uses it, or change the address of the node")]
    Listen {
        /// The address.
        address: String,
        /// The system's reason.
        reason: io::Error,
    },
    /// The data was written by a later release.
    #[error(
        "{}: its data goes by rules {seen}, and this program knows rules {known}; start the node with the release that \
         it ran before, or a later one", data_dir.display()
    )]
    UnsupportedRules {
        /// Where.
        data_dir: PathBuf,
        /// The highest rules that a replica here went by.
        seen: u16,
        /// Those that this program knows.
        known: KnownRules,
    },
    /// The data directory is refused.
    #[error(transparent)]
    Storage(#[from] StorageError),
    /// A replica can't start.
    #[error(transparent)]
    Replication(#[from] ReplicationError),
}
