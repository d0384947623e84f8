//! Follows the changes of the accounts shard, and knows how long ago it was heard of.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_core::{Answer, Query, Refusal, Revision};
use parking_lot::Mutex;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::accounts::Accounts;
use crate::error::{ApiError, ApiResult, Code};
use holdfast_routing::Router;

/// How often the shard is asked for changes.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Without contact for so long, nothing is served from memory.
pub const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Without contact for so long, the process says that it is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(5);
/// How long one question may take.
const POLL_TIMEOUT: Duration = Duration::from_secs(3);

/// The task that asks, and what it found.
pub(super) struct Follower {
    contact: Arc<Contact>,
    stop: CancellationToken,
    task: Mutex<Option<JoinHandle<()>>>,
}

/// When the shard last answered: the instant at which the question was sent, since the answer is no younger.
struct Contact {
    started_at: Instant,
    answered: Mutex<Option<Instant>>,
}

impl Follower {
    pub(super) fn start(router: Router, accounts: Arc<Accounts>) -> Self {
        let contact = Arc::new(Contact { started_at: Instant::now(), answered: Mutex::new(None) });
        let stop = CancellationToken::new();
        let (stopped, follow) = (stop.clone(), follow(router, accounts, contact.clone()));
        let task = tokio::spawn(async move {
            stopped.run_until_cancelled(follow).await;
        });
        Self { contact, stop, task: Mutex::new(Some(task)) }
    }

    /// Refuses when changes may have been missed for too long. At the start, what is looked up is fresh by itself.
    pub(super) fn require_contact(&self) -> ApiResult<()> {
        let heard = self.contact.answered.lock().unwrap_or(self.contact.started_at);
        if heard.elapsed() < MAX_SILENCE {
            return Ok(());
        }
        Err(ApiError::new(Code::Unavailable, "accounts and API keys cannot be checked: their shard does not answer"))
    }

    pub(super) fn fresh(&self) -> Result<(), String> {
        match *self.contact.answered.lock() {
            None => Err("the accounts shard has not answered yet".to_owned()),
            Some(heard) if heard.elapsed() >= NOT_READY_AFTER => {
                Err(format!("the accounts shard has not answered for {} s", heard.elapsed().as_secs()))
            }
            Some(_) => Ok(()),
        }
    }

    pub(super) async fn shutdown(&self) {
        self.stop.cancel();
        let task = self.task.lock().take();
        if let Some(task) = task {
            // The task was cancelled; how it ended says nothing more.
            let _ = task.await;
        }
    }
}

async fn follow(router: Router, accounts: Arc<Accounts>, contact: Arc<Contact>) {
    let mut after: Revision = 0;
    let mut ticks = tokio::time::interval(POLL_INTERVAL);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let asked_at = Instant::now();
        let query = Query::AccountChanges { after };
        let reply = router.query(Application::Accounts, 0, &query, asked_at + POLL_TIMEOUT).await;
        match reply.map(|reply| reply.outcome) {
            Ok(Ok(Answer::AccountChanges { changes, now })) => {
                for change in changes {
                    accounts.forget(change);
                }
                after = now;
            }
            Ok(Err(Refusal::ChangesForgotten { now, .. })) => {
                accounts.clear();
                after = now;
            }
            Ok(other) => {
                tracing::error!(outcome = ?other, "the accounts shard does not tell its changes");
                continue;
            }
            Err(error) => {
                tracing::warn!(%error, "the accounts shard cannot be followed");
                continue;
            }
        }
        *contact.answered.lock() = Some(asked_at);
    }
}
