//! A rate of this gateway: how often each of many keys may do something.

use std::array;
use std::hash::{BuildHasher, Hash, RandomState};
use std::time::Duration;

use holdfast_types::{Rate, RateTable};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Maximum number of keys whose calls a rate counts. A key that was idle for a while starts again with a full burst.
const MAX_KEYS: usize = 100_000;
/// Tables of a rate, so that calls with different keys seldom wait for one another.
const TABLES: usize = 16;

/// The calls of each key. The rate follows from the maximum that each call brings.
pub(crate) struct RateCounter<K> {
    rate: fn(u64) -> Rate,
    /// By the hash of the key.
    tables: [Mutex<RateTable<K>>; TABLES],
    hasher: RandomState,
}

impl<K: Ord + Hash> RateCounter<K> {
    pub(crate) fn new(rate: fn(u64) -> Rate) -> Self {
        let tables = array::from_fn(|_| Mutex::new(RateTable::new(MAX_KEYS / TABLES)));
        Self { rate, tables, hasher: RandomState::new() }
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
        self.table(&key).lock().admit_many(key, calls, (self.rate)(max), now())
    }

    /// Counts calls that happen in any case, up to the number allowed at once.
    pub(crate) fn count_many(&self, key: K, calls: u32, max: u64) {
        self.table(&key).lock().count_many(key, calls, (self.rate)(max), now());
    }

    /// Returns whether a call would be admitted, without counting it.
    ///
    /// # Errors
    /// The time until one more is allowed.
    pub(crate) fn check(&self, key: &K, max: u64) -> Result<(), Duration> {
        self.table(key).lock().check(key, (self.rate)(max), now())
    }

    /// Takes back a call that was admitted.
    pub(crate) fn take_back(&self, key: &K, max: u64) {
        self.table(key).lock().take_back(key, (self.rate)(max));
    }

    /// Returns how many calls are not paid off.
    pub(crate) fn used(&self, key: &K, max: u64) -> u64 {
        self.table(key).lock().used(key, (self.rate)(max), now())
    }

    fn table(&self, key: &K) -> &Mutex<RateTable<K>> {
        let [first, ..] = &self.tables;
        let index = usize::try_from(self.hasher.hash_one(key) % TABLES as u64).unwrap_or_default();
        self.tables.get(index).unwrap_or(first)
    }
}

fn now() -> std::time::Instant {
    Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn each_of_many_keys_has_its_own_count_in_one_of_the_tables() {
        let counter = RateCounter::new(Rate::per_second);
        assert!((0..1_000_u64).all(|key| counter.admit(key, 2).is_ok()));
        assert!((0..1_000_u64).all(|key| counter.used(&key, 2) == 1 && counter.check(&key, 2).is_ok()));
        assert!((0..1_000_u64).all(|key| counter.admit_many(key, 2, 2).is_err() && counter.admit(key, 2).is_ok()));
        assert!((0..1_000_u64).all(|key| counter.admit(key, 2).is_err()));
        counter.take_back(&7, 2);
        assert!(counter.admit(7, 2).is_ok() && counter.admit(8, 2).is_err());
    }
}
