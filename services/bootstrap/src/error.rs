//! Why a first start can't be completed.

use std::io;
use std::path::PathBuf;

use holdfast_auth::{RandomError, SecretFileError};

/// A first start can't be completed; starting again takes it up where it ended.
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    /// The data directory can't be made or written.
    #[error("can't write {path}: {reason}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// The system's reason.
        reason: io::Error,
    },
    /// A secret's file.
    #[error(transparent)]
    SecretFile(#[from] SecretFileError),
    /// The system has no random bytes.
    #[error(transparent)]
    Random(#[from] RandomError),
    /// The service can't be reached.
    #[error("creating the demo account: {0}")]
    Unreachable(String),
    /// Something else answers, or the answer lacks what it must have.
    #[error("creating the demo account: {0}")]
    Unexpected(String),
    /// The service refuses.
    #[error("creating the demo account: {call} answered {code}: {detail}")]
    Rejected {
        /// Which call.
        call: &'static str,
        /// The public code.
        code: String,
        /// What the service says.
        detail: String,
    },
}
