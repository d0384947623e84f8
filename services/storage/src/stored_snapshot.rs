//! A stored snapshot that stays readable while it is used: its parts by chunks, and by the pieces that they are stored
//! in.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};

use crate::engine::Engine;
use crate::generations::HeldGenerations;
use crate::limits::{MAX_CHUNK_BYTES, MAX_SNAPSHOT_BATCH_BYTES};
use crate::snapshot_pointer::{DIGEST_BYTES, PartDigest, PartPointer, SnapshotPointer};
use crate::{ReplicaStore, SnapshotPart, StorageError, checksum, key};

/// What tells a part of a snapshot from any other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartSummary {
    /// Its name.
    pub name: String,
    /// The number of its pieces.
    pub pieces: u32,
    /// The bytes of all pieces.
    pub bytes: u64,
    /// SHA-256 of all pieces, each with its length and whether it ends a chunk.
    pub digest: [u8; DIGEST_BYTES],
}

/// A piece of a part: what is stored, and sent, at a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPiece {
    /// Its number in the part, from 0 on.
    pub number: u32,
    /// Whether it is the last piece of its chunk.
    pub ends_chunk: bool,
    /// At most [`MAX_SNAPSHOT_BATCH_BYTES`].
    pub bytes: Bytes,
}

/// A stored snapshot; a cheap handle. As long as there is one, nothing of it is removed, though a newer one may have
/// replaced it. One of its parts keeps only itself.
#[derive(Clone)]
pub struct StoredSnapshot(Arc<Content>);

struct Content {
    meta: Bytes,
    /// In the order in which they were saved.
    parts: Vec<StoredPart>,
}

impl fmt::Debug for StoredSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.summaries()).finish()
    }
}

impl StoredSnapshot {
    /// `held` holds the generations of all parts.
    pub(crate) fn new(store: &ReplicaStore, pointer: SnapshotPointer, held: &HeldGenerations) -> Self {
        let SnapshotPointer { parts, meta } = pointer;
        let stored = |pointer: PartPointer| {
            let held = held.only(pointer.generation);
            StoredPart::new(store, pointer, held)
        };
        Self(Arc::new(Content { meta, parts: parts.into_iter().map(stored).collect() }))
    }

    /// Returns the meta.
    pub fn meta(&self) -> &Bytes {
        &self.0.meta
    }

    /// Returns the parts, in the order in which they were saved.
    pub fn parts(&self) -> Vec<SnapshotPart> {
        self.0.parts.iter().cloned().map(SnapshotPart::stored).collect()
    }

    /// Returns the part of this name, which stays readable without the others.
    pub fn part(&self, name: &str) -> Option<SnapshotPart> {
        let part = self.0.parts.iter().find(|part| part.summary().name == name)?;
        Some(SnapshotPart::stored(part.clone()))
    }

    /// Returns the summaries of the parts, in their order.
    pub fn summaries(&self) -> impl Iterator<Item = &PartSummary> {
        self.0.parts.iter().map(StoredPart::summary)
    }

    /// Reads the next pieces of the part at this position, from the piece of number `from` on: at least one if there is
    /// one, otherwise at most `max_bytes`.
    ///
    /// # Errors
    /// When one can't be read, or is damaged or missing.
    pub fn pieces(&self, part: usize, from: u32, max_bytes: usize) -> Result<Vec<PartPiece>, StorageError> {
        self.0.parts.get(part).map_or(Ok(Vec::new()), |part| part.pieces(from, max_bytes))
    }
}

impl ReplicaStore {
    /// Reads pieces of this range: at least one if there is one, otherwise at most `max_bytes`.
    pub(crate) fn read_pieces(
        &self,
        part: &PartPointer,
        range: std::ops::Range<u32>,
        max_bytes: usize,
    ) -> Result<Vec<PartPiece>, StorageError> {
        self.inner.shared.read(|engine| {
            let piece_key = |number| key::of_snapshot_piece(self.replica, part.generation, number);
            let (mut pieces, mut bytes, mut number) = (Vec::<PartPiece>::new(), 0_usize, range.start);
            engine.scan(&piece_key(range.start), &piece_key(range.end), &mut |key, stored| {
                if key != piece_key(number) {
                    return Err(self.damaged_piece(engine, part, number, "it is missing"));
                }
                let verified = checksum::verify(key, stored).and_then(<[u8]>::split_first);
                let (flag, piece) =
                    verified.ok_or_else(|| self.damaged_piece(engine, part, number, "checksum mismatch"))?;
                bytes = bytes.saturating_add(piece.len());
                if !pieces.is_empty() && bytes > max_bytes {
                    return Ok(false);
                }
                pieces.push(PartPiece { number, ends_chunk: *flag != 0, bytes: Bytes::copy_from_slice(piece) });
                number += 1;
                Ok(true)
            })?;
            if pieces.is_empty() && range.start < range.end {
                return Err(self.damaged_piece(engine, part, range.start, "it is missing"));
            }
            Ok(pieces)
        })
    }

