//! Instants in whole milliseconds that can be stored.

use std::fmt;
use std::ops::Add;
use std::sync::LazyLock;
use std::time::Duration;

use tokio::time::Instant;

/// Slightly before the first read of the clock.
static ORIGIN: LazyLock<std::time::Instant> = LazyLock::new(std::time::Instant::now);
/// Practically forever, but still valid for timers.
const MAX_SLEEP: Duration = Duration::from_secs(10 * 365 * 24 * 60 * 60);

/// An instant of this process's monotonic clock, in whole milliseconds.
///
/// It means nothing to another process, and changes of the wall clock do not affect it. Fractions of a millisecond are
/// truncated, so `Timestamp::now() < end` is true only while the end is really ahead.
///
/// ```
/// use std::time::Duration;
/// use holdfast_contention::Timestamp;
///
/// let now = Timestamp::now();
/// let later = now + Duration::from_millis(250);
/// assert_eq!(later.since(now), Duration::from_millis(250));
/// assert_eq!(now.since(later), Duration::ZERO);
/// assert!(Timestamp::PAST < now && now < Timestamp::FOREVER);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// Before every instant of the clock.
    pub const PAST: Self = Self(0);
    /// After every instant of the clock.
    pub const FOREVER: Self = Self(u64::MAX);

    /// Returns the current instant.
    pub fn now() -> Self {
        let origin = *ORIGIN;
        // One more, so that it is after `PAST` even at the origin.
        Self::from_millis(1) + Instant::now().into_std().saturating_duration_since(origin)
    }

    /// Returns the instant this many ms after [`Timestamp::PAST`].
    pub const fn from_millis(ms: u64) -> Self {
        Self(ms)
    }

    /// Returns the ms after [`Timestamp::PAST`].
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// Returns the time since an earlier instant; zero if `earlier` is not earlier.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// Returns the instant `by` earlier, or [`Timestamp::PAST`].
    #[must_use]
    pub fn before(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(whole_ms(by)))
    }

    /// Waits until the clock reaches this instant.
    pub(crate) async fn reached(self) {
        while Self::now() < self {
            let left = self.since(Self::now()).min(MAX_SLEEP);
            tokio::time::sleep(left).await;
        }
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(whole_ms(duration)))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} ms", self.0)
    }
}

pub(crate) fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
