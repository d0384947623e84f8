//! Locks by name, with a status and listeners instead of guards.

use std::fmt;
use std::sync::Arc;

use futures::future::join_all;

use crate::error::{EndReason, Error, Result};
use crate::session::Session;
use crate::session::events::LockListener;
use crate::session::table::{Ask, Claim};
use crate::view::{Mode, Path};

/// How the session stands with a lock.
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
/// ```no_run
/// # async fn example(session: holdfast_client::Session) -> holdfast_client::Result<()> {
/// use holdfast_client::{LockListener, LockStatus, Path};
///
/// struct Log;
/// impl LockListener for Log {
///     fn status_changed(&self, path: &Path, before: LockStatus, now: LockStatus) {
///         println!("{path}: {before} to {now}");
///     }
/// }
///
/// let locks = session.lock_service();
/// locks.add_listener(Log);
/// if locks.lock("invoices").await? == LockStatus::Waiting {
///     locks.unlock("invoices").await;
/// }
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
        self.ask(path.into(), false).await
    }

    /// Locks if that can be had now. The answer is never that it waits, unless it already did.
    ///
    /// # Errors
    /// [`Error::SessionEnded`], and what the service says of a path that is not valid.
    pub async fn try_lock(&self, path: impl Into<Path>) -> Result<LockStatus> {
        let path = path.into();
        match self.ask(path.clone(), true).await {
            Err(Error::Refused(_)) => Ok(self.status(path)),
            other => other,
        }
    }

    async fn ask(&self, path: Path, only_try: bool) -> Result<LockStatus> {
        let ask = Ask::new(None, [Claim { path, mode: Mode::Write }], 0)?;
        let answer = self.session.shared().ask_kept(Ask { only_try, kept: true, ..ask })?;
        answer.await.unwrap_or(Err(Error::SessionEnded(EndReason::Closed)))
    }

    /// Unlocks, or leaves the queue, and waits until the service has done it. Nothing happens when there is nothing to
    /// unlock.
    pub async fn unlock(&self, path: impl Into<Path>) {
        if let Some(done) = self.session.shared().release_kept(&path.into()) {
            // It is answered when the session ends, too.
            let _ = done.await;
        }
    }

    /// Unlocks everything that was locked here, and leaves all queues. Guards on the same session keep what they have.
    pub async fn unlock_all(&self) {
        join_all(self.session.shared().release_all_kept()).await;
    }

    /// How it stands now. What was told to listeners before agrees with it.
    pub fn status(&self, path: impl Into<Path>) -> LockStatus {
        self.session.shared().status(&path.into())
    }
}
