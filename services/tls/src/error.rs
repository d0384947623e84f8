//! Errors of TLS files.

use std::path::PathBuf;

/// Files for TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read as PEM.
    #[error("{}: cannot be read as PEM: {reason}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
    /// The file contains no item of that kind.
    #[error("{}: holds no {what} in PEM", path.display())]
    Empty {
        /// The file.
        path: PathBuf,
        /// The expected content.
        what: &'static str,
    },
    /// The files do not belong together, like a key of another certificate.
    #[error("{}: cannot be used: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// The fault.
        reason: String,
    },
}
