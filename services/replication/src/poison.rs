//! What a replica's store remembers of an entry that its state machine could not apply.

use bytes::Bytes;
use holdfast_storage::{ReplicaStore, StorageError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::state_machine_adapter::FailedEntry;
use crate::types::{decode, encode};

/// The name of the value in the store.
const NAME: &str = "poison";

/// An entry that a machine could not apply, twice in a row: the state from the snapshot and the log broke at it again.
/// Nothing is skipped, so a replica with such a record does not run with the release that wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poison {
    /// Which entry, and what happened.
    pub failed_entry: FailedEntry,
    /// The release that could not apply it.
    pub release: String,
}

impl Poison {
    /// What the store remembers, if anything. A record that this release can't read counts as none: it was written by
    /// another one.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn read(store: &ReplicaStore) -> Result<Option<Self>, StorageError> {
        let Some(bytes) = store.meta(NAME)? else { return Ok(None) };
        Ok(decode::<Option<Self>>(&bytes).unwrap_or_default())
    }

    /// Remembers it; durable when it returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn save(&self, store: &ReplicaStore) -> Result<(), StorageError> {
        write(store, Some(self)).await
    }

    /// Forgets what the store remembers; durable when it returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn remove(store: &ReplicaStore) -> Result<(), StorageError> {
        write(store, None).await
    }
}

async fn write(store: &ReplicaStore, poison: Option<&Poison>) -> Result<(), StorageError> {
    let (done, saved) = oneshot::channel();
    let report = Box::new(move |result| {
        // Whoever waits may have gone.
        let _ = done.send(result);
    });
    store.save_meta(NAME, encode(&poison), report);
    // The store calls every callback, at the latest when it is closed.
    saved.await.unwrap_or(Ok(()))
}

/// For tests of what can be read from disk.
pub(crate) fn sample() -> Bytes {
    use crate::state_machine::{ApplyFailure, ApplyStep};
    let (namespace, command, message) = ("orders".into(), "Delete".into(), "panic".into());
    let failure = ApplyFailure { step: ApplyStep::Command(3), namespace, command, message, backtrace: "at".into() };
    encode(&Some(Poison { failed_entry: FailedEntry { term: 2, index: 9, failure }, release: "0.1.0".into() }))
}
