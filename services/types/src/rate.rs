//! How often something may happen: one counter for every rate of gateways and leaders.
//!
//! It reads no clock: each call brings the time. Calls of one table bring times of one clock.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A number of calls in a period, and a number of calls at once. Bytes count like calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// The time that pays off `max` calls.
    period: Duration,
    /// At least 1.
    max: u32,
    /// The time that pays off as many calls as are allowed at once.
    burst: Duration,
}

impl Rate {
    /// `max` calls in a second and as many at once; one if `max` is 0.
    pub fn per_second(max: u64) -> Self {
        Self::per(Duration::from_secs(1), max)
    }

    /// `max` calls in a minute and as many at once; one if `max` is 0.
    pub fn per_minute(max: u64) -> Self {
        Self::per(Duration::from_secs(60), max)
    }

    /// The same rate with so many times as many calls at once.
    #[must_use]
    pub fn with_burst_factor(self, factor: u32) -> Self {
        Self { burst: self.burst.saturating_mul(factor), ..self }
    }

    fn per(period: Duration, max: u64) -> Self {
        Self { period, max: u32::try_from(max).unwrap_or(u32::MAX).max(1), burst: period }
    }

    /// Returns the time that pays off so many calls.
    fn time_of(self, calls: u32) -> Duration {
        self.period.saturating_mul(calls) / self.max
    }
}

/// Counts the calls of each key. It forgets keys without calls, and beyond its maximum those without a call for
/// longest.
#[derive(Debug)]
pub struct RateTable<K> {
    /// For each key, when all its calls so far are paid off.
    recent: BTreeMap<K, Instant>,
    /// Keys without a call since `recent` was last full.
    older: BTreeMap<K, Instant>,
    max_recent: usize,
}

impl<K: Ord> RateTable<K> {
    /// A table of at most `max_keys` keys; two if that is less.
    pub fn new(max_keys: usize) -> Self {
        Self { recent: BTreeMap::new(), older: BTreeMap::new(), max_recent: (max_keys / 2).max(1) }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time until one more is allowed. The call does not count then.
    pub fn admit(&mut self, key: K, rate: Rate, now: Instant) -> Result<(), Duration> {
        self.admit_many(key, 1, rate, now)
    }

    /// Counts so many calls at once: all, or none.
    ///
    /// # Errors
    /// The time until as many are allowed. More than are allowed at once never are. They do not count then.
    pub fn admit_many(&mut self, key: K, calls: u32, rate: Rate, now: Instant) -> Result<(), Duration> {
        let paid_off_at = now + self.debt(&key, now) + rate.time_of(calls);
        match paid_off_at.saturating_duration_since(now + rate.burst) {
            Duration::ZERO => {
                self.insert(key, paid_off_at);
                Ok(())
            }
            wait => Err(wait),
        }
    }

    /// Counts so many calls that happen in any case, up to what is allowed at once: later ones are refused the sooner,
    /// but no longer than after a burst.
    pub fn count_many(&mut self, key: K, calls: u32, rate: Rate, now: Instant) {
        let before = self.debt(&key, now);
        let debt = before.saturating_add(rate.time_of(calls)).min(rate.burst.max(before));
        self.insert(key, now + debt);
    }

    /// Returns whether a call would be admitted, without counting it.
    ///
    /// # Errors
    /// The time until one more is allowed.
    pub fn check(&self, key: &K, rate: Rate, now: Instant) -> Result<(), Duration> {
        match (self.debt(key, now) + rate.time_of(1)).saturating_sub(rate.burst) {
            Duration::ZERO => Ok(()),
            wait => Err(wait),
        }
    }

    /// Takes back a call that was admitted.
    pub fn take_back(&mut self, key: &K, rate: Rate) {
        let paid_off_at = self.recent.get_mut(key).or_else(|| self.older.get_mut(key));
        if let Some(paid_off_at) = paid_off_at
            && let Some(earlier) = paid_off_at.checked_sub(rate.time_of(1))
        {
            *paid_off_at = earlier;
        }
    }

    /// Returns how many calls are not paid off, of those that are allowed at once.
    pub fn used(&self, key: &K, rate: Rate, now: Instant) -> u64 {
        let calls = (self.debt(key, now).as_nanos() * u128::from(rate.max)).div_ceil(rate.period.as_nanos().max(1));
        u64::try_from(calls).unwrap_or(u64::MAX)
    }

    fn debt(&self, key: &K, now: Instant) -> Duration {
        let paid_off_at = self.recent.get(key).or_else(|| self.older.get(key));
        paid_off_at.map_or(Duration::ZERO, |at| at.saturating_duration_since(now))
    }

    fn insert(&mut self, key: K, paid_off_at: Instant) {
        self.older.remove(&key);
        if self.recent.len() >= self.max_recent && !self.recent.contains_key(&key) {
            self.older = std::mem::take(&mut self.recent);
        }
        self.recent.insert(key, paid_off_at);
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "tests need one instant to count from")]
mod tests {
    use super::*;

    fn admitted(table: &mut RateTable<u8>, key: u8, rate: Rate, now: Instant) -> usize {
        (0..1_000).take_while(|_| table.admit(key, rate, now).is_ok()).count()
    }

