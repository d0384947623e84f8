//! A snapshot that a replica receives piece by piece from another one. What was received survives the end of the
//! connection and a restart; the next offer continues with it.

use bytes::Bytes;
use tokio::sync::OwnedMutexGuard;
use tokio::task::yield_now;

use crate::engine::Engine;
use crate::generations::{HeldGenerations, SnapshotRecords};
use crate::key::{self, Kind};
use crate::limits::MAX_SNAPSHOT_BATCH_BYTES;
use crate::part_writer::PieceWriter;
use crate::queue::Operation;
use crate::recovery::read_snapshot_record;
use crate::snapshot_pointer::{PartDigest, PartPointer, SnapshotPointer};
use crate::stored_snapshot::{PartPiece, PartSummary, StoredSnapshot};
use crate::{ReplicaStore, StorageError, run_blocking};

/// A snapshot that is being received. Every complete part of it has the digest that was offered.
pub struct IncomingSnapshot {
    store: ReplicaStore,
    pointer: SnapshotPointer,
    held: HeldGenerations,
    /// The number of stored pieces of each part.
    stored: Vec<u32>,
    /// The digest of the stored pieces of each part.
    digests: Vec<PartDigest>,
    /// One is received at a time.
    _turn: OwnedMutexGuard<()>,
}

/// What is stored of an offered part.
#[derive(Default)]
struct StoredPieces {
    count: u32,
    digest: PartDigest,
}

