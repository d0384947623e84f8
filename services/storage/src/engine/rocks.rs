//! RocksDB behind the [`Engine`] trait.

use std::path::Path;
use std::sync::OnceLock;
use std::time::Instant;

use bytes::Bytes;
use rocksdb::{ColumnFamily, DB, DBRawIterator, ErrorKind, Options, ReadOptions, WriteBatch, WriteOptions};

use super::{Engine, KeyValue, Visitor, rocks_options};
use crate::StorageError;
use crate::batch::{Batch, Write};
use crate::directory::Directory;
use crate::key::{self, ColumnFamilyId};
use crate::wal::{self, Mark};

/// An open database. Field order matters: the directory stays locked until RocksDB is closed.
pub(crate) struct RocksEngine {
    db: DB,
    place: String,
    directory: Directory,
    log_mark: OnceLock<Mark>,
    sync_seconds: metrics::Histogram,
}

impl RocksEngine {
    /// Opens the database in a directory that is already locked and checked.
    pub(crate) fn open(directory: Directory) -> Result<Self, StorageError> {
        let place = directory.location().to_owned();
        let path = directory.path().to_owned();
        let existing = existing_column_families(&directory)?;
        if let Some(existing) = &existing {
            let known = |name: &str| rocks_options::COLUMN_FAMILIES.iter().any(|(_, known)| *known == name);
            if let Some(unknown) = existing.iter().find(|name| !known(name)) {
                let found = format!("with column family {unknown:?}");
                return Err(StorageError::UnknownFormat { place, found, known: crate::recovery::FORMAT });
            }
            // Column families are created before the directory is marked, so none may be missing from a marked one.
            let missing =
                rocks_options::COLUMN_FAMILIES.iter().find(|(_, name)| !existing.iter().any(|found| found == name));
            if let (Some((_, name)), true) = (missing, directory.is_marked()) {
                return Err(StorageError::corrupt(&place, format!("column family {name:?} is missing")));
            }
            verify_replay(&path, &place, existing)?;
        }
        let db =
            DB::open_cf_descriptors(&rocks_options::db_options(), &path, rocks_options::column_family_descriptors())
                .map_err(|error| match existing {
                    Some(_) => open_error(&path, &place, "opening RocksDB", &error),
                    None => storage_error(&place, "opening RocksDB", &error),
                })?;
        let sync_seconds = metrics::histogram!("holdfast_storage_sync_seconds");
        Ok(Self { db, place, directory, log_mark: OnceLock::new(), sync_seconds })
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    fn column_family(&self, family: ColumnFamilyId) -> Result<&ColumnFamily, StorageError> {
        let name = rocks_options::column_family_name(family);
        self.db
            .cf_handle(name)
            .ok_or_else(|| StorageError::corrupt(&self.place, format!("column family {name:?} is missing")))
    }

    fn range_iterator(&self, from: &[u8], to: &[u8]) -> Result<DBRawIterator<'_>, StorageError> {
        let mut options = ReadOptions::default();
        options.set_iterate_lower_bound(from);
        options.set_iterate_upper_bound(to);
        options.set_verify_checksums(true);
        // A scan reads each block once, so it should not evict others from the cache.
        options.fill_cache(false);
        Ok(self.db.raw_iterator_cf_opt(self.column_family(ColumnFamilyId::of(from))?, options))
    }

    fn check_iterator(&self, cursor: &DBRawIterator<'_>) -> Result<(), StorageError> {
        cursor.status().map_err(|error| storage_error(&self.place, "reading", &error))
    }
}

impl Engine for RocksEngine {
    fn location(&self) -> &str {
        &self.place
    }

    fn set_store_id(&self, store_id: &str) {
        self.log_mark.get_or_init(|| Mark::of_store(store_id));
    }

    fn write_synced(&self, batch: &Batch) -> Result<(), StorageError> {
        let mut write = WriteBatch::with_capacity_bytes(batch.bytes() + (batch.writes().len() + 2) * 16);
        if let Some(mark) = self.log_mark.get() {
            write.put_log_data(mark.bytes());
        }
        for change in batch.writes() {
            match change {
                Write::Put(key, value) => write.put_cf(self.column_family(ColumnFamilyId::of(key))?, key, value),
                Write::Delete(key) => write.delete_cf(self.column_family(ColumnFamilyId::of(key))?, key),
                Write::DeleteRange(from, to) => {
                    write.delete_range_cf(self.column_family(ColumnFamilyId::of(from))?, from, to)
                }
            }
        }
        let mut options = WriteOptions::default();
        options.set_sync(true);
        let started = Instant::now();
        self.db.write_opt(write, &options).map_err(|error| storage_error(&self.place, "a synced write", &error))?;
        self.sync_seconds.record(started.elapsed().as_secs_f64());
        Ok(())
    }

