//! Conditions of a lock.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use super::Guard;
use crate::error::{Error, Result};

/// A condition of a lock: whoever holds the lock gives it up until another holder signals that something has changed.
/// The conditions of a lock are told apart by their names, and at most 16 of one lock are awaited at a time. The name
/// alone says nothing of the lock.
///
/// Whoever waits has the lock again when the wait returns, and checks then what it waited for, since others may have
/// had the lock in between. [`Guard::wait_while`] does both.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use std::sync::atomic::{AtomicU32, Ordering};
/// use std::sync::Arc;
///
/// let jobs = Arc::new(AtomicU32::new(0));
/// let (lock, not_empty) = (session.mutex("jobs"), session.condition("not empty"));
/// let producer = tokio::spawn({
///     let (lock, not_empty, jobs) = (lock.clone(), not_empty.clone(), Arc::clone(&jobs));
///     async move {
///         let guard = lock.lock().await?;
///         jobs.fetch_add(1, Ordering::Relaxed);
///         guard.signal(&not_empty).await?;
///         guard.release().await
///     }
/// });
/// let guard = lock.owned_by("consumer").lock().await?;
/// let guard = guard.wait_while(&not_empty, || async { jobs.load(Ordering::Relaxed) == 0 }).await?;
/// jobs.fetch_sub(1, Ordering::Relaxed);
/// guard.release().await?;
/// producer.await.unwrap()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Condition(Arc<str>);

impl fmt::Debug for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "condition {:?}", self.0)
    }
}

/// Why a wait for a condition returned.
///
/// ```
/// let is_news = |woken| woken == holdfast_client::Woken::Signalled;
/// assert!(!is_news(holdfast_client::Woken::Elapsed));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// It was signalled.
    Signalled,
    /// Its time was over.
    Elapsed,
}

impl Condition {
    pub(crate) fn new(name: &str) -> Self {
        Self(name.into())
    }

    /// Returns its name.
    pub fn name(&self) -> &str {
        &self.0
    }
}

impl Guard {
    /// Gives the lock up until the condition is signalled, and waits for the lock again. In one step: nobody has the
    /// lock before this owner awaits the condition. If the future is dropped, the owner neither waits nor holds the
    /// lock; a signal that it had goes to another one.
    ///
    /// The new guard has another token. Other locks that the owner holds it keeps, which may keep those from signalling
    /// who need them.
    ///
    /// # Errors
    /// [`Error::Nested`] when the same owner has locked it several times: giving it up would surprise the
    /// others. [`Error::Invalid`] for a set of locks, for a reader, and for anything but a lock.
    /// [`Error::Unsupported`] where locks have no conditions. [`Error::Lost`]; [`Error::Refused`] with
    /// [`Reason::Deadlock`](crate::Reason::Deadlock) when waiting for the lock again would close a cycle;
    /// [`Error::SessionEnded`]. The lock is not held then.
    pub async fn wait(self, condition: &Condition) -> Result<Self> {
        Ok(self.await_condition(condition, None).await?.0)
    }

    /// Like [`Guard::wait`], for so long at most, 1 ms to 10 min; and then the time that it takes to get the lock
    /// again.
    ///
    /// # Errors
    /// Like [`Guard::wait`].
    pub async fn wait_timeout(self, condition: &Condition, limit: Duration) -> Result<(Self, Woken)> {
        self.await_condition(condition, Some(limit)).await
    }

    /// Waits for signals as long as something is true. It is asked while the lock is held.
    ///
    /// # Errors
    /// Like [`Guard::wait`].
    pub async fn wait_while<W: Future<Output = bool>>(
        self,
        condition: &Condition,
        mut waits: impl FnMut() -> W,
    ) -> Result<Self> {
        let mut guard = self;
        while waits().await {
            guard = guard.wait(condition).await?;
        }
        Ok(guard)
    }

    /// Wakes the owner that awaits a condition of this lock longest: it waits for the lock from then on, behind
    /// everybody who waits for it now. If it ends without the lock, the next one is woken in its place. Returns how
    /// many were woken.
    ///
    /// # Errors
    /// [`Error::Lost`]; [`Error::Invalid`] for a set of locks, for a reader, and for anything but a lock;
    /// [`Error::Unsupported`] where locks have no conditions; [`Error::SessionEnded`].
    pub async fn signal(&self, condition: &Condition) -> Result<u64> {
        self.signal_some(condition, false).await
    }

    /// Like [`Guard::signal`], for all that await the condition, in order.
    ///
    /// # Errors
    /// Like [`Guard::signal`].
    pub async fn signal_all(&self, condition: &Condition) -> Result<u64> {
        self.signal_some(condition, true).await
    }

    async fn await_condition(self, condition: &Condition, limit: Option<Duration>) -> Result<(Self, Woken)> {
        self.check()?;
        let wait_ms = limit.map(|limit| u64::try_from(limit.as_millis()).unwrap_or(u64::MAX).max(1));
        let (session, grant) = self.into_parts();
        let claimed = grant.await_condition(&condition.0, wait_ms)?.await?;
        let woken = claimed.woken().unwrap_or(Woken::Signalled);
        Ok((Self::new(&session, claimed)?, woken))
    }

    async fn signal_some(&self, condition: &Condition, all: bool) -> Result<u64> {
        self.check()?;
        let counted = self.grant().signal(&condition.0, all)?.await;
        counted.unwrap_or(Err(Error::SessionEnded(crate::EndReason::Closed)))
    }
}
