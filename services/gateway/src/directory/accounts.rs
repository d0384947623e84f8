//! Accounts and API keys in memory.

use std::sync::Arc;

use holdfast_cluster::Application;
use holdfast_core::{Account, AccountChange, AccountId, Answer, ApiKey, Query, Refusal};
use tokio::time::Instant;

use super::bells::{Bell, Bells};
use super::cache::LookupCache;
use super::revocations::Revocations;
use crate::error::{ApiError, ApiResult};
use crate::service::Timestamp;
use holdfast_routing::Router;

/// Accounts in memory; others are looked up again.
const ACCOUNTS: u64 = 100_000;
/// API keys in memory.
const API_KEYS: u64 = 200_000;
/// All accounts are in the shard of this key.
pub(super) const SHARD_KEY: u32 = 0;

/// The caches, and how their misses are looked up.
pub(super) struct Accounts {
    router: Router,
    accounts: LookupCache<AccountId, Arc<Account>, ApiError>,
    api_keys: LookupCache<String, Arc<ApiKey>, ApiError>,
    revocations: Revocations,
    account_bells: Arc<Bells<AccountId>>,
    key_bells: Arc<Bells<String>>,
}

impl Accounts {
    pub(super) fn new(router: Router) -> Self {
        Self {
            router,
            accounts: LookupCache::new("accounts", ACCOUNTS, true),
            api_keys: LookupCache::new("api_keys", API_KEYS, true),
            revocations: Revocations::default(),
            account_bells: Arc::default(),
            key_bells: Arc::default(),
        }
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

    /// Whether the key of a token that was made then may have been revoked, so that it has to be looked up.
    pub(super) fn is_doubtful(&self, key_id: &str, issued_at_ms: u64) -> bool {
        self.revocations.is_doubtful(key_id, issued_at_ms)
    }

    /// Rings when the account changes.
    pub(super) fn account_bell(&self, id: AccountId) -> Bell<AccountId> {
        self.account_bells.listen(id)
    }

    /// Rings when the key changes.
    pub(super) fn key_bell(&self, key_id: &str) -> Bell<String> {
        self.key_bells.listen(key_id.to_owned())
    }

    pub(super) fn forget_account(&self, id: AccountId) {
        self.accounts.forget(&id);
        self.account_bells.ring(&id);
    }

    pub(super) fn forget_api_key(&self, key_id: &str) {
        let key_id = key_id.to_owned();
        self.revocations.heard(&key_id, Timestamp::now().0);
        self.api_keys.forget(&key_id);
        self.key_bells.ring(&key_id);
    }

    /// Forgets what changed, and wakes those whom it concerns.
    pub(super) fn forget(&self, change: AccountChange) {
        match change {
            AccountChange::Account(id) => self.forget_account(id),
            AccountChange::ApiKey(key_id) => self.forget_api_key(&key_id),
        }
    }

    /// The shard answers: every change after this is heard of.
    pub(super) fn listens(&self) {
        self.revocations.listens(Timestamp::now().0);
    }

    /// Forgets everything: it is not known what changed.
    pub(super) fn clear(&self) {
        self.revocations.missed_some(Timestamp::now().0);
        self.accounts.clear();
        self.api_keys.clear();
        self.account_bells.ring_all();
        self.key_bells.ring_all();
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
