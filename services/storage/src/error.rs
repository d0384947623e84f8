//! Storage errors, which tell where, what, and how to resolve it.

use std::sync::Arc;

/// An error of the storage. Cheap to clone, because all pending operations receive the error of a failed sync.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StorageError {
    /// The operating system or RocksDB reported an error. If it was a write or a sync, the store is poisoned.
    #[error("{action} failed in {place}: {cause}; check the disk, then start the node again")]
    Io {
        /// Data directory or file.
        place: String,
        /// The failed action.
        action: &'static str,
        /// The reported cause.
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
        /// The replica of the data, if known.
        replica: Option<u64>,
        /// Log index, if it is about a log entry.
        index: Option<u64>,
        /// Description of the damage.
        what: String,
    },
    /// The directory contains the data of another node or cluster.
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
    /// Another process, or another store of this process, uses the directory.
    #[error("{place} is in use by another process; stop it first, or give this node its own data directory")]
    InUse {
        /// Data directory.
        place: String,
    },
    /// Another version of this software wrote the directory.
    #[error(
        "{place} has data of format {found}, and this version knows {known} only; use the version that wrote it, or let \
         that one make a backup and restore it into an empty directory with this one"
    )]
    UnknownFormat {
        /// Data directory.
        place: String,
        /// The format found.
        found: String,
        /// The only readable format.
        known: u32,
    },
    /// A cluster or node id is not one line of text.
    #[error("{what} is empty, too long or has control characters: {value:?}")]
    InvalidIdentity {
        /// Which of the ids.
        what: &'static str,
        /// The given value.
        value: String,
    },
    /// A part of a snapshot does not exist, or can't be saved. Nothing was changed.
    #[error("part {part:?} of the snapshot of replica {replica} in {place}: {what}")]
    InvalidPart {
        /// Data directory.
        place: String,
        /// The replica of the snapshot.
        replica: u64,
        /// Name of the part.
        part: String,
        /// Description of the problem.
        what: &'static str,
    },
    /// An in-memory disk crashed, which detached this store.
    #[error("{place} crashed; open it again")]
    Crashed {
        /// Name of the disk.
        place: String,
    },
    /// The in-memory engine runs its committer as a task, and there is no runtime.
    #[error("an in-memory store must be opened inside a tokio runtime")]
    NoRuntime,
    /// The store was closed.
    #[error("{place} was closed")]
    Closed {
        /// Data directory.
        place: String,
    },
    /// An earlier write or sync failed, so the content of the disk is unknown until the next start.
    #[error("the store writes nothing more after an earlier failure ({first})")]
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

    /// Returns whether data was found damaged or missing.
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
