//! Tracks disk space. A node stops accepting data while some space is left for votes, operations in flight, and
//! RocksDB's own maintenance. A write that finds the disk full stops the node.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::committer::Shared;

/// Maximum age of a measurement.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// The latest measurement of free disk space.
#[derive(Default)]
pub(crate) struct DiskSpace {
    /// Bytes to keep free; 0 for no limit.
    reserve: AtomicU64,
    is_low: AtomicBool,
    last_poll: Mutex<Option<Instant>>,
}

impl DiskSpace {
    pub(crate) fn set_reserve(&self, bytes: u64) {
        self.reserve.store(bytes, Ordering::Relaxed);
        *self.last_poll.lock() = None;
    }

    /// Returns whether the node may accept data. Makes a system call at most once per [`POLL_INTERVAL`].
    pub(crate) fn has_space(&self, shared: &Shared) -> bool {
        let reserve = self.reserve.load(Ordering::Relaxed);
        if reserve == 0 {
            return true;
        }
        // While one caller measures, others use the previous result.
        if let Some(mut looked) = self.last_poll.try_lock()
            && looked.is_none_or(|at| at.elapsed() >= POLL_INTERVAL)
        {
            *looked = Some(Instant::now());
            self.poll(shared, reserve);
        }
        !self.is_low.load(Ordering::Relaxed)
    }

    fn poll(&self, shared: &Shared, reserve: u64) {
        // A store that can't be read reports that itself.
        let Ok(Some(free)) = shared.read(|engine| Ok(engine.free_bytes())) else { return };
        let was_low = self.is_low.load(Ordering::Relaxed);
        // Hysteresis: requires a little more than the reserve, so that the state does not flip with every write.
        let is_low = free < if was_low { reserve + reserve / 8 } else { reserve };
        self.is_low.store(is_low, Ordering::Relaxed);
        metrics::gauge!("holdfast_storage_free_bytes").set(free as f64);
        let place = shared.location();
        match (was_low, is_low) {
            (false, true) => tracing::error!(place, free, reserve, "disk nearly full; rejecting writes"),
            (true, false) => tracing::info!(place, free, reserve, "disk space available; accepting writes"),
            _ => {}
        }
    }
}
