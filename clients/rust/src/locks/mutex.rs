//! A mutual-exclusion lock.

use std::time::Duration;

use super::{Guard, LockSpec};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path, WaitStatus};

/// A lock that one owner holds at a time, among all processes that use the namespace.
///
/// Unless [`Mutex::owned_by`] sets it, the owner is the tokio task that locks, or the thread that blocks outside of
/// tasks. Two tasks exclude each other. Two futures of one task, as under `join!` or `select!`, are one owner: while
/// that owner holds the lock or waits for it, a further plain call fails at once with
/// [`Error::AlreadyHeld`](crate::Error::AlreadyHeld). Nested code that is meant to share the lock calls
/// [`Mutex::lock_again`]; holds are counted, and the last guard frees the lock. A guard may move to another task; the
/// owner stays.
///
/// Every wait may be dropped: its request leaves the queue, and a grant in flight is released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use std::time::Duration;
/// use holdfast_client::Error;
///
/// let mutex = session.mutex("invoices");
/// let guard = mutex.lock().await?;
/// assert_eq!(mutex.lock().await.unwrap_err(), Error::AlreadyHeld("invoices".into()));
/// let again = mutex.lock_again().await?;
/// assert_eq!(guard.fencing_token(), again.fencing_token());
///
/// let limit = Duration::from_millis(50);
/// let other = mutex.clone().owned_by("somebody else");
/// assert_eq!(other.lock_timeout(limit).await.unwrap_err(), Error::TimedOut(limit));
///
/// drop((guard, again));
/// other.lock().await?.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Mutex {
    spec: LockSpec,
}

impl Mutex {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { spec: LockSpec::new(session, [(path, Mode::Write)]) }
    }

    /// Sets the owner: 1 to 128 bytes. The same name on the same session is the same owner.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.spec.owner = Some(owner.as_ref().into());
        self
    }

    /// Sets how long the lock stays blocked after its holder's session expired, 0 to 10 min: time for the holder to
    /// stop. Zero if unset.
    pub fn transition(mut self, transition: Duration) -> Self {
        self.spec.transition = transition;
        self
    }

    /// Sets how long after its grant nobody else gets the lock, however the hold ends, 0 to 24 h: for a job that must
    /// not run twice in that time on machines whose clocks differ. The same owner may lock it again meanwhile. Zero if
    /// unset.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> holdfast_client::Result<()> {
    /// # let service = holdfast_testkit::Standalone::fresh();
    /// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
    /// # let (session, other) = (client.session("demo").open().await?, client.session("demo").open().await?);
    /// use std::time::Duration;
    ///
    /// let job = session.mutex("nightly").at_least(Duration::from_secs(600));
    /// job.lock().await?.release().await?;
    /// assert!(other.mutex("nightly").try_lock().await.is_err());
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_least(mut self, at_least: Duration) -> Self {
        self.spec.at_least = at_least;
        self
    }

    /// Waits for the lock, without a timeout.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) when waiting would close a cycle of waits, or the wait was ended
    /// early; [`Error::AlreadyHeld`](crate::Error::AlreadyHeld) when the same owner holds it or waits for it;
    /// [`Error::SessionEnded`](crate::Error::SessionEnded).
    pub async fn lock(&self) -> Result<Guard> {
        self.spec.lock(None).await
    }

    /// Like [`Mutex::lock`], but if the same owner holds the lock or waits for it, shares that hold or that wait.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) as for [`Mutex::lock`], and when the owner has the lock for reading
    /// only; [`Error::SessionEnded`](crate::Error::SessionEnded).
    pub async fn lock_again(&self) -> Result<Guard> {
        self.spec.lock_again(None).await
    }

    /// Acquires the lock if it is free now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with the blockers; [`Error::AlreadyHeld`](crate::Error::AlreadyHeld)
    /// as for [`Mutex::lock`].
    pub async fn try_lock(&self) -> Result<Guard> {
        self.spec.try_lock(None).await
    }

    /// Like [`Mutex::lock`], with a timeout.
    ///
    /// # Errors
    /// Like [`Mutex::lock`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn lock_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(None, limit).await
    }

    /// Like [`Mutex::lock`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`Mutex::lock`].
    pub async fn lock_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(None, observe).await
    }
}
