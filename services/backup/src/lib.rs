//! Backups as files: one for the state of each shard, and a manifest that says what belongs together.
//!
//! Purpose: write a backup so that it is there whole or not at all, and read it so that nothing of one that was cut
//! short, altered or made by another version is ever used.
//!
//! Invariant: a directory has a manifest only when every file that it names is complete and on disk; each file's length
//! and SHA-256 are in the manifest, and the manifest's own are in it too.
//!
//! Deliberately unknown here: what states mean, where they come from, what becomes of them.

mod error;
mod manifest;
mod reader;
mod writer;

pub use error::BackupError;
pub use manifest::{FORMAT, Manifest, ShardFile};
pub use reader::Backup;
pub use writer::BackupWriter;
