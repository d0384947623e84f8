//! Accounts and API keys in memory.

use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult, Timestamp};
use holdfast_cluster::Application;
use holdfast_routing::Router;
use holdfast_types::{Account, AccountChange, AccountId, ApiKey, CommandError, Query, Response};
use tokio::time::Instant;

use super::cache::SingleFlightCache;
use super::change_notifier::{ChangeListener, ChangeNotifier};
use super::generations::Generations;
use super::revocations::Revocations;
use crate::admission::{Admission, AdmissionRequest, Priority, Share, Sharer};
use crate::route_error::route_error;

/// Maximum cached accounts; others are fetched again.
const MAX_ACCOUNTS: u64 = 100_000;
/// Maximum cached API keys.
const MAX_API_KEYS: u64 = 200_000;
/// The shard of this key has all accounts.
pub(super) const SHARD_KEY: u32 = 0;

/// The caches, and the lookups on their misses.
pub(super) struct Accounts {
    router: Router,
    admission: Arc<Admission>,
    accounts: SingleFlightCache<AccountId, Arc<Account>, ApiError>,
    api_keys: SingleFlightCache<String, Arc<ApiKey>, ApiError>,
    revocations: Revocations,
    generations: Generations,
    account_changes: Arc<ChangeNotifier<AccountId>>,
    key_changes: Arc<ChangeNotifier<String>>,
}

impl Accounts {
    pub(super) fn new(router: Router, admission: Arc<Admission>) -> Self {
        Self {
            router,
            admission,
            accounts: SingleFlightCache::new("accounts", MAX_ACCOUNTS, true),
            api_keys: SingleFlightCache::new("api_keys", MAX_API_KEYS, true),
            revocations: Revocations::default(),
            generations: Generations::default(),
            account_changes: Arc::default(),
            key_changes: Arc::default(),
        }
    }

    pub(super) async fn account(&self, id: AccountId, deadline: Instant) -> ApiResult<Option<Arc<Account>>> {
        let look_up = || async {
            match self.query(&Query::Account { id }, deadline).await? {
                Ok(Response::Account(account)) => Ok(Some(Arc::new(account))),
                Err(CommandError::AccountNotFound(_)) => Ok(None),
                other => Err(unexpected_outcome(&other)),
            }
        };
        self.accounts.get(&id, look_up).await
    }

    /// Asks `may_look_up` before each lookup.
    pub(super) async fn api_key(
        &self,
        key_id: &str,
        may_look_up: impl Fn() -> ApiResult<()>,
        deadline: Instant,
    ) -> ApiResult<Option<Arc<ApiKey>>> {
        let key_id = key_id.to_owned();
        let look_up = || async {
            may_look_up()?;
            match self.query(&Query::ApiKey { key_id: key_id.clone() }, deadline).await? {
                Ok(Response::ApiKey(key)) => Ok(Some(Arc::new(key))),
                Err(CommandError::ApiKeyNotFound) => Ok(None),
                other => Err(unexpected_outcome(&other)),
            }
        };
        self.api_keys.get(&key_id, look_up).await
    }

    /// Returns whether the key of a token that was issued then may have been revoked, so that a lookup is necessary.
    pub(super) fn needs_lookup(&self, account: AccountId, key_id: &str, issued_at_ms: u64) -> bool {
        self.revocations.needs_lookup(account, key_id, issued_at_ms)
    }

    /// Returns the numbers that rise after changes.
    pub(super) fn generations(&self) -> &Generations {
        &self.generations
    }

    /// Counts a key and its account that were found without looking either up.
    pub(super) fn count_hits(&self) {
        self.api_keys.count_hit();
        self.accounts.count_hit();
    }

    /// Notifies of changes of the account.
    pub(super) fn subscribe_account(&self, id: AccountId) -> ChangeListener<AccountId> {
        self.account_changes.subscribe(id)
    }

    /// Notifies of changes of the key.
    pub(super) fn subscribe_key(&self, key_id: &str) -> ChangeListener<String> {
        self.key_changes.subscribe(key_id.to_owned())
    }

    pub(super) fn invalidate_account(&self, id: AccountId) {
        self.accounts.invalidate(&id);
        self.generations.begin(id);
        self.account_changes.notify(&id);
    }

    /// `account` is that of the key, if the change names it.
    pub(super) fn invalidate_api_key(&self, account: Option<AccountId>, key_id: &str) {
        let key_id = key_id.to_owned();
        self.revocations.record(account, &key_id, Timestamp::now().0);
        self.api_keys.invalidate(&key_id);
        match account {
            Some(account) => self.generations.begin(account),
            None => self.generations.begin_all(),
        }
        self.key_changes.notify(&key_id);
    }

    /// Invalidates a changed item, and notifies its listeners.
    pub(super) fn invalidate(&self, change: AccountChange) {
        match change {
            AccountChange::Account(id) => self.invalidate_account(id),
            AccountChange::ApiKey(key_id) => self.invalidate_api_key(None, &key_id),
            AccountChange::KeyOfAccount { account, key_id } => self.invalidate_api_key(Some(account), &key_id),
        }
    }

    /// The shard replies: the feed receives every change after this.
    pub(super) fn start_tracking(&self) {
        self.revocations.start_tracking(Timestamp::now().0);
    }

    /// Invalidates everything, because the changes are unknown.
    pub(super) fn invalidate_all(&self) {
        self.revocations.reset(Timestamp::now().0);
        self.accounts.invalidate_all();
        self.api_keys.invalidate_all();
        self.generations.begin_all();
        self.account_changes.notify_all();
        self.key_changes.notify_all();
    }

    /// Looks something up, with a permit that all look-ups share: who asks is not known yet. The look-up may be for an
    /// urgent call, so it waits for its turn as long as its call.
    async fn query(&self, query: &Query, deadline: Instant) -> ApiResult<Result<Response, CommandError>> {
        let request = AdmissionRequest { share: Share::of(Sharer::LookUps), priority: Priority::Patient, bytes: 0 };
        let permit = self.admission.acquire(request, deadline).await?;
        let asked =
            async { self.router.query(Application::Accounts, SHARD_KEY, query, deadline).await.map_err(route_error) };
        Ok(Admission::run(permit, false, None, asked).await?.outcome)
    }
}

/// The error for a response that does not fit the query.
pub(super) fn unexpected_outcome(outcome: &Result<Response, CommandError>) -> ApiError {
    tracing::error!(?outcome, "unexpected kind of response from shard");
    ApiError::internal("a shard gave an answer that this gateway does not understand")
}
