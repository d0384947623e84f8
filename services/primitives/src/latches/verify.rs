//! Checks for tests whether all counters and indexes are consistent.

use std::sync::Arc;

use super::Latches;
use crate::item_bytes::ItemBytes;

impl Latches {
    /// Panics if a counter or an index is inconsistent.
    pub fn verify(&self) {
        let bytes: ItemBytes = self.by_path.iter().map(|(path, latch)| latch.bytes(path)).sum();
        assert_eq!(bytes, self.bytes, "what there is is charged");
        let due = self.by_path.iter().map(|(path, latch)| (latch.due(), Arc::clone(path))).collect();
        assert_eq!(self.due, due, "when each latch is due is known");
        assert!(self.finish_restore().is_ok(), "the status of each latch fits its jobs");
    }
}
