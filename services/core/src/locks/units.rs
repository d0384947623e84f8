//! What is looked at or done, counted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Visits of paths, holds, owners, claims and entries of lines, grants and ends, since the start of the process. Whoever
/// only looks counts too. Not part of the state: clones count together.
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
