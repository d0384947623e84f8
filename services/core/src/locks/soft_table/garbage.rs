//! Memory of what is gone from the lock tables of a leader. Freeing it takes long if it was much.

use std::collections::BTreeMap;

use super::rebuild::Report;
use crate::SessionNumber;
use crate::locks::Purged;

/// Namespaces that are gone, and reports that were entered.
#[derive(Debug, Default)]
pub struct TableGarbage {
    pub(super) purged: Purged,
    pub(super) reports: Vec<BTreeMap<SessionNumber, Report>>,
}

impl TableGarbage {
    /// Returns whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.purged.is_empty() && self.reports.is_empty()
    }
}
