//! What can be wrong with files for TLS.

use std::path::PathBuf;

/// Files for TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// One of them cannot be read as PEM.
    #[error("{}: cannot be read as PEM: {reason}", path.display())]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// There is nothing of the kind in it.
    #[error("{}: holds no {what} in PEM", path.display())]
    Empty {
        /// Which file.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// They do not make a set, like a key that belongs to another certificate.
    #[error("{}: cannot be used: {reason}", path.display())]
    Unusable {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
}
