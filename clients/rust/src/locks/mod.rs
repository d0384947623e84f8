//! Locks on a session.

mod guard;
mod lock_set;
mod mutex;
mod rw_lock;
mod service;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::{Error, Result};
use crate::session::Session;
use crate::session::table::{Ask, Claim};
use crate::view::{Mode, Path, Standing};
pub use guard::{Guard, Hold};
pub use lock_set::LockSet;
pub use mutex::Mutex;
pub use rw_lock::RwLock;
pub use service::{LockService, LockStatus};

/// Steps of a wait that its observer did not look at yet.
const PROGRESS: usize = 16;
/// How often somebody who observes a wait is told anew where it stands.
const ASK_AGAIN_EVERY: Duration = Duration::from_secs(1);

/// What all kinds of locks ask for.
#[derive(Clone)]
struct Wanted {
    session: Session,
    claims: Vec<Claim>,
    /// The task that asks, when nobody is named.
    owner: Option<Arc<str>>,
    transition: Duration,
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let paths: Vec<String> = self.claims.iter().map(|claim| claim.path.to_string()).collect();
        write!(f, "{} on {:?}", paths.join(", "), self.session)
    }
}

impl Wanted {
    fn new(session: Session, claims: impl IntoIterator<Item = (Path, Mode)>) -> Self {
        let claims = claims.into_iter().map(|(path, mode)| Claim { path, mode }).collect();
        Self { session, claims, owner: None, transition: Duration::ZERO }
    }

    fn ask(&self, mode: Option<Mode>) -> Result<Ask> {
        let owner = self.owner.clone().unwrap_or_else(this_task);
        let claims = self.claims.iter().cloned().map(|claim| Claim { mode: mode.unwrap_or(claim.mode), ..claim });
        let transition_ms = u64::try_from(self.transition.as_millis()).unwrap_or(u64::MAX);
        Ask::new(Some(owner), claims, transition_ms)
    }

    async fn lock(&self, mode: Option<Mode>) -> Result<Guard> {
        let claimed = self.session.shared().ask(self.ask(mode)?, None)?.await?;
        Guard::new(&self.session, claimed)
    }

    async fn try_lock(&self, mode: Option<Mode>) -> Result<Guard> {
        let ask = Ask { only_try: true, ..self.ask(mode)? };
        let claimed = self.session.shared().ask(ask, None)?.await?;
        Guard::new(&self.session, claimed)
    }

    async fn lock_timeout(&self, mode: Option<Mode>, limit: Duration) -> Result<Guard> {
        // Dropped, the wait leaves the queue.
        timeout(limit, self.lock(mode)).await.unwrap_or(Err(Error::TimedOut(limit)))
    }

    async fn lock_observed(&self, mode: Option<Mode>, mut observe: impl FnMut(Standing)) -> Result<Guard> {
        let (progress, mut standings) = mpsc::channel(PROGRESS);
        let mut ticket = self.session.shared().ask(self.ask(mode)?, Some(progress))?;
        let mut again = interval(ASK_AGAIN_EVERY);
        again.set_missed_tick_behavior(MissedTickBehavior::Delay);
        again.reset();
        loop {
            tokio::select! {
                biased;
                claimed = &mut ticket => return Guard::new(&self.session, claimed?),
                Some(standing) = standings.recv() => observe(standing),
                _ = again.tick() => ticket.ask_again(),
            }
        }
    }
}

/// A name for whoever runs: the tokio task, or whatever a runtime was told to block on.
fn this_task() -> Arc<str> {
    match tokio::task::try_id() {
        Some(id) => format!("task:{id}").into(),
        None => "main".into(),
    }
}
