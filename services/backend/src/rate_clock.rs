//! Rate limiters on the clock of the runtime, which tests and simulations stop and move.

use std::time::Duration;

use governor::clock::Clock;
use governor::middleware::NoOpMiddleware;
use governor::state::{InMemoryState, NotKeyed};
use governor::{Quota, RateLimiter};

/// The clock of the runtime.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RuntimeClock;

impl Clock for RuntimeClock {
    type Instant = std::time::Instant;

    fn now(&self) -> std::time::Instant {
        tokio::time::Instant::now().into_std()
    }
}

/// Counts calls of one kind from one source.
pub(crate) struct RateCounter(
    RateLimiter<NotKeyed, InMemoryState, RuntimeClock, NoOpMiddleware<<RuntimeClock as Clock>::Instant>>,
);

impl RateCounter {
    pub(crate) fn new(quota: Quota) -> Self {
        Self(RateLimiter::direct_with_clock(quota, RuntimeClock))
    }

    /// Counts a call.
    ///
    /// # Errors
    /// The time until one more is allowed.
    pub(crate) fn admit(&self) -> Result<(), Duration> {
        self.0.check().map_err(|refused| refused.wait_time_from(RuntimeClock.now()))
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
}
