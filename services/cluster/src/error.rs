//! Errors of a cluster config.

use std::io;
use std::path::PathBuf;

/// A cluster config is unusable. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file can't be read.
    #[error("cluster config {}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        reason: io::Error,
    },
    /// The file's content is invalid.
    #[error("cluster config {}: {reason}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: Box<ConfigError>,
    },
    /// The text is not JSON of the right shape.
    #[error("{place}: {problem}")]
    Malformed {
        /// The location, like `applications[2].shards[3].lower_bound`.
        place: String,
        /// The problem, with line and column.
        problem: String,
    },
    /// The config is well-formed but describes no usable cluster.
    #[error("{place}: {problem}; {remedy}")]
    Invalid {
        /// The location, like `applications[2].shards[3].lower_bound`.
        place: String,
        /// The problem.
        problem: String,
        /// The remedy.
        remedy: String,
    },
}

impl ConfigError {
    /// Creates an error of [`crate::ClusterConfig::validate`] and similar checks.
    pub(crate) fn invalid(place: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// Returns the location of the problem in the config, if it has one.
    pub fn field_path(&self) -> Option<&str> {
        match self {
            Self::Unreadable { .. } => None,
            Self::File { reason, .. } => reason.field_path(),
            Self::Malformed { place, .. } | Self::Invalid { place, .. } => Some(place),
        }
    }
}
