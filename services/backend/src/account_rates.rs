//! Rates of the rare calls of an account at this gateway that cost others more than themselves: changes of keys and
//! namespaces, which all gateways and other shards learn of, and tokens, which cost a signature. The leader of the
//! shard counts changes too, for all gateways together.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::Quota;
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Account, AccountId};
use moka::sync::Cache;

use crate::rate_clock::RateCounter;

/// Maximum accounts with a limiter of one kind.
const MAX_ACCOUNTS: u64 = 100_000;
/// A minute restores a whole burst, so no count is dropped that still matters.
const IDLE_TTL: Duration = Duration::from_secs(120);

/// The rates of all accounts.
pub(crate) struct AccountRates {
    key_changes: Rate,
    namespace_changes: Rate,
    tokens: Rate,
}

impl Default for AccountRates {
    fn default() -> Self {
        Self {
            key_changes: Rate::new(&limit::KEY_CHANGES, Quota::per_minute),
            namespace_changes: Rate::new(&limit::NAMESPACE_CHANGES, Quota::per_minute),
            tokens: Rate::new(&limit::TOKENS, Quota::per_second),
        }
    }
}

impl AccountRates {
    /// Counts the creation or deletion of an API key.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_key_change(&self, account: &Account) -> ApiResult<()> {
        self.key_changes.admit(account.id, account.limits.max_key_changes)
    }

    /// Counts the creation, change or deletion of a namespace.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_namespace_change(&self, account: &Account) -> ApiResult<()> {
        self.namespace_changes.admit(account.id, account.limits.max_namespace_changes)
    }

    /// Counts a token.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_token(&self, account: &Account) -> ApiResult<()> {
        self.tokens.admit(account.id, limit::TOKENS.default_value())
    }
}

/// One rate of each account, with bursts of as many calls as the period has.
struct Rate {
    limit: &'static Limit,
    quota: fn(NonZeroU32) -> Quota,
    limiters: Cache<AccountId, Arc<Limiter>>,
}

struct Limiter {
    max: NonZeroU32,
    counter: RateCounter,
}

impl Rate {
    fn new(limit: &'static Limit, quota: fn(NonZeroU32) -> Quota) -> Self {
        Self { limit, quota, limiters: Cache::builder().max_capacity(MAX_ACCOUNTS).time_to_idle(IDLE_TTL).build() }
    }

    fn admit(&self, account: AccountId, max: u64) -> ApiResult<()> {
        // At least one, as the range of the limit has it.
        let max = NonZeroU32::new(u32::try_from(max).unwrap_or(u32::MAX)).unwrap_or(NonZeroU32::MIN);
        let new = || Arc::new(Limiter { max, counter: RateCounter::new((self.quota)(max)) });
        let mut limiter = self.limiters.get_with(account, new);
        if limiter.max != max {
            limiter = new();
            self.limiters.insert(account, Arc::clone(&limiter));
        }
        limiter
            .counter
            .admit()
            .map_err(|wait| ApiError::limited(self.limit, max.get().into(), "make them more slowly").retry_in(wait))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;
    use holdfast_types::{AccountStatus, Limits};

    use super::*;

    fn account(id: u64, max_key_changes: u64) -> Account {
        Account {
            id: AccountId(id),
            email: "a@b".to_owned(),
            full_name: "A".to_owned(),
            max_number_of_namespaces: 1,
            limits: Limits { max_key_changes, max_namespace_changes: 1, ..Limits::default() },
            status: AccountStatus::Active,
            created_at_ms: 0,
            updated_at_ms: 0,
            revision: 1,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_makes_as_many_changes_in_a_minute_as_it_may_and_others_their_own() {
        let (rates, one) = (AccountRates::default(), account(1, 2));
        (0..2).for_each(|_| rates.admit_key_change(&one).unwrap());
        let error = rates.admit_key_change(&one).unwrap_err();
        assert_eq!(error.code, Code::RateLimited);
        assert_eq!(error.retry_after_seconds(), Some(30));
        assert_eq!(error.ids, [("limit", "max_key_changes".to_owned()), ("max", "2".to_owned())]);
        rates.admit_key_change(&account(2, 2)).unwrap();
        rates.admit_key_change(&account(1, 3)).unwrap();
        rates.admit_namespace_change(&one).unwrap();
        let error = rates.admit_namespace_change(&one).unwrap_err();
        assert_eq!(error.ids[0], ("limit", "max_namespace_changes".to_owned()));
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_gets_a_hundred_tokens_a_second() {
        let (rates, one) = (AccountRates::default(), account(1, 1));
        assert_eq!((0..1_000).filter(|_| rates.admit_token(&one).is_ok()).count(), 100);
    }
}
