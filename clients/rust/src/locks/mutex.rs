//! A lock that one owner at a time holds.

use std::time::Duration;

use super::{Guard, LockSpec};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path, WaitStatus};

/// A lock that one owner at a time holds, among all processes that use the namespace.
///
/// The owner is the tokio task that locks, or the thread that blocks on it outside of tasks, unless one is named with
/// [`Mutex::owned_by`]: two tasks exclude each other, and one that locks again what it holds gets it at once, counted:
/// the last guard frees it. A guard may go to another task; the owner stays.
///
/// Every wait may be dropped: it leaves the queue, and a grant that was on its way is given back.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use std::time::Duration;
/// use holdfast_client::Error;
///
/// let mutex = session.mutex("invoices");
/// let guard = mutex.lock().await?;
/// let again = mutex.lock().await?;
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

    /// Names the owner: 1 to 128 bytes. Whoever uses the same name on the same session is the same owner.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.spec.owner = Some(owner.as_ref().into());
        self
    }

    /// For how long nobody gets the lock after the session of its holder expired, 0 to 10 min: time for the holder to
    /// stop. Nothing when it is not set.
    pub fn transition(mut self, transition: Duration) -> Self {
        self.spec.transition = transition;
        self
    }

    /// Waits for the lock, without a limit of time.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused) when waiting would close a cycle of waits, or the wait was cut short;
    /// [`Error::SessionEnded`](crate::Error::SessionEnded).
    pub async fn lock(&self) -> Result<Guard> {
        self.spec.lock(None).await
    }

    /// Takes the lock if it can be had now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with those who have it.
    pub async fn try_lock(&self) -> Result<Guard> {
        self.spec.try_lock(None).await
    }

    /// As [`Mutex::lock`], for so long at most.
    ///
    /// # Errors
    /// As of [`Mutex::lock`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn lock_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(None, limit).await
    }

    /// As [`Mutex::lock`], and says about every second where the request stands while it waits.
    ///
    /// # Errors
    /// As of [`Mutex::lock`].
    pub async fn lock_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(None, observe).await
    }
}
