//! Why a cluster config is refused.

use std::io;
use std::path::PathBuf;

/// A cluster config that cannot be used. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cluster config {}: cannot be read: {reason}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        reason: io::Error,
    },
    /// The file was read, and what it says is refused.
    #[error("cluster config {}: {reason}", path.display())]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong in it.
        reason: Box<ConfigError>,
    },
    /// The text is not JSON of the right shape.
    #[error("{place}: {problem}")]
    Malformed {
        /// Where, like `applications[2].shards[3].lower_bound`.
        place: String,
        /// What is wrong, with line and column.
        problem: String,
    },
    /// The config is well-formed and makes no usable cluster.
    #[error("{place}: {problem}; {remedy}")]
    Invalid {
        /// Where, like `applications[2].shards[3].lower_bound`.
        place: String,
        /// What is wrong.
        problem: String,
        /// What to do about it.
        remedy: String,
    },
}

impl ConfigError {
    /// A finding of [`crate::ClusterConfig::validate`] and its kin.
    pub(crate) fn invalid(place: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Invalid { place: place.into(), problem: problem.into(), remedy: remedy.into() }
    }

    /// Where in the config the problem is, when it is about a place in it.
    pub fn field_path(&self) -> Option<&str> {
        match self {
            Self::Unreadable { .. } => None,
            Self::File { reason, .. } => reason.field_path(),
            Self::Malformed { place, .. } | Self::Invalid { place, .. } => Some(place),
        }
    }
}
