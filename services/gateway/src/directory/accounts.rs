//! Accounts and API keys in memory.

use std::sync::Arc;

use holdfast_cluster::Application;
use holdfast_core::{Account, AccountChange, AccountId, Answer, ApiKey, Query, Refusal};
use tokio::time::Instant;

use super::cache::LookupCache;
use crate::error::{ApiError, ApiResult};
use holdfast_routing::Router;

/// Accounts in memory; others are looked up again.
const ACCOUNTS: u64 = 100_000;
/// API keys in memory.
const API_KEYS: u64 = 200_000;
/// All accounts are in the shard of this key.
const SHARD_KEY: u32 = 0;

/// The caches, and how their misses are looked up.
pub(super) struct Accounts {
    router: Router,
    accounts: LookupCache<AccountId, Arc<Account>, ApiError>,
    api_keys: LookupCache<String, Arc<ApiKey>, ApiError>,
}

impl Accounts {
    pub(super) fn new(router: Router) -> Self {
        let accounts = LookupCache::new("accounts", ACCOUNTS, true);
        Self { router, accounts, api_keys: LookupCache::new("api_keys", API_KEYS, true) }
    }

    pub(super) async fn account(&self, id: AccountId, deadline: Instant) -> ApiResult<Option<Arc<Account>>> {
        let look_up = || async {
            match self.ask(&Query::Account { id }, deadline).await? {
                Ok(Answer::Account(account)) => Ok(Some(Arc::new(account))),
                Err(Refusal::AccountNotFound(_)) => Ok(None),
                other => Err(not_understood(&other)),
            }
        };
        self.accounts.get(&id, look_up).await
    }

    pub(super) async fn api_key(&self, key_id: &str, deadline: Instant) -> ApiResult<Option<Arc<ApiKey>>> {
        let key_id = key_id.to_owned();
        let look_up = || async {
            match self.ask(&Query::ApiKey { key_id: key_id.clone() }, deadline).await? {
                Ok(Answer::ApiKey(key)) => Ok(Some(Arc::new(key))),
                Err(Refusal::ApiKeyNotFound) => Ok(None),
                other => Err(not_understood(&other)),
            }
        };
        self.api_keys.get(&key_id, look_up).await
    }

    pub(super) fn forget_account(&self, id: AccountId) {
        self.accounts.forget(&id);
    }

    pub(super) fn forget_api_key(&self, key_id: &str) {
        self.api_keys.forget(&key_id.to_owned());
    }

    /// Forgets what changed.
    pub(super) fn forget(&self, change: AccountChange) {
        match change {
            AccountChange::Account(id) => self.accounts.forget(&id),
            AccountChange::ApiKey(key_id) => self.api_keys.forget(&key_id),
        }
    }

    /// Forgets everything: it is not known what changed.
    pub(super) fn clear(&self) {
        self.accounts.clear();
        self.api_keys.clear();
    }

    async fn ask(&self, query: &Query, deadline: Instant) -> ApiResult<Result<Answer, Refusal>> {
        Ok(self.router.query(Application::Accounts, SHARD_KEY, query, deadline).await?.outcome)
    }
}

/// The shard answered something that does not fit the question.
pub(super) fn not_understood(outcome: &Result<Answer, Refusal>) -> ApiError {
    tracing::error!(?outcome, "a shard gave an answer of another kind than was asked for");
    ApiError::internal("a shard gave an answer that this gateway does not understand")
}
