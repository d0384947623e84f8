//! Reads a backup.

use std::fs::{self, File};
use std::io::{BufReader, ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use sha2::{Digest, Sha256};

use crate::BackupError;
use crate::manifest::{ChecksummedManifest, FORMAT, FormatProbe, MANIFEST_FILE, Manifest, ShardFile};

/// Bytes read at once while a file is checked.
const READ_BYTES: usize = 64 * 1024;

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

    /// Returns the state of a shard, in the chunks that were written. The file is checked as a whole first; then its
    /// chunks are read one after the other.
    ///
    /// # Errors
    /// When the file is missing, or differs from what was written.
    pub fn chunks(&self, about: &ShardFile) -> Result<StateChunks, BackupError> {
        let path = self.path.join(&about.file);
        if about.file.contains('/') {
            return Err(BackupError::damaged(&path, "its name is a path"));
        }
        let mut file = File::open(&path).map_err(BackupError::io(&path, "read"))?;
        let (mut hash, mut buffer, mut bytes) = (Sha256::new(), vec![0; READ_BYTES], 0_u64);
        loop {
            let length = file.read(&mut buffer).map_err(BackupError::io(&path, "read"))?;
            let Some(read) = buffer.get(..length).filter(|read| !read.is_empty()) else { break };
            hash.update(read);
            bytes = bytes.saturating_add(read.len() as u64);
        }
        if bytes != about.bytes {
            let what = format!("it has {bytes} bytes, and {} were written", about.bytes);
            return Err(BackupError::damaged(&path, what));
        }
        if hex::encode(hash.finalize()) != about.sha256 {
            return Err(BackupError::damaged(&path, "its checksum is wrong"));
        }
        file.rewind().map_err(BackupError::io(&path, "read"))?;
        Ok(StateChunks { path, file: BufReader::new(file), left: bytes })
    }

    /// Reads and thereby checks everything.
    ///
    /// # Errors
    /// As [`Self::chunks`].
    pub fn verify(&self) -> Result<(), BackupError> {
        self.manifest.shards.iter().try_for_each(|about| self.chunks(about)?.try_for_each(|chunk| chunk.map(drop)))
    }
}

/// The chunks of a state. After an error there are no more.
#[derive(Debug)]
pub struct StateChunks {
    path: PathBuf,
    file: BufReader<File>,
    /// Bytes of the file that were not read yet.
    left: u64,
}

impl StateChunks {
    fn read_chunk(&mut self) -> Result<Bytes, BackupError> {
        let mut length = [0; 4];
        self.read(&mut length)?;
        let length = u32::from_be_bytes(length);
        if u64::from(length) > self.left {
            return Err(BackupError::damaged(&self.path, "a chunk has no end"));
        }
        let mut chunk = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        self.read(&mut chunk)?;
        Ok(chunk.into())
    }

    fn read(&mut self, bytes: &mut [u8]) -> Result<(), BackupError> {
        self.file.read_exact(bytes).map_err(BackupError::io(&self.path, "read"))?;
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }
}

impl Iterator for StateChunks {
    type Item = Result<Bytes, BackupError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.left == 0 {
            return None;
        }
        let chunk = self.read_chunk();
        if chunk.is_err() {
            self.left = 0;
        }
        Some(chunk)
    }
}
