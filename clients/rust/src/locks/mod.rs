//! Locks, permits and members of pools on a session.

mod condition;
mod guard;
mod lock_set;
mod mutex;
mod pool;
mod rw_lock;
mod semaphore;
mod service;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::table::{Claim, LockRequest};
use crate::view::{Mode, Path, WaitStatus};
pub use condition::{Condition, Woken};
pub use guard::{Guard, Hold};
pub use lock_set::LockSet;
pub use mutex::Mutex;
pub use pool::{Pool, PoolLease};
pub use rw_lock::RwLock;
pub use semaphore::{Permit, Semaphore};
pub use service::{LockService, LockStatus};

/// Buffered progress reports of a wait.
const PROGRESS_CAPACITY: usize = 16;
/// How often the status of an observed wait is refreshed.
const STATUS_INTERVAL: Duration = Duration::from_secs(1);

/// Common parameters of all kinds of locks.
#[derive(Clone)]
struct LockSpec {
    session: Session,
    claims: Vec<Claim>,
    /// The owner; if unset, the calling task or thread.
    owner: Option<Arc<str>>,
    transition: Duration,
    at_least: Duration,
}

impl fmt::Debug for LockSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.claims.iter().map(|claim| claim.path.to_string()).collect();
        write!(f, "{} on {:?}", paths.join(", "), self.session)
    }
}

impl LockSpec {
    fn new(session: Session, claims: impl IntoIterator<Item = (Path, Mode)>) -> Self {
        let claims = claims.into_iter().map(|(path, mode)| Claim { path, mode }).collect();
        Self { session, claims, owner: None, transition: Duration::ZERO, at_least: Duration::ZERO }
    }

    fn request(&self, mode: Option<Mode>) -> Result<LockRequest> {
        let owner = self.owner.clone().unwrap_or_else(default_owner);
        let claims = self.claims.iter().cloned().map(|claim| Claim { mode: mode.unwrap_or(claim.mode), ..claim });
        let request = LockRequest::new(Some(owner), claims, whole_ms(self.transition))?;
        Ok(LockRequest { at_least_ms: whole_ms(self.at_least), ..request })
    }

    async fn lock(&self, mode: Option<Mode>) -> Result<Guard> {
        let claimed = self.session.inner().request(self.request(mode)?, None)?.await?;
        Guard::new(&self.session, claimed)
    }

    async fn lock_again(&self, mode: Option<Mode>) -> Result<Guard> {
        let ask = LockRequest { reentrant: true, ..self.request(mode)? };
        let claimed = self.session.inner().request(ask, None)?.await?;
        Guard::new(&self.session, claimed)
    }

    async fn try_lock(&self, mode: Option<Mode>) -> Result<Guard> {
        let ask = LockRequest { only_try: true, ..self.request(mode)? };
        let claimed = self.session.inner().request(ask, None)?.await?;
        Guard::new(&self.session, claimed)
    }

    async fn lock_timeout(&self, mode: Option<Mode>, limit: Duration) -> Result<Guard> {
        // Dropping the wait removes the request from the queue.
        timeout(limit, self.lock(mode)).await.unwrap_or(Err(Error::TimedOut(limit)))
    }

    async fn lock_observed(&self, mode: Option<Mode>, observer: impl FnMut(WaitStatus)) -> Result<Guard> {
        observe(&self.session, self.request(mode)?, observer).await
    }
}

/// Waits for a request, and reports its status about every second.
async fn observe(session: &Session, request: LockRequest, mut observer: impl FnMut(WaitStatus)) -> Result<Guard> {
    let (progress, mut standings) = mpsc::channel(PROGRESS_CAPACITY);
    let mut ticket = session.inner().request(request, Some(progress))?;
    let mut again = interval(STATUS_INTERVAL);
    again.set_missed_tick_behavior(MissedTickBehavior::Delay);
    again.reset();
    loop {
        tokio::select! {
            biased;
            claimed = &mut ticket => return Guard::new(session, claimed?),
            Some(standing) = standings.recv() => observer(standing),
            _ = again.tick() => ticket.refresh_status(),
        }
    }
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the default owner name: of the tokio task, or of the thread that blocks on a runtime.
pub(crate) fn default_owner() -> Arc<str> {
    static THREADS: AtomicU64 = AtomicU64::new(1);
    thread_local!(static THREAD: u64 = THREADS.fetch_add(1, Ordering::Relaxed));
    match tokio::task::try_id() {
        Some(id) => format!("task:{id}").into(),
        None => THREAD.with(|thread| format!("thread:{thread}").into()),
    }
}
