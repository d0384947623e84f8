//! Follows the changes of the accounts shard, and records when it last replied.

use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_clock::{BootInstant, Clocks};
use holdfast_cluster::Application;
use holdfast_routing::{Router, SubscriptionError, Update};
use holdfast_supervise::TaskSet;
use holdfast_types::{CommandError, Topic};
use parking_lot::Mutex;
use tokio::time::sleep;

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

/// When the shard last replied: the instant before the update was requested, since it is at least that recent. Its age
/// counts also while the machine is suspended, and is unknown after a pause of the machine.
struct FeedHealth {
    clocks: Clocks,
    started_at: BootInstant,
    last_answer: Mutex<Option<BootInstant>>,
}

impl FeedHealth {
    fn new(clocks: Clocks) -> Self {
        Self { started_at: clocks.now(), clocks, last_answer: Mutex::new(None) }
    }

    fn last_answer(&self) -> Option<BootInstant> {
        *self.last_answer.lock()
    }

    fn is_fresh(&self) -> bool {
        let heard = self.last_answer().unwrap_or(self.started_at);
        self.clocks.age_of(heard).is_some_and(|age| age < MAX_STALENESS)
    }

    fn check(&self) -> Result<(), String> {
        let heard = self.last_answer().ok_or("the accounts shard has not answered yet")?;
        match self.clocks.age_of(heard) {
            Some(age) if age < NOT_READY_AFTER => Ok(()),
            Some(age) => Err(format!("the accounts shard has not answered for {} s", age.as_secs())),
            None => Err("the accounts shard has not answered since the wall clock was set".to_owned()),
        }
    }
}

impl AccountFeed {
    pub(super) fn start(tasks: &TaskSet, router: Router, accounts: Arc<Accounts>, clocks: Clocks) -> Self {
        let health = Arc::new(FeedHealth::new(clocks));
        let shared_health = health.clone();
        tasks.spawn_restarting("account_feed", move || run(router.clone(), accounts.clone(), shared_health.clone()));
        Self { health }
    }

    /// Rejects calls when changes may have been missed for too long. At the start, every lookup is fresh by itself.
    pub(super) fn require_fresh(&self) -> ApiResult<()> {
        if self.health.is_fresh() {
            return Ok(());
        }
        Err(ApiError::new(Code::Unavailable, "accounts and API keys cannot be checked: their shard does not answer"))
    }

    pub(super) fn check_fresh(&self) -> Result<(), String> {
        self.health.check()
    }
}

async fn run(router: Router, accounts: Arc<Accounts>, health: Arc<FeedHealth>) {
    let topic = Topic::AccountChanges;
    let mut subscription = router.subscribe(Application::Accounts, SHARD_KEY, topic, Some(1), NOT_READY_AFTER);
    loop {
        let asked_at = health.clocks.now();
        match subscription.next().await {
            Ok(Update { items, .. }) => {
                let is_news = !items.is_empty();
                items.into_iter().for_each(|change| accounts.invalidate(change));
                accounts.start_tracking();
                *health.last_answer.lock() = Some(asked_at);
                if is_news {
                    sleep(MIN_REQUEST_INTERVAL).await;
                }
            }
            // The first update after it follows at once.
            Err(SubscriptionError::Rejected(CommandError::ChangesCompacted { now, .. })) => {
                accounts.invalidate_all();
                subscription.restart(Some(now + 1));
            }
            Err(error) => tracing::warn!(%error, "account change subscription failed"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn what_is_known_is_stale_after_a_suspension_and_after_a_pause_of_the_machine() {
        let (boot_ms, wall_ms) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (boot, wall) = (Arc::clone(&boot_ms), Arc::clone(&wall_ms));
        let boot_time = move || Duration::from_millis(boot.load(Ordering::Relaxed));
        let health = FeedHealth::new(Clocks::new(boot_time, move || wall.load(Ordering::Relaxed)));
        let advance = |ms: u64| [&boot_ms, &wall_ms].map(|clock| clock.fetch_add(ms, Ordering::Relaxed));
        let answer = || *health.last_answer.lock() = Some(health.clocks.now());
        assert!(health.is_fresh() && health.check().is_err(), "every lookup is fresh by itself then");
        answer();
        assert!(health.is_fresh() && health.check().is_ok());
        advance(5_000);
        assert!(health.is_fresh() && health.check().unwrap_err().contains("for 5 s"));
        // The machine was suspended: no timer and no monotonic clock has moved.
        advance(25_000);
        assert!(!health.is_fresh() && health.check().is_err());
        answer();
        // It was paused with its clocks, and the wall clock was set.
        wall_ms.fetch_add(60_000, Ordering::Relaxed);
        assert!(!health.is_fresh() && health.check().is_err());
        answer();
        assert!(health.is_fresh() && health.check().is_ok());
    }
}
