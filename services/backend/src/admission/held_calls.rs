//! Calls that wait at a shard, watches, and connections of sessions: they take memory for minutes, and no permits. So
//! they are counted apart, and are never the reason to refuse another kind of call.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_api::{ApiError, ApiResult};
use holdfast_types::{Limits, limit};
use parking_lot::Mutex;

use super::{Share, Sharer, count_rejected};

/// What a refused caller does.
const HINT: &str = "end some, or wait at another gateway";

/// Counts the held calls of each account. Clones share the counts.
#[derive(Clone, Default)]
pub(crate) struct HeldCalls {
    sharers: Arc<Mutex<HashMap<Sharer, Count>>>,
}

#[derive(Default)]
struct Count {
    calls: u64,
    bytes: u64,
}

/// A call that is counted until it is dropped.
pub(crate) struct HeldCall {
    calls: HeldCalls,
    sharer: Sharer,
    bytes: u64,
}

impl HeldCalls {
    /// Counts a call.
    ///
    /// # Errors
    /// `RATE_LIMITED` at the account's limit.
    pub(crate) fn acquire(&self, share: Share, bytes: usize) -> ApiResult<HeldCall> {
        let (sharer, bytes) = (share.sharer, bytes as u64);
        let max = share.max_held_calls;
        let max_bytes = max.saturating_mul(Limits::BYTES_PER_HELD_CALL);
        let mut sharers = self.sharers.lock();
        let (calls, used) = sharers.get(&sharer).map_or((0, 0), |count| (count.calls, count.bytes));
        if calls >= max {
            count_rejected(&limit::HELD_CALLS);
            return Err(ApiError::limited(&limit::HELD_CALLS, max, HINT));
        }
        if used + bytes > max_bytes {
            count_rejected(&limit::HELD_CALLS);
            return Err(ApiError::limited_to(&limit::HELD_CALLS, limit::HELD_BYTES, max_bytes, HINT));
        }
        let count = sharers.entry(sharer).or_default();
        count.calls += 1;
        count.bytes += bytes;
        Ok(HeldCall { calls: self.clone(), sharer, bytes })
    }
}

impl Drop for HeldCall {
    fn drop(&mut self) {
        let mut sharers = self.calls.sharers.lock();
        if let Some(count) = sharers.get_mut(&self.sharer) {
            count.calls -= 1;
            count.bytes -= self.bytes;
            if count.calls == 0 {
                sharers.remove(&self.sharer);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_api::Code;
    use holdfast_types::AccountId;

    use super::*;

    fn share(account: u64) -> Share {
        Share { max_held_calls: 3, ..Share::of(Sharer::Account(AccountId(account))) }
    }

    #[test]
    fn an_account_holds_so_many_calls_and_bytes_and_another_has_its_own() {
        let held = HeldCalls::default();
        let mut calls: Vec<HeldCall> = (0..3).map(|_| held.acquire(share(1), 4_096).unwrap()).collect();
        let refused = held.acquire(share(1), 0).err().unwrap();
        assert_eq!((refused.code, refused.retry_after_seconds()), (Code::RateLimited, Some(1)));
        assert_eq!(refused.ids, [("limit", "max_held_calls".to_owned()), ("max", "3".to_owned())]);
        calls.push(held.acquire(share(2), 4_096).unwrap());
        calls.remove(0);
        let refused = held.acquire(share(1), 4_097).err().unwrap();
        assert_eq!(refused.ids, [("limit", "max_held_calls".to_owned()), ("max", "12288".to_owned())]);
        calls.push(held.acquire(share(1), 4_096).unwrap());
        drop(calls);
        assert!(held.sharers.lock().is_empty(), "nothing is kept of accounts that hold nothing");
    }
}
