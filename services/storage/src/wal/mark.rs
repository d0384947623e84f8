//! The mark at the start of each write, which tells the store's own writes from bytes that somebody chose.

/// Sequence number of RocksDB (8) and number of changes (4).
pub(super) const BATCH_HEADER_BYTES: usize = 12;
const MARK_BYTES: usize = 16;
/// RocksDB's `kTypeLogData`, and the length.
const LOG_DATA: [u8; 2] = [0x03, 16];

/// The first bytes of each write in the log files of a store: its random id.
///
/// Clients choose names and metadata, and so bytes of the log. Without the mark they could choose what looks like a
/// write. In the rest of a torn write, it would look like a later write, and the store would refuse to open. In a
/// recycled file, behind the last write, RocksDB would even apply it. Clients do not know the id of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark([u8; MARK_BYTES]);

impl Mark {
    /// Bytes of a write that decide whether it is the store's own.
    pub(super) const HEAD_BYTES: usize = BATCH_HEADER_BYTES + LOG_DATA.len() + MARK_BYTES;

    /// Returns the mark of the store with this id. All ids are UUIDs: the bytes are not those of the text, which is in
    /// some values.
    pub(crate) fn of_store(store_id: &str) -> Self {
        Self(uuid::Uuid::parse_str(store_id).map_or([0; MARK_BYTES], uuid::Uuid::into_bytes))
    }

    /// Returns the bytes to write as log data, which RocksDB stores in the log only.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Returns whether a write, of which this is at least the head, begins with the mark.
    pub(super) fn is_in(&self, head: &[u8]) -> bool {
        head.get(BATCH_HEADER_BYTES..Self::HEAD_BYTES).is_some_and(|found| found == [&LOG_DATA[..], &self.0].concat())
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// Returns a write as RocksDB stores it.
    pub(crate) fn write(mark: Option<Mark>, sequence: u64, changes: u32, body: &[u8]) -> Vec<u8> {
        let mut write = [&sequence.to_le_bytes()[..], &changes.to_le_bytes()].concat();
        if let Some(mark) = mark {
            write.extend_from_slice(&LOG_DATA);
            write.extend_from_slice(mark.bytes());
        }
        write.extend_from_slice(body);
        write
    }
}