    fn end_log(&self) -> Result<(), StorageError> {
        self.write_synced(&Batch::default())
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = rustix::fs::statvfs(self.directory.path()).ok()?;
        Some(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let value = self.db.get_pinned_cf(self.column_family(ColumnFamilyId::of(key))?, key);
        let value = value.map_err(|error| storage_error_at_key(&self.place, key, &error))?;
        Ok(value.map(|value| Bytes::copy_from_slice(&value)))
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visitor<'_>) -> Result<(), StorageError> {
        let mut cursor = self.range_iterator(from, to)?;
        cursor.seek_to_first();
        while let Some((key, value)) = cursor.item() {
            if !visit(key, value)? {
                return Ok(());
            }
            cursor.next();
        }
        cursor.status().map_err(|error| storage_error_at_key(&self.place, from, &error))
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<KeyValue>, StorageError> {
        let mut cursor = self.range_iterator(from, to)?;
        cursor.seek_to_last();
        let last = cursor.item().map(|(key, value)| (key.to_vec(), Bytes::copy_from_slice(value)));
        self.check_iterator(&cursor)?;
        Ok(last)
    }
}

/// Checks the log, and returns the column families of an existing database, or `None` if the directory has no database
/// yet.
fn existing_column_families(directory: &Directory) -> Result<Option<Vec<String>>, StorageError> {
    let (path, place) = (directory.path(), directory.location());
    if !path.join("CURRENT").exists() {
        return Ok(None);
    }
    wal::check_directory(path, directory.store_id().map(Mark::of_store))?;
    DB::list_cf(&Options::default(), path)
        .map(Some)
        .map_err(|error| open_error(path, place, "reading RocksDB's manifest", &error))
}

/// Lets RocksDB read the whole log in its strictest mode, without changing anything. The mode that allows recycled log
/// files would silently drop what follows a write that RocksDB can't apply.
fn verify_replay(path: &Path, place: &str, existing: &[String]) -> Result<(), StorageError> {
    let families = rocks_options::column_family_descriptors().into_iter();
    let families = families.filter(|family| existing.iter().any(|name| name == family.name()));
    DB::open_cf_descriptors_read_only(&rocks_options::replay_options(), path, families, false)
        .map(drop)
        .map_err(|error| open_error(path, place, "replaying RocksDB's log", &error))
}

/// Explains why an existing database can't be opened. RocksDB does not always report in which file it found the damage.
/// If a damaged file refers to others, RocksDB reports those as missing.
fn open_error(path: &Path, place: &str, action: &'static str, error: &rocksdb::Error) -> StorageError {
    let is_missing = error.as_ref().contains("No such file or directory");
    match storage_error(place, action, error) {
        StorageError::Io { cause: what, .. } if is_missing => {
            StorageError::corrupt(place, with_startup_files(path, &what))
        }
        StorageError::Corrupt { what, .. } => StorageError::corrupt(place, with_startup_files(path, &what)),
        other => other,
    }
}

/// Maximum tables that a description of damage names.
const MAX_NAMED_TABLES: usize = 32;

/// Returns the description of the damage. If it names no file that has data, adds the files that every open reads:
/// RocksDB blames the manifest for what is wrong with a table.
fn with_startup_files(path: &Path, what: &str) -> String {
    if what.contains(".sst") || what.contains(".log") {
        return what.to_owned();
    }
    let manifest = std::fs::read(path.join("CURRENT")).unwrap_or_default();
    let manifest = String::from_utf8_lossy(&manifest).trim().to_owned();
    let files = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names = files.map(|file| file.file_name().to_string_lossy().into_owned());
    let mut tables: Vec<String> = names.filter(|name| name.ends_with(".sst")).take(MAX_NAMED_TABLES).collect();
    tables.sort();
    let tables = tables.join(", ");
    format!("{what} (in CURRENT, in the manifest that it names, {manifest:?}, or in a table: {tables})")
}

fn storage_error(place: &str, action: &'static str, error: &rocksdb::Error) -> StorageError {
    match error.kind() {
        ErrorKind::Corruption => StorageError::corrupt(place, error.to_string()),
        _ if error.as_ref().contains("LOCK") => StorageError::InUse { place: place.to_owned() },
        _ => StorageError::io(place, action, error),
    }
}

fn storage_error_at_key(place: &str, key: &[u8], error: &rocksdb::Error) -> StorageError {
    match storage_error(place, "reading", error) {
        StorageError::Corrupt { place, what, .. } => {
            StorageError::Corrupt { place, what, replica: key::replica_of(key), index: None }
        }
        other => other,
    }
}
