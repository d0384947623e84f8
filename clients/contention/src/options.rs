//! How a mutex is contended for.

use std::time::Duration;

use crate::error::ContentionError;

const MIN_TTL: Duration = Duration::from_millis(100);
const MAX_TTL: Duration = Duration::from_secs(24 * 60 * 60);
const MAX_TRANSITION: Duration = Duration::from_secs(600);
/// Shorter transitions leave no time for a renewal that begins with them.
const MIN_POLLING_TRANSITION: Duration = Duration::from_millis(100);

/// How a contender learns that it is its turn.
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
    /// It waits in the service's queue and is told. An owner renews after a third of its time to live, and ceases to be
    /// the owner at the end of that time if no renewal was answered; the transition is the time to stop.
    Push,
    /// It asks at the times of [`ContendPeriod`](crate::ContendPeriod), where calls that wait are not to be had. An
    /// owner renews at the end of its time to live, so that a transition of at least 100 ms is needed; it ceases to be
    /// the owner in the middle of that transition if no renewal was answered, and the other half is the time to stop.
    Poll,
}

/// How long an ownership lasts and how it is come by. All contenders of a mutex have to use the same.
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
    /// Ownerships last for `ttl`, 100 ms to 24 h, unless they are renewed; no transition, [`Pacing::Push`], no delay.
    pub fn new(ttl: Duration) -> Self {
        Self { ttl, transition: Duration::ZERO, pacing: Pacing::Push, initial_delay: Duration::ZERO }
    }

    /// For how long the others stay away after that, up to 10 min: time for the owner to renew, or to stop.
    #[must_use]
    pub fn transition(self, transition: Duration) -> Self {
        Self { transition, ..self }
    }

    /// How a contender learns that it is its turn.
    #[must_use]
    pub fn pacing(self, pacing: Pacing) -> Self {
        Self { pacing, ..self }
    }

    /// How long after its start a service begins to contend.
    #[must_use]
    pub fn initial_delay(self, initial_delay: Duration) -> Self {
        Self { initial_delay, ..self }
    }

    /// Whether they can be used.
    ///
    /// # Errors
    /// [`ContentionError::Invalid`], naming the one that cannot.
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
