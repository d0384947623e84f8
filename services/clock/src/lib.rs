//! The clocks of a machine, for the age of whatever somebody relies on.
//!
//! Purpose: a lease, a session or a cache is relied on for a limited time. That time is counted by a clock that
//! continues while the machine is suspended, unlike the monotonic clock of Rust and tokio. A hypervisor that pauses the
//! machine stops this clock too, and most then set the machine's wall clock. So a movement of the two against each
//! other is the sign of a pause.
//!
//! Invariant: an age is never below the time that has passed, unless the machine was paused with all of its clocks.
//!
//! Deliberately unknown here: what is aged, and how old it may be. Timers, and clocks that may stand still while their
//! process does, are tokio's.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::time::{ClockId, clock_gettime};

/// How far the wall clock may move against the boot clock between two readings, in milliseconds. Beyond that the
/// machine may have been paused in between. Both have the same rate, so only a setting of the wall clock moves them.
pub const MAX_WALL_MOVEMENT_MS: u64 = 100;

/// Shortest and longest time between two looks at the clocks while somebody waits for the end of what they age. Timers
/// stand still while the machine is suspended, and a wall clock that is set wakes nobody.
pub const CLOCK_CHECK_INTERVAL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));

/// Whoever relies on a time to live stops earlier by this fraction of it.
const DRIFT_DIVISOR: u32 = 1_000;

/// Returns for how long a time to live that another machine counts may be relied on: its clock may be 0.1 % faster.
pub fn with_drift_margin(ttl: Duration) -> Duration {
    ttl - ttl / DRIFT_DIVISOR
}

/// On Linux the monotonic clock stands still in suspend, and this one does not.
#[cfg(any(target_os = "linux", target_os = "android"))]
const BOOT_CLOCK: ClockId = ClockId::Boottime;
/// On macOS this clock continues in suspend, unlike the one of Rust's `Instant`. Other systems have no better one.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const BOOT_CLOCK: ClockId = ClockId::Monotonic;

/// The boot clock and the wall clock of a machine: the system's by default. Clones share them.
///
/// ```
/// use std::time::Duration;
/// use holdfast_clock::Clocks;
///
/// let clocks = Clocks::default();
/// let asked_at = clocks.now();
/// assert!(clocks.age_of(asked_at).is_some_and(|age| age < Duration::from_secs(60)));
/// ```
#[derive(Clone)]
pub struct Clocks {
    boot: Arc<dyn Fn() -> Duration + Send + Sync>,
    wall_ms: Arc<dyn Fn() -> u64 + Send + Sync>,
}

impl Clocks {
    /// Creates clocks other than the system's, for tests and simulations: `boot` returns the time since some start, and
    /// `wall_ms` the milliseconds since 1970.
    pub fn new(
        boot: impl Fn() -> Duration + Send + Sync + 'static,
        wall_ms: impl Fn() -> u64 + Send + Sync + 'static,
    ) -> Self {
        Self { boot: Arc::new(boot), wall_ms: Arc::new(wall_ms) }
    }

    /// Reads both clocks.
    pub fn now(&self) -> BootInstant {
        // In this order: a pause between the two shows as a movement of the wall clock, and not as none.
        let boot = (self.boot)();
        BootInstant::new(boot, self.wall_ms())
    }

    /// Returns how long ago that was; see [`BootInstant::duration_since`].
    pub fn age_of(&self, earlier: BootInstant) -> Option<Duration> {
        self.now().duration_since(earlier)
    }

    /// Returns the wall clock, in milliseconds since 1970. For display, and for times that others set.
    pub fn wall_ms(&self) -> u64 {
        (self.wall_ms)()
    }
}

impl Default for Clocks {
    fn default() -> Self {
        Self::new(system_boot_time, system_wall_ms)
    }
}

impl fmt::Debug for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Clocks").field(&self.now()).finish()
    }
}

/// Returns the processor time that this thread has used. Unlike a clock it stands still while other threads run.
pub fn thread_cpu_time() -> Duration {
    read_clock(ClockId::ThreadCPUTime)
}

fn system_boot_time() -> Duration {
    read_clock(BOOT_CLOCK)
}

fn read_clock(clock: ClockId) -> Duration {
    let now = clock_gettime(clock);
    let (seconds, nanos) = (u64::try_from(now.tv_sec), u32::try_from(now.tv_nsec));
    Duration::new(seconds.unwrap_or_default(), nanos.unwrap_or_default())
}

fn system_wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// A reading of a machine's clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BootInstant {
    boot: Duration,
    /// The wall clock minus the boot clock, in milliseconds.
    wall_offset_ms: i64,
}