    fn damaged_piece(&self, engine: &dyn Engine, part: &PartPointer, number: u32, what: &str) -> StorageError {
        self.corrupt(engine, None, format!("piece {number} of part {:?} of the snapshot: {what}", part.summary.name))
    }
}

/// A part of a stored snapshot; a cheap handle.
#[derive(Clone)]
pub(crate) struct StoredPart(Arc<PartContent>);

struct PartContent {
    store: ReplicaStore,
    pointer: PartPointer,
    _held: HeldGenerations,
}

impl StoredPart {
    /// `held` holds the generation of the part.
    pub(crate) fn new(store: &ReplicaStore, pointer: PartPointer, held: HeldGenerations) -> Self {
        Self(Arc::new(PartContent { store: store.clone(), pointer, _held: held }))
    }

    pub(crate) fn is_of(&self, store: &ReplicaStore) -> bool {
        let own = &self.0.store;
        Arc::ptr_eq(&own.inner, &store.inner) && own.replica == store.replica
    }

    pub(crate) fn pointer(&self) -> &PartPointer {
        &self.0.pointer
    }

    pub(crate) fn summary(&self) -> &PartSummary {
        &self.0.pointer.summary
    }

    fn pieces(&self, from: u32, max_bytes: usize) -> Result<Vec<PartPiece>, StorageError> {
        let PartContent { store, pointer, .. } = &*self.0;
        store.read_pieces(pointer, from..pointer.summary.pieces, max_bytes)
    }

    pub(crate) fn chunks(&self) -> StoredChunks {
        let (pieces, digest) = (VecDeque::new(), Some(PartDigest::default()));
        StoredChunks { part: self.clone(), pieces, next: 0, digest }
    }
}

/// Reads the chunks of a stored part, and checks its digest at the end.
pub(crate) struct StoredChunks {
    part: StoredPart,
    /// Pieces that were read ahead.
    pieces: VecDeque<PartPiece>,
    /// The number of the next piece to read.
    next: u32,
    /// `None` once the end or an error was returned.
    digest: Option<PartDigest>,
}

impl StoredChunks {
    fn next_piece(&mut self) -> Result<Option<PartPiece>, StorageError> {
        if self.pieces.is_empty() {
            self.pieces = self.part.pieces(self.next, MAX_SNAPSHOT_BATCH_BYTES)?.into();
        }
        let piece = self.pieces.pop_front();
        if let (Some(piece), Some(digest)) = (&piece, &mut self.digest) {
            digest.add(piece.ends_chunk, &piece.bytes);
            self.next = piece.number.saturating_add(1);
        }
        Ok(piece)
    }

    fn next_chunk(&mut self) -> Result<Option<Bytes>, StorageError> {
        let mut chunk = BytesMut::new();
        loop {
            match self.next_piece()? {
                Some(piece) if piece.ends_chunk && chunk.is_empty() => return Ok(Some(piece.bytes)),
                Some(piece) => {
                    chunk.extend_from_slice(&piece.bytes);
                    if piece.ends_chunk {
                        return Ok(Some(chunk.freeze()));
                    }
                    if chunk.len() > MAX_CHUNK_BYTES {
                        return Err(self.damaged("a chunk is too long"));
                    }
                }
                None if !chunk.is_empty() => return Err(self.damaged("its last chunk has no end")),
                None => return self.check_digest().map(|()| None),
            }
        }
    }

    fn check_digest(&mut self) -> Result<(), StorageError> {
        let found = self.digest.take().map(PartDigest::finish);
        if found == Some(self.part.summary().digest) { Ok(()) } else { Err(self.damaged("its digest is wrong")) }
    }

    fn damaged(&self, what: &str) -> StorageError {
        let PartContent { store, pointer, .. } = &*self.part.0;
        let place = store.inner.shared.location().to_owned();
        let what = format!("part {:?} of the snapshot: {what}", pointer.summary.name);
        StorageError::Corrupt { place, replica: Some(store.replica), index: None, what }
    }
}

impl Iterator for StoredChunks {
    type Item = Result<Bytes, StorageError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.digest.as_ref()?;
        let next = self.next_chunk().transpose();
        if !matches!(next, Some(Ok(_))) {
            self.digest = None;
        }
        next
    }
}
