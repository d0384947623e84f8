//! Every bound of the storage in one place.

/// Bytes that may wait for the committer, or be with it, before [`crate::ReplicaStore::ready`] holds callers back.
/// One call may exceed it; the next one waits.
pub const MAX_QUEUE_BYTES: usize = 16 * 1024 * 1024;

/// Bytes of a snapshot that are written in one batch. A synced write of this size takes a few milliseconds, which is
/// what a snapshot may add to the commits of other replicas.
pub const MAX_SNAPSHOT_PART_BYTES: usize = 256 * 1024;

/// Up to this many entries are removed from a log one by one; more are removed with one range deletion. A range
/// deletion costs every later read a little until it is compacted, a single deletion costs space for a key.
pub const MAX_POINT_DELETES: u64 = 32;

/// What an operation counts in the queue besides its payload, so that empty payloads are bounded too.
pub(crate) const OPERATION_OVERHEAD_BYTES: usize = 64;

/// Log files are started anew, and memtables flushed, beyond this size; a start reads at most this much again.
pub(crate) const MAX_WAL_BYTES: u64 = 64 * 1024 * 1024;

/// Size of one memtable. Small, because there are three column families and idle memory counts.
pub(crate) const MEMTABLE_BYTES: usize = 16 * 1024 * 1024;

/// Shared block cache. Reads are rare: entries are kept in memory by their users, and snapshots are read once.
pub(crate) const BLOCK_CACHE_BYTES: usize = 16 * 1024 * 1024;

/// Files that RocksDB keeps open.
pub(crate) const MAX_OPEN_FILES: i32 = 256;
