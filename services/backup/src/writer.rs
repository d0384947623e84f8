//! Writes a backup.

use std::fs::{self, DirBuilder, File};
use std::io::{BufWriter, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::BackupError;
use crate::manifest::{ChecksummedManifest, FORMAT, MANIFEST_FILE, Manifest, ShardFile};

/// A backup being written, next to its target path. The target does not exist before [`BackupWriter::finish`].
#[derive(Debug)]
pub struct BackupWriter {
    target: PathBuf,
    draft: PathBuf,
    manifest: Manifest,
}

impl BackupWriter {
    /// Starts a backup, in a directory next to the target, readable by its owner only: it contains tenants' secrets.
    ///
    /// # Errors
    /// When the target already exists, or its parent directory is not writable.
    pub fn create(target: &Path, cluster_id: &str, config_version: u64, made_at: String) -> Result<Self, BackupError> {
        if target.exists() {
            return Err(BackupError::Exists(target.to_owned()));
        }
        let name = target.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let draft = target.with_file_name(format!("{name}.partial"));
        if draft.exists() {
            // An interrupted run left it behind; it never had a manifest.
            fs::remove_dir_all(&draft).map_err(BackupError::io(&draft, "removed"))?;
        }
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&draft);
        made.map_err(BackupError::io(&draft, "made"))?;
        let manifest = Manifest {
            format: FORMAT,
            id: uuid::Uuid::new_v4().to_string(),
            made_at,
            cluster_id: cluster_id.to_owned(),
            config_version,
            shards: Vec::new(),
        };
        Ok(Self { target: target.to_owned(), draft, manifest })
    }

    /// Begins the file of a shard; what was written of it before and not added is dropped.
    ///
    /// # Errors
    /// When the file can't be created.
    pub fn begin_shard(&self, shard: &str) -> Result<ShardWriter, BackupError> {
        let name = format!("{shard}.state");
        let path = self.draft.join(&name);
        let file = File::create(&path).map_err(BackupError::io(&path, "written"))?;
        let out = HashingWriter { out: BufWriter::new(file), hash: Sha256::new(), bytes: 0 };
        Ok(ShardWriter { name, path, out })
    }

    /// Adds a state with all its chunks, and fills in the file's name, length and checksum in `about`. Returns the
    /// length, in bytes.
    ///
    /// # Errors
    /// When the state can't be written.
    pub fn add_shard(&mut self, mut about: ShardFile, state: ShardWriter) -> Result<u64, BackupError> {
        let ShardWriter { name, path, mut out } = state;
        let synced = out.out.flush().and_then(|()| out.out.get_ref().sync_all());
        synced.map_err(BackupError::io(&path, "written"))?;
        (about.file, about.bytes) = (name, out.bytes);
        about.sha256 = hex::encode(out.hash.finalize());
        self.manifest.shards.push(about);
        Ok(out.bytes)
    }

    /// Writes the manifest and moves the backup to its target, durable and complete.
    ///
    /// # Errors
    /// When the backup can't be written.
    pub fn finish(self) -> Result<Manifest, BackupError> {
        let sealed = ChecksummedManifest { sha256: self.manifest.checksum(), manifest: self.manifest };
        let path = self.draft.join(MANIFEST_FILE);
        let text = serde_json::to_vec_pretty(&sealed).expect("a manifest has no value that JSON cannot express");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&path)?;
            file.write_all(&text)?;
            file.write_all(b"\n")?;
            file.sync_all()?;
            File::open(&self.draft)?.sync_all()
        };
        write().map_err(BackupError::io(&path, "written"))?;
        fs::rename(&self.draft, &self.target).map_err(BackupError::io(&self.target, "put in its place"))?;
        let parent = self.target.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = parent.unwrap_or_else(|| Path::new("."));
        File::open(parent).and_then(|parent| parent.sync_all()).map_err(BackupError::io(parent, "synced"))?;
        Ok(sealed.manifest)
    }
}

/// The state of a shard being written.
#[derive(Debug)]
pub struct ShardWriter {
    /// Of its file.
    name: String,
    path: PathBuf,
    out: HashingWriter,
}

impl ShardWriter {
    /// Writes the next chunk.
    ///
    /// # Errors
    /// When it can't be written.
    pub fn write(&mut self, chunk: &[u8]) -> Result<(), BackupError> {
        let length = u32::try_from(chunk.len()).map_err(std::io::Error::other);
        let written = length.and_then(|length| self.out.write_hashed(&length.to_be_bytes()));
        let written = written.and_then(|()| self.out.write_hashed(chunk));
        written.map_err(BackupError::io(&self.path, "written"))
    }
}

#[derive(Debug)]
struct HashingWriter {
    out: BufWriter<File>,
    hash: Sha256,
    bytes: u64,
}

impl HashingWriter {
    fn write_hashed(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.hash.update(bytes);
        self.bytes += bytes.len() as u64;
        self.out.write_all(bytes)
    }
}
