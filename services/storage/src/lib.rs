//! Stable storage of one node: the Raft logs, votes and snapshots of all its replicas in one RocksDB, written by one
//! committer, so that many shards share one sync.
//!
//! Invariant: a callback says `Ok` only after everything handed over before it, by the same replica, is on stable
//! storage; after the first failed write or sync nothing is written ever again. What is read back is exactly what was
//! written, or an error: every value carries a checksum with its key mixed in.
//!
//! This crate deliberately does not know openraft, nor what the bytes mean that it stores: it sees replica ids, log
//! indexes and byte strings. RocksDB's types stay inside. [`MemoryDisk`] is a twin of the disk for tests and for the
//! simulation of whole clusters; only the smallest layer differs (a key-value engine), the code above is the same.
//!
//! The way of an entry: [`ReplicaStore::append`] puts it on the queue of the node (`queue`), the committer
//! (`committer`) drains the queue, turns it into one batch (`plan`), has the engine write and sync it (`engine`), and
//! calls the callbacks in order.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod batch;
mod batch_builder;
mod checksum;
mod committer;
mod directory;
mod disk_space;
mod engine;
mod error;
mod key;
pub mod limits;
mod node;
mod queue;
mod recovery;
mod replica;
mod wal;

pub use engine::memory::{CrashPoint, MemoryDisk};
pub use error::StorageError;
pub use node::{Identity, NodeStore};
pub use queue::Completion;
pub use replica::ReplicaStore;
