//! Members of a pool.

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

/// A pool of named things, such as test databases or ports: each has at most one holder at a time.
///
/// Each acquisition is a hold of its own, also by the same task. Requests for some members wait in order of priority and
/// then of arrival, and none passes another. There is no detection of deadlocks; give waits a timeout, or use a
/// [`Mutex`](crate::Mutex) for one thing.
///
/// Every wait may be dropped: its request leaves the queue, and a grant in flight is released.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # use holdfast_client::protocol::{ConfigurePoolRequest, PoolMember};
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// # let member = |name: &str| PoolMember { name: name.into(), ..Default::default() };
/// # let members = vec![member("db-1"), member("db-2")];
/// # let (namespace, path) = ("demo".into(), vec!["databases".into()]);
/// # let configure = ConfigurePoolRequest { namespace, path, members, ..Default::default() };
/// # client.pools().configure_pool(configure).await.expect("it is configured");
/// use holdfast_client::Reason;
///
/// let databases = session.pool("databases");
/// let lease = databases.take(1).await?;
/// assert_eq!(lease.members(), ["db-1"]);
///
/// let refused = databases.try_take(2).await.unwrap_err();
/// assert_eq!(refused.refusal().expect("one is free").reason, Reason::Exhausted);
/// let other = databases.take_member("db-2").await?;
/// other.release().await?;
/// lease.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Pool {
    session: Session,
    path: Path,
    prefer: Option<Arc<str>>,
    priority: u8,
    /// The owner; if unset, the calling task or thread.
    owner: Option<Arc<str>>,
    transition: Duration,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "members of {} on {:?}", self.path, self.session)
    }
}

impl Pool {
    pub(crate) fn new(session: Session, path: Path) -> Self {
        Self { session, path, prefer: None, priority: 0, owner: None, transition: Duration::ZERO }
    }

    /// Sets the member that is taken first if it is free, 1 to 128 bytes.
    pub fn prefer(mut self, member: impl AsRef<str>) -> Self {
        self.prefer = Some(member.as_ref().into());
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

    /// Sets how long members stay in use after their holder's session expired, 0 to 10 min: time for the holder to stop.
    /// Zero if unset.
    pub fn transition(mut self, transition: Duration) -> Self {
        self.transition = transition;
        self
    }

    /// Waits for so many members, whichever are free, without a timeout: all of them at once.
    ///
    /// # Errors
    /// [`Error::Refused`] with [`Reason::TooLarge`](crate::Reason::TooLarge) when there are fewer members, also later;
    /// [`Error::Service`] with `PRIMITIVE_NOT_FOUND` when nobody configured the pool; [`Error::SessionEnded`].
    pub async fn take(&self, count: u64) -> Result<PoolLease> {
        self.request(self.some(count), false).await
    }

    /// Takes so many members if they are free now and nobody waits.
    ///
    /// # Errors
    /// As for [`Pool::take`], and [`Error::Refused`] with the holders.
    pub async fn try_take(&self, count: u64) -> Result<PoolLease> {
        self.request(self.some(count), true).await
    }

    /// Like [`Pool::take`], with a timeout.
    ///
    /// # Errors
    /// Like [`Pool::take`], and [`Error::TimedOut`].
    pub async fn take_timeout(&self, count: u64, limit: Duration) -> Result<PoolLease> {
        // Dropping the wait removes the request from the queue.
        timeout(limit, self.take(count)).await.unwrap_or(Err(Error::TimedOut(limit)))
    }

    /// Waits for the member of this name.
    ///
    /// # Errors
    /// As for [`Pool::take`], and [`Error::Refused`] with [`Reason::NoMember`](crate::Reason::NoMember).
    pub async fn take_member(&self, member: impl AsRef<str>) -> Result<PoolLease> {
        self.request(WantedPermits::Member(member.as_ref().into()), false).await
    }

    /// Takes the member of this name if it is free now and nobody waits for it.
    ///
    /// # Errors
    /// As for [`Pool::take_member`], and [`Error::Refused`] with the holders.
    pub async fn try_take_member(&self, member: impl AsRef<str>) -> Result<PoolLease> {
        self.request(WantedPermits::Member(member.as_ref().into()), true).await
    }

    /// Like [`Pool::take`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`Pool::take`].
    pub async fn take_observed(&self, count: u64, observer: impl FnMut(WaitStatus)) -> Result<PoolLease> {
        let request = self.lock_request(self.some(count), false);
        Ok(PoolLease { guard: observe(&self.session, request, observer).await? })
    }

    /// Like [`Pool::take_member`], and reports the request's status about every second while it waits.
    ///
    /// # Errors
    /// Like [`Pool::take_member`].
    pub async fn take_member_observed(
        &self,
        member: impl AsRef<str>,
        observer: impl FnMut(WaitStatus),
    ) -> Result<PoolLease> {
        let request = self.lock_request(WantedPermits::Member(member.as_ref().into()), false);
        Ok(PoolLease { guard: observe(&self.session, request, observer).await? })
    }

    fn some(&self, count: u64) -> WantedPermits {
        WantedPermits::Members { count, prefer: self.prefer.clone() }
    }

    async fn request(&self, wanted: WantedPermits, only_try: bool) -> Result<PoolLease> {
        let claimed = self.session.inner().request(self.lock_request(wanted, only_try), None)?.await?;
        Ok(PoolLease { guard: Guard::new(&self.session, claimed)? })
    }

    fn lock_request(&self, wanted: WantedPermits, only_try: bool) -> LockRequest {
        let owner = self.owner.clone().unwrap_or_else(default_owner);
        let transition_ms = whole_ms(self.transition);
        let terms = PermitTerms { wanted, priority: self.priority };
        LockRequest { only_try, ..LockRequest::of_permits(owner, self.path.clone(), terms, transition_ms) }
    }
}

/// Members of a pool, until they are dropped or released. It has all that a [`Guard`] of a lock has: see [`Hold`].
#[derive(Debug)]
#[must_use = "members that are not kept are released at once"]
pub struct PoolLease {
    guard: Guard,
}

impl PoolLease {
    /// Returns the names of the members, in order.
    pub fn members(&self) -> &[String] {
        self.guard.members()
    }

    /// Releases the members, and waits for the service's confirmation. If the future is dropped, the release still
    /// completes.
    ///
    /// # Errors
    /// [`Error::Lost`] when they had been lost: others may have used them meanwhile.
    pub async fn release(self) -> Result<()> {
        self.guard.release().await
    }
}

impl Deref for PoolLease {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.guard
    }
}
