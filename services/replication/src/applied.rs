//! The index of a replica's state, for readers that run while entries are applied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Marks each change of the state with its entry's index, before and after. openraft's own metric is updated after the
/// change, so it can't identify the index of a state.
#[derive(Debug, Clone, Default)]
pub(crate) struct AppliedIndex(Arc<Marks>);

#[derive(Debug, Default)]
struct Marks {
    started: AtomicU64,
    finished: AtomicU64,
}

impl AppliedIndex {
    /// Records that the state is about to change to this index.
    pub(crate) fn begin(&self, index: u64) {
        self.0.started.store(index, Ordering::SeqCst);
    }

    /// Records that the state is at this index.
    pub(crate) fn end(&self, index: u64) {
        self.0.finished.store(index, Ordering::SeqCst);
    }

    /// Returns the index of the state, unless it is changing. Data read between two calls with the same result belongs
    /// to that index.
    pub(crate) fn get(&self) -> Option<u64> {
        let done = self.0.finished.load(Ordering::SeqCst);
        (self.0.started.load(Ordering::SeqCst) == done).then_some(done)
    }

    /// Returns the index of the last entry that is applied as a whole.
    pub(crate) fn last(&self) -> u64 {
        self.0.finished.load(Ordering::SeqCst)
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
        assert_eq!((applied.get(), applied.last()), (None, 0));
        applied.end(7);
        assert_eq!((applied.get(), applied.last()), (Some(7), 7));
    }
}
