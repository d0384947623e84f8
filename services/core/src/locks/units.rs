//! Counts units of work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Visits of paths, holds, owners, claims and queue entries, grants and ends since the process started. Queries count
/// too. Not part of the state: clones share one counter.
#[derive(Clone, Debug, Default)]
pub(super) struct Units(Arc<AtomicU64>);

impl Units {
    pub(super) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn spend(&self, units: usize) {
        self.0.fetch_add(units as u64, Ordering::Relaxed);
    }
}
