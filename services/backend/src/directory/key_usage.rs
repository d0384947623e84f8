//! Last use of keys: recorded in memory with each call, reported to the accounts shard for many keys at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::Timestamp;
use holdfast_cluster::Application;
use holdfast_routing::{RetryPolicy, Router};
use holdfast_supervise::TaskSet;
use holdfast_types::{AccountsCommand, Command};
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::accounts::SHARD_KEY;

/// Minimum time between two reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// How long a reported key is not reported again: the shown time is accurate to a minute.
const KEY_REPORT_INTERVAL: Duration = Duration::from_secs(60);
/// Keys of one report.
const MAX_REPORT_KEYS: usize = 1_000;
/// Maximum keys that are pending or reported.
const MAX_KEYS: usize = 100_000;
const REPORT_TIMEOUT: Duration = Duration::from_secs(5);

/// Recorded key uses, and the task that reports them.
pub(super) struct KeyUsageReporter {
    usage: Arc<KeyUsage>,
}

struct KeyUsage {
    /// Last use by key id; wall clock in milliseconds since 1970.
    pending: Mutex<HashMap<String, u64>>,
    reported: Cache<String, ()>,
}

impl KeyUsageReporter {
    pub(super) fn start(tasks: &TaskSet, router: Router) -> Self {
        let reported = Cache::builder().max_capacity(MAX_KEYS as u64).time_to_live(KEY_REPORT_INTERVAL).build();
        let usage = Arc::new(KeyUsage { pending: Mutex::default(), reported });
        let telling = usage.clone();
        tasks.spawn_restarting("key_usage", move || run(router.clone(), telling.clone()));
        Self { usage }
    }

    /// Records that the key was used now.
    pub(super) fn record(&self, key_id: &str) {
        if self.usage.reported.contains_key(key_id) {
            return;
        }
        let mut to_tell = self.usage.pending.lock();
        if let Some(used_ms) = to_tell.get_mut(key_id) {
            *used_ms = Timestamp::now().0;
        } else if to_tell.len() < MAX_KEYS {
            // A key that finds no space is recorded at its next use.
            to_tell.insert(key_id.to_owned(), Timestamp::now().0);
        }
    }
}

impl KeyUsage {
    fn take_batch(&self) -> Vec<(String, u64)> {
        let mut to_tell = self.pending.lock();
        let keys: Vec<String> = to_tell.keys().take(MAX_REPORT_KEYS).cloned().collect();
        keys.into_iter().filter_map(|key_id| to_tell.remove_entry(&key_id)).collect()
    }

    fn mark_reported(&self, keys: Vec<(String, u64)>) {
        for (key_id, _) in keys {
            self.reported.insert(key_id, ());
        }
    }

    fn requeue(&self, keys: Vec<(String, u64)>) {
        let mut to_tell = self.pending.lock();
        for (key_id, used_ms) in keys {
            to_tell.entry(key_id).or_insert(used_ms);
        }
    }
}

async fn run(router: Router, used: Arc<KeyUsage>) {
    let mut ticks = interval(REPORT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let keys = used.take_batch();
        if keys.is_empty() {
            continue;
        }
        let command = Command::Accounts(AccountsCommand::RecordKeyUse { used: keys.clone() });
        let deadline = Instant::now() + REPORT_TIMEOUT;
        match router.command(Application::Accounts, SHARD_KEY, &command, RetryPolicy::LaterTerm, deadline).await {
            Ok(_) => used.mark_reported(keys),
            Err(error) => {
                tracing::debug!(%error, "API key usage report failed");
                used.requeue(keys);
            }
        }
    }
}
