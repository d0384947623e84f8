//! The store of one replica: its log, vote and meta values. Its snapshot: see `snapshot`.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;

use crate::engine::Engine;
use crate::key::{self, Kind};
use crate::node::Inner;
use crate::queue::{Completion, LogRow, Operation, WriteRequest};
use crate::{StorageError, checksum, recovery};

/// The store of one replica; a cheap handle.
///
/// The node's committer performs writes in the order of the calls; reads see only durable data.
#[derive(Clone)]
pub struct ReplicaStore {
    pub(crate) inner: Arc<Inner>,
    pub(crate) replica: u64,
}

impl ReplicaStore {
    pub(crate) fn new(inner: Arc<Inner>, replica: u64) -> Self {
        Self { inner, replica }
    }

    /// Returns whether nothing was ever written for this replica, or all of it was destroyed.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn is_pristine(&self) -> Result<bool, StorageError> {
        Ok(self.read_record(Kind::Replica)?.is_none())
    }

    /// Returns whether the disk has space for data: see [`crate::NodeStore::has_space`].
    pub fn has_space(&self) -> bool {
        self.inner.disk_space.has_space(&self.inner.shared)
    }

    /// Waits until the committer has capacity. Callers do this before [`ReplicaStore::append`], which never waits.
    pub async fn ready(&self) {
        self.inner.shared.queue.ready().await;
    }

    /// Appends entries to the log. `done` is called once they are durable.
    pub fn append<R: Into<LogRow>>(&self, rows: Vec<R>, done: Completion) {
        self.submit(Operation::Append { rows: rows.into_iter().map(Into::into).collect() }, done);
    }

    /// Replaces the vote.
    pub fn save_vote(&self, vote: Bytes, done: Completion) {
        self.submit(Operation::SaveVote { vote }, done);
    }

    /// Removes the entry at `index` and all later ones, after all operations that were submitted before.
    pub fn truncate_from(&self, index: u64, done: Completion) {
        self.submit(Operation::Truncate { from: index }, done);
    }

    /// Removes all entries up to and including `index`, and saves `meta` (the id of the last of them) atomically with
    /// it.
    pub fn purge_to(&self, index: u64, meta: Bytes, done: Completion) {
        self.submit(Operation::Purge { to: index, meta }, done);
    }

    /// Replaces a named value.
    pub fn save_meta(&self, key: &'static str, value: Bytes, done: Completion) {
        self.submit(Operation::SaveMeta { name: key, value }, done);
    }

    /// Records the rules that the replica applies, for the whole data directory, unless higher ones are recorded
    /// already.
    pub fn record_rules(&self, rules: u16) {
        if self.inner.rules.fetch_max(rules, Ordering::Relaxed) < rules {
            // A failure poisons the store, which ends the node.
            self.submit(Operation::SaveRules { rules }, Box::new(|_| {}));
        }
    }

    /// Returns a named value.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn meta(&self, key: &str) -> Result<Option<Bytes>, StorageError> {
        self.inner
            .shared
            .read(|engine| recovery::read_record(engine, &key::of_meta(self.replica, key), Some(self.replica)))
    }

    /// Returns the vote.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn vote(&self) -> Result<Option<Bytes>, StorageError> {
        self.read_record(Kind::Vote)
    }

    /// Returns the meta that was saved with the last purge.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn purged(&self) -> Result<Option<Bytes>, StorageError> {
        let purged = self.inner.shared.read(|engine| recovery::read_purged(engine, self.replica))?;
        Ok(purged.map(|(_, meta)| meta))
    }

    /// Returns the last entry of the log, with its index.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn last(&self) -> Result<Option<(u64, Bytes)>, StorageError> {
        self.inner.shared.read(|engine| {
            let (from, to) = (key::of_replica(Kind::Log, self.replica), key::after_replica(Kind::Log, self.replica));
            let Some((key, stored)) = engine.last(&from, &to)? else { return Ok(None) };
            let index = self.entry_index(engine, &key)?;
            let entry = checksum::verify_bytes(&key, stored).ok_or_else(|| self.damaged_entry(engine, index))?;
            Ok(Some((index, entry)))
        })
    }

    /// Returns the entries from `from` (inclusive) to `to` (exclusive). Stops early once it has `max_bytes`, but
    /// returns at least one entry if there is one. Indexes before the first entry or after the last are left out.
    ///
    /// # Errors
    /// `Corrupt`, with replica and index, when an entry is damaged, or is missing while a later one exists.
    pub fn read(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<(u64, Bytes)>, StorageError> {
        self.inner.shared.read(|engine| {
            let purged = recovery::read_purged(engine, self.replica)?.map(|(index, _)| index);
            let start = purged.map_or(from, |purged| from.max(purged.saturating_add(1)));
            if start >= to {
                return Ok(Vec::new());
            }
            let mut entries: Vec<(u64, Bytes)> = Vec::new();
            let (mut bytes, mut is_full) = (0_usize, false);
            engine.scan(
                &key::of_entry(self.replica, start),
                &key::of_entry(self.replica, to),
                &mut |key, stored| {
                    let index = self.entry_index(engine, key)?;
                    let expected = entries.last().map_or(start, |(last, _)| last + 1);
                    let first_of_log = entries.is_empty() && purged.is_none() && !self.has_entry(engine, 0, start)?;
                    if index != expected && !first_of_log {
                        return Err(self.missing_entry(engine, expected));
                    }
                    let entry = checksum::verify(key, stored).ok_or_else(|| self.damaged_entry(engine, index))?;
                    bytes = bytes.saturating_add(entry.len());
                    is_full = !entries.is_empty() && bytes > max_bytes;
                    if is_full {
                        return Ok(false);
                    }
                    entries.push((index, Bytes::copy_from_slice(entry)));
                    Ok(true)
                },
            )?;
            let next = entries.last().map_or(start, |(last, _)| last + 1);
            if next < to && !is_full && self.has_entry_after(engine, next, to, purged)? {
                return Err(self.missing_entry(engine, next));
            }
            Ok(entries)
        })
    }

    /// Waits until everything that was submitted before is durable. Later reads see all of it.
    ///
    /// # Errors
    /// When part of it could not be made durable.
    pub async fn flush(&self) -> Result<(), StorageError> {
        self.inner.commit(self.replica, Operation::Flush).await
    }

    /// Removes all data of the replica atomically. Durable when it returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn destroy(&self) -> Result<(), StorageError> {
        let (saving, receiving) = (self.snapshot_lock(), self.receive_lock());
        let (_saving, _receiving) = (saving.lock().await, receiving.lock().await);
        self.inner.commit(self.replica, Operation::Destroy).await?;
        self.inner.generations.remove(self.replica);
        Ok(())
    }

    fn submit(&self, operation: Operation, done: Completion) {
        self.inner.shared.submit(WriteRequest { replica: self.replica, operation, done });
    }

    fn read_record(&self, kind: Kind) -> Result<Option<Bytes>, StorageError> {
        let key = key::of_replica(kind, self.replica);
        self.inner.shared.read(|engine| recovery::read_record(engine, &key, Some(self.replica)))
    }

    pub(crate) fn snapshot_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.inner.snapshot_locks.lock().entry(self.replica).or_default().clone()
    }

    pub(crate) fn receive_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.inner.receive_locks.lock().entry(self.replica).or_default().clone()
    }

    fn has_entry(&self, engine: &dyn Engine, from: u64, to: u64) -> Result<bool, StorageError> {
        Ok(engine.first(&key::of_entry(self.replica, from), &key::of_entry(self.replica, to))?.is_some())
    }

    /// Returns whether a log entry at or after `to` shows that the entry at `next` is missing: the log extends beyond
    /// the requested range, and does not just begin there.
    fn has_entry_after(
        &self,
        engine: &dyn Engine,
        next: u64,
        to: u64,
        purged: Option<u64>,
    ) -> Result<bool, StorageError> {
        let end = key::after_replica(Kind::Log, self.replica);
        let is_behind = engine.first(&key::of_entry(self.replica, to), &end)?.is_some();
        Ok(is_behind && (purged.is_some() || self.has_entry(engine, 0, next)?))
    }

    fn entry_index(&self, engine: &dyn Engine, key: &[u8]) -> Result<u64, StorageError> {
        key::index_of(key).ok_or_else(|| self.corrupt(engine, None, "bad key of a log entry".to_owned()))
    }

    fn damaged_entry(&self, engine: &dyn Engine, index: u64) -> StorageError {
        self.corrupt(engine, Some(index), "checksum mismatch of a log entry".to_owned())
    }

    fn missing_entry(&self, engine: &dyn Engine, index: u64) -> StorageError {
        self.corrupt(engine, Some(index), "a log entry is missing, and later ones are there".to_owned())
    }

    pub(crate) fn corrupt(&self, engine: &dyn Engine, index: Option<u64>, what: String) -> StorageError {
        StorageError::Corrupt { place: engine.location().to_owned(), replica: Some(self.replica), index, what }
    }
}
