//! A snapshot that a replica receives piece by piece from another one. What was received survives the end of the
//! connection and a restart; the next offer continues with it.

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;
use tokio::task::yield_now;

use crate::generations::HeldGenerations;
use crate::key::{self, Kind};
use crate::limits::MAX_SNAPSHOT_BATCH_BYTES;
use crate::part_writer::PieceWriter;
use crate::queue::Operation;
use crate::snapshot_pointer::{PartDigest, PartPointer, SnapshotPointer};
use crate::stored_snapshot::{PartPiece, PartSummary, StoredSnapshot};
use crate::{ReplicaStore, StorageError, recovery};

/// A snapshot that is being received. Every complete part of it has the digest that was offered.
pub struct IncomingSnapshot {
    store: ReplicaStore,
    pointer: SnapshotPointer,
    held: HeldGenerations,
    /// The number of stored pieces of each part.
    stored: Vec<u32>,
    /// The position of the part that is being received, and the digest of its stored pieces.
    digest: Option<(usize, PartDigest)>,
    /// One is received at a time.
    _turn: OwnedMutexGuard<()>,
}

impl ReplicaStore {
    /// Begins to receive a snapshot, or continues. Of earlier ones, parts with the same content are used as far as they
    /// are there; so are those of the current snapshot. Waits until whoever received before has finished.
    ///
    /// # Errors
    /// `InvalidPart` if two parts have the same name, or a name is empty or too long. Otherwise when the store can't be
    /// read or written.
    pub async fn receive_snapshot(
        &self,
        meta: Bytes,
        parts: Vec<PartSummary>,
    ) -> Result<IncomingSnapshot, StorageError> {
        self.check_names(parts.iter().map(|part| part.name.as_str()))?;
        let turn = self.receive_lock().lock_owned().await;
        // Whoever received before may have left pieces in the queue.
        self.flush().await?;
        let (found, mut held) = HeldGenerations::from_records(self, |records| {
            let same_part = |part| {
                [&records.current, &records.incoming].into_iter().flatten().find_map(|known| known.same_part(part))
            };
            let found: Vec<Option<u64>> = parts.iter().map(|part| same_part(part).map(|it| it.generation)).collect();
            let generations = found.iter().flatten().copied().collect();
            (found, generations)
        })?;
        let pointer = |(summary, generation): (PartSummary, Option<u64>)| PartPointer {
            generation: generation.unwrap_or_else(|| held.add_new()),
            summary,
        };
        let pointer = SnapshotPointer { parts: parts.into_iter().zip(found).map(pointer).collect(), meta };
        let stored = pointer.parts.iter().map(|part| self.stored_pieces(part)).collect::<Result<Vec<u32>, _>>()?;
        self.inner.commit(self.replica, Operation::SaveIncoming { pointer: pointer.clone() }).await?;
        // Parts of an earlier one that this one does not have.
        self.inner.remove_stale_generations(self.replica);
        Ok(IncomingSnapshot { store: self.clone(), pointer, held, stored, digest: None, _turn: turn })
    }

    /// Returns the meta of the snapshot that was last received in part, or as a whole.
    ///
    /// # Errors
    /// When it cannot be read, or is damaged.
    pub fn incoming_meta(&self) -> Result<Option<Bytes>, StorageError> {
        let kind = Kind::IncomingSnapshot;
        let pointer = self.inner.shared.read(|engine| recovery::read_snapshot_record(engine, kind, self.replica))?;
        Ok(pointer.map(|pointer| pointer.meta))
    }

    /// Removes what was received, except parts of the current snapshot.
    ///
    /// # Errors
    /// When that could not be made durable.
    pub async fn discard_incoming(&self) -> Result<(), StorageError> {
        self.inner.commit(self.replica, Operation::DiscardIncoming).await?;
        self.inner.remove_stale_generations(self.replica);
        Ok(())
    }

    /// Returns the number of stored pieces of a part. They were written in order.
    fn stored_pieces(&self, part: &PartPointer) -> Result<u32, StorageError> {
        let from = key::of_generation(self.replica, part.generation);
        let to = key::of_generation(self.replica, part.generation.saturating_add(1));
        let last = self.inner.shared.read(|engine| engine.last(&from, &to))?;
        let number = last.and_then(|(key, _)| key::piece_of(&key));
        Ok(number.map_or(0, |number| number.saturating_add(1)))
    }
}

impl IncomingSnapshot {
    /// Returns the number of stored pieces of each part, in their order.
    pub fn stored(&self) -> &[u32] {
        &self.stored
    }

    /// Returns true if all pieces are stored.
    pub fn is_complete(&self) -> bool {
        self.pointer.parts.iter().zip(&self.stored).all(|(part, stored)| part.summary.pieces == *stored)
    }

    /// Stores the next pieces of the part at this position; they are durable when it returns.
    ///
    /// # Errors
    /// `InvalidPart` if they are not the next ones, or the part is not the one that was offered; the latter is then to
    /// be discarded. Otherwise when they can't be written.
    pub async fn write(&mut self, part: usize, pieces: Vec<PartPiece>) -> Result<(), StorageError> {
        let (Some(pointer), Some(stored)) = (self.pointer.parts.get(part).cloned(), self.stored.get(part).copied())
        else {
            return Err(self.store.invalid_part("", "there is no such part"));
        };
        let (summary, mut next) = (&pointer.summary, stored);
        let mut digest = self.digest_of(part, &pointer, stored).await?;
        let mut writer = PieceWriter::new(&self.store);
        for piece in pieces {
            let fits = piece.number == next && next < summary.pieces && piece.bytes.len() <= MAX_SNAPSHOT_BATCH_BYTES;
            if !fits {
                return Err(self.store.invalid_part(&summary.name, "a piece is not the next one"));
            }
            digest.add(piece.ends_chunk, &piece.bytes);
            next = next.saturating_add(1);
            // Before the last piece is stored: what is complete is what was offered.
            if next == summary.pieces && digest.clone().finish() != summary.digest {
                return Err(self.store.invalid_part(&summary.name, "what was received has another digest"));
            }
            writer.add(pointer.generation, piece).await?;
        }
        writer.write().await?;
        if let Some(stored) = self.stored.get_mut(part) {
            *stored = next;
        }
        self.digest = Some((part, digest));
        Ok(())
    }

    /// Returns the digest of the stored pieces of a part. Reads them if they were stored earlier.
    async fn digest_of(&mut self, part: usize, pointer: &PartPointer, stored: u32) -> Result<PartDigest, StorageError> {
        if let Some((current, digest)) = self.digest.take()
            && current == part
        {
            return Ok(digest);
        }
        let (mut digest, mut next) = (PartDigest::default(), 0);
        while next < stored {
            for piece in self.store.read_pieces(pointer, next..stored, MAX_SNAPSHOT_BATCH_BYTES)? {
                digest.add(piece.ends_chunk, &piece.bytes);
                next = piece.number.saturating_add(1);
            }
            yield_now().await;
        }
        Ok(digest)
    }

    /// Returns the snapshot, if it is complete.
    pub fn finish(self) -> Option<StoredSnapshot> {
        let is_complete = self.is_complete();
        let Self { store, pointer, held, .. } = self;
        is_complete.then(|| StoredSnapshot::new(store, pointer, held))
    }
}
