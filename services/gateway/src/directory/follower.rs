//! Follows the changes of the accounts shard, and knows how long ago it was heard of.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_core::{AccountChange, Answer, Query, Refusal, Revision};
use holdfast_supervise::TaskSet;
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::accounts::{Accounts, SHARD_KEY};
use crate::error::{ApiError, ApiResult, Code};
use holdfast_routing::{RouteError, Router};

/// How long the shard keeps the question for changes until there is one.
const HOLD: Duration = Duration::from_millis(500);
/// How soon the shard is asked again that has nothing to tell and keeps no question, or that cannot be asked.
pub const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Between two questions, when there is much to tell.
const PAUSE: Duration = Duration::from_millis(5);
/// Without contact for so long, nothing is served from memory.
pub const MAX_SILENCE: Duration = Duration::from_secs(30);
/// Without contact for so long, the process says that it is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(5);
/// How long one question may take.
const POLL_TIMEOUT: Duration = Duration::from_secs(3);

/// The task that asks, and what it found.
pub(super) struct Follower {
    contact: Arc<Contact>,
}

/// When the shard last answered: the instant at which the question was sent, since the answer is no younger.
struct Contact {
    started_at: Instant,
    answered: Mutex<Option<Instant>>,
}

impl Follower {
    pub(super) fn start(tasks: &TaskSet, router: Router, accounts: Arc<Accounts>) -> Self {
        let contact = Arc::new(Contact { started_at: Instant::now(), answered: Mutex::new(None) });
        let told = contact.clone();
        tasks.keep("account changes", move || follow(router.clone(), accounts.clone(), told.clone()));
        Self { contact }
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
}

async fn follow(router: Router, accounts: Arc<Accounts>, contact: Arc<Contact>) {
    let mut after: Revision = 0;
    // The first answer is wanted at once, whatever it says.
    let mut hold = Duration::ZERO;
    loop {
        let asked_at = Instant::now();
        match ask(&router, after, hold).await {
            Ok(Some(Changed::These(changes, now))) => {
                let is_news = !changes.is_empty();
                changes.into_iter().for_each(|change| accounts.forget(change));
                accounts.listens();
                after = now;
                *contact.answered.lock() = Some(asked_at);
                if is_news {
                    sleep(PAUSE).await;
                } else {
                    sleep_until(asked_at + POLL_INTERVAL.min(hold)).await;
                }
                hold = HOLD;
            }
            Ok(Some(Changed::Unknown(now))) => {
                accounts.clear();
                after = now;
                *contact.answered.lock() = Some(asked_at);
                sleep(PAUSE).await;
            }
            Ok(None) => sleep(POLL_INTERVAL).await,
            Err(error) => {
                tracing::warn!(%error, "the accounts shard cannot be followed");
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// What the shard told, and after which revision to ask next.
enum Changed {
    These(Vec<AccountChange>, Revision),
    /// More than it remembers.
    Unknown(Revision),
}

/// Nothing when the answer cannot be understood.
async fn ask(router: &Router, after: Revision, hold: Duration) -> Result<Option<Changed>, RouteError> {
    let query = Query::AccountChanges { after };
    let deadline = Instant::now() + hold + POLL_TIMEOUT;
    let reply = if hold.is_zero() {
        router.query(Application::Accounts, SHARD_KEY, &query, deadline).await?
    } else {
        router.watch(Application::Accounts, SHARD_KEY, &query, hold, deadline).await?
    };
    Ok(match reply.outcome {
        Ok(Answer::AccountChanges { changes, now }) => Some(Changed::These(changes, now)),
        Err(Refusal::ChangesForgotten { now, .. }) => Some(Changed::Unknown(now)),
        other => {
            tracing::error!(outcome = ?other, "the accounts shard does not tell its changes");
            None
        }
    })
}
