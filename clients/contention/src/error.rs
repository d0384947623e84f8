//! What can go wrong, and what to do about it.

use std::time::Duration;

use holdfast_client::Error;

use crate::service::Status;

/// Why a service of this module did not do what it was asked for.
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
    /// A service is started when it is `INITIAL` and stopped when it is `RUNNING`.
    #[error("mutex `{mutex}` cannot {what} while it is {found}; it has to be {expected}")]
    WrongStatus {
        /// Of which mutex.
        mutex: String,
        /// Start or stop.
        what: &'static str,
        /// The only status in which it can.
        expected: Status,
        /// The status that it has.
        found: Status,
    },
    /// A name, an id or a duration that nobody could work with.
    #[error("{what} is invalid: {why}")]
    Invalid {
        /// Which value.
        what: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// There is no runtime to contend on: call from within a tokio runtime.
    #[error("there is no tokio runtime here to contend on")]
    NoRuntime,
    /// The ownership that this needs is not there, or was lost on the way.
    #[error("contender `{contender_id}` does not own mutex `{mutex}`")]
    NotOwner {
        /// Of which mutex.
        mutex: String,
        /// Who does not own it.
        contender_id: String,
    },
    /// This locker owns its mutex, or is about to; close it first.
    #[error("mutex `{mutex}` is acquired already by this locker; close it first")]
    AlreadyAcquired {
        /// Of which mutex.
        mutex: String,
    },
    /// Somebody else owned the mutex for as long as the caller would wait.
    #[error("contender `{contender_id}` did not become the owner of mutex `{mutex}` within {} ms", within.as_millis())]
    TimedOut {
        /// Of which mutex.
        mutex: String,
        /// Who wanted it.
        contender_id: String,
        /// How long it waited.
        within: Duration,
    },
    /// Where the owners are kept could not be asked.
    #[error(transparent)]
    Store(#[from] Error),
}
