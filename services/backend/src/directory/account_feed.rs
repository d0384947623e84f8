//! Follows the changes of the accounts shard, and records when it last replied.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_cluster::Application;
use holdfast_routing::{Router, SubscriptionError, Update};
use holdfast_supervise::TaskSet;
use holdfast_types::{CommandError, Topic};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

use super::accounts::{Accounts, SHARD_KEY};

/// Delay before the next update is requested when there are many changes.
const MIN_REQUEST_INTERVAL: Duration = Duration::from_millis(5);
/// After this long without contact, nothing is served from memory.
const MAX_STALENESS: Duration = Duration::from_secs(30);
/// After this long without contact, the process reports that it is not ready.
const NOT_READY_AFTER: Duration = Duration::from_secs(5);

/// The task that follows the shard, and its health.
pub(super) struct AccountFeed {
    health: Arc<FeedHealth>,
}

/// When the shard last replied: the instant at which the update was requested, since it is at least that recent.
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

async fn run(router: Router, accounts: Arc<Accounts>, health: Arc<FeedHealth>) {
    let topic = Topic::AccountChanges;
    let mut subscription = router.subscribe(Application::Accounts, SHARD_KEY, topic, Some(1), NOT_READY_AFTER);
    loop {
        match subscription.next().await {
            Ok(Update { items, requested_at, .. }) => {
                let is_news = !items.is_empty();
                items.into_iter().for_each(|change| accounts.invalidate(change));
                accounts.start_tracking();
                *health.last_answer.lock() = Some(requested_at);
                if is_news {
                    sleep(MIN_REQUEST_INTERVAL).await;
                }
            }
            // The first update after it follows at once.
            Err(SubscriptionError::Rejected(CommandError::ChangesCompacted { now, .. })) => {
                accounts.invalidate_all();
                subscription.restart(Some(now + 1));
            }
            Err(error) => tracing::warn!(%error, "the accounts shard does not tell its changes"),
        }
    }
}
