//! Semaphores: at most so many permits in use at a time.

use serde::{Deserialize, Serialize};

use super::{Metadata, NamespaceRef, Path, Revision};

/// The highest number of permits of a semaphore.
pub const MAX_PERMITS: u64 = 1_000_000_000;

/// Creates or changes a semaphore. All values are absolute, so a repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureSemaphore {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The number of permits, at most [`MAX_PERMITS`]; with 0 nothing is granted.
    pub permits: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// A view of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreView {
    /// The path.
    pub path: Path,
    /// Whether it was configured. If not, it is gone with its last hold and wait.
    pub configured: bool,
    /// The number of permits.
    pub permits: u64,
    /// The permits in use, those of holds in transition included. More than `permits` if these were lowered since.
    pub in_use: u64,
    /// The number of holds.
    pub holders_total: u64,
    /// The number of waiting requests.
    pub waiting: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The revision of its last change; of a semaphore that does not exist, the shard's current revision.
    pub revision: Revision,
}

impl SemaphoreView {
    /// Returns the view of a semaphore that does not exist.
    pub fn absent(path: &Path, revision: Revision) -> Self {
        Self {
            path: path.clone(),
            configured: false,
            permits: 0,
            in_use: 0,
            holders_total: 0,
            waiting: 0,
            description: String::new(),
            metadata: Metadata::new(),
            revision,
        }
    }

    /// Returns the permits that are free.
    pub fn available(&self) -> u64 {
        self.permits.saturating_sub(self.in_use)
    }
}
