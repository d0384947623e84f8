//! A mutex to hold during a piece of work.

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

/// Additional time for an acquire that timed out to leave the queue.
const CANCEL_TIMEOUT: Duration = Duration::from_millis(50);

/// Contends for a mutex from `acquire` to `close`.
///
/// While it is open, the ownership is renewed in the background. Work that must not continue without it checks
/// [`SimbaLocker::is_owner`], or passes [`SimbaLocker::fencing_token`] to the store that it writes to. A lost ownership
/// does not come back: close the locker and acquire again. Dropping a locker closes it in the background; so does
/// dropping the future of its `acquire`.
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
    /// The ownership of the last successful acquire.
    ownership: Mutex<MutexOwner>,
    /// True from the start of an acquire to the close.
    is_acquired: AtomicBool,
}

impl SimbaLocker {
    /// Creates a locker for this mutex, with an id from
    /// [`ContenderIdGenerator::HOST`](crate::ContenderIdGenerator::HOST).
    ///
    /// # Errors
    /// [`ContentionError::Invalid`] when the name is blank or longer than 128 bytes.
    pub fn new(factory: &ContentionFactory, mutex: impl Into<String>) -> Result<Self, ContentionError> {
        Self::with_contender(factory, Contender::new(mutex)?)
    }

    /// Creates a locker for a contender with its own id or metadata; its functions are called as usual.
    ///
    /// # Errors
    /// Those of the factory.
    pub fn with_contender(
        factory: &dyn MutexContendServiceFactory,
        contender: Contender,
    ) -> Result<Self, ContentionError> {
        let contention = OneShotContention::new(factory, Arc::new(contender))?;
        Ok(Self { contention, ownership: Mutex::new(MutexOwner::NONE), is_acquired: AtomicBool::new(false) })
    }

    /// Becomes the owner; waits without a limit.
    ///
    /// # Errors
    /// [`ContentionError::AlreadyAcquired`] unless it was closed since; [`ContentionError::NoRuntime`];
    /// [`ContentionError::Store`] when the service rejects the request, which a retry would not change. After an error
    /// the locker is closed.
    pub async fn acquire(&self) -> Result<MutexOwner, ContentionError> {
        let claim = AcquireGuard::begin(self)?;
        // The service of a cancelled acquire may still be stopping.
        self.contention.service().stopped().await;
        let owner = self.contention.acquire().await?;
        self.ownership.lock().clone_from(&owner);
        claim.disarm();
        Ok(owner)
    }

    /// Becomes the owner, with a timeout.
    ///
    /// # Errors
    /// [`ContentionError::TimedOut`] after the timeout; the locker is then closed. If the service does not respond it
    /// may still be closing, which the next acquire waits for. Also the errors of [`SimbaLocker::acquire`].
    pub async fn acquire_within(&self, within: Duration) -> Result<MutexOwner, ContentionError> {
        if let Ok(acquired) = tokio::time::timeout(within, self.acquire()).await {
            return acquired;
        }
        // Dropping the acquire started the stop, which continues in the background if the service does not respond.
        let _ = tokio::time::timeout(CANCEL_TIMEOUT, self.contention.service().stopped()).await;
        let service = self.contention.service();
        let (mutex, contender_id) = (service.mutex().to_owned(), service.contender_id().to_owned());
        Err(ContentionError::TimedOut { mutex, contender_id, within })
    }

    /// Releases the mutex. Does nothing if it was not acquired.
    ///
    /// # Errors
    /// [`ContentionError::Store`] when the release was not answered: the mutex may stay owned until its time is over.
    /// The locker is closed in that case, too.
    pub async fn close(&self) -> Result<(), ContentionError> {
        let closed = self.contention.end().await;
        self.is_acquired.store(false, Ordering::Release);
        closed
    }

    /// Returns true if it owns the mutex now, by the clock. Once an ownership is lost, this stays false until the next
    /// acquire.
    pub fn is_owner(&self) -> bool {
        self.contention.is_owned(&self.ownership.lock())
    }

    /// Returns the token of its current ownership.
    pub fn fencing_token(&self) -> Option<u64> {
        let ownership = self.ownership.lock();
        ownership.fencing_token().filter(|_| self.contention.is_owned(&ownership))
    }

    /// Completes when it does not own the mutex, whether the ownership was lost or the locker closed.
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

/// Prevents a concurrent acquire of the same locker, and closes it if its acquire fails or is cancelled.
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
            // The stop continues in the background; a service that does not run need not be stopped.
            drop(locker.contention.service().stop());
            locker.is_acquired.store(false, Ordering::Release);
        }
    }
}
