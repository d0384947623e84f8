//! What the gateway remembers of the accounts and namespaces shards, so that a call costs one trip to a locks shard.
//!
//! Accounts and API keys are kept until the accounts shard reports a change of them; it is asked for changes every
//! 250 ms, and when it did not answer for 30 s nothing is served from memory any more. Namespaces are kept as long as
//! their locks shard accepts the incarnation.

mod accounts;
mod cache;
mod follower;
mod namespaces;
mod rates;

use std::sync::Arc;

use holdfast_core::{Account, AccountId, ApiKey, Incarnation};
use tokio::time::Instant;

use crate::error::ApiResult;
use accounts::Accounts;
use follower::Follower;
use holdfast_routing::Router;
use namespaces::Namespaces;

pub use follower::{MAX_SILENCE, POLL_INTERVAL};
pub use rates::RateLimits;

/// The caches, and the task that follows the accounts shard.
pub struct Directory {
    accounts: Arc<Accounts>,
    namespaces: Namespaces,
    follower: Follower,
}

impl Directory {
    /// Begins to follow the accounts shard. Needs a tokio runtime.
    pub fn start(router: Router) -> Self {
        let accounts = Arc::new(Accounts::new(router.clone()));
        let follower = Follower::start(router.clone(), accounts.clone());
        Self { accounts, namespaces: Namespaces::new(router), follower }
    }

    /// The account, if there is one.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it cannot be known.
    pub async fn account(&self, id: AccountId, deadline: Instant) -> ApiResult<Option<Arc<Account>>> {
        self.follower.require_contact()?;
        self.accounts.account(id, deadline).await
    }

    /// The API key, if there is one, whoever's it is.
    ///
    /// # Errors
    /// `UNAVAILABLE` when it cannot be known.
    pub async fn api_key(&self, key_id: &str, deadline: Instant) -> ApiResult<Option<Arc<ApiKey>>> {
        self.follower.require_contact()?;
        self.accounts.api_key(key_id, deadline).await
    }

    /// The incarnation of a namespace, as far as is known here; its locks shard has the last word.
    ///
    /// # Errors
    /// When it is not in memory and cannot be looked up.
    pub async fn namespace(&self, account: AccountId, name: &str, deadline: Instant) -> ApiResult<Option<Incarnation>> {
        self.namespaces.get(account, name, deadline).await
    }

    /// The account was changed by a call of this gateway.
    pub fn forget_account(&self, id: AccountId) {
        self.accounts.forget_account(id);
    }

    /// The key was made or revoked by a call of this gateway.
    pub fn forget_api_key(&self, key_id: &str) {
        self.accounts.forget_api_key(key_id);
    }

    /// The namespace was deleted, or its locks shard does not know the incarnation.
    pub fn forget_namespace(&self, account: AccountId, name: &str) {
        self.namespaces.forget(account, name);
    }

    /// Whether the accounts shard answered lately.
    ///
    /// # Errors
    /// Why not, for people.
    pub fn fresh(&self) -> Result<(), String> {
        self.follower.fresh()
    }

    /// Stops following.
    pub async fn shutdown(&self) {
        self.follower.shutdown().await;
    }
}
