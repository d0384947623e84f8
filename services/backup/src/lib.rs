//! Backups as files: one for the state of each shard, and a manifest that ties them together.
//!
//! Purpose: write a backup so that it exists completely or not at all. Never use any part of a backup that is
//! truncated, altered or of another version.
//!
//! Invariant: a directory has a manifest only when every file that it names is complete and on disk. The manifest
//! contains each file's length and SHA-256, and its own checksum.
//!
//! Deliberately unknown here: the meaning, origin and use of the states.

mod error;
mod manifest;
mod reader;
mod writer;

pub use error::BackupError;
pub use manifest::{FORMAT, Manifest, ShardFile};
pub use reader::{Backup, StateChunks};
pub use writer::{BackupWriter, ShardWriter};
