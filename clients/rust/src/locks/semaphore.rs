//! Permits of a semaphore.

use std::fmt;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::timeout;

use super::{Guard, Hold, default_owner, observe, whole_ms};
use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::table::{LockRequest, PermitTerms, WantedPermits};
use crate::view::{Path, WaitStatus};

/// A semaphore: among all processes that use the namespace, at most so many permits are in use at a time.
///
/// Each acquisition is a hold of its own, also by the same task. Requests wait in order of priority and then of
/// arrival, and none passes another: a large one is not starved by small ones. There is no detection of deadlocks; give
/// waits a timeout, or use a [`Mutex`](crate::Mutex) if one permit is enough.
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
/// use holdfast_client::{Error, Reason};
///
/// // Nobody configured it: who uses it says how many permits there are.
/// let licences = session.semaphore("licences").permits(3);
/// let permit = licences.acquire(2).await?;
/// assert_eq!(permit.weight(), 2);
///
/// let refused = licences.try_acquire(2).await.unwrap_err();
/// assert_eq!(refused.refusal().expect("too few are free").reason, Reason::Exhausted);
/// let limit = Duration::from_millis(50);
/// assert_eq!(licences.acquire_timeout(2, limit).await.unwrap_err(), Error::TimedOut(limit));
///
/// permit.release().await?;
/// let all = licences.acquire(3).await?;
/// all.protect(async { println!("all of them are ours") }).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Semaphore {
    session: Session,
    path: Path,
    permits: Option<u64>,
    priority: u8,
    /// The owner; if unset, the calling task or thread.
    owner: Option<Arc<str>>,
    transition: Duration,
}

impl fmt::Debug for Semaphore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "permits of {} on {:?}", self.path, self.session)
    }
}

impl Semaphore {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { session, path, permits: None, priority: 0, owner: None, transition: Duration::ZERO }
    }

    /// Sets how many permits there are, 1 to 1,000,000,000, if nobody configured the semaphore. All who use it must say
    /// the same; of a configured one the figure is ignored.
    pub fn permits(mut self, permits: u64) -> Self {
        self.permits = Some(permits);
        self
    }

    /// Sets the priority of requests, 0 to 9; those of a higher one go first. 0 if unset.
    pub fn priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }

    /// Sets the owner that the service shows, 1 to 128 bytes. It does not matter otherwise: each acquisition is a hold
    /// of its own.
    pub fn owned_by(mut self, owner: impl AsRef<str>) -> Self {
        self.owner = Some(owner.as_ref().into());
        self
    }

    /// Sets how long permits stay in use after their holder's session expired, 0 to 10 min: time for the holder to
    /// stop. Zero if unset.
    pub fn transition(mut self, transition: Duration) -> Self {
        self.transition = transition;
        self
    }

    /// Waits for permits, without a timeout: all of them at once.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Reason::TooLarge`](crate::Reason::TooLarge) when there are fewer permits, also later;
    /// [`Error::Service`] with `PRIMITIVE_NOT_FOUND` when nobody configured it and [`Semaphore::permits`] is not set;
    /// [`Error::SessionEnded`].
    pub async fn acquire(&self, weight: u64) -> Result<Permit> {
        let claimed = self.session.inner().request(self.request(weight), None)?.await?;
        Ok(Permit { guard: Guard::new(&self.session, claimed)?, weight })
    }

    /// Acquires permits if they are free now and nobody waits.
    ///
    /// # Errors
    /// As for [`Semaphore::acquire`], and [`Error::Refused`] with the holders.
    pub async fn try_acquire(&self, weight: u64) -> Result<Permit> {
        let request = LockRequest { only_try: true, ..self.request(weight) };
        let claimed = self.session.inner().request(request, None)?.await?;
        Ok(Permit { guard: Guard::new(&self.session, claimed)?, weight })
    }

    /// Like [`Semaphore::acquire`], with a timeout.
    ///
    /// # Errors
    /// Like [`Semaphore::acquire`], and [`Error::TimedOut`].
    pub async fn acquire_timeout(&self, weight: u64, limit: Duration) -> Result<Permit> {
        // Dropping the wait removes the request from the queue.
        timeout(limit, self.acquire(weight)).await.unwrap_or(Err(Error::TimedOut(limit)))
    }

    /// Like [`Semaphore::acquire`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`Semaphore::acquire`].
    pub async fn acquire_observed(&self, weight: u64, observer: impl FnMut(WaitStatus)) -> Result<Permit> {
        Ok(Permit { guard: observe(&self.session, self.request(weight), observer).await?, weight })
    }

    fn request(&self, weight: u64) -> LockRequest {
        let owner = self.owner.clone().unwrap_or_else(default_owner);
        let transition_ms = whole_ms(self.transition);
        let wanted = WantedPermits::Permits { weight, permits: self.permits };
        let terms = PermitTerms { wanted, priority: self.priority };
        LockRequest::of_permits(owner, self.path.clone(), terms, transition_ms)
    }
}

/// Permits of a semaphore, until they are dropped or released. It has all that a [`Guard`] of a lock has: see [`Hold`].
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let permit = session.semaphore("licences").permits(3).acquire(1).await?;
/// let token = permit.check()?;
/// assert_eq!(token, permit.fencing_token());
/// permit.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
#[must_use = "a permit that is not kept is released at once"]
pub struct Permit {
    guard: Guard,
    weight: u64,
}

impl Permit {
    /// Returns how many permits these are.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// Releases the permits, and waits for the service's confirmation. If the future is dropped, the release still
    /// completes.
    ///
    /// # Errors
    /// [`Error::Lost`] when they had been lost: others may have used them meanwhile.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Deref for Permit {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.guard
    }
}
