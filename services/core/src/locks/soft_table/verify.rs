//! Checks the tables, for tests.

use holdfast_mutations::{Mutation, is_enabled};

use super::SoftTable;

impl SoftTable {
    /// Panics if a counter or an index is inconsistent. For tests: it visits everything.
    pub fn verify(&self) {
        // Between the slices of ends, those who wait for what has ended are still to be looked at.
        if self.freed.is_empty() {
            self.core.verify();
        }
        assert!(!self.is_copying || !self.uncopied.is_empty());
        if is_enabled(Mutation::SoftTokenRestart) {
            return;
        }
        assert!(self.block.first <= self.core.common.revision && self.core.common.revision <= self.block.last);
    }
}
