//! How far a replica's state is, for those who look at it while entries are applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks every change of the state by the index of its entry, before and after. openraft's own figure comes later than
/// the change, so that it can't say of which index a state is.
#[derive(Debug, Clone, Default)]
pub(crate) struct AppliedIndex(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    started: AtomicU64,
    finished: AtomicU64,
}

impl AppliedIndex {
    /// From now on the state may change.
    pub(crate) fn begin(&self, index: u64) {
        self.0.started.store(index, Ordering::SeqCst);
    }

    /// The state is that of the index.
    pub(crate) fn end(&self, index: u64) {
        self.0.finished.store(index, Ordering::SeqCst);
    }

    /// The index that the state is of, unless it is changing. What is read between two calls that gave the same is of
    /// that index.
    pub(crate) fn get(&self) -> Option<u64> {
        let done = self.0.finished.load(Ordering::SeqCst);
        (self.0.started.load(Ordering::SeqCst) == done).then_some(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_that_changes_has_no_index() {
        let applied = AppliedIndex::default();
        assert_eq!(applied.get(), Some(0));
        applied.begin(7);
        assert_eq!(applied.get(), None);
        applied.end(7);
        assert_eq!(applied.get(), Some(7));
    }
}
