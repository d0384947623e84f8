//! The gateway's cache of the accounts and namespaces shards, so that a call costs one round trip to a locks shard.
//!
//! Accounts and API keys stay until the accounts shard reports a change of them; this gateway subscribes to its
//! changes. After 30 s without an update nothing is served from memory any more. Namespaces stay as long as their locks
//! shard accepts the incarnation.

mod account_feed;
mod accounts;
mod cache;
mod change_notifier;
mod generations;
mod key_usage;
mod namespaces;
mod revocations;

use std::sync::Arc;

use holdfast_api::ApiResult;
use holdfast_clock::Clocks;
use holdfast_routing::Router;
use holdfast_supervise::{TaskOwner, TaskSet};
use holdfast_types::{Account, AccountId, ApiKey};
use tokio::time::Instant;

use crate::admission::Admission;
use account_feed::AccountFeed;
use accounts::Accounts;
use key_usage::KeyUsageReporter;
use namespaces::Namespaces;

pub(crate) use change_notifier::ChangeListener;
pub(crate) use namespaces::KnownNamespace;

/// The caches, and the tasks that follow the accounts shard and report key usage to it.
pub(crate) struct Directory {
    tasks: TaskSet,
    /// Tasks that no call needs.
    usage_tasks: TaskSet,
    accounts: Arc<Accounts>,
    namespaces: Namespaces,
    account_feed: AccountFeed,
    key_usage: KeyUsageReporter,
}

impl Directory {
    /// Starts to follow the accounts shard; `clocks` measure the age of cached data. Needs a tokio runtime.
    pub(crate) fn start(router: Router, admission: Arc<Admission>, clocks: Clocks) -> Self {
        let accounts = Arc::new(Accounts::new(router.clone(), Arc::clone(&admission)));
        let (tasks, usage_tasks) = (TaskSet::new(TaskOwner::process()), TaskSet::new(TaskOwner::process()));
        let account_feed = AccountFeed::start(&tasks, router.clone(), accounts.clone(), clocks);
        let key_usage = KeyUsageReporter::start(&usage_tasks, router.clone());
        let namespaces = Namespaces::new(router, admission);
        Self { tasks, usage_tasks, accounts, namespaces, account_feed, key_usage }
    }

    /// Returns the account, if there is one.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the lookup fails.
    pub(crate) async fn account(&self, id: AccountId, deadline: Instant) -> ApiResult<Option<Arc<Account>>> {
        self.require_fresh()?;
        self.accounts.account(id, deadline).await
    }

    /// Returns the API key, if there is one, of any account.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the lookup fails.
    pub(crate) async fn api_key(&self, key_id: &str, deadline: Instant) -> ApiResult<Option<Arc<ApiKey>>> {
        self.require_fresh()?;
        self.accounts.api_key(key_id, || Ok(()), deadline).await
    }

    /// As [`Self::api_key`], for a key that a caller presents. Calls `may_look_up` before it looks up a key that is not
    /// in memory.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the lookup fails, and the error of `may_look_up`.
    pub(crate) async fn presented_api_key(
        &self,
        key_id: &str,
        may_look_up: impl Fn() -> ApiResult<()>,
        deadline: Instant,
    ) -> ApiResult<Option<Arc<ApiKey>>> {
        self.require_fresh()?;
        self.accounts.api_key(key_id, may_look_up, deadline).await
    }

    /// Returns whether the key of a token issued at this instant (wall clock in milliseconds since 1970) is still
    /// valid. Looks it up only when it may have changed since.
    ///
    /// # Errors
    /// `UNAVAILABLE` when the lookup fails.
    pub(crate) async fn is_token_valid(
        &self,
        account: AccountId,
        key_id: &str,
        issued_at_ms: u64,
        deadline: Instant,
    ) -> ApiResult<bool> {
        self.require_fresh()?;
        if !self.accounts.needs_lookup(account, key_id, issued_at_ms) {
            return Ok(true);
        }
        Ok(self.accounts.api_key(key_id, || Ok(()), deadline).await?.is_some())
    }

    /// Returns a number that rises after each change of an account or a key that this gateway learns of.
    pub(crate) fn generation(&self) -> u64 {
        self.accounts.generations().of_any()
    }

    /// Returns a number that rises after each change of the account or its keys that this gateway learns of. What was
    /// looked up is current for as long as the number stays, if [`Self::generation`] did not rise from before the
    /// lookup until after the number was read.
    pub(crate) fn generation_of(&self, account: AccountId) -> u64 {
        self.accounts.generations().of(account)
    }

    /// Counts a key and its account that were found without looking either up.
    pub(crate) fn count_hits(&self) {
        self.accounts.count_hits();
    }

    /// Checks that nothing in memory is older than it may be.
    ///
    /// # Errors
    /// `UNAVAILABLE` when changes may have been missed for too long.
    pub(crate) fn require_fresh(&self) -> ApiResult<()> {
        self.account_feed.require_fresh()
    }

    /// Records that the key was used now.
    pub(crate) fn record_key_use(&self, key_id: &str) {
        self.key_usage.record(key_id);
    }

    /// Notifies of changes of the account.
    pub(crate) fn subscribe_account(&self, id: AccountId) -> ChangeListener<AccountId> {
        self.accounts.subscribe_account(id)
    }

    /// Notifies of changes of the key.
    pub(crate) fn subscribe_key(&self, key_id: &str) -> ChangeListener<String> {
        self.accounts.subscribe_key(key_id)
    }

    /// Returns the incarnation of a namespace as known here; its locks shard has the final say.
    ///
    /// # Errors
    /// When it is not in memory and the lookup fails, or has no permit of the account in time.
    pub(crate) async fn namespace(
        &self,
        account: &Account,
        name: &str,
        deadline: Instant,
    ) -> ApiResult<Option<KnownNamespace>> {
        self.namespaces.get(account, name, deadline).await
    }

    /// A call of this gateway changed the account.
    pub(crate) fn invalidate_account(&self, id: AccountId) {
        self.accounts.invalidate_account(id);
    }

    /// A call of this gateway created or revoked the key of the account.
    pub(crate) fn invalidate_api_key(&self, account: AccountId, key_id: &str) {
        self.accounts.invalidate_api_key(Some(account), key_id);
    }

    /// The namespace was deleted, or its locks shard does not know the incarnation.
    pub(crate) fn invalidate_namespace(&self, account: AccountId, name: &str) {
        self.namespaces.invalidate(account, name);
    }

    /// Checks that the accounts shard replied recently, and that its changes are followed.
    ///
    /// # Errors
    /// The reason, for people.
    pub(crate) fn check_fresh(&self) -> Result<(), String> {
        self.tasks.unhealthy_reason().map_or(Ok(()), Err)?;
        self.account_feed.check_fresh()
    }

    /// Returns a problem with a task that no call needs, if any.
    pub(crate) fn failing_task(&self) -> Option<String> {
        self.usage_tasks.unhealthy_reason()
    }

    /// Stops the tasks.
    pub(crate) async fn shutdown(&self) {
        self.tasks.shutdown().await;
        self.usage_tasks.shutdown().await;
    }
}
