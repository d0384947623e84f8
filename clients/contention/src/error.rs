//! Errors of contention.

use std::time::Duration;

use holdfast_client::Error;

use crate::status::Status;

/// The error type of this crate.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, ContentionError};
///
/// let error = ContendOptions::new(Duration::from_millis(1)).check().unwrap_err();
/// assert!(matches!(error, ContentionError::Invalid { what: "the time to live", .. }));
/// assert_eq!(error.to_string(), "the time to live is invalid: 100 ms to 24 h are allowed");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ContentionError {
    /// A service can be started only when it is `INITIAL`, and stopped only when it is `RUNNING`.
    #[error("mutex `{mutex}` cannot {what} while it is {found}; it has to be {expected}")]
    WrongStatus {
        /// The mutex.
        mutex: String,
        /// The action: start or stop.
        what: &'static str,
        /// The only status that allows the action.
        expected: Status,
        /// The current status.
        found: Status,
    },
    /// An invalid name, id or duration.
    #[error("{what} is invalid: {why}")]
    Invalid {
        /// The value.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// There is no runtime: call from within a tokio runtime.
    #[error("there is no tokio runtime here to contend on")]
    NoRuntime,
    /// The required ownership does not exist, or was lost meanwhile.
    #[error("contender `{contender_id}` does not own mutex `{mutex}`")]
    NotOwner {
        /// The mutex.
        mutex: String,
        /// The contender that does not own it.
        contender_id: String,
    },
    /// This locker owns its mutex, or is acquiring it; close it first.
    #[error("mutex `{mutex}` is acquired already by this locker; close it first")]
    AlreadyAcquired {
        /// The mutex.
        mutex: String,
    },
    /// Another contender owned the mutex for as long as the caller would wait.
    #[error("contender `{contender_id}` did not become the owner of mutex `{mutex}` within {} ms", within.as_millis())]
    TimedOut {
        /// The mutex.
        mutex: String,
        /// The waiting contender.
        contender_id: String,
        /// How long it waited.
        within: Duration,
    },
    /// A call to the store of owners failed.
    #[error(transparent)]
    Store(#[from] Error),
}
