//! Snapshots of a replica, in named parts. Each part has a generation of its own, under which its pieces are stored. A
//! save writes the parts that have changed; then one atomic step makes the snapshot current and removes what it does
//! not have.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;

use bytes::{Bytes, BytesMut};

use crate::engine::Engine;
use crate::limits::{MAX_PART_NAME_BYTES, MAX_SNAPSHOT_BATCH_BYTES};
use crate::queue::{Operation, SnapshotPiece};
use crate::snapshot_pointer::{PartPointer, SnapshotPointer};
use crate::{ReplicaStore, StorageError, checksum, key, recovery};

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// Its name, which no other part of the snapshot has: 1 to [`MAX_PART_NAME_BYTES`] bytes.
    pub name: String,
    /// Its content.
    pub chunks: Vec<Bytes>,
}

/// A part of a snapshot to save.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PartUpdate {
    /// The part is written; it replaces that of the same name.
    Write(SnapshotPart),
    /// The part of this name stays as it is in the current snapshot.
    Retain(String),
}

impl PartUpdate {
    /// Returns the name of the part.
    pub fn name(&self) -> &str {
        match self {
            Self::Write(part) => &part.name,
            Self::Retain(name) => name,
        }
    }
}

impl ReplicaStore {
    /// Replaces the current snapshot. Writes the chunks in small batches, which go through the committer like all
    /// writes. Then one atomic step makes the new snapshot current, and removes replaced parts, parts that the new one
    /// does not name, and leftovers of aborted saves. A crash before that step preserves the old snapshot; the next
    /// open removes the leftovers.
    ///
    /// # Errors
    /// `InvalidPart`, before anything is written, if two parts have the same name, a name is empty or too long, or a
    /// part is to be retained that the current snapshot lacks. Otherwise when the snapshot could not be made durable.
    /// The old snapshot is then still the current one.
    pub async fn save_snapshot(&self, meta: Bytes, parts: Vec<PartUpdate>) -> Result<(), StorageError> {
        let turn = self.snapshot_lock();
        let _turn = turn.lock().await;
        // The caller of the save before may have cancelled it, and its last step may still be queued.
        self.flush().await?;
        let mut current = self.current_parts(&parts)?;
        let written = parts.iter().filter(|part| matches!(part, PartUpdate::Write(_))).count() as u64;
        let mut generation = self.inner.next_generation.fetch_add(written, Ordering::Relaxed);
        let end = generation.saturating_add(written);
        let (mut writer, mut pointers) = (PieceWriter::new(self), Vec::with_capacity(parts.len()));
        for part in parts {
            match part {
                PartUpdate::Write(SnapshotPart { name, chunks }) => {
                    let pieces = writer.add(generation, chunks).await?;
                    pointers.push(PartPointer { name, generation, pieces });
                    generation += 1;
                }
                // It is there: `current_parts` has looked.
                PartUpdate::Retain(name) => pointers.extend(current.remove(&name)),
            }
        }
        writer.write().await?;
        let pointer = SnapshotPointer { parts: pointers, meta };
        self.inner.commit(self.replica, Operation::SwitchSnapshot { pointer, end }).await
    }

    /// Returns the current snapshot: its meta, and its parts in the order in which they were saved.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged or incomplete.
    pub fn snapshot(&self) -> Result<Option<(Bytes, Vec<SnapshotPart>)>, StorageError> {
        self.read_snapshot(|engine, pointer| {
            let read = |part: &PartPointer| {
                let chunks = self.read_chunks(engine, part);
                chunks.map(|chunks| SnapshotPart { name: part.name.clone(), chunks })
            };
            pointer.parts.iter().map(read).collect()
        })
    }

    /// Returns the meta of the current snapshot and the chunks of one of its parts, without reading the others.
    ///
    /// # Errors
    /// `InvalidPart` if there is a snapshot without that part. Otherwise when it cannot be read, or is damaged or
    /// incomplete.
    pub fn snapshot_part(&self, name: &str) -> Result<Option<(Bytes, Vec<Bytes>)>, StorageError> {
        self.read_snapshot(|engine, pointer| {
            let part = pointer.parts.iter().find(|part| part.name == name);
            self.read_chunks(engine, part.ok_or_else(|| self.invalid_part(name, "there is none"))?)
        })
    }

