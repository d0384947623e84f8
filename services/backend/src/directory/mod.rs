//! What the gateway remembers of the accounts and namespaces shards, so that a call costs one trip to a locks shard.
//!
//! Accounts and API keys are kept until the accounts shard reports a change of them; it keeps the question for changes
//! until there is one, and when it did not answer for 30 s nothing is served from memory any more. Namespaces are kept
//! as long as their locks shard accepts the incarnation.

mod account_feed;
mod accounts;
mod cache;
mod change_notifier;
mod key_usage;
mod namespaces;
mod rate_limit;
mod revocations;

use std::sync::Arc;

use holdfast_api::ApiResult;
use holdfast_core::{Account, AccountId, ApiKey, Incarnation};
use holdfast_routing::Router;
use holdfast_supervise::{TaskOwner, TaskSet};
use tokio::time::Instant;

use account_feed::AccountFeed;
use accounts::Accounts;
use key_usage::KeyUsageReporter;
use namespaces::Namespaces;

pub(crate) use change_notifier::ChangeListener;
pub(crate) use rate_limit::RateLimits;

/// The caches, and the tasks that follow the accounts shard and tell it which keys were used.
pub(crate) struct Directory {
    tasks: TaskSet,
    accounts: Arc<Accounts>,
    namespaces: Namespaces,
    account_feed: AccountFeed,
    key_usage: KeyUsageReporter,
}

impl Directory {
    /// Begins to follow the accounts shard. Needs a tokio runtime.
    pub(crate) fn start(router: Router) -> Self {
        let accounts = Arc::new(Accounts::new(router.clone()));
        let tasks = TaskSet::new(TaskOwner::process());
        let account_feed = AccountFeed::start(&tasks, router.clone(), accounts.clone());
        let key_usage = KeyUsageReporter::start(&tasks, router.clone());
        Self { tasks, accounts, namespaces: Namespaces::new(router), account_feed, key_usage }
    }

    /// The account, if there is one.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it cannot be known.
    pub(crate) async fn account(&self, id: AccountId, deadline: Instant) -> ApiResult<Option<Arc<Account>>> {
        self.account_feed.require_fresh()?;
        self.accounts.account(id, deadline).await
    }

    /// The API key, if there is one, whoever's it is.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it cannot be known.
    pub(crate) async fn api_key(&self, key_id: &str, deadline: Instant) -> ApiResult<Option<Arc<ApiKey>>> {
        self.account_feed.require_fresh()?;
        self.accounts.api_key(key_id, deadline).await
    }

    /// Whether the key of a token that was made at that instant (wall clock in milliseconds since 1970) is still good.
    /// It is looked up only when it may have changed since.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it cannot be known.
    pub(crate) async fn is_token_valid(&self, key_id: &str, issued_at_ms: u64, deadline: Instant) -> ApiResult<bool> {
        self.account_feed.require_fresh()?;
        if !self.accounts.needs_lookup(key_id, issued_at_ms) {
            return Ok(true);
        }
        Ok(self.accounts.api_key(key_id, deadline).await?.is_some())
    }

    /// The key was used just now.
    pub(crate) fn record_key_use(&self, key_id: &str) {
        self.key_usage.record(key_id);
    }

    /// Rings when the account changes.
    pub(crate) fn subscribe_account(&self, id: AccountId) -> ChangeListener<AccountId> {
        self.accounts.subscribe_account(id)
    }

    /// Rings when the key changes.
    pub(crate) fn subscribe_key(&self, key_id: &str) -> ChangeListener<String> {
        self.accounts.subscribe_key(key_id)
    }

    /// The incarnation of a namespace, as far as is known here; its locks shard has the last word.
    ///
    /// # Errors
    /// When it is not in memory and cannot be looked up.
    pub(crate) async fn namespace(
        &self,
        account: AccountId,
        name: &str,
        deadline: Instant,
    ) -> ApiResult<Option<Incarnation>> {
        self.namespaces.get(account, name, deadline).await
    }

    /// The account was changed by a call of this gateway.
    pub(crate) fn invalidate_account(&self, id: AccountId) {
        self.accounts.invalidate_account(id);
    }

    /// The key was made or revoked by a call of this gateway.
    pub(crate) fn invalidate_api_key(&self, key_id: &str) {
        self.accounts.invalidate_api_key(key_id);
    }

    /// The namespace was deleted, or its locks shard does not know the incarnation.
    pub(crate) fn invalidate_namespace(&self, account: AccountId, name: &str) {
        self.namespaces.invalidate(account, name);
    }

    /// Whether the accounts shard answered lately, and its changes are followed.
    ///
    /// # Errors
    /// Why not, for people.
    pub(crate) fn check_fresh(&self) -> Result<(), String> {
        self.tasks.unhealthy_reason().map_or(Ok(()), Err)?;
        self.account_feed.check_fresh()
    }

    /// Stops following.
    pub(crate) async fn shutdown(&self) {
        self.tasks.shutdown().await;
    }
}