impl ReplicaStore {
    /// Begins to receive a snapshot, or continues. Of earlier ones, parts with the same content are used as far as they
    /// are there; so are those of the current snapshot. Waits until whoever received before has finished, and reads
    /// what is used: damaged parts are received anew, and no later call has to read.
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
        let known = |records: SnapshotRecords| {
            let known: Vec<Vec<u64>> = parts.iter().map(|part| records.generations_of(part)).collect();
            let generations: Vec<u64> = known.iter().flatten().copied().collect();
            (known, generations)
        };
        let (known, _held) = run_blocking(|| HeldGenerations::from_records(self, known))?;
        let mut held = HeldGenerations::none(self);
        let (mut pointers, mut stored, mut digests) = (Vec::new(), Vec::new(), Vec::new());
        for (summary, known) in parts.into_iter().zip(known) {
            let (generation, pieces) = match self.find_sound(&summary, known).await? {
                Some((generation, pieces)) => {
                    held.add(generation);
                    (generation, pieces)
                }
                None => (held.add_new(), StoredPieces::default()),
            };
            pointers.push(PartPointer { generation, summary });
            stored.push(pieces.count);
            digests.push(pieces.digest);
        }
        let pointer = SnapshotPointer { parts: pointers, meta };
        self.inner.commit(self.replica, Operation::SaveIncoming { pointer: pointer.clone() }).await?;
        // Parts of an earlier one that this one does not have.
        self.inner.remove_stale_generations(self.replica);
        Ok(IncomingSnapshot { store: self.clone(), pointer, held, stored, digests, _turn: turn })
    }

    /// Removes what was received, except parts of the current snapshot, if `is_obsolete` returns true for the meta that
    /// it was offered with, or the record of it is damaged. Changes nothing while a snapshot is being received.
    ///
    /// # Errors
    /// When it can't be read, or the removal could not be made durable.
    pub async fn discard_incoming(&self, is_obsolete: impl FnOnce(&Bytes) -> bool) -> Result<(), StorageError> {
        let Ok(_turn) = self.receive_lock().try_lock_owned() else { return Ok(()) };
        let record = |engine: &dyn Engine| read_snapshot_record(engine, Kind::IncomingSnapshot, self.replica);
        let is_obsolete = match run_blocking(|| self.inner.shared.read(record)) {
            Ok(incoming) => incoming.is_some_and(|incoming| is_obsolete(&incoming.meta)),
            Err(error) if error.is_corrupt() => true,
            Err(error) => return Err(error),
        };
        if is_obsolete { self.remove_incoming().await } else { Ok(()) }
    }

    async fn remove_incoming(&self) -> Result<(), StorageError> {
        self.inner.commit(self.replica, Operation::DiscardIncoming).await?;
        self.inner.remove_stale_generations(self.replica);
        Ok(())
    }

    /// Returns the first of these generations of a part whose pieces are those of the part, as far as there are any.
    async fn find_sound(
        &self,
        summary: &PartSummary,
        known: Vec<u64>,
    ) -> Result<Option<(u64, StoredPieces)>, StorageError> {
        for generation in known {
            let pointer = PartPointer { generation, summary: summary.clone() };
            match self.read_stored(&pointer).await {
                Ok(Some(pieces)) => return Ok(Some((generation, pieces))),
                Err(error) if !error.is_corrupt() => return Err(error),
                Ok(None) | Err(_) => {
                    let (replica, part) = (self.replica, &summary.name);
                    tracing::error!(replica, part, "stored snapshot part damaged; receiving it again");
                }
            }
        }
        Ok(None)
    }

    /// Reads the stored pieces of a part. Returns `None` if they are of another part.
    async fn read_stored(&self, part: &PartPointer) -> Result<Option<StoredPieces>, StorageError> {
        let end = run_blocking(|| self.stored_pieces(part))?;
        let mut pieces = StoredPieces::default();
        while pieces.count < end {
            run_blocking(|| {
                for piece in self.read_pieces(part, pieces.count..end, MAX_SNAPSHOT_BATCH_BYTES)? {
                    pieces.digest.add(piece.ends_chunk, &piece.bytes);
                    pieces.count = piece.number.saturating_add(1);
                }
                Ok::<(), StorageError>(())
            })?;
            yield_now().await;
        }
        let PartSummary { pieces: all, digest, .. } = &part.summary;
        let is_whole = || pieces.count == *all && pieces.digest.clone().finish() == *digest;
        let is_sound = pieces.count < *all || is_whole();
        Ok(is_sound.then_some(pieces))
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
        let at = (self.pointer.parts.get(part), self.stored.get_mut(part), self.digests.get_mut(part));
        let (Some(pointer), Some(stored), Some(digest)) = at else {
            return Err(self.store.invalid_part("", "there is no such part"));
        };
        let before = (digest.clone(), *stored);
        let (added, next) = run_blocking(|| add_pieces(&self.store, &pointer.summary, before, &pieces))?;
        let mut writer = PieceWriter::new(&self.store);
        for piece in pieces {
            writer.add(pointer.generation, piece).await?;
        }
        writer.write().await?;
        (*digest, *stored) = (added, next);
        Ok(())
    }

    /// Returns the snapshot, if it is complete.
    pub fn finish(self) -> Option<StoredSnapshot> {
        let is_complete = self.is_complete();
        let Self { store, pointer, held, .. } = self;
        is_complete.then(|| StoredSnapshot::new(&store, pointer, &held))
    }

    /// Removes what was received, except parts of the current snapshot.
    ///
    /// # Errors
    /// When that could not be made durable.
    pub async fn discard(self) -> Result<(), StorageError> {
        let Self { store, held, _turn, .. } = self;
        drop(held);
        store.remove_incoming().await
    }
}

/// Checks that these are the next pieces of a part. Returns its digest and the number of its pieces with them; the
/// given ones are those without.
fn add_pieces(
    store: &ReplicaStore,
    summary: &PartSummary,
    (mut digest, mut next): (PartDigest, u32),
    pieces: &[PartPiece],
) -> Result<(PartDigest, u32), StorageError> {
    for piece in pieces {
        let fits = piece.number == next && next < summary.pieces && piece.bytes.len() <= MAX_SNAPSHOT_BATCH_BYTES;
        if !fits {
            return Err(store.invalid_part(&summary.name, "a piece is not the next one"));
        }
        digest.add(piece.ends_chunk, &piece.bytes);
        next = next.saturating_add(1);
    }
    // Before the last piece is stored: what is complete is what was offered.
    if next == summary.pieces && digest.clone().finish() != summary.digest {
        return Err(store.invalid_part(&summary.name, "what was received has another digest"));
    }
    Ok((digest, next))
}
