//! How many streams each account has open here.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_core::AccountId;
use parking_lot::Mutex;

use super::MAX_WATCHERS;
use crate::error::{ApiError, ApiResult, Code};

/// When it makes sense to try again: streams end at any time.
const TRY_AGAIN_AFTER: Duration = Duration::from_secs(5);

/// The places for watchers, of each account the same number. A cheap clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Places {
    taken: Arc<Mutex<HashMap<AccountId, usize>>>,
}

/// A place, free again when this is dropped.
#[derive(Debug)]
pub(crate) struct Place {
    places: Places,
    account: AccountId,
}

impl Places {
    /// Takes a place.
    pub(crate) fn take(&self, account: AccountId) -> ApiResult<Place> {
        let mut taken = self.taken.lock();
        let count = taken.entry(account).or_default();
        if *count >= MAX_WATCHERS {
            let detail = format!("the account may have {MAX_WATCHERS} watchers at one gateway");
            let mut error = ApiError::new(Code::RateLimited, detail).with("max", MAX_WATCHERS.to_string());
            error.retry_after = Some(TRY_AGAIN_AFTER);
            return Err(error);
        }
        *count += 1;
        Ok(Place { places: self.clone(), account })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock();
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
    use super::*;

    #[test]
    fn an_account_has_so_many_places_and_no_more_and_another_has_its_own() {
        let places = Places::default();
        let mut held: Vec<Place> = (0..MAX_WATCHERS).map(|_| places.take(AccountId(1)).unwrap()).collect();
        let refused = places.take(AccountId(1)).unwrap_err();
        assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(5)));
        places.take(AccountId(2)).unwrap();
        held.pop();
        places.take(AccountId(1)).unwrap();
        drop(held);
        assert!(places.taken.lock().is_empty(), "nothing is kept of accounts that do not watch");
    }
}
