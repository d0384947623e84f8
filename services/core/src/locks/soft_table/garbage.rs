//! Memory of what is gone from the lock tables of a leader. Freeing it takes long if it was much.

use super::rebuild::Rebuild;
use super::reported::Report;
use crate::locks::Purged;

/// Namespaces that are gone, reports that were entered, and those of sessions that have ended.
#[derive(Debug, Default)]
pub struct TableGarbage {
    pub(super) purged: Purged,
    pub(super) rebuilds: Vec<Rebuild>,
    pub(super) reports: Vec<Report>,
}

impl TableGarbage {
    /// Returns whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.purged.is_empty() && self.rebuilds.is_empty() && self.reports.is_empty()
    }
}
