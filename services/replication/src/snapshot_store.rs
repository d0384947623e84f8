//! The stored snapshot of a replica, and the builder of the next one.

use std::io;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::FutureExt;
use holdfast_storage::{PartUpdate, ReplicaStore, SnapshotPart, StorageError, run_blocking};
use metrics::counter;
use openraft::RaftSnapshotBuilder;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::applied::AppliedIndex;
use crate::error::to_io;
use crate::log_compaction::LogSize;
use crate::rules::GroupState;
use crate::sent_snapshot::SentSnapshot;
use crate::state_machine::{FrozenState, StateMachineError};
use crate::types::{LogId, Snapshot, SnapshotData, SnapshotMeta, TypeConfig, decode_meta, encode_meta};

/// The single stored snapshot. Builder and installer share it, so that an older one never replaces a newer one.
#[derive(Clone)]
pub(crate) struct SnapshotStore {
    store: ReplicaStore,
    latest: Arc<Mutex<LatestSnapshot>>,
    age: SnapshotAge,
    sent: SentSnapshot,
}

struct LatestSnapshot {
    last: Option<LogId>,
    /// The replica has stopped: from now on, only its restarted instance saves snapshots.
    is_over: bool,
}

/// The age of the snapshot, as far as this process knows.
#[derive(Clone)]
pub(crate) struct SnapshotAge(Arc<parking_lot::Mutex<Instant>>);

impl SnapshotAge {
    fn new() -> Self {
        Self(Arc::new(parking_lot::Mutex::new(Instant::now())))
    }

    fn reset(&self) {
        *self.0.lock() = Instant::now();
    }

    /// Returns the time since the snapshot was made or installed; for an older one, since the replica started.
    pub(crate) fn get(&self) -> Duration {
        self.0.lock().elapsed()
    }
}

impl SnapshotStore {
    /// `last` is the last entry in the stored snapshot, if there is one.
    pub(crate) fn new(store: ReplicaStore, last: Option<LogId>, applied: AppliedIndex) -> Self {
        let latest = Arc::new(Mutex::new(LatestSnapshot { last, is_over: false }));
        Self { store, latest, age: SnapshotAge::new(), sent: SentSnapshot::new(applied) }
    }

    /// Returns the store of the replica.
    pub(crate) fn store(&self) -> &ReplicaStore {
        &self.store
    }

    pub(crate) fn age(&self) -> SnapshotAge {
        self.age.clone()
    }

    /// Returns which snapshot is being sent.
    pub(crate) fn sent(&self) -> &SentSnapshot {
        &self.sent
    }

    /// Returns the last entry in the saved snapshot. Waits for a save in progress.
    pub(crate) async fn last(&self) -> Option<LogId> {
        self.latest.lock().await.last
    }

    /// Ends all saves: none is made after this. Waits for a save in progress.
    pub(crate) async fn close(&self) {
        self.latest.lock().await.is_over = true;
    }

    /// Returns the snapshot that is being sent, otherwise the saved one.
    pub(crate) fn to_send(&self) -> Result<Option<Snapshot>, io::Error> {
        self.sent.get().map_or_else(|| self.load(), |sent| Ok(Some(sent)))
    }

    /// Returns the saved snapshot.
    fn load(&self) -> Result<Option<Snapshot>, io::Error> {
        let Some(stored) = run_blocking(|| self.store.snapshot()).map_err(to_io)? else {
            return Ok(None);
        };
        let (meta, group) = decode_meta(stored.meta())?;
        Ok(Some(Snapshot { meta, snapshot: SnapshotData { group, stored, sent: self.sent.clone() } }))
    }

