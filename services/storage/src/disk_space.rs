//! Room on the disk. A node stops taking in data while some room is left, for what it needs to go on: votes, the end of
//! what is under way, RocksDB's own housekeeping. A write that finds the disk full takes the node out.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::committer::Shared;

/// How old a look at the disk may be.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What is known of the room on the disk.
#[derive(Default)]
pub(crate) struct DiskSpace {
    /// Bytes that are to stay free; 0 for no limit.
    reserve: AtomicU64,
    is_low: AtomicBool,
    last_poll: Mutex<Option<Instant>>,
}

impl DiskSpace {
    pub(crate) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Relaxed);
        *self.last_poll.lock() = None;
    }

    /// Whether data may be taken in. Costs a system call now and then, and nothing in between.
    pub(crate) fn has_space(&self, shared: &Shared) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        if reserve == 0 {
            return true;
        }
        // Whoever comes while another one looks is told what was seen before.
        if let Some(mut looked) = self.last_poll.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL)
        {
            *looked = Some(Instant::now());
            self.poll(shared, reserve);
        }
        !self.is_low.load(Ordering::Relaxed)
    }

    fn poll(&self, shared: &Shared, reserve: u64) {
        // A store that can't be read says so itself.
        let Ok(Some(free)) = shared.read(|engine| Ok(engine.free_bytes())) else { return };
        let was_low = self.is_low.load(Ordering::Relaxed);
        // A little more than the reserve, so that it does not change with every write.
        let is_low = free < if was_low { reserve + reserve / 8 } else { reserve };
        self.is_low.store(is_low, Ordering::Relaxed);
        metrics::gauge!("holdfast_storage_free_bytes").set(free as f64);
        let place = shared.location();
        match (was_low, is_low) {
            (false, true) => tracing::error!(place, free, reserve, "the disk is nearly full: writes are refused"),
            (true, false) => tracing::info!(place, free, reserve, "the disk has room again: writes are accepted"),
            _ => {}
        }
    }
}
