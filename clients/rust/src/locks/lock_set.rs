//! Several locks at once.

use std::time::Duration;

use super::{Guard, LockSpec};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path};

/// Several locks that are acquired together or not at all, in one step of the service: no owner waits while it holds
/// some of them. Owners are as for a [`Mutex`](crate::Mutex). The guard is lost when any of its locks is.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::Mode;
///
/// let both = session.lock_set([("from", Mode::Write), ("to", Mode::Write), ("rates", Mode::Read)]);
/// let guard = both.lock().await?;
/// assert_eq!(guard.fencing_token_of("from"), Some(guard.fencing_token()));
/// assert_eq!(guard.paths().count(), 3);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockSet {
    spec: LockSpec,
}

impl LockSet {
    pub(crate) fn new(session: Session, claims: impl IntoIterator<Item = (Path, Mode)>) -> Self {
        Self { spec: LockSpec::new(session, claims) }
    }

    /// Sets the owner, like [`Mutex::owned_by`](crate::Mutex::owned_by).
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.spec.owner = Some(owner.as_ref().into());
        self
    }

    /// Like [`Mutex::transition`](crate::Mutex::transition).
    pub fn transition(mut self, transition: Duration) -> Self {
        self.spec.transition = transition;
        self
    }

    /// Like [`Mutex::at_least`](crate::Mutex::at_least).
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.spec.at_least = at_least;
        self
    }

    /// Waits for all of them, without a timeout.
    ///
    /// # Errors
    /// Like [`Mutex::lock`](crate::Mutex::lock), also if the same owner has only one of them, and
    /// [`Error::Invalid`](crate::Error::Invalid) for none or more than 64.
    pub async fn lock(&self) -> Result<Guard> {
        self.spec.lock(None).await
    }

    /// Like [`LockSet::lock`], but the same owner may hold some or all of them. They keep their tokens, and each is
    /// free once the last guard that has it is gone.
    ///
    /// # Errors
    /// Like [`Mutex::lock_again`](crate::Mutex::lock_again), and [`Error::Invalid`](crate::Error::Invalid) for none or
    /// more than 64.
    pub async fn lock_again(&self) -> Result<Guard> {
        self.spec.lock_again(None).await
    }

    /// Acquires all of them if that is possible now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with the blockers of the first failing claim;
    /// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) as for [`LockSet::lock`].
    pub async fn try_lock(&self) -> Result<Guard> {
        self.spec.try_lock(None).await
    }

    /// Like [`LockSet::lock`], with a timeout.
    ///
    /// # Errors
    /// Like [`LockSet::lock`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn lock_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(None, limit).await
    }
}
