//! The data directory. It is locked before any read, and marked with its owner in a small text file. So a person can
//! see its owner, and a database that lost its files is not mistaken for a new one.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;

use crate::{Identity, StorageError};

const MARKER_FILE: &str = "STORE";
const LOCK_FILE: &str = "STORE.lock";
const MAGIC: &str = "holdfast-store";

/// The owner and the format of the data; the same text is in the marker file and in the database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) format: u32,
    pub(crate) identity: Identity,
    pub(crate) store_id: String,
}

impl Marker {
    pub(crate) fn encode(&self) -> String {
        let Identity { cluster_id, node_id } = &self.identity;
        let text = format!("{MAGIC} {}\ncluster {cluster_id}\nnode {node_id}\nstore {}\n", self.format, self.store_id);
        format!("{text}check {:08x}\n", crc32fast::hash(text.as_bytes()))
    }

    /// Decodes the output of `encode`. Reports an unknown format before it decodes anything else. Each format ends with
    /// the same check, so that a damaged marker is not mistaken for another format.
    pub(crate) fn decode(text: &[u8], place: &str, known: u32) -> Result<Self, StorageError> {
        let damaged = || StorageError::corrupt(place, "the record of its owner is damaged");
        let text = std::str::from_utf8(text).map_err(|_| damaged())?;
        let title = text.lines().next().and_then(|line| line.strip_prefix(MAGIC)).ok_or_else(damaged)?;
        if title != format!(" {known}") {
            let (checked, check) = text.split_at(text.rfind("check ").ok_or_else(damaged)?);
            if check != format!("check {:08x}\n", crc32fast::hash(checked.as_bytes())) {
                return Err(damaged());
            }
            return Err(StorageError::UnknownFormat { place: place.to_owned(), found: title.trim().to_owned(), known });
        }
        let fields: Vec<_> = text.lines().skip(1).filter_map(|line| line.split_once(' ')).collect();
        let [("cluster", cluster), ("node", node), ("store", store), ("check", _)] = fields[..] else {
            return Err(damaged());
        };
        let identity = Identity { cluster_id: cluster.to_owned(), node_id: node.to_owned() };
        let marker = Self { format: known, identity, store_id: store.to_owned() };
        if marker.encode() == text { Ok(marker) } else { Err(damaged()) }
    }

    /// Rejects the data of another node or cluster.
    pub(crate) fn check_owner(&self, identity: &Identity, place: &str) -> Result<(), StorageError> {
        if self.identity == *identity {
            return Ok(());
        }
        Err(StorageError::OwnerMismatch {
            place: place.to_owned(),
            found_cluster: self.identity.cluster_id.clone(),
            found_node: self.identity.node_id.clone(),
            wanted_cluster: identity.cluster_id.clone(),
            wanted_node: identity.node_id.clone(),
        })
    }
}

/// A data directory that this process has locked.
pub(crate) struct Directory {
    path: PathBuf,
    place: String,
    marker: Option<Marker>,
    /// The lock lasts as long as this file is open; the kernel releases it with the process.
    _lock: File,
}

impl Directory {
    /// Creates the directory if needed, locks it, and checks its owner. Changes nothing in another node's directory.
    pub(crate) fn open(path: &Path, identity: &Identity, known: u32) -> Result<Self, StorageError> {
        let place = path.display().to_string();
        let failed = |action| {
            let place = place.clone();
            move |error: std::io::Error| StorageError::io(&place, action, error)
        };
        // Only the owner may read it: the data contains secrets of tenants.
        DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed("creating the data directory"))?;
        let lock = File::create(path.join(LOCK_FILE)).map_err(failed("creating the lock file"))?;
        match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(rustix::io::Errno::WOULDBLOCK) => return Err(StorageError::InUse { place }),
            Err(error) => return Err(failed("locking the data directory")(error.into())),
        }
        let marker_file = path.join(MARKER_FILE);
        let marker = match fs::read(&marker_file) {
            Ok(text) => Some(Marker::decode(&text, &marker_file.display().to_string(), known)?),
            Err(error) if error.kind() == ErrorKind::NotFound => None,
            Err(error) => return Err(failed("reading the marker file")(error)),
        };
        if let Some(marker) = &marker {
            marker.check_owner(identity, &place)?;
        }
        let directory = Self { path: path.to_owned(), place, marker, _lock: lock };
        directory.check_database_present()?;
        Ok(directory)
    }

    /// If CURRENT is missing, RocksDB creates a new database and removes the files of the old one. So data without that
    /// file must be rejected before.
    fn check_database_present(&self) -> Result<(), StorageError> {
        if self.path.join("CURRENT").exists() {
            return Ok(());
        }
        let entries = fs::read_dir(&self.path).map_err(|error| self.io_error("listing the data directory", error))?;
        for entry in entries {
            let entry = entry.map_err(|error| self.io_error("listing the data directory", error))?;
            let path = entry.path();
            let data = path.extension().is_some_and(|extension| extension == "sst" || extension == "log");
            if data || self.is_marked() {
                return Err(StorageError::corrupt(&self.place, "the file CURRENT of its database is missing"));
            }
        }
        Ok(())
    }

    /// Writes the marker if it does not exist yet. From then on a missing or empty database is damage.
    pub(crate) fn write_marker(&self, marker: &Marker) -> Result<(), StorageError> {
        match &self.marker {
            Some(found) if found == marker => return Ok(()),
            Some(_) => {
                let what = format!("{MARKER_FILE} and the database name different owners or store ids");
                return Err(StorageError::corrupt(&self.place, what));
            }
            None => {}
        }
        let draft = self.path.join("STORE.new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&draft)?;
            file.write_all(marker.encode().as_bytes())?;
            file.sync_all()?;
            fs::rename(&draft, self.path.join(MARKER_FILE))?;
            File::open(&self.path)?.sync_all()
        };
        write().map_err(|error| self.io_error("writing the marker file", error))
    }

    pub(crate) fn is_marked(&self) -> bool {
        self.marker.is_some()
    }

    /// Returns the id of the store in the marker file.
    pub(crate) fn store_id(&self) -> Option<&str> {
        self.marker.as_ref().map(|marker| marker.store_id.as_str())
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn location(&self) -> &str {
        &self.place
    }

    fn io_error(&self, action: &'static str, error: std::io::Error) -> StorageError {
        StorageError::io(&self.place, action, error)
    }
}
