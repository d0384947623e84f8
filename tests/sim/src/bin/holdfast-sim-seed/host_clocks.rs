//! The clocks of a simulated machine: a boot clock and a wall clock beside the monotonic clock of its runtime.
//!
//! A simulated machine that is suspended differs from a real one in its monotonic clock, which goes on: the runtime has
//! to take part in each step of the simulation. So its timers are due when it resumes, as in a process that was
//! stopped.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use holdfast_replication::Clocks;
use tokio::time::Instant;

use crate::world::now;

/// Where wall clocks begin, in milliseconds since 1970.
const WALL_CLOCK_START_MS: u64 = 1_790_000_000_000;
/// What a boot clock shows when a process starts, so that it can stand still without a date before its begin.
const BOOT_TIME_AT_START: Duration = Duration::from_secs(100_000);

/// What stands still for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pause {
    /// A process that is stopped, or a machine that is suspended: the boot clock and the wall clock go on.
    Suspended,
    /// A machine with all of its clocks. When it resumes, its wall clock is set.
    WallClockSet,
    /// The same, but nobody sets the wall clock, so nothing in the machine can notice.
    Unseen,
}

/// The clocks of a machine; they outlive its processes.
#[derive(Default)]
pub(crate) struct HostClocks {
    /// How far the wall clock is ahead of the right time, in milliseconds.
    pub(crate) wall_skew_ms: AtomicI64,
    /// For how long the boot clock has stood still, in milliseconds.
    stopped_ms: AtomicU64,
    /// The present process was paused and can't notice it.
    was_paused_unseen: AtomicBool,
}

impl HostClocks {
    /// Returns the clocks as a process reads them that starts now on this host.
    pub(crate) fn start(self: &Arc<Self>) -> Clocks {
        self.was_paused_unseen.store(false, Ordering::Relaxed);
        // The runtime's clock drifts as that of the machine does.
        let (started, before) = (Instant::now(), self.stopped());
        let (of_boot, of_wall) = (Arc::clone(self), Arc::clone(self));
        let boot = move || (BOOT_TIME_AT_START + started.elapsed()).saturating_sub(of_boot.stopped() - before);
        Clocks::new(boot, move || of_wall.wall_ms())
    }

    /// A pause is over. Must be called before anything else runs.
    pub(crate) fn resume(&self, pause: Pause, paused_ms: u64) {
        if pause == Pause::Suspended {
            return;
        }
        self.stopped_ms.fetch_add(paused_ms, Ordering::Relaxed);
        if pause == Pause::Unseen {
            self.wall_skew_ms.fetch_sub(i64::try_from(paused_ms).unwrap_or(i64::MAX), Ordering::Relaxed);
            self.was_paused_unseen.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the present process may rely on a lease that is over, which only quorum reads survive.
    pub(crate) fn was_paused_unseen(&self) -> bool {
        self.was_paused_unseen.load(Ordering::Relaxed)
    }

    fn stopped(&self) -> Duration {
        Duration::from_millis(self.stopped_ms.load(Ordering::Relaxed))
    }

    /// Some day in 2026, plus simulated time, plus how far the clock is off.
    fn wall_ms(&self) -> u64 {
        let elapsed = now().unwrap_or_default().as_millis();
        let right = WALL_CLOCK_START_MS.saturating_add(u64::try_from(elapsed).unwrap_or(u64::MAX));
        right.saturating_add_signed(self.wall_skew_ms.load(Ordering::Relaxed))
    }
}
