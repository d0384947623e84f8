//! Memory of items removed from the lock tables of a leader. Freeing a large amount takes long.

use super::rebuild::Rebuild;
use super::reported::Report;
use crate::locks::Purged;

/// Deleted namespaces, entered reports, and reports of ended sessions.
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
