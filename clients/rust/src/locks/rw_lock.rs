//! A lock that one writer or many readers hold.

use std::time::Duration;

use super::{Guard, Wanted};
use crate::error::Result;
use crate::session::Session;
use crate::view::{Mode, Path, Standing};

/// A lock that one writer or many readers hold. Owners are as those of a [`Mutex`](crate::Mutex); a writer may read
/// what it holds, but a reader gets no write lock on top: it has to release first. First come, first served: readers
/// that come after a waiting writer wait behind it.
///
/// ```no_run
/// # async fn example(session: holdfast_client::Session) -> holdfast_client::Result<()> {
/// let prices = session.rw_lock("prices");
/// let reading = prices.read().await?;
/// reading.release().await?;
/// let writing = prices.write().await?;
/// # drop(writing);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RwLock {
    wanted: Wanted,
}

impl RwLock {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { wanted: Wanted::new(session, [(path, Mode::Write)]) }
    }

    /// Names the owner, as [`Mutex::owned_by`](crate::Mutex::owned_by) does.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.wanted.owner = Some(owner.as_ref().into());
        self
    }

    /// As [`Mutex::transition`](crate::Mutex::transition).
    pub fn transition(mut self, transition: Duration) -> Self {
        self.wanted.transition = transition;
        self
    }

    /// Waits to hold it together with other readers.
    ///
    /// # Errors
    /// As of [`Mutex::lock`](crate::Mutex::lock).
    pub async fn read(&self) -> Result<Guard> {
        self.wanted.lock(Some(Mode::Read)).await
    }

    /// Waits to hold it alone.
    ///
    /// # Errors
    /// As of [`Mutex::lock`](crate::Mutex::lock); also when the same owner reads it.
    pub async fn write(&self) -> Result<Guard> {
        self.wanted.lock(Some(Mode::Write)).await
    }

    /// Reads if that can be had now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with those who are in the way.
    pub async fn try_read(&self) -> Result<Guard> {
        self.wanted.try_lock(Some(Mode::Read)).await
    }

    /// Writes if that can be had now.
    ///
    /// # Errors
    /// [`Error::Refused`](crate::Error::Refused), with those who are in the way.
    pub async fn try_write(&self) -> Result<Guard> {
        self.wanted.try_lock(Some(Mode::Write)).await
    }

    /// As [`RwLock::read`], for so long at most.
    ///
    /// # Errors
    /// As of [`RwLock::read`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn read_timeout(&self, limit: Duration) -> Result<Guard> {
        self.wanted.lock_timeout(Some(Mode::Read), limit).await
    }

    /// As [`RwLock::write`], for so long at most.
    ///
    /// # Errors
    /// As of [`RwLock::write`], and [`Error::TimedOut`](crate::Error::TimedOut).
    pub async fn write_timeout(&self, limit: Duration) -> Result<Guard> {
        self.wanted.lock_timeout(Some(Mode::Write), limit).await
    }

    /// As [`RwLock::read`], and says about every second where the request stands while it waits.
    ///
    /// # Errors
    /// As of [`RwLock::read`].
    pub async fn read_observed(&self, observe: impl FnMut(Standing)) -> Result<Guard> {
        self.wanted.lock_observed(Some(Mode::Read), observe).await
    }

    /// As [`RwLock::write`], and says about every second where the request stands while it waits.
    ///
    /// # Errors
    /// As of [`RwLock::write`].
    pub async fn write_observed(&self, observe: impl FnMut(Standing)) -> Result<Guard> {
        self.wanted.lock_observed(Some(Mode::Write), observe).await
    }
}
