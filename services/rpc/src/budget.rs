//! Bounds of memory.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Bytes of a budget, given back when it is dropped.
pub type Reservation = OwnedSemaphorePermit;

/// Bytes that may be in use at a time. Clones share them. One item larger than all of them may be there alone.
#[derive(Clone, Debug)]
pub struct ByteBudget {
    free: Arc<Semaphore>,
    limit: u32,
}

impl ByteBudget {
    /// Creates a budget of so many bytes.
    pub fn new(limit: u32) -> Self {
        Self { free: Arc::new(Semaphore::new(limit as usize)), limit }
    }

    /// Returns how many bytes there are in all.
    pub fn limit(&self) -> u32 {
        self.limit
    }

    /// Reserves this many bytes; returns `None` if that would exceed the limit.
    pub fn try_reserve(&self, bytes: usize) -> Option<Reservation> {
        Arc::clone(&self.free).try_acquire_many_owned(self.clamp(bytes)).ok()
    }

    /// Reserves this many bytes as soon as they are free.
    pub async fn reserve(&self, bytes: usize) -> Option<Reservation> {
        // The semaphore is never closed.
        Arc::clone(&self.free).acquire_many_owned(self.clamp(bytes)).await.ok()
    }

    fn clamp(&self, bytes: usize) -> u32 {
        u32::try_from(bytes).unwrap_or(u32::MAX).min(self.limit)
    }
}
