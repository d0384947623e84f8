//! Writes the parts of snapshots chunk by chunk, in small batches.

use bytes::Bytes;

use crate::generations::HeldGenerations;
use crate::limits::{MAX_CHUNK_BYTES, MAX_SNAPSHOT_BATCH_BYTES};
use crate::queue::{Operation, SnapshotPiece};
use crate::snapshot_pointer::{PartDigest, PartPointer};
use crate::stored_snapshot::{PartPiece, PartSummary, StoredPart};
use crate::{ReplicaStore, SnapshotPart, StorageError};

/// Collects pieces and writes them in batches.
pub(crate) struct PieceWriter {
    store: ReplicaStore,
    pieces: Vec<SnapshotPiece>,
    bytes: usize,
}

impl PieceWriter {
    pub(crate) fn new(store: &ReplicaStore) -> Self {
        Self { store: store.clone(), pieces: Vec::new(), bytes: 0 }
    }

    /// Adds a piece; writes those before it if it does not fit into their batch.
    pub(crate) async fn add(&mut self, generation: u64, piece: PartPiece) -> Result<(), StorageError> {
        if self.bytes + piece.bytes.len() > MAX_SNAPSHOT_BATCH_BYTES {
            self.write().await?;
        }
        self.bytes += piece.bytes.len();
        let PartPiece { number, ends_chunk, bytes } = piece;
        self.pieces.push(SnapshotPiece { generation, number, ends_chunk, bytes });
        Ok(())
    }

    /// Writes the pieces that were added since the last batch. They are durable when it returns.
    pub(crate) async fn write(&mut self) -> Result<(), StorageError> {
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

/// A part that is being written.
pub(crate) struct PartWriter {
    generation: u64,
    /// Of what was added so far.
    name: String,
    pieces: u32,
    bytes: u64,
    digest: PartDigest,
}

impl PartWriter {
    pub(crate) fn new(name: &str, generation: u64) -> Self {
        Self { generation, name: name.to_owned(), pieces: 0, bytes: 0, digest: PartDigest::default() }
    }

    /// Adds the next chunk.
    pub(crate) async fn add(&mut self, writer: &mut PieceWriter, mut chunk: Bytes) -> Result<(), StorageError> {
        if chunk.len() > MAX_CHUNK_BYTES {
            return Err(writer.store.invalid_part(&self.name, "a chunk is too long"));
        }
        loop {
            let bytes = chunk.split_to(chunk.len().min(MAX_SNAPSHOT_BATCH_BYTES));
            let (number, ends_chunk) = (self.pieces, chunk.is_empty());
            self.digest.add(ends_chunk, &bytes);
            self.bytes = self.bytes.saturating_add(bytes.len() as u64);
            self.pieces =
                number.checked_add(1).ok_or_else(|| writer.store.invalid_part(&self.name, "it is too long"))?;
            writer.add(self.generation, PartPiece { number, ends_chunk, bytes }).await?;
            if ends_chunk {
                return Ok(());
            }
        }
    }

    pub(crate) fn finish(self) -> PartPointer {
        let Self { generation, name, pieces, bytes, digest } = self;
        PartPointer { generation, summary: PartSummary { name, pieces, bytes, digest: digest.finish() } }
    }
}

/// A part that is written and belongs to no snapshot.
pub struct DetachedPart {
    writer: PieceWriter,
    part: PartWriter,
    held: HeldGenerations,
}

impl ReplicaStore {
    /// Begins a part that belongs to no snapshot. It stays as long as somebody has it, but not after a restart.
    pub fn write_detached_part(&self, name: &str) -> DetachedPart {
        let mut held = HeldGenerations::none(self);
        let part = PartWriter::new(name, held.add_new());
        DetachedPart { writer: PieceWriter::new(self), part, held }
    }
}

impl DetachedPart {
    /// Adds the next chunk.
    ///
    /// # Errors
    /// When it can't be written.
    pub async fn add(&mut self, chunk: Bytes) -> Result<(), StorageError> {
        self.part.add(&mut self.writer, chunk).await
    }

    /// Returns the part with all chunks that were added.
    ///
    /// # Errors
    /// When they can't be written.
    pub async fn finish(mut self) -> Result<SnapshotPart, StorageError> {
        self.writer.write().await?;
        Ok(SnapshotPart::stored(StoredPart::new(&self.writer.store, self.part.finish(), self.held)))
    }
}
