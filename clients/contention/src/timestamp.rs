//! Instants in whole milliseconds that can be stored.

use std::fmt;
use std::ops::Add;
use std::sync::LazyLock;
use std::time::Duration;

use holdfast_clock::{BootInstant, Clocks};
use parking_lot::Mutex;
use tokio::time::Instant;

/// Slightly before the first read of the clock.
static ORIGIN: LazyLock<Origin> = LazyLock::new(|| Origin::new(Clocks::default()));
/// Timers stand still while the machine is suspended, so no sleep is longer.
const MAX_SLEEP: Duration = Duration::from_secs(1);
/// What is shorter is no suspension, but the time between two readings.
const MIN_SUSPENSION: Duration = Duration::from_millis(1);

/// An instant of this process's clock, in whole milliseconds. The clock continues while the machine is suspended. If
/// the wall clock is set by more than 100 ms, as after a pause of the machine, it is put forward by as much.
///
/// It means nothing to another process. Fractions of a millisecond are truncated, so `Timestamp::now() < end` is true
/// only while the end is really ahead.
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
        let running = Instant::now().into_std().saturating_duration_since(ORIGIN.monotonic);
        // One more, so that it is after `PAST` even at the origin.
        Self::from_millis(1) + running + ORIGIN.missed()
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

/// The clocks at the first read, and what the monotonic one has missed since.
struct Origin {
    monotonic: std::time::Instant,
    boot: BootInstant,
    clocks: Clocks,
    pauses: Mutex<Pauses>,
}

/// The pauses of the machine that were noticed.
struct Pauses {
    total: Duration,
    /// A reading after the latest one.
    since: BootInstant,
}

impl Origin {
    fn new(clocks: Clocks) -> Self {
        let (monotonic, boot) = (std::time::Instant::now(), clocks.now());
        Self { monotonic, boot, clocks, pauses: Mutex::new(Pauses { total: Duration::ZERO, since: boot }) }
    }

    /// Returns for how long the machine was suspended or paused.
    fn missed(&self) -> Duration {
        let suspended = self.suspended();
        // If this thread had to wait between the two readings, it did not the second time.
        let suspended = if suspended < MIN_SUSPENSION { Duration::ZERO } else { suspended.min(self.suspended()) };
        suspended + self.paused()
    }

    fn suspended(&self) -> Duration {
        // In this order it is never too short.
        let running = self.monotonic.elapsed();
        self.clocks.now().boot_time_since(self.boot).saturating_sub(running)
    }

    fn paused(&self) -> Duration {
        let mut pauses = self.pauses.lock();
        let now = self.clocks.now();
        if now.duration_since(pauses.since).is_none() {
            let moved = now.wall_movement_since(pauses.since);
            pauses.total += moved;
            pauses.since = now;
        }
        pauses.total
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    #[test]
    fn what_the_monotonic_clock_misses_counts() {
        let began = std::time::Instant::now();
        let (suspended_s, set_s) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (of_boot, of_wall) = (Arc::clone(&suspended_s), Arc::clone(&set_s));
        let boot = move || began.elapsed() + Duration::from_secs(of_boot.load(Ordering::Relaxed));
        let since_boot = boot.clone();
        let wall_ms = move || whole_ms(since_boot() + Duration::from_secs(of_wall.load(Ordering::Relaxed)));
        let origin = Origin::new(Clocks::new(boot, wall_ms));
        // The wall clock has whole milliseconds only.
        let missed_s = || (origin.missed() + Duration::from_millis(500)).as_secs();
        assert_eq!(missed_s(), 0);
        suspended_s.store(60, Ordering::Relaxed);
        assert_eq!(missed_s(), 60);
        // The machine is paused, after which its wall clock is set.
        set_s.store(5, Ordering::Relaxed);
        assert_eq!(missed_s(), 65);
        set_s.store(3, Ordering::Relaxed);
        assert_eq!((missed_s(), missed_s()), (67, 67), "nobody can tell what it was set for");
    }
}
