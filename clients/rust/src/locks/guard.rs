//! Guards of held locks.

use std::collections::BTreeMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;

use tokio::sync::watch;

use crate::error::{EndReason, Error, LossReason, Result};
use crate::session::Session;
use crate::session::inner::{GrantGuard, SessionInner};
use crate::view::{Path, ReleaseRequest};

/// A hold on one or several locks, until it is dropped or released. Dropping it releases in the background;
/// [`Guard::release`] waits for the service's confirmation.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let guard = session.mutex("invoices").lock().await?;
/// // Work that stops by itself at the deadline, or when the lock is lost for another reason:
/// let written = guard.protect(async { "written" }).await?;
/// assert_eq!(written, "written");
/// // Or ask before each step. Stores that know tokens are given the token too.
/// let token = guard.check()?;
/// assert_eq!(token, guard.fencing_token());
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "a guard that is not kept releases its lock at once"]
pub struct Guard {
    hold: Hold,
    grant: GrantGuard,
    /// Keeps the session open as long as the guard exists.
    session: Session,
}

/// The state of a [`Guard`]'s hold, to share with other tasks. It does not keep the lock.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> holdfast_client::Result<()> {
/// # let service = holdfast_testkit::Standalone::fresh();
/// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
/// # let session = client.session("demo").open().await?;
/// let guard = session.mutex("invoices").lock().await?;
/// let hold = guard.hold();
/// let watching = tokio::spawn(async move { hold.lost().await });
/// guard.release().await?;
/// assert_eq!(watching.await.unwrap(), holdfast_client::LossReason::Released);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Hold {
    inner: Arc<SessionInner>,
    token: u64,
    tokens: Arc<BTreeMap<Path, u64>>,
    loss: watch::Receiver<Option<LossReason>>,
    asked: watch::Receiver<Option<ReleaseRequest>>,
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Guard({:?})", self.hold)
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.tokens.keys().map(Path::to_string).collect();
        write!(f, "{} with token {}", paths.join(", "), self.token)
    }
}

impl std::ops::Deref for Guard {
    type Target = Hold;

    fn deref(&self) -> &Hold {
        &self.hold
    }
}

impl Guard {
    pub(super) fn new(session: &Session, grant: GrantGuard) -> Result<Self> {
        let hold = Hold {
            inner: Arc::clone(session.inner()),
            token: grant.token(),
            tokens: Arc::clone(grant.tokens()),
            loss: grant.loss().clone(),
            asked: grant.release_requests().clone(),
        };
        match hold.inner.lease.end_reason() {
            Some(reason) => Err(Error::SessionEnded(reason)),
            None => Ok(Self { hold, grant, session: session.clone() }),
        }
    }

    /// Returns the members of a pool, in order of name; of anything else, none.
    pub(super) fn members(&self) -> &[String] {
        self.grant.members()
    }

    /// Returns the session and the hold, which its caller releases.
    pub(super) fn into_parts(self) -> (Session, GrantGuard) {
        (self.session, self.grant)
    }

    pub(super) fn grant(&self) -> &GrantGuard {
        &self.grant
    }

    /// Returns the state of the hold, for other tasks.
    pub fn hold(&self) -> Hold {
        self.hold.clone()
    }

    /// Returns the session of the hold.
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Releases the lock, and waits for the service's confirmation. If its owner locked it again, the last
    /// release frees the lock. If the future is dropped, the release still completes.
    ///
    /// # Errors
    /// [`Error::Lost`] when the hold had been lost: work done under it may have conflicted with other owners.
    pub async fn release(self) -> Result<()> {
        let loss = self.hold.loss();
        self.grant.release().await;
        loss.map_or(Ok(()), |reason| Err(Error::Lost(reason)))
    }
}

impl Hold {
    /// Returns a token greater than every earlier token for these paths or any above or below, for a store to compare.
    /// For several locks it is the token of the paths that this request acquired; see [`Hold::fencing_token_of`]. It
    /// stays readable after the hold is lost, since a store must reject it then.
    pub fn fencing_token(&self) -> u64 {
        self.token
    }

