//! Options of contention.

use std::time::Duration;

use crate::error::ContentionError;

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_TRANSITION: Duration = Duration::from_secs(600);
/// Shorter transitions leave no time for a renewal that starts with them.
const MIN_POLLING_TRANSITION: Duration = Duration::from_millis(100);

/// How a contender learns that the mutex is free.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, Pacing};
///
/// let options = ContendOptions::new(Duration::from_secs(2)).pacing(Pacing::Poll);
/// assert!(options.check().is_err(), "an owner that polls renews in its transition, and there is none");
/// assert!(options.transition(Duration::from_secs(1)).check().is_ok());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Pacing {
    /// It waits in the service's queue and is notified. An owner renews after a third of its time to live. It ceases to
    /// be the owner at the end of that time if no renewal was answered; the transition is its time to stop.
    Push,
    /// It polls at the times of [`ContendPeriod`](crate::ContendPeriod), for environments without waiting calls. An
    /// owner renews at the end of its time to live, so that a transition of at least 100 ms is needed. It ceases to be
    /// the owner in the middle of that transition if no renewal was answered; the other half is its time to stop.
    Poll,
}

/// The duration of ownerships and how to contend for them. All contenders of a mutex must use the same options.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::{ContendOptions, Pacing};
///
/// let options = ContendOptions::new(Duration::from_secs(5)).transition(Duration::from_secs(2)).pacing(Pacing::Poll);
/// assert!(options.check().is_ok());
/// assert!(ContendOptions::new(Duration::from_millis(1)).check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContendOptions {
    pub(crate) ttl: Duration,
    pub(crate) transition: Duration,
    pub(crate) pacing: Pacing,
    pub(crate) initial_delay: Duration,
}

impl ContendOptions {
    /// Creates options with ownerships of `ttl`, 100 ms to 24 h, unless renewed; no transition, [`Pacing::Push`], no
    /// delay.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, transition: Duration::ZERO, pacing: Pacing::Push, initial_delay: Duration::ZERO }
    }

    /// Sets how long other contenders are kept out after that, up to 10 min: time for the owner to renew, or to stop.
    #[must_use]
    pub fn transition(self, transition: Duration) -> Self {
        Self { transition, ..self }
    }

    /// Sets how a contender learns that the mutex is free.
    #[must_use]
    pub fn pacing(self, pacing: Pacing) -> Self {
        Self { pacing, ..self }
    }

    /// Sets the delay between the start of a service and its first attempt.
    #[must_use]
    pub fn initial_delay(self, initial_delay: Duration) -> Self {
        Self { initial_delay, ..self }
    }

    /// Checks whether the options are valid.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`], naming the invalid one.
    pub fn check(&self) -> Result<(), ContentionError> {
        let invalid = |what, why: &str| Err(ContentionError::Invalid { what, why: why.to_owned() });
        if !(MIN_TTL..=MAX_TTL).contains(&self.ttl) {
            return invalid("the time to live", "100 ms to 24 h are allowed");
        }
        if self.transition > MAX_TRANSITION {
            return invalid("the transition", "up to 10 min are allowed");
        }
        if self.pacing == Pacing::Poll && self.transition < MIN_POLLING_TRANSITION {
            return invalid("the transition", "an owner that polls renews in it, and needs at least 100 ms for that");
        }
        Ok(())
    }
}
