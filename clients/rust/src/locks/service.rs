//! Locks by name, with a status and listeners instead of guards.

use std::fmt;
use std::sync::Arc;

use futures::future::join_all;

use crate::error::{EndReason, Error, Result};
use crate::session::Session;
use crate::session::events::LockListener;
use crate::session::table::{Claim, LockRequest};
use crate::view::{Mode, Path};

/// How the session stands with a lock.
///
/// ```
/// use holdfast_client::LockStatus;
///
/// let all = [LockStatus::Holding, LockStatus::Waiting, LockStatus::None];
/// assert_eq!(all.map(|status| status.to_string()), ["HOLDING", "WAITING", "NONE"]);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LockStatus {
    /// It has it.
    Holding,
    /// It stands in the queue for it.
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

/// Locks of the session as a whole, whichever task asks. Whoever locks is told whether it holds or waits; listeners are
/// told of every change in the order in which they happen. What is locked stays so until it is unlocked: there are no
/// guards. All clones, and all made from one session, are the same.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_api_tests::Standalone::fresh();
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

    /// Adds somebody who is told of every change from now on.
    pub fn add_listener(&self, listener: impl LockListener) {
        self.session.add_listener(Arc::new(listener));
    }

    /// Locks, or joins the queue. The answer is how it stood when the service first said so; the request stays when the
    /// caller goes away.
    ///
    /// # Errors
    /// [`Error::Refused`] when waiting would close a cycle of waits, or the lock was unlocked before the service
    /// answered; [`Error::SessionEnded`].
    pub async fn lock(&self, path: impl Into<Path>) -> Result<LockStatus> {
        self.request(path.into(), false).await
    }

    /// Locks if that can be had now. The answer is never that it waits, unless it already did.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], and what the service says of a path that is not valid.
    pub async fn try_lock(&self, path: impl Into<Path>) -> Result<LockStatus> {
        let path = path.into();
        match self.request(path.clone(), true).await {
            Err(Error::Refused(_)) => Ok(self.status(path)),
            other => other,
        }
    }

    async fn request(&self, path: Path, only_try: bool) -> Result<LockStatus> {
        let ask = LockRequest::new(None, [Claim { path, mode: Mode::Write }], 0)?;
        let answer = self.session.inner().request_persistent(LockRequest { only_try, persistent: true, ..ask })?;
        answer.await.unwrap_or(Err(Error::SessionEnded(EndReason::Closed)))
    }

    /// Unlocks, or leaves the queue, and waits until the service has done it. Nothing happens when there is nothing to
    /// unlock.
    pub async fn unlock(&self, path: impl Into<Path>) {
        if let Some(done) = self.session.inner().release_persistent(&path.into()) {
            // It is answered when the session ends, too.
            let _ = done.await;
        }
    }

    /// Unlocks everything that was locked here, and leaves all queues. Guards on the same session keep what they have.
    pub async fn unlock_all(&self) {
        join_all(self.session.inner().release_all_persistent()).await;
    }

    /// How it stands now. What was told to listeners before agrees with it.
    pub fn status(&self, path: impl Into<Path>) -> LockStatus {
        self.session.inner().status(&path.into())
    }
}
