//! Rate limiters on the clock of the runtime, which tests and simulations stop and move.

use std::time::Duration;

use governor::Quota;
use parking_lot::Mutex;
use tokio::time::Instant;

/// Counts calls of one kind from one source. Unlike a limiter of `governor`, it can take a call back.
pub(crate) struct RateCounter {
    quota: Quota,
    /// When all calls so far are paid off: each adds an interval of the quota.
    paid_off_at: Mutex<Instant>,
}

impl RateCounter {
    pub(crate) fn new(quota: Quota) -> Self {
        Self { quota, paid_off_at: Mutex::new(Instant::now()) }
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time until one more is allowed. The call does not count then.
    pub(crate) fn admit(&self) -> Result<(), Duration> {
        let now = Instant::now();
        let interval = self.quota.replenish_interval();
        let mut paid_off_at = self.paid_off_at.lock();
        let debt = paid_off_at.saturating_duration_since(now) + interval;
        let too_much = debt.saturating_sub(interval * self.quota.burst_size().get());
        if !too_much.is_zero() {
            return Err(too_much);
        }
        *paid_off_at = now + debt;
        Ok(())
    }

    /// Takes back a call that was admitted.
    pub(crate) fn take_back(&self) {
        let mut paid_off_at = self.paid_off_at.lock();
        if let Some(earlier) = paid_off_at.checked_sub(self.quota.replenish_interval()) {
            *paid_off_at = earlier;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn calls_are_counted_on_the_clock_of_the_runtime() {
        let counter = RateCounter::new(Quota::per_minute(NonZeroU32::new(2).unwrap()));
        assert_eq!((counter.admit(), counter.admit()), (Ok(()), Ok(())));
        assert_eq!(counter.admit(), Err(Duration::from_secs(30)));
        tokio::time::advance(Duration::from_secs(31)).await;
        assert_eq!(counter.admit(), Ok(()));
        assert!(counter.admit().is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_taken_back_makes_room_for_one_other() {
        let counter = RateCounter::new(Quota::per_minute(NonZeroU32::new(2).unwrap()));
        assert_eq!((counter.admit(), counter.admit()), (Ok(()), Ok(())));
        counter.take_back();
        assert_eq!(counter.admit(), Ok(()));
        assert_eq!(counter.admit(), Err(Duration::from_secs(30)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_taken_back_late_adds_nothing_to_a_whole_burst() {
        let counter = RateCounter::new(Quota::per_minute(NonZeroU32::new(2).unwrap()));
        assert_eq!(counter.admit(), Ok(()));
        tokio::time::advance(Duration::from_secs(60)).await;
        counter.take_back();
        assert_eq!((counter.admit(), counter.admit()), (Ok(()), Ok(())));
        assert!(counter.admit().is_err());
    }
}
