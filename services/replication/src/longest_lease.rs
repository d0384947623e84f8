//! The longest lease that a leader may hold by promises that a replica of this node made before it was restarted. The
//! lease may be that of this release, of an earlier release with a longer one, or of a peer that leads by its own.

use std::time::Duration;

use holdfast_storage::{NodeStore, StorageError};
use tokio::sync::{Mutex, watch};

use crate::timing::DEFAULT_PEER_LEASE;

/// The value only grows, and survives the process.
pub(crate) struct LongestLease {
    store: NodeStore,
    known: watch::Sender<Duration>,
    /// Held while a longer lease is written.
    writing: Mutex<()>,
}

impl LongestLease {
    /// Reads the value from the store. A store without one may come from a release that did not record it.
    ///
    /// # Errors
    /// When the store can't be read.
    pub(crate) fn open(store: NodeStore) -> Result<Self, StorageError> {
        let kept = store.longest_lease_ms()?.map_or(DEFAULT_PEER_LEASE, Duration::from_millis);
        Ok(Self { store, known: watch::Sender::new(kept.max(DEFAULT_PEER_LEASE)), writing: Mutex::default() })
    }

    /// Records a lease of this length. It is durable when this returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub(crate) async fn record(&self, lease: Duration) -> Result<(), StorageError> {
        if lease <= self.current() {
            return Ok(());
        }
        let _turn = self.writing.lock().await;
        if lease > self.current() {
            self.store.save_longest_lease_ms(u64::try_from(lease.as_millis()).unwrap_or(u64::MAX)).await?;
            self.known.send_replace(lease);
        }
        Ok(())
    }

    fn current(&self) -> Duration {
        *self.known.borrow()
    }

    /// Subscribes to the longest lease.
    pub(crate) fn subscribe(&self) -> watch::Receiver<Duration> {
        self.known.subscribe()
    }
}