    #[test]
    fn calls_that_happen_in_any_case_use_up_a_burst_and_no_more() {
        let (mut table, start, rate) = (RateTable::new(100), Instant::now(), Rate::per_second(2).with_burst_factor(2));
        table.count_many(1, 1, rate, start);
        assert_eq!((table.used(&1, rate, start), admitted(&mut table, 1, rate, start)), (1, 3));
        table.count_many(1, u32::MAX, rate, start);
        assert_eq!(table.used(&1, rate, start), 4);
        assert_eq!(table.admit(1, rate, start), Err(Duration::from_millis(500)));
        assert_eq!(admitted(&mut table, 1, rate, start + Duration::from_secs(1)), 2);
        assert_eq!(admitted(&mut table, 2, rate, start), 4, "another key has its own");
    }

    #[test]
    fn a_key_has_so_many_calls_in_a_period_and_a_burst_after_a_pause() {
        let (mut table, start, rate) = (RateTable::new(100), Instant::now(), Rate::per_minute(3));
        let at = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(admitted(&mut table, 1, rate, at(0)), 3);
        assert_eq!(table.admit(1, rate, at(0)), Err(Duration::from_secs(20)));
        assert_eq!(admitted(&mut table, 2, rate, at(0)), 3, "another key has its own");
        assert_eq!(table.check(&1, rate, at(19)), Err(Duration::from_secs(1)));
        assert_eq!(table.check(&1, rate, at(20)), Ok(()));
        assert_eq!(table.admit(1, rate, at(20)), Ok(()));
        assert_eq!(table.admit(1, rate, at(20)), Err(Duration::from_secs(20)), "a refusal counts nothing");
        assert_eq!(admitted(&mut table, 1, rate, at(100)), 3);
    }

    #[test]
    fn a_double_burst_is_twice_the_rate_at_once_and_the_same_rate_later() {
        let (mut table, now, rate) = (RateTable::new(100), Instant::now(), Rate::per_second(7).with_burst_factor(2));
        assert_eq!(admitted(&mut table, 1, rate, now), 14);
        assert_eq!(admitted(&mut table, 1, rate, now + Duration::from_secs(1)), 7);
        assert_eq!(admitted(&mut table, 2, Rate::per_second(0), now), 1);
        assert_eq!(admitted(&mut table, 3, Rate::per_second(u64::MAX), now), 1_000);
    }

    #[test]
    fn many_calls_count_together_all_or_none() {
        let (mut table, start, rate) = (RateTable::new(100), Instant::now(), Rate::per_second(16 << 20));
        assert_eq!(table.admit_many(1, 12 << 20, rate, start), Ok(()));
        assert_eq!(table.used(&1, rate, start), 12 << 20);
        assert_eq!(table.admit_many(1, 8 << 20, rate, start), Err(Duration::from_millis(250)));
        assert_eq!(table.admit_many(1, 4 << 20, rate, start), Ok(()), "what was refused counts nothing");
        assert_eq!(table.admit_many(2, 16 << 20, rate, start), Ok(()), "another key has its own");
        assert_eq!(table.admit_many(1, 8 << 20, rate, start + Duration::from_millis(500)), Ok(()));
        assert!(table.admit_many(3, (16 << 20) + 1, rate, start).is_err(), "more than ever are allowed at once");
    }

    #[test]
    fn a_changed_rate_applies_to_the_next_call() {
        let (mut table, now) = (RateTable::new(100), Instant::now());
        assert_eq!(admitted(&mut table, 1, Rate::per_second(2), now), 2);
        let soon = now + Duration::from_millis(10);
        assert_eq!(table.admit(1, Rate::per_second(2), soon), Err(Duration::from_millis(490)));
        assert_eq!(table.admit(1, Rate::per_second(100), soon), Ok(()));
    }

    #[test]
    fn a_call_that_is_taken_back_makes_room_for_one_other() {
        let (mut table, now, rate) = (RateTable::new(100), Instant::now(), Rate::per_minute(2));
        assert_eq!((admitted(&mut table, 1, rate, now), table.used(&1, rate, now)), (2, 2));
        table.take_back(&1, rate);
        assert_eq!((table.used(&1, rate, now), admitted(&mut table, 1, rate, now)), (1, 1));
        let later = now + Duration::from_secs(60);
        assert_eq!(table.used(&1, rate, later), 0);
        table.take_back(&1, rate);
        table.take_back(&2, rate);
        assert_eq!(admitted(&mut table, 1, rate, later), 2, "what is taken back late adds nothing to a burst");
    }

    #[test]
    fn a_flood_of_keys_takes_a_bounded_table_and_forgets_the_idle_first() {
        let (mut table, now, rate) = (RateTable::new(1_000), Instant::now(), Rate::per_minute(2));
        for key in 0..100_000 {
            assert_eq!(table.admit(key, rate, now), Ok(()));
            assert!(table.recent.len() + table.older.len() <= 1_000);
        }
        assert_eq!(table.used(&99_999, rate, now), 1);
        assert_eq!(table.used(&99_600, rate, now), 1, "one of the last five hundred");
        assert_eq!(table.used(&1, rate, now), 0, "forgotten");
    }
}