    /// Returns the token of one of the paths.
    pub fn fencing_token_of(&self, path: impl Into<Path>) -> Option<u64> {
        self.tokens.get(&path.into()).copied()
    }

    /// Returns the held paths, in order.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.tokens.keys()
    }

    /// Returns until when the hold is certain, unless it is deleted by force, or the machine is suspended or paused.
    /// Advances while the session is kept alive.
    pub fn deadline(&self) -> Instant {
        self.inner.lease.deadline().into_std()
    }

    /// Returns true if the hold is lost, or may be. Reads the clocks each time, so that the result is right even
    /// directly after the process or the machine was suspended.
    pub fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Returns why the hold is lost, or may be.
    pub fn loss(&self) -> Option<LossReason> {
        let lost = self.loss.borrow().clone();
        lost.or_else(|| self.inner.lease.end_reason().map(LossReason::SessionEnded))
    }

    /// Completes when the hold is lost, or may be; up to a second late after the machine was suspended.
    pub async fn lost(&self) -> LossReason {
        let mut losses = self.loss.clone();
        loop {
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::select! {
                changed = losses.changed() => {
                    if changed.is_err() {
                        // The request has ended. The reason was published earlier, or it is that of the session.
                        return self.loss().unwrap_or(LossReason::SessionEnded(EndReason::Closed));
                    }
                }
                _ = self.inner.lease.wait_ended() => {}
            }
        }
    }

    /// Completes when somebody asks for the hold, at once if somebody has: then it returns the latest request. It never
    /// completes if nobody asks, also when the hold ends; wait for [`Hold::lost`] beside it.
    ///
    /// ```
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> holdfast_client::Result<()> {
    /// # use holdfast_client::protocol::AskReleaseRequest;
    /// # let service = holdfast_testkit::Standalone::fresh();
    /// # let client = holdfast_client::Client::new(&service.url(), &service.secret("demo.key"))?;
    /// # let session = client.session("demo").open().await?;
    /// let guard = session.mutex("invoices").lock().await?;
    /// # let (namespace, name, reason) = ("demo".into(), Some("invoices".into()), "a correction".into());
    /// # client.locks().ask_release(AskReleaseRequest { namespace, name, reason, ..Default::default() }).await?;
    /// tokio::select! {
    ///     request = guard.release_requested() => println!("released for {}: {}", request.by, request.reason),
    ///     reason = guard.lost() => println!("lost: {reason}"),
    /// }
    /// guard.release().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_requested(&self) -> ReleaseRequest {
        let mut asked = self.asked.clone();
        match asked.wait_for(Option::is_some).await.map(|request| request.clone()) {
            Ok(Some(request)) => request,
            // The hold has ended.
            _ => std::future::pending().await,
        }
    }

    /// Returns the token, if the hold is certain at this moment.
    ///
    /// # Errors
    /// [`Error::Lost`], with the reason.
    pub fn check(&self) -> Result<u64> {
        self.loss().map_or(Ok(self.token), |reason| Err(Error::Lost(reason)))
    }

    /// Runs some work as long as the hold is certain. The hold is checked before each poll of the work, so that nothing
    /// runs after a pause in which the lock was lost.
    ///
    /// # Errors
    /// [`Error::Lost`] when the work was stopped. It stops at its next `await`, and the future is dropped.
    pub async fn protect<F: Future>(&self, work: F) -> Result<F::Output> {
        let (mut work, mut lost) = (pin!(work), pin!(self.lost()));
        poll_fn(|context| {
            if let Some(reason) = self.loss() {
                return Poll::Ready(Err(Error::Lost(reason)));
            }
            if let Poll::Ready(reason) = lost.as_mut().poll(context) {
                return Poll::Ready(Err(Error::Lost(reason)));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }
}
