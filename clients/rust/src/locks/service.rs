//! Locks by name, with a status and listeners instead of guards.

use std::fmt;
use std::sync::Arc;

use futures::future::join_all;

use crate::error::{EndReason, Error, Result};
use crate::session::Session;
use crate::session::events::LockListener;
use crate::session::table::{Claim, LockRequest};
use crate::view::{Mode, Path};

/// The session's status for a lock.
///
/// ```
/// use holdfast_client::LockStatus;
///
/// let all = [LockStatus::Holding, LockStatus::Waiting, LockStatus::None];
/// assert_eq!(all.map(|status| status.to_string()), ["HOLDING", "WAITING", "NONE"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockStatus {
    /// The session holds the lock.
    Holding,
    /// The session waits for the lock.
    Waiting,
    /// Neither.
    None,
}

impl fmt::Display for LockStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Holding => "HOLDING",
            Self::Waiting => "WAITING",
            Self::None => "NONE",
        })
    }
}

/// Locks owned by the session as a whole, regardless of the calling task. A lock call returns whether the session holds
/// the lock or waits for it; listeners receive every change, in order. There are no guards: a lock stays held until it
/// is unlocked. All clones, and all values from one session, share their state.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// use holdfast_client::LockStatus;
///
/// let other = client.session("demo").open().await?;
/// let (mine, theirs) = (session.lock_service(), other.lock_service());
/// assert_eq!(mine.lock("invoices").await?, LockStatus::Holding);
/// assert_eq!(theirs.lock("invoices").await?, LockStatus::Waiting);
/// assert_eq!(theirs.try_lock("letters").await?, LockStatus::Holding);
/// theirs.unlock_all().await;
/// assert_eq!(theirs.status("invoices"), LockStatus::None);
/// mine.unlock("invoices").await;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct LockService {
    session: Session,
}

impl LockService {
    pub(crate) fn new(session: Session) -> Self {
        Self { session }
    }

    /// Adds a listener for every change from now on.
    pub fn add_listener(&self, listener: impl LockListener) {
        self.session.add_listener(Arc::new(listener));
    }

    /// Locks, or joins the queue. Returns the first status that the service reports. The request remains if the future
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::Refused`] when waiting would close a cycle of waits, or the lock was unlocked before the service
    /// responded; [`Error::SessionEnded`].
    pub async fn lock(&self, path: impl Into<Path>) -> Result<LockStatus> {
        self.request(path.into(), false).await
    }

    /// Locks if that is possible now. Returns `Waiting` only if the session already waits.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], and the service's error for an invalid path.
    pub async fn try_lock(&self, path: impl Into<Path>) -> Result<LockStatus> {
        let path = path.into();
        match self.request(path.clone(), true).await {
            Err(Error::Refused(_)) => Ok(self.status(path)),
            other => other,
        }
    }

    async fn request(&self, path: Path, only_try: bool) -> Result<LockStatus> {
        let ask = LockRequest::new(None, [Claim { path, mode: Mode::Write }], 0)?;
        let ask = LockRequest { only_try, reentrant: true, persistent: true, ..ask };
        let answer = self.session.inner().request_persistent(ask)?;
        answer.await.unwrap_or(Err(Error::SessionEnded(EndReason::Closed)))
    }

    /// Unlocks, or leaves the queue, and waits for the service's confirmation. Does nothing if there is nothing to
    /// unlock.
    pub async fn unlock(&self, path: impl Into<Path>) {
        if let Some(done) = self.session.inner().release_persistent(&path.into()) {
            // It also completes when the session ends.
            let _ = done.await;
        }
    }

    /// Unlocks everything locked here, and leaves all queues. Guards on the same session keep their locks.
    pub async fn unlock_all(&self) {
        join_all(self.session.inner().release_all_persistent()).await;
    }

    /// Returns the current status. It is consistent with earlier notifications to listeners.
    pub fn status(&self, path: impl Into<Path>) -> LockStatus {
        self.session.inner().status(&path.into())
    }
}
