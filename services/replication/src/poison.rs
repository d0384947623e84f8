//! Stored records of entries that a state machine could not apply: one of a replica, and one of each of its shards.

use std::collections::BTreeMap;

use bytes::Bytes;
use holdfast_storage::{ReplicaStore, StorageError};
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;

use crate::group::Group;
use crate::state_machine::FailedEntry;
use crate::types::{decode, encode};

/// The name in the store of the record of a replica.
const NAME: &str = "poison";
/// The name of the records of its shards.
const SHARDS_NAME: &str = "poison_shards";

/// The records of the shards that do not serve on a replica, by id: at most one for each shard of the group.
type ShardRecords = BTreeMap<String, Poison>;

/// An entry that a machine failed to apply twice in a row: rebuilt from the snapshot and the log, the state failed at
/// it again. No entry is ever skipped: the replica does not run with the release that wrote the record, or, of a machine
/// with several shards, the shard does not serve there.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Poison {
    /// The entry and the failure.
    pub failed_entry: FailedEntry,
    /// The release that could not apply it.
    pub release: String,
    /// Set if the process ended at it, which no handler catches: how much of the section was left out by then, by the
    /// decisions of operators. The step is not tried again unless more of it is.
    pub ended_process: Option<u32>,
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
        write(store, NAME, &Some(self)).await
    }

    /// Removes the record; the removal is durable when this returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn remove(store: &ReplicaStore) -> Result<(), StorageError> {
        write(store, NAME, &None::<&Self>).await
    }
}

impl Poison {
    /// Returns the stored records of a replica's shards, by shard. Those that this release can't decode count as none.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn of_shards(store: &ReplicaStore) -> Result<BTreeMap<String, Self>, StorageError> {
        let bytes = store.meta(SHARDS_NAME)?;
        Ok(bytes.and_then(|bytes| decode::<ShardRecords>(&bytes).ok()).unwrap_or_default())
    }

    /// Stores the record of a shard of a replica that does not run, or removes it. That is durable when this returns.
    /// See [`Group::save_shard_poison`] for one that runs.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn save_of_shard(store: &ReplicaStore, shard: &str, poison: Option<Self>) -> Result<(), StorageError> {
        let mut records = Self::of_shards(store)?;
        let before = records.clone();
        match poison {
            Some(poison) => drop(records.insert(shard.to_owned(), poison)),
            None => drop(records.remove(shard)),
        }
        if records == before {
            return Ok(());
        }
        write(store, SHARDS_NAME, &records).await
    }
}

impl Group {
    /// Returns the stored record of a shard, if any. One that this release can't decode counts as none.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn shard_poison(&self, shard: &str) -> Result<Option<Poison>, StorageError> {
        Ok(Poison::of_shards(self.store())?.remove(shard))
    }

    /// Stores the record of a shard, or removes it. That is durable when this returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn save_shard_poison(&self, shard: &str, poison: Option<Poison>) -> Result<(), StorageError> {
        // Several shards may fail at once, and all records are one value.
        let _turn = self.poison_lock().lock().await;
        Poison::save_of_shard(self.store(), shard, poison).await
    }
}

/// Returns true if the bytes are records of shards, for fuzz tests.
pub(crate) fn decodes_shard_records(bytes: &[u8]) -> bool {
    decode::<ShardRecords>(bytes).is_ok()
}

async fn write<T: Serialize>(store: &ReplicaStore, name: &'static str, record: &T) -> Result<(), StorageError> {
    let (done, saved) = oneshot::channel();
    let report = Box::new(move |result| {
        // The caller may have cancelled.
        let _ = done.send(result);
    });
    store.save_meta(name, encode(record), report);
    // The store runs every callback, at the latest when it is closed.
    saved.await.unwrap_or(Ok(()))
}

/// Encoded records, of a replica and of its shards, for fuzz tests.
pub(crate) fn samples() -> [Bytes; 2] {
    use crate::state_machine::{ApplyFailure, ApplyStep};
    let (namespace, command, message) = ("orders".into(), "Delete".into(), "panic".into());
    let failure = ApplyFailure { step: ApplyStep::Command(3), namespace, command, message, backtrace: "at".into() };
    let poison = Poison {
        failed_entry: FailedEntry { term: 2, index: 9, failure },
        release: "0.1.0".into(),
        ended_process: None,
    };
    [encode(&Some(&poison)), encode(&ShardRecords::from([("locks_00".to_owned(), poison.clone())]))]
}
