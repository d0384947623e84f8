//! Follows the changes of the accounts shard, and records when it last replied.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_cluster::Application;
use holdfast_routing::{RouteError, Router};
use holdfast_supervise::TaskSet;
use holdfast_types::{AccountChange, CommandError, Query, Response, Revision};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep, sleep_until};

use super::accounts::{Accounts, SHARD_KEY};

/// How long the shard defers the query for changes until there is one.
const LONG_POLL: Duration = Duration::from_millis(500);
/// Delay before the next query when the shard has no changes and does not defer, or is unreachable.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// Delay between two queries when there are many changes.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(5);
/// After this long without contact, nothing is served from memory.
const MAX_STALENESS: Duration = Duration::from_secs(30);
/// After this long without contact, the process reports that it is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(5);
/// How long one query may take.
const POLL_TIMEOUT: Duration = Duration::from_secs(3);

/// The polling task, and its health.
pub(super) struct AccountFeed {
    health: Arc<FeedHealth>,
}

/// When the shard last replied: the instant at which the query was sent, since the reply is at least that recent.
struct FeedHealth {
    started_at: Instant,
    last_answer: Mutex<Option<Instant>>,
}

impl AccountFeed {
    pub(super) fn start(tasks: &TaskSet, router: Router, accounts: Arc<Accounts>) -> Self {
        let health = Arc::new(FeedHealth { started_at: Instant::now(), last_answer: Mutex::new(None) });
        let shared_health = health.clone();
        tasks.spawn_restarting("account_feed", move || run(router.clone(), accounts.clone(), shared_health.clone()));
        Self { health }
    }

    /// Rejects calls when changes may have been missed for too long. At the start, every lookup is fresh by itself.
    pub(super) fn require_fresh(&self) -> ApiResult<()> {
        let heard = self.health.last_answer.lock().unwrap_or(self.health.started_at);
        if heard.elapsed() < MAX_STALENESS {
            return Ok(());
        }
        Err(ApiError::new(Code::Unavailable, "accounts and API keys cannot be checked: their shard does not answer"))
    }

    pub(super) fn check_fresh(&self) -> Result<(), String> {
        match *self.health.last_answer.lock() {
            None => Err("the accounts shard has not answered yet".to_owned()),
            Some(heard) if heard.elapsed() >= NOT_READY_AFTER => {
                Err(format!("the accounts shard has not answered for {} s", heard.elapsed().as_secs()))
            }
            Some(_) => Ok(()),
        }
    }
}

async fn run(router: Router, accounts: Arc<Accounts>, contact: Arc<FeedHealth>) {
    let mut after: Revision = 0;
    // The first reply must come immediately, whatever it contains.
    let mut hold = Duration::ZERO;
    loop {
        let asked_at = Instant::now();
        match poll(&router, after, hold).await {
            Ok(Some(FeedUpdate::Changes(changes, now))) => {
                let is_news = !changes.is_empty();
                changes.into_iter().for_each(|change| accounts.invalidate(change));
                accounts.start_tracking();
                after = now;
                *contact.last_answer.lock() = Some(asked_at);
                if is_news {
                    sleep(MIN_POLL_INTERVAL).await;
                } else {
                    sleep_until(asked_at + POLL_INTERVAL.min(hold)).await;
                }
                hold = LONG_POLL;
            }
            Ok(Some(FeedUpdate::Compacted(now))) => {
                accounts.invalidate_all();
                after = now;
                *contact.last_answer.lock() = Some(asked_at);
                sleep(MIN_POLL_INTERVAL).await;
            }
            Ok(None) => sleep(POLL_INTERVAL).await,
            Err(error) => {
                tracing::warn!(%error, "the accounts shard cannot be followed");
                sleep(POLL_INTERVAL).await;
            }
        }
    }
}

/// The changes of a reply, and the revision of the next query.
enum FeedUpdate {
    Changes(Vec<AccountChange>, Revision),
    /// The shard no longer has all changes since then.
    Compacted(Revision),
}

/// Returns none if the reply is malformed.
async fn poll(router: &Router, after: Revision, hold: Duration) -> Result<Option<FeedUpdate>, RouteError> {
    let query = Query::AccountChanges { after };
    let deadline = Instant::now() + hold + POLL_TIMEOUT;
    let reply = if hold.is_zero() {
        router.query(Application::Accounts, SHARD_KEY, &query, deadline).await?
    } else {
        router.long_poll(Application::Accounts, SHARD_KEY, &query, hold, deadline).await?
    };
    Ok(match reply.outcome {
        Ok(Response::AccountChanges { changes, now }) => Some(FeedUpdate::Changes(changes, now)),
        Err(CommandError::ChangesCompacted { now, .. }) => Some(FeedUpdate::Compacted(now)),
        other => {
            tracing::error!(outcome = ?other, "the accounts shard does not tell its changes");
            None
        }
    })
}