    /// Saves a snapshot, unless the saved one is as new, and sound as far as is known.
    pub(crate) async fn save(
        &self,
        meta: &SnapshotMeta,
        group: &GroupState,
        parts: Vec<PartUpdate>,
    ) -> Result<(), io::Error> {
        let mut newest = self.latest.lock().await;
        if newest.is_over {
            return Err(io::Error::other("the replica has stopped"));
        }
        let replaces_damaged = newest.last == meta.last_log_id && self.sent.is_damaged();
        if newest.last.is_some() && newest.last >= meta.last_log_id && !replaces_damaged {
            return Ok(());
        }
        let (all, kept) = (parts.len(), parts.iter().filter(|part| matches!(part, PartUpdate::Retain(_))).count());
        self.store.save_snapshot(encode_meta(meta, group), parts).await.map_err(to_io)?;
        newest.last = meta.last_log_id;
        self.age.reset();
        self.discard_incoming(meta.last_log_id).await?;
        self.sent.expire();
        if kept == 0 {
            self.sent.set_sound();
        }
        let count = |outcome, parts: usize| {
            counter!("holdfast_snapshot_parts_total", "outcome" => outcome).increment(parts as u64);
        };
        count("written", all - kept);
        count("kept", kept);
        Ok(())
    }
}

impl SnapshotStore {
    /// Discards a snapshot that was received, if the saved one up to `last` is as new.
    async fn discard_incoming(&self, last: Option<LogId>) -> Result<(), io::Error> {
        let is_newer = |meta: &Bytes| decode_meta(meta).is_ok_and(|(meta, _)| meta.last_log_id > last);
        self.store.discard_incoming(|meta| !is_newer(meta)).await.map_err(to_io)
    }
}

/// A state frozen from the machine, to be encoded and saved outside the apply loop.
pub struct SnapshotBuilder {
    pub(crate) snapshots: SnapshotStore,
    pub(crate) meta: SnapshotMeta,
    pub(crate) group: GroupState,
    /// `None` once it is built.
    pub(crate) frozen: Option<Result<FrozenState, StateMachineError>>,
    pub(crate) log_size: LogSize,
    /// Bytes of the log that the snapshot covers.
    pub(crate) covered_bytes: u64,
}

impl RaftSnapshotBuilder<TypeConfig> for SnapshotBuilder {
    type SnapshotData = SnapshotData;

    /// Returns the snapshot once it is saved.
    async fn build_snapshot(&mut self) -> Result<Snapshot, io::Error> {
        let frozen = self.frozen.take().ok_or_else(|| io::Error::other("a builder makes one snapshot"))?;
        let frozen = match frozen {
            Ok(frozen) => frozen,
            // A shard failed since the snapshot was asked for: the one before stays.
            Err(error) => return self.snapshots.load()?.ok_or_else(|| io::Error::other(error)),
        };
        // openraft would not notice a panic of this task, and would never make a snapshot again; an error stops the
        // replica.
        let parts = frozen.into_iter().map(encode_blocking).collect();
        let saved = AssertUnwindSafe(self.snapshots.save(&self.meta, &self.group, parts)).catch_unwind().await;
        let saved =
            saved.map_err(|_| io::Error::other("the state can't be encoded; the panic before this says why"))?;
        if let Err(error) = saved {
            // The last state of a failed shard is read from where it is stored. Its group goes on without a new snapshot.
            let before = if is_corrupt(&error) { self.snapshots.load()? } else { None };
            let before = before.filter(|before| before.meta.last_log_id < self.meta.last_log_id);
            let Some(before) = before else { return Err(error) };
            tracing::error!(%error, "snapshot not made: part of the previous one damaged");
            return Ok(before);
        }
        let index = self.meta.last_log_id.map_or(0, |id| id.index);
        self.log_size.snapshot_saved(index, self.covered_bytes);
        let saved = self.snapshots.load()?.ok_or_else(|| io::Error::other("the saved snapshot is gone"))?;
        Ok(Snapshot { meta: self.meta.clone(), snapshot: saved.snapshot })
    }
}

fn is_corrupt(error: &io::Error) -> bool {
    let of_store = error.get_ref().and_then(|inner| inner.downcast_ref::<StorageError>());
    of_store.is_some_and(|error| matches!(error, StorageError::Corrupt { .. }))
}

/// Returns the same part, whose chunks are encoded without blocking other tasks.
fn encode_blocking(update: PartUpdate) -> PartUpdate {
    let PartUpdate::Write(part) = update else { return update };
    PartUpdate::Write(SnapshotPart::new(part.name().to_owned(), move || {
        let mut chunks = part.chunks();
        Box::new(std::iter::from_fn(move || run_blocking(|| chunks.next())))
    }))
}
