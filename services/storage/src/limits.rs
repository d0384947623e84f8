//! All limits of the storage in one place.

/// Bytes that may be queued or in flight in the committer before [`crate::ReplicaStore::ready`] makes callers wait. One
/// call may exceed it; the next one waits.
pub const MAX_QUEUE_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of a snapshot that are written in one batch. A synced write of this size takes a few milliseconds, which is
/// how much a snapshot may delay the commits of other replicas.
pub const MAX_SNAPSHOT_BATCH_BYTES: usize = 256 * 1024;

/// Bytes of a chunk of a snapshot.
pub const MAX_CHUNK_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of the name of a snapshot's part.
pub const MAX_PART_NAME_BYTES: usize = u16::MAX as usize;

/// Up to this many log entries are removed one by one; more are removed with one range deletion. A range deletion slows
/// down every later read slightly until it is compacted; a single deletion costs space for a key.
pub const MAX_POINT_DELETES: u64 = 32;

/// Bytes that an operation counts in the queue besides its payload, so that empty payloads are bounded too.
pub(crate) const OPERATION_OVERHEAD_BYTES: usize = 64;

/// Size beyond which RocksDB starts a new log file and flushes memtables; a start replays at most this much.
pub(crate) const MAX_WAL_BYTES: u64 = 64 * 1024 * 1024;

/// Log files that are kept to be overwritten: as many as one flush of all memtables sets free. Each is about as large
/// as a memtable.
pub(crate) const MAX_RECYCLED_LOG_FILES: usize = 4;

/// Size beyond which RocksDB starts a new manifest.
pub(crate) const MAX_MANIFEST_BYTES: usize = 16 * 1024 * 1024;

/// Size of one memtable. Small, because there are three column families and idle memory counts.
pub(crate) const MEMTABLE_BYTES: usize = 16 * 1024 * 1024;

/// Size of the shared block cache. Reads are rare: the layers above cache entries, and snapshots are read once.
pub(crate) const BLOCK_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Maximum number of files that RocksDB keeps open.
pub(crate) const MAX_OPEN_FILES: i32 = 256;