impl BootInstant {
    /// Creates a reading of these clocks.
    pub fn new(boot: Duration, wall_ms: u64) -> Self {
        let millis = |value: u128| i64::try_from(value).unwrap_or(i64::MAX);
        Self { boot, wall_offset_ms: millis(wall_ms.into()).saturating_sub(millis(boot.as_millis())) }
    }

    /// Returns how long ago an earlier reading was, at most. `None` if the clocks have moved against each other by more
    /// than [`MAX_WALL_MOVEMENT_MS`]: then the machine may have been paused, and nobody can tell. A smaller movement
    /// counts as time that has passed.
    ///
    /// ```
    /// use std::time::Duration;
    /// use holdfast_clock::BootInstant;
    ///
    /// let at = |boot_ms, wall_ms| BootInstant::new(Duration::from_millis(boot_ms), wall_ms);
    /// assert_eq!(at(1_300, 61_300).duration_since(at(1_000, 61_000)), Some(Duration::from_millis(300)));
    /// // Paused for two seconds, after which the hypervisor set the wall clock.
    /// assert_eq!(at(1_300, 63_300).duration_since(at(1_000, 61_000)), None);
    /// ```
    pub fn duration_since(self, earlier: Self) -> Option<Duration> {
        let moved = self.wall_movement_since(earlier);
        let is_known = moved <= Duration::from_millis(MAX_WALL_MOVEMENT_MS);
        is_known.then(|| self.boot_time_since(earlier).saturating_add(moved))
    }

    /// Returns how far the wall clock has moved against the boot clock, either way: the length of a pause after which
    /// it was set.
    pub fn wall_movement_since(self, earlier: Self) -> Duration {
        Duration::from_millis(self.wall_offset_ms.abs_diff(earlier.wall_offset_ms))
    }

    /// Returns the time that has passed on the boot clock alone, whatever the wall clock did.
    pub fn boot_time_since(self, earlier: Self) -> Duration {
        self.boot.saturating_sub(earlier.boot)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    fn at(boot_ms: u64, wall_ms: u64) -> BootInstant {
        BootInstant::new(Duration::from_millis(boot_ms), wall_ms)
    }

    fn age_ms(now: BootInstant, then: BootInstant) -> Option<u128> {
        now.duration_since(then).map(|age| age.as_millis())
    }

    #[test]
    fn a_suspended_machine_ages_what_it_relies_on() {
        // Both clocks go on, whatever process ran or did not run.
        assert_eq!(age_ms(at(3_601_000, 3_699_000), at(1_000, 99_000)), Some(3_600_000));
    }

    #[test]
    fn a_wall_clock_that_was_set_is_taken_for_the_end_of_a_pause() {
        let then = at(1_000, 99_000);
        assert_eq!(age_ms(at(1_010, 99_110), then), Some(110), "the movement counts as time");
        assert_eq!(age_ms(at(1_010, 98_910), then), Some(110), "so does one backwards");
        assert_eq!(age_ms(at(1_010, 99_111), then), None);
        assert_eq!(age_ms(at(1_010, 98_909), then), None);
        assert_eq!(age_ms(at(1_010, 0), then), None);
        assert_eq!(age_ms(at(1_010, u64::MAX), then), None);
    }

    #[test]
    fn a_thread_uses_no_processor_time_while_it_waits() {
        let before = thread_cpu_time();
        std::thread::spawn(|| while thread_cpu_time() < Duration::from_millis(20) {}).join().unwrap();
        assert!(thread_cpu_time() - before < Duration::from_millis(20));
    }

    #[test]
    fn a_later_reading_is_of_no_age() {
        assert_eq!(age_ms(at(1_000, 99_000), at(2_000, 100_000)), Some(0));
        assert_eq!(at(2_500, 0).boot_time_since(at(1_000, 99_000)), Duration::from_millis(1_500));
    }

    #[test]
    fn what_is_read_between_the_boot_clock_and_the_wall_clock_is_seen() {
        // The wall clock is set to the time after a pause while it is read.
        let (wall_ms, boot) = (Arc::new(AtomicU64::new(5_000)), Duration::from_secs(1));
        let set = Arc::clone(&wall_ms);
        let clocks = Clocks::new(move || boot, move || set.load(Ordering::Relaxed));
        let then = clocks.now();
        wall_ms.store(9_000, Ordering::Relaxed);
        assert_eq!(clocks.age_of(then), None);
        assert_eq!(clocks.age_of(clocks.now()), Some(Duration::ZERO));
    }

    #[test]
    fn the_systems_clocks_go_forward() {
        let clocks = Clocks::default();
        let (first, second) = (clocks.now(), clocks.now());
        assert!(second.boot >= first.boot && first.boot > Duration::ZERO);
        assert!(clocks.wall_ms() > 1_700_000_000_000, "it is past 2023");
    }
}
