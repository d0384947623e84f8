//! The shard clock of a leader, and the wall clock.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::time::Instant;

/// The shard clock of one leadership: the applied clock at its start, plus the monotonic time since. It needs no wall
/// clock and stops while a shard has no leader, so a failover extends leases and never shortens them.
#[derive(Debug, Clone, Copy)]
pub struct ShardClock {
    base_ms: u64,
    since: Instant,
}

impl ShardClock {
    /// Starts from the clock of the last applied entry.
    pub fn start(applied_clock_ms: u64) -> Self {
        Self { base_ms: applied_clock_ms, since: Instant::now() }
    }

    /// Returns the running clock, in milliseconds.
    pub fn now_ms(&self) -> u64 {
        self.base_ms + u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX - self.base_ms)
    }

    /// Returns the instant at which the running clock reaches `clock_ms`.
    pub fn instant_of(&self, clock_ms: u64) -> Instant {
        self.since + Duration::from_millis(clock_ms.saturating_sub(self.base_ms))
    }
}

/// The source of the wall clock, in milliseconds since 1970. It is stored with grants for display only.
#[derive(Clone)]
pub struct WallClock(Arc<dyn Fn() -> u64 + Send + Sync>);

impl WallClock {
    /// Creates a wall clock other than the system's, for simulations.
    pub fn new(now_ms: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(now_ms))
    }

    pub(crate) fn now_ms(&self) -> u64 {
        (self.0)()
    }
}

impl Default for WallClock {
    fn default() -> Self {
        Self::new(|| {
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
        })
    }
}

impl fmt::Debug for WallClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("WallClock").field(&self.now_ms()).finish()
    }
}
