//! A lock that one writer or many readers hold.

use std::time::Duration;

use super::{Guard, LockSpec};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path, WaitStatus};

/// A lock that one writer or many readers hold. Owners are as those of a [`Mutex`](crate::Mutex); a writer may read
/// what it holds, but a reader gets no write lock on top: it has to release first. First come, first served: readers
/// that come after a waiting writer wait behind it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let prices = session.rw_lock("prices");
/// let (one, other) = (prices.clone().owned_by("one"), prices.owned_by("other"));
/// let (reading, reading_too) = (one.read().await?, other.read().await?);
/// assert!(one.try_write().await.is_err());
/// reading.release().await?;
/// reading_too.release().await?;
/// let writing = one.write().await?;
/// assert!(other.try_read().await.is_err());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    spec: LockSpec,
}

impl RwLock {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { spec: LockSpec::new(session, [(path, Mode::Write)]) }
    }

    /// Names the owner, as [`Mutex::owned_by`](crate::Mutex::owned_by) does.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.spec.owner = Some(owner.as_ref().into());
        self
    }

    /// As [`Mutex::transition`](crate::Mutex::transition).
    pub fn transition(mut self, transition: Duration) -> Self {
        self.spec.transition = transition;
        self
    }

    /// Waits to hold it together with other readers.
    ///
    /// # Errors
    /// As of [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.spec.lock(Some(Mode::Read)).await
    }

    /// Waits to hold it alone.
    ///
    /// # Errors
    /// As of [`Mutex::lock`](crate::Mutex::lock); also when the same owner reads it.
    pub async fn write(&self) -> Result<Guard> {
        self.spec.lock(Some(Mode::Write)).await
    }

    /// Reads if that can be had now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with those who are in the way.
    pub async fn try_read(&self) -> Result<Guard> {
        self.spec.try_lock(Some(Mode::Read)).await
    }

    /// Writes if that can be had now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with those who are in the way.
    pub async fn try_write(&self) -> Result<Guard> {
        self.spec.try_lock(Some(Mode::Write)).await
    }

    /// As [`RwLock::read`], for so long at most.
    ///
    /// # Errors
    /// As of [`RwLock::read`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn read_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(Some(Mode::Read), limit).await
    }

    /// As [`RwLock::write`], for so long at most.
    ///
    /// # Errors
    /// As of [`RwLock::write`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn write_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(Some(Mode::Write), limit).await
    }

    /// As [`RwLock::read`], and says about every second where the request stands while it waits.
    ///
    /// # Errors
    /// As of [`RwLock::read`].
    pub async fn read_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(Some(Mode::Read), observe).await
    }

    /// As [`RwLock::write`], and says about every second where the request stands while it waits.
    ///
    /// # Errors
    /// As of [`RwLock::write`].
    pub async fn write_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(Some(Mode::Write), observe).await
    }
}
