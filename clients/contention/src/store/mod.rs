//! Where it is kept who owns what.

mod in_process;
mod service;

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::BoxStream;
use holdfast_client::Result;

pub use in_process::InProcessStore;
pub use service::ServiceStore;

/// Keeps the owners of mutexes: the lock service, or [`InProcessStore`].
///
/// Services of this module need nothing else, so a test can put a store of its own between them and a real one. Every
/// call has to end within a bounded time, also when nobody answers.
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
    /// Becomes the owner if nobody else is, or renews. Waits up to `request.wait`, in the order of arrival; dropping
    /// the answer of a call that waits leaves the queue.
    ///
    /// # Errors
    /// What the store says when it cannot be asked; it is not known then whether anything was done.
    fn acquire<'a>(&'a self, request: &'a AcquireMutex) -> BoxFuture<'a, Result<Acquisition>>;

    /// Ends the ownership of this contender, if it has it. Returns whether it had.
    ///
    /// # Errors
    /// As with [`MutexStore::acquire`].
    fn release<'a>(&'a self, mutex: &'a str, contender_id: &'a str) -> BoxFuture<'a, Result<bool>>;

    /// Who owns it now.
    ///
    /// # Errors
    /// As with [`MutexStore::acquire`].
    fn holding<'a>(&'a self, mutex: &'a str) -> BoxFuture<'a, Result<Option<Holding>>>;

    /// An item whenever the owner may have changed; an error or the end says that changes may be missed from now on.
    fn changes(&self, mutex: &str) -> BoxStream<'static, Result<()>>;
}

/// What a contender asks for.
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
    /// Of which mutex.
    pub mutex: String,
    /// Who.
    pub contender_id: String,
    /// How long the ownership lasts unless it is renewed, in whole ms.
    pub ttl: Duration,
    /// How long the others have to stay away after that, in whole ms.
    pub transition: Duration,
    /// How long to wait for it.
    pub wait: Duration,
    /// Only renew the ownership of this token.
    pub fencing_token: Option<u64>,
    /// What the owner says of itself.
    pub metadata: BTreeMap<String, String>,
}

/// What became of it.
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
        /// The same as before for a renewal, else greater than every one before.
        fencing_token: u64,
    },
    /// It is not; somebody else may be.
    NotGranted {
        /// Who owns the mutex. Nobody does when only others that wait are in the way.
        holding: Option<Holding>,
    },
}

/// An ownership as the store sees it.
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
    /// Whose.
    pub owner_id: String,
    /// Of its ownership.
    pub fencing_token: u64,
    /// For how long it has been the owner.
    pub held_for: Duration,
    /// What is left of its time to live; none once it is in transition only.
    pub ttl_left: Option<Duration>,
    /// What is left of its transition, where the store tells: it need not tell during the time to live.
    pub transition_left: Option<Duration>,
    /// What it says of itself.
    pub metadata: BTreeMap<String, String>,
}
