//! Errors of a backup.

use std::io;
use std::path::{Path, PathBuf};

/// A backup can't be written or read. The message contains the remedy.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The target already exists.
    #[error("{}: already exists; choose a new directory, nothing is overwritten", .0.display())]
    Exists(PathBuf),
    /// There is no manifest.
    #[error(
        "{}: has no manifest.json, so it is no backup, or one that was cut short; use another one", .0.display()
    )]
    NoManifest(PathBuf),
    /// Another version made it.
    #[error(
        "{}: is a backup of format {found}, and this program reads format {known}; use the version that made it",
        path.display()
    )]
    UnsupportedFormat {
        /// The backup.
        path: PathBuf,
        /// Its format.
        found: u64,
        /// The format that this program reads.
        known: u64,
    },
    /// A file differs from what was written.
    #[error("{}: {what}; the backup was cut short or altered: use another one", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The problem.
        what: String,
    },
    /// The shard is not in the backup.
    #[error(
        "{}: has no shard {shard:?}; restore it into a cluster whose config has the same shards and bounds",
        path.display()
    )]
    ShardNotFound {
        /// The backup.
        path: PathBuf,
        /// The shard.
        shard: String,
    },
    /// An I/O error.
    #[error("{}: cannot be {action}: {reason}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The attempted action.
        action: &'static str,
        /// The I/O error.
        reason: io::Error,
    },
}

impl BackupError {
    pub(crate) fn io(path: &Path, action: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |reason| Self::Io { path, action, reason }
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }
}
