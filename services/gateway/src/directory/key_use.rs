//! When keys were last used: noted in memory with each call, told to the accounts shard for many keys at once.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::Application;
use holdfast_core::{AccountsCommand, Command};
use holdfast_routing::{Repeat, Router};
use holdfast_supervise::TaskSet;
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::{Instant, MissedTickBehavior, interval};

use super::accounts::SHARD_KEY;
use crate::service::Timestamp;

/// How often there is something to tell at most.
const TELL_EVERY: Duration = Duration::from_secs(1);
/// How long a key that was told about is not told about again: what is shown is right to a minute.
const EACH_KEY_EVERY: Duration = Duration::from_secs(60);
/// Keys of one telling.
const KEYS_AT_ONCE: usize = 1_000;
/// Keys that are remembered, to be told or as told.
const KEYS: usize = 100_000;
const TELL_WITHIN: Duration = Duration::from_secs(5);

/// Keys that were used, and the task that tells of them.
pub(super) struct KeyUse {
    used: Arc<Used>,
}

struct Used {
    /// By key id, when it was used; wall clock in milliseconds since 1970.
    to_tell: Mutex<HashMap<String, u64>>,
    told: Cache<String, ()>,
}

impl KeyUse {
    pub(super) fn start(tasks: &TaskSet, router: Router) -> Self {
        let told = Cache::builder().max_capacity(KEYS as u64).time_to_live(EACH_KEY_EVERY).build();
        let used = Arc::new(Used { to_tell: Mutex::default(), told });
        let telling = used.clone();
        tasks.keep("key use", move || tell_again_and_again(router.clone(), telling.clone()));
        Self { used }
    }

    /// The key was used just now.
    pub(super) fn note(&self, key_id: &str) {
        if self.used.told.contains_key(key_id) {
            return;
        }
        let mut to_tell = self.used.to_tell.lock();
        if let Some(used_ms) = to_tell.get_mut(key_id) {
            *used_ms = Timestamp::now().0;
        } else if to_tell.len() < KEYS {
            // One that finds no room is noted when it is used again.
            to_tell.insert(key_id.to_owned(), Timestamp::now().0);
        }
    }
}

impl Used {
    fn take(&self) -> Vec<(String, u64)> {
        let mut to_tell = self.to_tell.lock();
        let keys: Vec<String> = to_tell.keys().take(KEYS_AT_ONCE).cloned().collect();
        keys.into_iter().filter_map(|key_id| to_tell.remove_entry(&key_id)).collect()
    }

    fn told(&self, keys: Vec<(String, u64)>) {
        for (key_id, _) in keys {
            self.told.insert(key_id, ());
        }
    }

    fn give_back(&self, keys: Vec<(String, u64)>) {
        let mut to_tell = self.to_tell.lock();
        for (key_id, used_ms) in keys {
            to_tell.entry(key_id).or_insert(used_ms);
        }
    }
}

async fn tell_again_and_again(router: Router, used: Arc<Used>) {
    let mut ticks = interval(TELL_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let keys = used.take();
        if keys.is_empty() {
            continue;
        }
        let command = Command::Accounts(AccountsCommand::NoteKeyUse { used: keys.clone() });
        let deadline = Instant::now() + TELL_WITHIN;
        match router.command(Application::Accounts, SHARD_KEY, &command, Repeat::InLaterTerm, deadline).await {
            Ok(_) => used.told(keys),
            Err(error) => {
                tracing::debug!(%error, "the accounts shard is not told which keys were used");
                used.give_back(keys);
            }
        }
    }
}
