//! Requests a second of each account at this gateway.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use governor::clock::{Clock, DefaultClock};
use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};
use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{Account, AccountId};
use moka::sync::Cache;

/// Maximum accounts with a limiter; an account that is idle for a while starts again with a full burst.
const MAX_ACCOUNTS: u64 = 100_000;
/// A second restores a whole burst twice over, so no count is dropped that still matters.
const IDLE_TTL: Duration = Duration::from_secs(60);

/// Per second, how many acquires of an account beyond its rate a gateway checks for being an extension. A client that
/// extends by its token needs no check.
const EXTENSION_CHECKS_PER_SECOND: NonZeroU32 = NonZeroU32::new(100).expect("it is not zero");

/// A limiter for each account. Releases and extensions never pass here.
pub(crate) struct RateLimits {
    limiters: Cache<AccountId, Arc<Limiter>>,
}

struct Limiter {
    per_second: NonZeroU32,
    limiter: DefaultDirectRateLimiter,
    extension_checks: DefaultDirectRateLimiter,
}

impl Default for RateLimits {
    fn default() -> Self {
        Self { limiters: Cache::builder().max_capacity(MAX_ACCOUNTS).time_to_idle(IDLE_TTL).build() }
    }
}

impl RateLimits {
    /// Counts a request of the account, and rejects it when there are too many.
    ///
    /// # Errors
    /// `RATE_LIMITED`, with the time after which one more would pass.
    pub(crate) fn admit(&self, account: &Account) -> ApiResult<()> {
        let Some(limiter) = self.limiter(account) else { return Ok(()) };
        limiter.limiter.check().map_err(|refused| {
            let wait = refused.wait_time_from(DefaultClock::default().now());
            ApiError::rate_limited(limiter.per_second.get(), wait)
        })
    }

    /// Counts a check whether a rejected acquire only extends; returns whether one is left.
    pub(crate) fn admit_extension_check(&self, account: &Account) -> bool {
        self.limiter(account).is_none_or(|limiter| limiter.extension_checks.check().is_ok())
    }

    /// None for an account without a limit.
    fn limiter(&self, account: &Account) -> Option<Arc<Limiter>> {
        let per_second = NonZeroU32::new(account.limits.max_requests_per_second)?;
        let mut limiter = self.limiters.get_with(account.id, || Arc::new(Limiter::new(per_second)));
        if limiter.per_second != per_second {
            limiter = Arc::new(Limiter::new(per_second));
            self.limiters.insert(account.id, limiter.clone());
        }
        Some(limiter)
    }
}

impl Limiter {
    fn new(per_second: NonZeroU32) -> Self {
        let quota = Quota::per_second(per_second).allow_burst(per_second.saturating_mul(BURST_FACTOR));
        let extension_checks = RateLimiter::direct(Quota::per_second(EXTENSION_CHECKS_PER_SECOND));
        Self { per_second, limiter: RateLimiter::direct(quota), extension_checks }
    }
}

const BURST_FACTOR: NonZeroU32 = match NonZeroU32::new(2) {
    Some(two) => two,
    None => unreachable!(),
};

#[cfg(test)]
mod tests {
    use holdfast_api::Code;
    use holdfast_types::{AccountStatus, Limits};

    use super::*;

    fn account(max_requests_per_second: u32) -> Account {
        Account {
            id: AccountId(1),
            email: "a@b".to_owned(),
            full_name: "A".to_owned(),
            max_number_of_namespaces: 1,
            limits: Limits { max_requests_per_second, ..Limits::default() },
            status: AccountStatus::Active,
            created_at_ms: 0,
            updated_at_ms: 0,
            revision: 1,
        }
    }

    #[test]
    fn a_burst_of_twice_the_rate_passes_and_then_no_more() {
        let rates = RateLimits::default();
        let account = account(1);
        rates.admit(&account).unwrap();
        rates.admit(&account).unwrap();
        let error = rates.admit(&account).unwrap_err();
        assert_eq!(error.code, Code::RateLimited);
        assert_eq!(error.retry_after_seconds(), Some(1));
    }

    #[test]
    fn a_limit_of_zero_is_no_limit() {
        let rates = RateLimits::default();
        let account = account(0);
        assert!((0..100_000).all(|_| rates.admit(&account).is_ok()));
    }

    #[test]
    fn a_changed_limit_counts_from_then_on() {
        let rates = RateLimits::default();
        rates.admit(&account(1)).unwrap();
        rates.admit(&account(1)).unwrap();
        rates.admit(&account(1)).unwrap_err();
        rates.admit(&account(100)).unwrap();
    }
}
