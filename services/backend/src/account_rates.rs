//! Rates of each account at this gateway: of its requests, and of the rare calls that cost others more than themselves.
//! These are changes of keys and namespaces, which all gateways and other shards learn of, and tokens, which cost a
//! signature. The leader of the shard counts changes too, for all gateways together.

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Account, AccountId, Rate};

use crate::rate_counter::RateCounter;

/// Per second, how many acquires of an account beyond its rate a gateway checks for being an extension. A client that
/// extends by its token needs no check.
const EXTENSION_CHECKS_PER_SECOND: u64 = 100;
/// What a refused caller does.
const HINT: &str = "make them more slowly";

/// The rates of all accounts. Releases and extensions never pass here.
pub(crate) struct AccountRates {
    requests: RateCounter<AccountId>,
    extension_checks: RateCounter<AccountId>,
    key_changes: RateCounter<AccountId>,
    namespace_changes: RateCounter<AccountId>,
    tokens: RateCounter<AccountId>,
}

impl Default for AccountRates {
    fn default() -> Self {
        let per_second = || RateCounter::new(Rate::per_second);
        Self {
            requests: RateCounter::new(|max| Rate::per_second(max).with_burst_factor(2)),
            extension_checks: per_second(),
            key_changes: RateCounter::new(Rate::per_minute),
            namespace_changes: RateCounter::new(Rate::per_minute),
            tokens: per_second(),
        }
    }
}

impl AccountRates {
    /// Counts a request.
    ///
    /// # Errors
    /// `RATE_LIMITED`, with the time after which one more would pass. Never for an account without such a limit.
    pub(crate) fn admit(&self, account: &Account) -> ApiResult<()> {
        match account.limits.max_requests_per_second {
            0 => Ok(()),
            max => self.requests.admit(account.id, max.into()).map_err(|wait| ApiError::rate_limited(max, wait)),
        }
    }

    /// Counts a check whether a rejected acquire only extends; returns whether one is left.
    pub(crate) fn admit_extension_check(&self, account: &Account) -> bool {
        self.extension_checks.admit(account.id, EXTENSION_CHECKS_PER_SECOND).is_ok()
    }

    /// Counts the creation or deletion of an API key.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_key_change(&self, account: &Account) -> ApiResult<()> {
        admit_rare(&self.key_changes, &limit::KEY_CHANGES, account)
    }

    /// Counts the creation, change or deletion of a namespace.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_namespace_change(&self, account: &Account) -> ApiResult<()> {
        admit_rare(&self.namespace_changes, &limit::NAMESPACE_CHANGES, account)
    }

    /// Counts a token.
    ///
    /// # Errors
    /// `RATE_LIMITED`.
    pub(crate) fn admit_token(&self, account: &Account) -> ApiResult<()> {
        admit_rare(&self.tokens, &limit::TOKENS, account)
    }

    /// Returns the limits of rates, each with how many calls of an account are not paid off.
    pub(crate) fn used(&self, account: &Account) -> [(&'static Limit, u64); 4] {
        let rates = [
            (&limit::REQUEST_RATE, &self.requests),
            (&limit::KEY_CHANGES, &self.key_changes),
            (&limit::NAMESPACE_CHANGES, &self.namespace_changes),
            (&limit::TOKENS, &self.tokens),
        ];
        rates.map(|(limit, counter)| (limit, counter.used(&account.id, limit.value_of(&account.limits))))
    }
}

fn admit_rare(counter: &RateCounter<AccountId>, limit: &'static Limit, account: &Account) -> ApiResult<()> {
    // At least one, as the range of the limit has it.
    let max = limit.value_of(&account.limits).max(1);
    counter.admit(account.id, max).map_err(|wait| ApiError::limited(limit, max, HINT).retry_in(wait))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use holdfast_api::Code;
    use holdfast_types::{AccountStatus, Limits};

    use super::*;

    fn account(id: u64, limits: Limits) -> Account {
        Account {
            id: AccountId(id),
            email: "a@b".to_owned(),
            full_name: "A".to_owned(),
            max_number_of_namespaces: 1,
            limits,
            status: AccountStatus::Active,
            created_at_ms: 0,
            updated_at_ms: 0,
            revision: 1,
        }
    }

    fn with_requests(max_requests_per_second: u32) -> Account {
        account(1, Limits { max_requests_per_second, ..Limits::default() })
    }

    fn with_changes(id: u64, max_key_changes: u64) -> Account {
        account(id, Limits { max_key_changes, max_namespace_changes: 1, ..Limits::default() })
    }

    #[tokio::test(start_paused = true)]
    async fn a_burst_of_twice_the_rate_passes_and_then_no_more() {
        let (rates, one) = (AccountRates::default(), with_requests(1));
        (0..2).for_each(|_| rates.admit(&one).unwrap());
        let error = rates.admit(&one).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids[0], ("limit", "max_requests_per_second".to_owned()));
        assert_eq!(rates.used(&one)[0], (&limit::REQUEST_RATE, 2));
        rates.admit(&account(2, one.limits.clone())).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        rates.admit(&one).unwrap();
        rates.admit(&one).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_zero_is_no_limit() {
        let (rates, any) = (AccountRates::default(), with_requests(0));
        assert!((0..100_000).all(|_| rates.admit(&any).is_ok()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_limit_counts_from_then_on() {
        let rates = AccountRates::default();
        (0..2).for_each(|_| rates.admit(&with_requests(1)).unwrap());
        rates.admit(&with_requests(1)).unwrap_err();
        tokio::time::advance(Duration::from_millis(10)).await;
        rates.admit(&with_requests(1)).unwrap_err();
        rates.admit(&with_requests(100)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_makes_as_many_changes_in_a_minute_as_it_may_and_others_their_own() {
        let (rates, one) = (AccountRates::default(), with_changes(1, 2));
        (0..2).for_each(|_| rates.admit_key_change(&one).unwrap());
        let error = rates.admit_key_change(&one).unwrap_err();
        assert_eq!(error.code, Code::RateLimited);
        assert_eq!(error.retry_after_seconds(), Some(30));
        assert_eq!(error.ids, [("limit", "max_key_changes".to_owned()), ("max", "2".to_owned())]);
        rates.admit_key_change(&with_changes(2, 2)).unwrap();
        rates.admit_namespace_change(&one).unwrap();
        let error = rates.admit_namespace_change(&one).unwrap_err();
        assert_eq!(error.ids[0], ("limit", "max_namespace_changes".to_owned()));
        rates.admit_namespace_change(&with_changes(2, 2)).unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn an_account_gets_a_hundred_tokens_a_second() {
        let (rates, one) = (AccountRates::default(), with_changes(1, 1));
        assert_eq!((0..1_000).filter(|_| rates.admit_token(&one).is_ok()).count(), 100);
        assert!(rates.admit_token(&with_changes(2, 1)).is_ok());
    }
}