    /// Returns the meta of the current snapshot, without reading its parts.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn snapshot_meta(&self) -> Result<Option<Bytes>, StorageError> {
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_pointer(engine, self.replica))?;
        Ok(pointer.map(|pointer| pointer.meta))
    }

    /// Returns the parts of the current snapshot by name, if these parts can be saved after it.
    fn current_parts(&self, parts: &[PartUpdate]) -> Result<HashMap<String, PartPointer>, StorageError> {
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_pointer(engine, self.replica))?;
        let current = pointer.unwrap_or_default().parts.into_iter();
        let current: HashMap<String, PartPointer> = current.map(|part| (part.name.clone(), part)).collect();
        let mut names = HashSet::new();
        for part in parts {
            let name = part.name();
            if name.is_empty() || name.len() > MAX_PART_NAME_BYTES {
                return Err(self.invalid_part(name, "its name is empty or too long"));
            }
            if !names.insert(name) {
                return Err(self.invalid_part(name, "there are two of that name"));
            }
            if matches!(part, PartUpdate::Retain(_)) && !current.contains_key(name) {
                return Err(self.invalid_part(name, "there is none to retain"));
            }
        }
        Ok(current)
    }

    /// Reads from the current snapshot with its pointer.
    fn read_snapshot<T>(
        &self,
        read: impl Fn(&dyn Engine, &SnapshotPointer) -> Result<T, StorageError>,
    ) -> Result<Option<(Bytes, T)>, StorageError> {
        self.inner.shared.read(|engine| {
            let Some(mut pointer) = recovery::read_snapshot_pointer(engine, self.replica)? else { return Ok(None) };
            loop {
                let found = read(engine, &pointer);
                // A newer one may have replaced it meanwhile; saves are rare, so this ends.
                match recovery::read_snapshot_pointer(engine, self.replica)? {
                    Some(now) if now != pointer => pointer = now,
                    Some(_) => return Ok(Some((pointer.meta, found?))),
                    None => return Ok(None),
                }
            }
        })
    }

    fn read_chunks(&self, engine: &dyn Engine, part: &PartPointer) -> Result<Vec<Bytes>, StorageError> {
        let from = key::of_generation(self.replica, part.generation);
        let to = key::of_generation(self.replica, part.generation.saturating_add(1));
        let (mut chunks, mut chunk, mut number) = (Vec::new(), BytesMut::new(), 0_u32);
        let damaged = |number: u32, what: &str| {
            self.corrupt(engine, None, format!("piece {number} of part {:?} of the snapshot: {what}", part.name))
        };
        engine.scan(&from, &to, &mut |key, stored| {
            if key != key::of_snapshot_piece(self.replica, part.generation, number) {
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
        if number != part.pieces || !chunk.is_empty() {
            return Err(damaged(number, "it is missing"));
        }
        Ok(chunks)
    }

    fn invalid_part(&self, part: &str, what: &'static str) -> StorageError {
        let place = self.inner.shared.location().to_owned();
        StorageError::InvalidPart { place, replica: self.replica, part: part.to_owned(), what }
    }
}

/// Collects the pieces of parts and writes them in batches.
struct PieceWriter<'a> {
    store: &'a ReplicaStore,
    pieces: Vec<SnapshotPiece>,
    bytes: usize,
}

impl<'a> PieceWriter<'a> {
    fn new(store: &'a ReplicaStore) -> Self {
        Self { store, pieces: Vec::new(), bytes: 0 }
    }

    /// Adds a part. Returns the number of its pieces.
    async fn add(&mut self, generation: u64, chunks: Vec<Bytes>) -> Result<u32, StorageError> {
        let mut number: u32 = 0;
        for mut chunk in chunks {
            loop {
                let length = chunk.len().min(MAX_SNAPSHOT_BATCH_BYTES);
                if self.bytes + length > MAX_SNAPSHOT_BATCH_BYTES {
                    self.write().await?;
                }
                let bytes = chunk.split_to(length);
                self.pieces.push(SnapshotPiece { generation, number, ends_chunk: chunk.is_empty(), bytes });
                self.bytes += length;
                number += 1;
                if chunk.is_empty() {
                    break;
                }
            }
        }
        Ok(number)
    }

    /// Writes the pieces that were added since the last batch. They are durable when it returns.
    async fn write(&mut self) -> Result<(), StorageError> {
        let pieces = std::mem::take(&mut self.pieces);
        self.bytes = 0;
        if pieces.is_empty() {
            return Ok(());
        }
        let _turn = self.store.inner.snapshot_batch_lock.lock().await;
        self.store.ready().await;
        self.store.inner.commit(self.store.replica, Operation::SaveSnapshotPieces { pieces }).await
    }
}
