//! Stores of owners.

mod in_process;
mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use holdfast_client::Result;

pub use in_process::InProcessStore;
pub use service::ServiceStore;

/// Stores the owners of mutexes: the lock service, or [`InProcessStore`].
///
/// Services of this crate need nothing else, so a test can insert its own store between them and a real one. Every call
/// must end within a bounded time, even if the service does not respond.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{AcquireMutex, Acquisition, Holding, InProcessStore, MutexStore};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_client::Error> {
/// let store = InProcessStore::default();
/// let request = AcquireMutex {
///     mutex: "reports".to_owned(),
///     contender_id: "a".to_owned(),
///     ttl: Duration::from_secs(2),
///     transition: Duration::ZERO,
///     wait: Duration::ZERO,
///     fencing_token: None,
///     metadata: [].into(),
/// };
/// assert_eq!(store.acquire(&request).await?, Acquisition::Granted { fencing_token: 1 });
/// let other = AcquireMutex { contender_id: "b".to_owned(), ..request };
/// match store.acquire(&other).await? {
///     Acquisition::NotGranted { holding: Some(Holding { owner_id, .. }) } => assert_eq!(owner_id, "a"),
///     other => unreachable!("{other:?}"),
/// }
/// assert!(store.release("reports", "a").await?);
/// assert_eq!(store.holding("reports").await?, None);
/// # Ok(())
/// # }
/// ```
pub trait MutexStore: Send + Sync + 'static {
    /// Becomes the owner if there is no other one, or renews. Waits up to `request.wait`, in FIFO order; dropping the
    /// future of a waiting call leaves the queue.
    ///
    /// # Errors
    /// The store's error when the call failed; its outcome is then unknown.
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>>;

    /// Ends this contender's ownership, if any. Returns true if it had one.
    ///
    /// # Errors
    /// As with [`MutexStore::acquire`].
    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Returns the current ownership.
    ///
    /// # Errors
    /// As with [`MutexStore::acquire`].
    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>>;

    /// Yields an item whenever the owner may have changed; after an error or the end, changes may be missed.
    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>>;
}

/// A request of a contender.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_client::Error> {
/// use std::time::Duration;
/// use holdfast_contention::{AcquireMutex, Acquisition, InProcessStore, MutexStore};
///
/// let store = InProcessStore::default();
/// let request = AcquireMutex {
///     mutex: "reports".to_owned(),
///     contender_id: "a".to_owned(),
///     ttl: Duration::from_secs(2),
///     transition: Duration::ZERO,
///     wait: Duration::ZERO,
///     fencing_token: None,
///     metadata: [].into(),
/// };
/// // With a token it only renews, and there is nothing to renew.
/// let renewal = AcquireMutex { fencing_token: Some(7), ..request };
/// assert_eq!(store.acquire(&renewal).await?, Acquisition::NotGranted { holding: None });
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AcquireMutex {
    /// The mutex.
    pub mutex: String,
    /// The contender's id.
    pub contender_id: String,
    /// How long the ownership lasts unless it is renewed, in whole ms.
    pub ttl: Duration,
    /// How long other contenders are kept out after that, in whole ms.
    pub transition: Duration,
    /// How long to wait for the ownership.
    pub wait: Duration,
    /// If set, only renew the ownership with this token.
    pub fencing_token: Option<u64>,
    /// The owner's metadata.
    pub metadata: BTreeMap<String, String>,
}

/// The result of an acquire.
///
/// ```
/// use holdfast_contention::Acquisition;
///
/// fn token(acquisition: &Acquisition) -> Option<u64> {
///     match acquisition {
///         Acquisition::Granted { fencing_token } => Some(*fencing_token),
///         Acquisition::NotGranted { .. } => None,
///     }
/// }
///
/// assert_eq!(token(&Acquisition::Granted { fencing_token: 7 }), Some(7));
/// assert_eq!(token(&Acquisition::NotGranted { holding: None }), None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acquisition {
    /// The contender is the owner, with the token of its ownership.
    Granted {
        /// Unchanged by a renewal, otherwise greater than all earlier ones.
        fencing_token: u64,
    },
    /// The contender is not the owner.
    NotGranted {
        /// The current ownership; `None` if only waiting contenders block it.
        holding: Option<Holding>,
    },
}

/// An ownership as the store reports it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), holdfast_client::Error> {
/// use std::time::Duration;
/// use holdfast_contention::{AcquireMutex, Acquisition, InProcessStore, MutexStore};
///
/// let store = InProcessStore::default();
/// let request = AcquireMutex {
///     mutex: "reports".to_owned(),
///     contender_id: "a".to_owned(),
///     ttl: Duration::from_secs(2),
///     transition: Duration::ZERO,
///     wait: Duration::ZERO,
///     fencing_token: None,
///     metadata: [].into(),
/// };
/// store.acquire(&request).await?;
/// let holding = store.holding("reports").await?.expect("somebody owns it");
/// assert_eq!((holding.owner_id.as_str(), holding.fencing_token), ("a", 1));
/// assert!(holding.ttl_left.is_some_and(|left| left <= Duration::from_secs(2)));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holding {
    /// The owner's id.
    pub owner_id: String,
    /// The token of its ownership.
    pub fencing_token: u64,
    /// How long it has been the owner.
    pub held_for: Duration,
    /// The remaining time to live; `None` once it is only in transition.
    pub ttl_left: Option<Duration>,
    /// The remaining transition, if the store reports it; it may omit it during the time to live.
    pub transition_left: Option<Duration>,
    /// The owner's metadata.
    pub metadata: BTreeMap<String, String>,
}
