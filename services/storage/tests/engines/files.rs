//! The files of RocksDB in a data directory.

use std::fs;
use std::path::{Path, PathBuf};

/// The files with this extension, in order.
pub(crate) fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = entries.filter(|path| path.extension().is_some_and(|found| found == extension)).collect();
    files.sort();
    files
}

/// The log file that has the data: RocksDB keeps empty ones beside it.
pub(crate) fn log_file(dir: &Path) -> PathBuf {
    files(dir, "log").into_iter().max_by_key(|path| fs::metadata(path).unwrap().len()).expect("there is a log file")
}

/// The manifest that CURRENT names.
pub(crate) fn manifest(dir: &Path) -> PathBuf {
    dir.join(fs::read_to_string(dir.join("CURRENT")).unwrap().trim())
}

/// A fresh copy, because RocksDB changes a directory that it opens. The copy of an open store is what a power loss
/// leaves, if all blocks reached the disk.
pub(crate) fn copy(from: &Path) -> tempfile::TempDir {
    let to = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.path().join(path.file_name().unwrap())).unwrap();
    }
    to
}
