//! Rates of each account at this gateway: of its requests and of their bytes, and of the rare calls that cost others
//! more than themselves. These are changes of keys and namespaces, which all gateways and other shards learn of, and
//! tokens, which cost a signature. The leader of the shard counts changes too, for all gateways together.

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::limit::{self, Limit};
use holdfast_types::{Account, AccountId, Rate};

use crate::rate_counter::RateCounter;

/// Per second, how many acquires of an account beyond its rate a gateway checks for being an extension. A client that
/// extends by its token needs no check.
const EXTENSION_CHECKS_PER_SECOND: u64 = 100;
/// What a refused caller does.
const HINT: &str = "make them more slowly";
/// The same if the requests are too large.
const BYTES_HINT: &str = "send them more slowly, or smaller ones";

/// The rates of all accounts. Releases and extensions never pass here.
pub(crate) struct AccountRates {
    requests: RateCounter<AccountId>,
    request_bytes: RateCounter<AccountId>,
    extension_checks: RateCounter<AccountId>,
    key_changes: RateCounter<AccountId>,
    namespace_changes: RateCounter<AccountId>,
    tokens: RateCounter<AccountId>,
}

impl Default for AccountRates {
    fn default() -> Self {
        let per_second = || RateCounter::new(Rate::per_second);
        let with_burst = || RateCounter::new(|max| Rate::per_second(max).with_burst_factor(2));
        Self {
            requests: with_burst(),
            request_bytes: with_burst(),
            extension_checks: per_second(),
            key_changes: RateCounter::new(Rate::per_minute),
            namespace_changes: RateCounter::new(Rate::per_minute),
            tokens: per_second(),
        }
    }
}

impl AccountRates {
    /// Counts a request and the bytes of its body.
    ///
    /// # Errors
    /// `RATE_LIMITED`, with the time after which one more would pass. For an account without a limit of requests, only
    /// because of the bytes.
    pub(crate) fn admit(&self, account: &Account, body_bytes: u64) -> ApiResult<()> {
        // The bytes of a request that is one too many count: it was read.
        self.admit_bytes(account.id, body_bytes)?;
        let max = account.limits.max_requests_per_second;
        if max == 0 {
            return Ok(());
        }
        self.requests.admit(account.id, max.into()).map_err(|wait| ApiError::rate_limited(max, wait))
    }

    /// Counts a request that is never refused, and its bytes, but never more than a burst: others are refused the
    /// sooner.
    pub(crate) fn count(&self, account: &Account, bytes: u64) {
        let bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        self.request_bytes.count_many(account.id, bytes, limit::REQUEST_BYTES.default_value());
        let max = account.limits.max_requests_per_second;
        if max > 0 {
            self.requests.count_many(account.id, 1, max.into());
        }
    }

    fn admit_bytes(&self, account: AccountId, bytes: u64) -> ApiResult<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (limit, bytes) = (&limit::REQUEST_BYTES, u32::try_from(bytes).unwrap_or(u32::MAX));
        let max = limit.default_value();
        let admitted = self.request_bytes.admit_many(account, bytes, max);
        admitted.map_err(|wait| ApiError::limited(limit, max, BYTES_HINT).retry_in(wait))
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
    pub(crate) fn used(&self, account: &Account) -> [(&'static Limit, u64); 5] {
        let rates = [
            (&limit::REQUEST_RATE, &self.requests),
            (&limit::REQUEST_BYTES, &self.request_bytes),
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
        (0..2).for_each(|_| rates.admit(&one, 0).unwrap());
        let error = rates.admit(&one, 0).unwrap_err();
        assert_eq!((error.code, error.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(error.ids[0], ("limit", "max_requests_per_second".to_owned()));
        assert_eq!(rates.used(&one)[0], (&limit::REQUEST_RATE, 2));
        rates.admit(&account(2, one.limits.clone()), 0).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        rates.admit(&one, 0).unwrap();
        rates.admit(&one, 0).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn large_requests_count_by_their_bytes_and_others_have_their_own() {
        let (rates, one, other) = (AccountRates::default(), with_requests(10_000), account(2, Limits::default()));
        (0..512).for_each(|_| rates.admit(&one, 64 << 10).unwrap());
        assert_eq!(rates.used(&one)[1], (&limit::REQUEST_BYTES, 32 << 20));
        let error = rates.admit(&one, 64 << 10).unwrap_err();
        assert_eq!((error.code, error.limit()), (Code::RateLimited, Some(&limit::REQUEST_BYTES)));
        assert_eq!(error.retry_after_seconds(), Some(1));
        assert_eq!(rates.used(&one)[0], (&limit::REQUEST_RATE, 512), "a refused one counts nothing");
        rates.admit(&one, 0).unwrap();
        rates.admit(&other, 64 << 10).unwrap();
        tokio::time::advance(Duration::from_secs(1)).await;
        (0..256).for_each(|_| rates.admit(&one, 64 << 10).unwrap());
        rates.admit(&one, 64 << 10).unwrap_err();
    }

    #[tokio::test(start_paused = true)]
    async fn a_limit_of_zero_is_no_limit_but_bytes_have_theirs() {
        let (rates, any) = (AccountRates::default(), with_requests(0));
        assert!((0..100_000).all(|_| rates.admit(&any, 0).is_ok()));
        // Of this size, so that the time that pays one off is a whole number of nanoseconds.
        assert_eq!((0..1_000).filter(|_| rates.admit(&any, 64 << 10).is_ok()).count(), 512, "32 MiB in all");
        assert_eq!(rates.admit(&any, 64 << 10).unwrap_err().limit(), Some(&limit::REQUEST_BYTES));
        assert!(rates.admit(&any, 0).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn requests_that_are_never_refused_count_for_others() {
        let (rates, one, any) = (AccountRates::default(), with_requests(2), account(2, with_requests(0).limits));
        (0..100).for_each(|_| rates.count(&one, 64 << 10));
        assert_eq!(rates.used(&one)[..2], [(&limit::REQUEST_RATE, 4), (&limit::REQUEST_BYTES, 6_400 << 10)]);
        assert_eq!(rates.admit(&one, 0).unwrap_err().code, Code::RateLimited);
        tokio::time::advance(Duration::from_millis(500)).await;
        rates.admit(&one, 0).unwrap();
        rates.count(&any, 64 << 10);
        assert_eq!(rates.used(&any)[..2], [(&limit::REQUEST_RATE, 0), (&limit::REQUEST_BYTES, 64 << 10)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_changed_limit_counts_from_then_on() {
        let rates = AccountRates::default();
        (0..2).for_each(|_| rates.admit(&with_requests(1), 0).unwrap());
        rates.admit(&with_requests(1), 0).unwrap_err();
        tokio::time::advance(Duration::from_millis(10)).await;
        rates.admit(&with_requests(1), 0).unwrap_err();
        rates.admit(&with_requests(100), 0).unwrap();
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
    async fn an_account_gets_a_hundred_tokens_a_second_and_another_its_own() {
        let (rates, one) = (AccountRates::default(), with_changes(1, 1));
        assert_eq!((0..1_000).filter(|_| rates.admit_token(&one).is_ok()).count(), 100);
        assert!(rates.admit_token(&with_changes(2, 1)).is_ok());
    }
}
