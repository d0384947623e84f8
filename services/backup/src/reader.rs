//! Reads a backup.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

use crate::BackupError;
use crate::manifest::{ChecksummedManifest, FORMAT, FormatProbe, MANIFEST_FILE, Manifest, ShardFile};

/// A backup with a valid manifest. Its files are checked when they are read.
#[derive(Debug)]
pub struct Backup {
    path: PathBuf,
    manifest: Manifest,
}

impl Backup {
    /// Reads and checks the manifest.
    ///
    /// # Errors
    /// When it is missing, of another format, or altered.
    pub fn open(path: &Path) -> Result<Self, BackupError> {
        let file = path.join(MANIFEST_FILE);
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Err(BackupError::NoManifest(path.to_owned())),
            Err(error) => return Err(BackupError::io(&file, "read")(error)),
        };
        let unreadable = |error: serde_json::Error| BackupError::damaged(&file, error.to_string());
        let found = serde_json::from_slice::<FormatProbe>(&text).map_err(unreadable)?.manifest.format;
        if found != FORMAT {
            return Err(BackupError::UnsupportedFormat { path: path.to_owned(), found, known: FORMAT });
        }
        let sealed: ChecksummedManifest = serde_json::from_slice(&text).map_err(unreadable)?;
        if sealed.manifest.checksum() != sealed.sha256 {
            return Err(BackupError::damaged(&file, "its checksum is wrong"));
        }
        Ok(Self { path: path.to_owned(), manifest: sealed.manifest })
    }

    /// Returns the manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the manifest's item for a shard.
    ///
    /// # Errors
    /// When the backup does not contain the shard.
    pub fn shard_file(&self, shard: &str) -> Result<&ShardFile, BackupError> {
        let found = self.manifest.shards.iter().find(|file| file.shard == shard);
        found.ok_or_else(|| BackupError::ShardNotFound { path: self.path.clone(), shard: shard.to_owned() })
    }

    /// Returns the state of a shard, in the chunks that were written.
    ///
    /// # Errors
    /// When the file is missing, or differs from what was written.
    pub fn chunks(&self, about: &ShardFile) -> Result<Vec<Bytes>, BackupError> {
        let path = self.path.join(&about.file);
        if about.file.contains('/') {
            return Err(BackupError::damaged(&path, "its name is a path"));
        }
        let mut text = Bytes::from(fs::read(&path).map_err(BackupError::io(&path, "read"))?);
        if text.len() as u64 != about.bytes {
            let what = format!("it has {} bytes, and {} were written", text.len(), about.bytes);
            return Err(BackupError::damaged(&path, what));
        }
        if hex::encode(Sha256::digest(&text)) != about.sha256 {
            return Err(BackupError::damaged(&path, "its checksum is wrong"));
        }
        let mut chunks = Vec::new();
        while text.has_remaining() {
            let length = text.try_get_u32().ok().and_then(|length| usize::try_from(length).ok());
            match length.filter(|length| *length <= text.len()) {
                Some(length) => chunks.push(text.split_to(length)),
                None => return Err(BackupError::damaged(&path, "a chunk has no end")),
            }
        }
        Ok(chunks)
    }

    /// Reads and thereby checks everything.
    ///
    /// # Errors
    /// As [`Self::chunks`].
    pub fn verify(&self) -> Result<(), BackupError> {
        self.manifest.shards.iter().try_for_each(|about| self.chunks(about).map(|_| ()))
    }
}
