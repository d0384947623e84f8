//! The lowest layer: an ordered key-value store that writes a batch atomically and durably.

pub(crate) mod memory;
pub(crate) mod rocks;
mod rocks_options;

use std::time::Duration;

use bytes::Bytes;

use crate::StorageError;
use crate::batch::Batch;

/// Called with key and value in ascending order; `false` ends the scan.
pub(crate) type Visitor<'a> = &'a mut dyn FnMut(&[u8], &[u8]) -> Result<bool, StorageError>;

/// A key and its value as stored, checksum included.
pub(crate) type KeyValue = (Vec<u8>, Bytes);

/// The interface of RocksDB and the in-memory engine.
pub(crate) trait Engine: Send + Sync {
    /// Returns the name for error messages: the data directory.
    fn location(&self) -> &str;
    /// Sets the id of the store, before the first write: every write carries it.
    fn set_store_id(&self, _store_id: &str) {}
    /// Writes the batch atomically, and returns once it is on stable storage.
    fn write_synced(&self, batch: &Batch) -> Result<(), StorageError>;
    /// Makes damage to the last write recognizable at the next open. Nothing may be written after it.
    fn end_log(&self) -> Result<(), StorageError> {
        Ok(())
    }
    /// Returns the bytes that can still be written, if that is limited and known.
    fn free_bytes(&self) -> Option<u64>;
    /// Returns the time that a simulated sync takes before the write.
    fn sync_delay(&self) -> Duration {
        Duration::ZERO
    }
    /// Returns the value as stored, checksum included.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError>;
    /// Visits `from..to`; both bounds are of the same kind.
    fn scan(&self, from: &[u8], to: &[u8], visit: Visitor<'_>) -> Result<(), StorageError>;
    /// Returns the last pair of `from..to`; both bounds are of the same kind.
    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<KeyValue>, StorageError>;

    /// Returns the first pair of `from..to`; both bounds are of the same kind.
    fn first(&self, from: &[u8], to: &[u8]) -> Result<Option<KeyValue>, StorageError> {
        let mut first = None;
        self.scan(from, to, &mut |key, value| {
            first = Some((key.to_vec(), Bytes::copy_from_slice(value)));
            Ok(false)
        })?;
        Ok(first)
    }
}
