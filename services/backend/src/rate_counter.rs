//! A rate of this gateway: how often each of many keys may do something.

use std::time::Duration;

use holdfast_types::{Rate, RateTable};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum keys that a rate counts the calls of. One that is idle for a while starts again with a full burst.
const MAX_KEYS: usize = 100_000;

/// The calls of each key. The rate follows from the maximum that each call brings.
pub(crate) struct RateCounter<K> {
    rate: fn(u64) -> Rate,
    calls: Mutex<RateTable<K>>,
}

impl<K: Ord> RateCounter<K> {
    pub(crate) fn new(rate: fn(u64) -> Rate) -> Self {
        Self { rate, calls: Mutex::new(RateTable::new(MAX_KEYS)) }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time until one more is allowed. The call does not count then.
    pub(crate) fn admit(&self, key: K, max: u64) -> Result<(), Duration> {
        self.admit_many(key, 1, max)
    }

    /// Counts so many calls at once: all, or none.
    ///
    /// # Errors
    /// The time until as many are allowed. They do not count then.
    pub(crate) fn admit_many(&self, key: K, calls: u32, max: u64) -> Result<(), Duration> {
        self.calls.lock().admit_many(key, calls, (self.rate)(max), now())
    }

    /// Returns whether a call would be admitted, without counting it.
    ///
    /// # Errors
    /// The time until one more is allowed.
    pub(crate) fn check(&self, key: &K, max: u64) -> Result<(), Duration> {
        self.calls.lock().check(key, (self.rate)(max), now())
    }

    /// Takes back a call that was admitted.
    pub(crate) fn take_back(&self, key: &K, max: u64) {
        self.calls.lock().take_back(key, (self.rate)(max));
    }

    /// Returns how many calls are not paid off.
    pub(crate) fn used(&self, key: &K, max: u64) -> u64 {
        self.calls.lock().used(key, (self.rate)(max), now())
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}
