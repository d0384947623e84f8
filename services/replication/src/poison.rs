//! The stored record of an entry that a replica's state machine could not apply.

use bytes::Bytes;
use holdfast_storage::{ReplicaStore, StorageError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::state_machine::FailedEntry;
use crate::types::{decode, encode};

/// The record's name in the store.
const NAME: &str = "poison";

/// An entry that a machine failed to apply twice in a row: rebuilt from the snapshot and the log, the state failed at
/// it again. No entry is ever skipped, so the replica does not run with the release that wrote the record.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poison {
    /// The entry and the failure.
    pub failed_entry: FailedEntry,
    /// The release that could not apply it.
    pub release: String,
}

impl Poison {
    /// Reads the stored record, if any. A record that this release can't decode counts as none, because another release
    /// wrote it.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn read(store: &ReplicaStore) -> Result<Option<Self>, StorageError> {
        let Some(bytes) = store.meta(NAME)? else { return Ok(None) };
        Ok(decode::<Option<Self>>(&bytes).unwrap_or_default())
    }

    /// Stores the record; it is durable when this returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn save(&self, store: &ReplicaStore) -> Result<(), StorageError> {
        write(store, Some(self)).await
    }

    /// Removes the record; the removal is durable when this returns.
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
        // The caller may have cancelled.
        let _ = done.send(result);
    });
    store.save_meta(NAME, encode(&poison), report);
    // The store runs every callback, at the latest when it is closed.
    saved.await.unwrap_or(Ok(()))
}

/// An encoded record, for fuzz tests.
pub(crate) fn sample() -> Bytes {
    use crate::state_machine::{ApplyFailure, ApplyStep};
    let (namespace, command, message) = ("orders".into(), "Delete".into(), "panic".into());
    let failure = ApplyFailure { step: ApplyStep::Command(3), namespace, command, message, backtrace: "at".into() };
    encode(&Some(Poison { failed_entry: FailedEntry { term: 2, index: 9, failure }, release: "0.1.0".into() }))
}
