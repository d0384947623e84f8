//! A mutex to hold for the length of a piece of work.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::contender::Contender;
use crate::error::ContentionError;
use crate::factory::ContentionFactory;
use crate::one_shot::OneShotContention;
use crate::owner::MutexOwner;
use crate::service::MutexContendServiceFactory;

/// How much longer than its limit an acquire may take to leave the queue.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(50);

/// Contends for a mutex from `acquire` to `close`.
///
/// While it is open the ownership is renewed in the background; work that must not go on without it asks
/// [`SimbaLocker::is_owner`], or hands [`SimbaLocker::fencing_token`] to the store that it writes to. An ownership that
/// is lost does not come back: close the locker and acquire again. A locker that is dropped is closed, without anybody
/// waiting for it; so is one whose `acquire` is given up.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, ContentionError, ContentionFactory, SimbaLocker};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), ContentionError> {
/// let factory = ContentionFactory::in_process(ContendOptions::new(Duration::from_secs(2)))?;
/// let first = SimbaLocker::new(&factory, "reports")?;
/// let owner = first.acquire().await?;
/// assert!(first.is_owner() && owner.fencing_token().is_some());
///
/// let second = SimbaLocker::new(&factory, "reports")?;
/// let refused = second.acquire_within(Duration::from_millis(20)).await;
/// assert!(matches!(refused, Err(ContentionError::TimedOut { .. })));
///
/// first.close().await?;
/// second.acquire().await?;
/// second.close().await
/// # }
/// ```
pub struct SimbaLocker {
    contention: OneShotContention,
    /// Of the last acquire that succeeded.
    ownership: Mutex<MutexOwner>,
    /// From the begin of an acquire to the close.
    is_acquired: AtomicBool,
}

impl SimbaLocker {
    /// For this mutex, under an id from [`ContenderIdGenerator::HOST`](crate::ContenderIdGenerator::HOST).
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name is blank or longer than 128 bytes.
    pub fn new(factory: &ContentionFactory, mutex: impl Into<String>) -> Result<Self, ContentionError> {
        Self::with_contender(factory, Contender::new(mutex)?)
    }

    /// For a contender with an id or metadata of its own; its functions are called as usual.
    ///
    /// # Errors
    /// As those of the factory.
    pub fn with_contender(
        factory: &dyn MutexContendServiceFactory,
        contender: Contender,
    ) -> Result<Self, ContentionError> {
        let contention = OneShotContention::new(factory, Arc::new(contender))?;
        Ok(Self { contention, ownership: Mutex::new(MutexOwner::NONE), is_acquired: AtomicBool::new(false) })
    }

    /// Becomes the owner, however long that takes.
    ///
    /// # Errors
    /// [`ContentionError::AlreadyAcquired`] unless it was closed since; [`ContentionError::NoRuntime`];
    /// [`ContentionError::Store`] when the service refuses what is asked, which it would do again. After an error the
    /// locker is closed.
    pub async fn acquire(&self) -> Result<MutexOwner, ContentionError> {
        let claim = AcquireGuard::begin(self)?;
        // That of an acquire that was given up may still be stopping.
        self.contention.service().stopped().await;
        let owner = self.contention.acquire().await?;
        self.ownership.lock().clone_from(&owner);
        claim.disarm();
        Ok(owner)
    }

    /// Becomes the owner within a time.
    ///
    /// # Errors
    /// [`ContentionError::TimedOut`] when it did not; the locker is closed then. Where nobody answers it may still be
    /// closing, which the next acquire waits for. Also those of [`SimbaLocker::acquire`].
    pub async fn acquire_within(&self, within: Duration) -> Result<MutexOwner, ContentionError> {
        if let Ok(acquired) = tokio::time::timeout(within, self.acquire()).await {
            return acquired;
        }
        // Stopping was begun when the acquire was dropped, and goes on by itself where nobody answers.
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, self.contention.service().stopped()).await;
        let service = self.contention.service();
        let (mutex, contender_id) = (service.mutex().to_owned(), service.contender_id().to_owned());
        Err(ContentionError::TimedOut { mutex, contender_id, within })
    }

    /// Gives the mutex back. Nothing happens when it was not acquired.
    ///
    /// # Errors
    /// [`ContentionError::Store`] when the release was not answered: the mutex may stay taken until its time is over.
    /// The locker is closed in that case, too.
    pub async fn close(&self) -> Result<(), ContentionError> {
        let closed = self.contention.end().await;
        self.is_acquired.store(false, Ordering::Release);
        closed
    }

    /// Whether it owns the mutex now, by the clock. Once an ownership is lost this stays false up to the next acquire.
    pub fn is_owner(&self) -> bool {
        self.contention.is_owned(&self.ownership.lock())
    }

    /// The token of its ownership, while it has one.
    pub fn fencing_token(&self) -> Option<u64> {
        let ownership = self.ownership.lock();
        ownership.fencing_token().filter(|_| self.contention.is_owned(&ownership))
    }

    /// Completes when it does not own the mutex, be it that the ownership was lost or that it was closed.
    pub async fn lost(&self) {
        let ownership = self.ownership.lock().clone();
        self.contention.lost(&ownership).await;
    }
}

impl fmt::Debug for SimbaLocker {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = formatter.debug_struct("SimbaLocker");
        let service = self.contention.service();
        shown.field("mutex", &service.mutex()).field("status", &service.status()).finish_non_exhaustive()
    }
}

/// Keeps others from acquiring the same locker, and closes it when its acquire fails or is given up.
struct AcquireGuard<'a>(Option<&'a SimbaLocker>);

impl<'a> AcquireGuard<'a> {
    fn begin(locker: &'a SimbaLocker) -> Result<Self, ContentionError> {
        if locker.is_acquired.swap(true, Ordering::AcqRel) {
            return Err(ContentionError::AlreadyAcquired { mutex: locker.contention.service().mutex().to_owned() });
        }
        Ok(Self(Some(locker)))
    }

    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for AcquireGuard<'_> {
    fn drop(&mut self) {
        if let Some(locker) = self.0 {
            // Stopping goes on by itself; a service that does not run need not be stopped.
            drop(locker.contention.service().stop());
            locker.is_acquired.store(false, Ordering::Release);
        }
    }
}
