//! The parts of a snapshot, as they are given to the store and read from it: chunk by chunk, never as a whole.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;

use crate::stored_snapshot::StoredPart;
use crate::{ReplicaStore, StorageError};

/// The chunks of a part, in order. After an error there are no more.
pub type PartChunks = Box<dyn Iterator<Item = Result<Bytes, StorageError>> + Send>;

/// A part of a snapshot; a cheap handle. A stored part stays readable as long as there is one.
#[derive(Clone)]
pub struct SnapshotPart {
    name: String,
    source: Source,
}

/// Where the chunks come from.
#[derive(Clone)]
enum Source {
    Made(Arc<dyn Fn() -> PartChunks + Send + Sync>),
    Stored(StoredPart),
}

impl fmt::Debug for SnapshotPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotPart").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SnapshotPart {
    /// Creates a part from a function that returns its chunks. Each call returns the same ones, from the first on. The
    /// name, which no other part of the snapshot has, is of 1 to [`crate::limits::MAX_PART_NAME_BYTES`] bytes; a chunk
    /// has at most [`crate::limits::MAX_CHUNK_BYTES`].
    pub fn new(name: impl Into<String>, chunks: impl Fn() -> PartChunks + Send + Sync + 'static) -> Self {
        Self { name: name.into(), source: Source::Made(Arc::new(chunks)) }
    }

    /// Creates a part from chunks in memory.
    pub fn from_chunks(name: impl Into<String>, chunks: Vec<Bytes>) -> Self {
        Self::new(name, move || Box::new(chunks.clone().into_iter().map(Ok)))
    }

    pub(crate) fn stored(part: StoredPart) -> Self {
        Self { name: part.summary().name.clone(), source: Source::Stored(part) }
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the same part; whoever reads damage in it also calls `found`.
    #[must_use]
    pub fn on_damage(&self, found: impl Fn() + Clone + Send + Sync + 'static) -> Self {
        let part = self.clone();
        Self::new(self.name.clone(), move || {
            let found = found.clone();
            Box::new(part.chunks().inspect(move |chunk| {
                if chunk.as_ref().is_err_and(StorageError::is_corrupt) {
                    found();
                }
            }))
        })
    }

    /// Returns the chunks, from the first on.
    pub fn chunks(&self) -> PartChunks {
        match &self.source {
            Source::Made(chunks) => chunks(),
            Source::Stored(part) => Box::new(part.chunks()),
        }
    }

    /// Returns the same part without its first chunks. If one of those can't be read, its error comes first.
    #[must_use]
    pub fn without_first(&self, count: usize) -> Self {
        let part = self.clone();
        Self::new(self.name.clone(), move || {
            let mut chunks = part.chunks();
            for _ in 0..count {
                match chunks.next() {
                    Some(Ok(_)) => {}
                    Some(Err(error)) => return Box::new(std::iter::once(Err(error))),
                    None => break,
                }
            }
            chunks
        })
    }

    /// Returns the stored part, if it is one of a snapshot of that replica.
    pub(crate) fn stored_in(&self, store: &ReplicaStore) -> Option<&StoredPart> {
        match &self.source {
            Source::Stored(part) => Some(part).filter(|part| part.is_of(store)),
            Source::Made(_) => None,
        }
    }
}

/// A part of a snapshot to save.
#[derive(Clone, Debug)]
pub enum PartUpdate {
    /// The part is written; it replaces that of the same name. One that the replica has received is not written again.
    Write(SnapshotPart),
    /// The part of this name stays as it is in the current snapshot.
    Retain(String),
}

impl PartUpdate {
    /// Returns the name of the part.
    pub fn name(&self) -> &str {
        match self {
            Self::Write(part) => part.name(),
            Self::Retain(name) => name,
        }
    }
}
