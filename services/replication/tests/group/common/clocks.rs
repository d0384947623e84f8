//! The clocks of a node's machine: those of the test's own machine, which a test puts forward.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_replication::Clocks;

/// Where wall clocks begin, in milliseconds since 1970.
const WALL_CLOCK_START_MS: u64 = 1_790_000_000_000;

#[derive(Default)]
pub(crate) struct NodeClocks {
    suspended_ms: Arc<AtomicU64>,
    set_ms: Arc<AtomicU64>,
}

impl NodeClocks {
    pub(crate) fn clocks(&self) -> Clocks {
        let began = Instant::now();
        let suspended = Arc::clone(&self.suspended_ms);
        let boot = move || began.elapsed() + Duration::from_millis(suspended.load(Ordering::Relaxed));
        let (since_boot, set) = (boot.clone(), Arc::clone(&self.set_ms));
        let wall_ms = move || {
            let elapsed = u64::try_from(since_boot().as_millis()).expect("tests are short");
            WALL_CLOCK_START_MS + elapsed + set.load(Ordering::Relaxed)
        };
        Clocks::new(boot, wall_ms)
    }

    /// The machine was suspended for that time: its processes noticed nothing, and both clocks went on.
    pub(crate) fn suspend(&self, time: Duration) {
        self.suspended_ms.fetch_add(u64::try_from(time.as_millis()).expect("tests are short"), Ordering::Relaxed);
    }

    /// The machine was paused for that time with all of its clocks, and its wall clock was set right then.
    pub(crate) fn set_wall_clock(&self, forward: Duration) {
        self.set_ms.fetch_add(u64::try_from(forward.as_millis()).expect("tests are short"), Ordering::Relaxed);
    }
}
