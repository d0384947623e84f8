//! The shard clock of a leader.

use std::time::Duration;

use tokio::time::Instant;

/// The shard clock of one leadership: the clock that it starts with, plus the monotonic time since. It needs no wall
/// clock and stops while a shard has no leader, so a failover extends leases and never shortens them.
#[derive(Debug, Clone, Copy)]
pub struct ShardClock {
    base_ms: u64,
    since: Instant,
}

impl ShardClock {
    /// Starts from the later of the applied clock and the observed one, in milliseconds.
    pub fn start(clock_ms: u64) -> Self {
        Self { base_ms: clock_ms, since: Instant::now() }
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
