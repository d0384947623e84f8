//! Stable storage of one node: the Raft logs, votes and snapshots of all its replicas in one RocksDB, written by one
//! committer, so that many shards share one sync.
//!
//! Invariant: a callback receives `Ok` only after everything that the same replica submitted before is on stable
//! storage; after the first failed write or sync, nothing is ever written again. A read returns exactly what was
//! written, or an error: every value has a checksum that covers its key.
//!
//! Deliberately unknown here: openraft, and the meaning of the stored bytes. This crate handles replica ids, log
//! indexes and byte strings. RocksDB's types stay inside. [`MemoryDisk`] is an in-memory disk for tests and for
//! simulations of whole clusters; only the lowest layer differs (a key-value engine), the code above is the same.
//!
//! The path of an entry: [`ReplicaStore::append`] adds it to the queue of the node (`queue`). The committer
//! (`committer`) drains the queue and turns it into one batch (`batch_builder`). The engine writes and syncs the batch
//! (`engine`), then the committer calls the callbacks in order.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod batch;
mod batch_builder;
mod blocking;
mod checksum;
mod committer;
mod directory;
mod disk_space;
mod engine;
mod error;
mod generations;
mod incoming_snapshot;
mod key;
pub mod limits;
mod node;
mod part_writer;
mod queue;
mod recovery;
mod replica;
mod snapshot;
mod snapshot_part;
mod snapshot_pointer;
mod stored_snapshot;
mod wal;

pub use blocking::run_blocking;
pub use engine::memory::{CrashPoint, MemoryDisk};
pub use error::StorageError;
pub use incoming_snapshot::IncomingSnapshot;
pub use node::{Identity, NodeStore};
pub use part_writer::DetachedPart;
pub use queue::{Completion, LogRow};
pub use replica::ReplicaStore;
pub use snapshot_part::{PartChunks, PartUpdate, SnapshotPart};
pub use snapshot_pointer::DIGEST_BYTES;
pub use stored_snapshot::{PartPiece, PartSummary, StoredSnapshot};
