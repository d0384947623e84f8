//! Limits the open streams of each account at this gateway.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{AccountId, limit};
use parking_lot::Mutex;

use super::MAX_WATCHERS;

/// When a retry makes sense: streams end at any time.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Counts watchers, with the same limit for each account. Clones are cheap.
#[derive(Clone, Debug, Default)]
pub(crate) struct WatcherLimiter {
    watchers: Arc<Mutex<HashMap<AccountId, usize>>>,
}

/// A permit for one watcher, released when it is dropped.
#[derive(Debug)]
pub(crate) struct WatcherPermit {
    limiter: WatcherLimiter,
    account: AccountId,
}

impl WatcherLimiter {
    /// Returns the watchers of an account.
    pub(crate) fn used(&self, account: AccountId) -> u64 {
        self.watchers.lock().get(&account).map_or(0, |count| *count as u64)
    }

    /// Acquires a permit.
    pub(crate) fn acquire(&self, account: AccountId) -> ApiResult<WatcherPermit> {
        let mut taken = self.watchers.lock();
        let count = taken.entry(account).or_default();
        if *count >= MAX_WATCHERS {
            let hint = "close one, or watch at another gateway";
            return Err(ApiError::limited(&limit::WATCHERS, MAX_WATCHERS as u64, hint).retry_in(RETRY_AFTER));
        }
        *count += 1;
        Ok(WatcherPermit { limiter: self.clone(), account })
    }
}

impl Drop for WatcherPermit {
    fn drop(&mut self) {
        let mut taken = self.limiter.watchers.lock();
        if let Some(count) = taken.get_mut(&self.account) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.account);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;

    use super::*;

    #[test]
    fn an_account_has_so_many_places_and_no_more_and_another_has_its_own() {
        let places = WatcherLimiter::default();
        let mut held: Vec<WatcherPermit> = (0..MAX_WATCHERS).map(|_| places.acquire(AccountId(1)).unwrap()).collect();
        let refused = places.acquire(AccountId(1)).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(5)));
        assert_eq!(refused.ids, [("limit", "max_watchers".to_owned()), ("max", "1000".to_owned())]);
        assert_eq!([1, 2].map(|account| places.used(AccountId(account))), [1_000, 0]);
        places.acquire(AccountId(2)).unwrap();
        held.pop();
        places.acquire(AccountId(1)).unwrap();
        drop(held);
        assert!(places.watchers.lock().is_empty(), "nothing is kept of accounts that do not watch");
    }
}
