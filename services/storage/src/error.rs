//! What may go wrong, in words that say where, what, and what to do about it.

use std::sync::Arc;

/// Why the storage refuses. Cheap to clone, because one failed sync is told to everyone who waited for it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system or RocksDB refused. When it was a write or a sync, the store is poisoned.
    #[error("{action} failed in {place}: {cause}; check the disk, then start the node again")]
    Io {
        /// Data directory or file.
        place: String,
        /// What was being done.
        action: &'static str,
        /// The refusal as it was reported.
        cause: String,
    },
    /// Data is damaged or missing. It is never served.
    #[error(
        "corrupt data in {place}{}: {what}; nothing of it is served: move the data directory away, and \
         let this node get its replicas from its peers as `holdfast-admin node rebuild` says (docs/running.md)",
        describe_position(*replica, *index)
    )]
    Corrupt {
        /// Data directory or file.
        place: String,
        /// Whose data it is, when it is known.
        replica: Option<u64>,
        /// Log index, when it is about a log entry.
        index: Option<u64>,
        /// What is wrong with it.
        what: String,
    },
    /// The directory holds the data of another node or of another cluster.
    #[error(
        "{place} holds the data of node {found_node:?} of cluster {found_cluster:?}, not of node {wanted_node:?} of \
         cluster {wanted_cluster:?}; nothing was changed: use the right directory, or the right node id and secret"
    )]
    OwnerMismatch {
        /// Data directory.
        place: String,
        /// Cluster that the data belongs to.
        found_cluster: String,
        /// Node that the data belongs to.
        found_node: String,
        /// Cluster of the node that was started.
        wanted_cluster: String,
        /// Node that was started.
        wanted_node: String,
    },
    /// Another process, or another store of this one, uses the directory.
    #[error("{place} is in use by another process; stop it first, or give this node its own data directory")]
    InUse {
        /// Data directory.
        place: String,
    },
    /// The directory was written by another version of this software.
    #[error("{place} has data of format {found}, and this version knows {known} only; use the version that wrote it")]
    UnknownFormat {
        /// Data directory.
        place: String,
        /// What was found.
        found: String,
        /// What can be read.
        known: u32,
    },
    /// Cluster and node ids are one line of text, which these are not.
    #[error("{what} is empty, too long or has control characters: {value:?}")]
    InvalidIdentity {
        /// Which of the ids.
        what: &'static str,
        /// As it was given.
        value: String,
    },
    /// An in-memory disk crashed, and this store lost its hold on it.
    #[error("{place} crashed; open it again")]
    Crashed {
        /// Name of the disk.
        place: String,
    },
    /// The twin runs its committer as a task, and there is no runtime to run it.
    #[error("an in-memory store must be opened inside a tokio runtime")]
    NoRuntime,
    /// The store was closed.
    #[error("{place} was closed")]
    Closed {
        /// Data directory.
        place: String,
    },
    /// An earlier write or sync failed, so nothing is known about what is on the disk until the next start.
    #[error("the store does not go on after an earlier failure ({first})")]
    Poisoned {
        /// The first failure.
        first: Arc<StorageError>,
    },
}

impl StorageError {
    pub(crate) fn io(place: &str, action: &'static str, cause: impl ToString) -> Self {
        Self::Io { place: place.to_owned(), action, cause: cause.to_string() }
    }

    pub(crate) fn corrupt(place: &str, what: impl Into<String>) -> Self {
        Self::Corrupt { place: place.to_owned(), replica: None, index: None, what: what.into() }
    }

    /// Whether data was found damaged or missing.
    pub fn is_corrupt(&self) -> bool {
        match self {
            Self::Corrupt { .. } => true,
            Self::Poisoned { first } => first.is_corrupt(),
            _ => false,
        }
    }
}

fn describe_position(replica: Option<u64>, index: Option<u64>) -> String {
    match (replica, index) {
        (Some(replica), Some(index)) => format!(", replica {replica}, log index {index}"),
        (Some(replica), None) => format!(", replica {replica}"),
        _ => String::new(),
    }
}
