//! The store of one replica: its log, vote, meta values and snapshot.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};

use crate::engine::Engine;
use crate::key::{self, Kind};
use crate::limits::MAX_SNAPSHOT_PART_BYTES;
use crate::node::Inner;
use crate::queue::{Completion, Operation, SnapshotPart, WriteRequest};
use crate::recovery::{self, SnapshotPointer};
use crate::{StorageError, checksum};

/// The store of one replica; a cheap handle.
///
/// The node's committer performs writes in the order of the calls; reads see only durable data.
#[derive(Clone)]
pub struct ReplicaStore {
    inner: Arc<Inner>,
    replica: u64,
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

    /// Appends entries, each with its index, to the log. `done` is called once they are durable.
    pub fn append(&self, entries: Vec<(u64, Bytes)>, done: Completion) {
        self.submit(Operation::Append { entries }, done);
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

    /// Replaces the current snapshot. Writes the chunks in small batches, which go through the committer like all
    /// writes. Then one atomic step makes the new snapshot current and removes the old one. A crash before that step
    /// preserves the old snapshot; the next open removes the leftovers.
    ///
    /// # Errors
    /// When it could not be made durable; the old snapshot is then still the current one.
    pub async fn save_snapshot(&self, meta: Bytes, chunks: Vec<Bytes>) -> Result<(), StorageError> {
        let turn = self.snapshot_lock();
        let _turn = turn.lock().await;
        let generation = self.inner.next_generation.fetch_add(1, Ordering::Relaxed);
        let mut number: u32 = 0;
        let mut pieces: Vec<SnapshotPart> = Vec::new();
        let mut bytes = 0;
        for mut chunk in chunks {
            loop {
                let length = chunk.len().min(MAX_SNAPSHOT_PART_BYTES);
                if bytes + length > MAX_SNAPSHOT_PART_BYTES {
                    self.save_snapshot_parts(generation, std::mem::take(&mut pieces)).await?;
                    bytes = 0;
                }
                let piece = chunk.split_to(length);
                pieces.push(SnapshotPart { number, ends_chunk: chunk.is_empty(), bytes: piece });
                bytes += length;
                number += 1;
                if chunk.is_empty() {
                    break;
                }
            }
        }
        self.save_snapshot_parts(generation, pieces).await?;
        self.inner.commit(self.replica, Operation::SwitchSnapshot { generation, pieces: number, meta }).await
    }

    /// Returns the current snapshot: its meta and its chunks as they were saved.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged or incomplete.
    pub fn snapshot(&self) -> Result<Option<(Bytes, Vec<Bytes>)>, StorageError> {
        self.inner.shared.read(|engine| {
            let Some(mut pointer) = recovery::read_snapshot_pointer(engine, self.replica)? else { return Ok(None) };
            loop {
                let read = self.read_chunks(engine, &pointer);
                // A newer one may have replaced it meanwhile; generations rise, so this ends.
                match recovery::read_snapshot_pointer(engine, self.replica)? {
                    Some(now) if now.generation != pointer.generation => pointer = now,
                    Some(_) => return Ok(Some((pointer.meta, read?))),
                    None => return Ok(None),
                }
            }
        })
    }

    /// Returns the meta of the current snapshot, without reading its chunks.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn snapshot_meta(&self) -> Result<Option<Bytes>, StorageError> {
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_pointer(engine, self.replica))?;
        Ok(pointer.map(|pointer| pointer.meta))
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
        let turn = self.snapshot_lock();
        let _turn = turn.lock().await;
        self.inner.commit(self.replica, Operation::Destroy).await
    }

    fn submit(&self, operation: Operation, done: Completion) {
        self.inner.shared.submit(WriteRequest { replica: self.replica, operation, done });
    }

    fn read_record(&self, kind: Kind) -> Result<Option<Bytes>, StorageError> {
        let key = key::of_replica(kind, self.replica);
        self.inner.shared.read(|engine| recovery::read_record(engine, &key, Some(self.replica)))
    }

    fn snapshot_lock(&self) -> Arc<tokio::sync::Mutex<()>> {
        self.inner.snapshot_locks.lock().entry(self.replica).or_default().clone()
    }

    async fn save_snapshot_parts(&self, generation: u64, pieces: Vec<SnapshotPart>) -> Result<(), StorageError> {
        if pieces.is_empty() {
            return Ok(());
        }
        let _turn = self.inner.snapshot_part_lock.lock().await;
        self.ready().await;
        self.inner.commit(self.replica, Operation::SaveSnapshotParts { generation, pieces }).await
    }

    fn read_chunks(&self, engine: &dyn Engine, pointer: &SnapshotPointer) -> Result<Vec<Bytes>, StorageError> {
        let from = key::of_generation(self.replica, pointer.generation);
        let to = key::of_generation(self.replica, pointer.generation.saturating_add(1));
        let (mut chunks, mut chunk, mut number) = (Vec::new(), BytesMut::new(), 0_u32);
        let damaged =
            |number: u32, what: &str| self.corrupt(engine, None, format!("piece {number} of the snapshot: {what}"));
        engine.scan(&from, &to, &mut |key, stored| {
            if key != key::of_snapshot_part(self.replica, pointer.generation, number) {
                return Err(damaged(number, "it is missing"));
            }
            let piece = checksum::verify(key, stored).and_then(<[u8]>::split_first);
            let (flag, bytes) = piece.ok_or_else(|| damaged(number, "checksum mismatch"))?;
            chunk.extend_from_slice(bytes);
            if *flag != 0 {
                chunks.push(chunk.split().freeze());
            }
            number += 1;
            Ok(true)
        })?;
        if number != pointer.pieces || !chunk.is_empty() {
            return Err(damaged(number, "it is missing"));
        }
        Ok(chunks)
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

    fn corrupt(&self, engine: &dyn Engine, index: Option<u64>, what: String) -> StorageError {
        StorageError::Corrupt { place: engine.location().to_owned(), replica: Some(self.replica), index, what }
    }
}
