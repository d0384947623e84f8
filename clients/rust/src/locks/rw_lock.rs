//! A read-write lock.

use std::time::Duration;

use super::{Guard, LockSpec};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path, WaitStatus};

/// A lock that one writer or many readers hold. Owners are as for a [`Mutex`](crate::Mutex). A writer may also read,
/// with [`RwLock::read_again`], but a reader can't upgrade to write: it must release first. Requests are granted in
/// FIFO order: readers that arrive after a waiting writer wait behind it.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
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

    /// Waits for a shared hold.
    ///
    /// # Errors
    /// Like [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.spec.lock(Some(Mode::Read)).await
    }

    /// Waits for an exclusive hold.
    ///
    /// # Errors
    /// Like [`Mutex::lock`](crate::Mutex::lock).
    pub async fn write(&self) -> Result<Guard> {
        self.spec.lock(Some(Mode::Write)).await
    }

    /// Like [`RwLock::read`], but shares what the same owner holds or waits for, in either mode.
    ///
    /// # Errors
    /// Like [`Mutex::lock_again`](crate::Mutex::lock_again).
    pub async fn read_again(&self) -> Result<Guard> {
        self.spec.lock_again(Some(Mode::Read)).await
    }

    /// Like [`RwLock::write`], but shares what the same owner holds or waits for in that mode.
    ///
    /// # Errors
    /// Like [`Mutex::lock_again`](crate::Mutex::lock_again): refused with
    /// [`Reason::Upgrade`](crate::Reason::Upgrade) when the owner has it for reading.
    pub async fn write_again(&self) -> Result<Guard> {
        self.spec.lock_again(Some(Mode::Write)).await
    }

    /// Acquires a shared hold if that is possible now.
    ///
    /// # Errors
    /// Like [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_read(&self) -> Result<Guard> {
        self.spec.try_lock(Some(Mode::Read)).await
    }

    /// Acquires an exclusive hold if that is possible now.
    ///
    /// # Errors
    /// Like [`Mutex::try_lock`](crate::Mutex::try_lock).
    pub async fn try_write(&self) -> Result<Guard> {
        self.spec.try_lock(Some(Mode::Write)).await
    }

    /// Like [`RwLock::read`], with a timeout.
    ///
    /// # Errors
    /// Like [`RwLock::read`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn read_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(Some(Mode::Read), limit).await
    }

    /// Like [`RwLock::write`], with a timeout.
    ///
    /// # Errors
    /// Like [`RwLock::write`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn write_timeout(&self, limit: Duration) -> Result<Guard> {
        self.spec.lock_timeout(Some(Mode::Write), limit).await
    }

    /// Like [`RwLock::read`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`RwLock::read`].
    pub async fn read_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(Some(Mode::Read), observe).await
    }

    /// Like [`RwLock::write`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`RwLock::write`].
    pub async fn write_observed(&self, observe: impl FnMut(WaitStatus)) -> Result<Guard> {
        self.spec.lock_observed(Some(Mode::Write), observe).await
    }
}
