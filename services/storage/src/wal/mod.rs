//! Checks RocksDB's write-ahead log and manifest before RocksDB reads them, and cuts off an unsynced write at the end.
//!
//! RocksDB can't tell a torn write at the end of a log from damage, and would silently drop what follows the damage. In
//! a recycled file, older data follows the last write, which looks like damage too. This check reads the files that
//! RocksDB will read (`record`, `log_file`). It rejects a damaged record if the store's next write is behind it, and
//! log files between which writes are missing. What is left is a write that was never acknowledged: each write is
//! synced before its acknowledgement, and before the next one begins. The check cuts that off (`repair`).
//!
//! The last write of all has no later one as its witness. If it was synced and then damaged, it looks torn. A store
//! that is closed therefore adds an empty write. After a crash, only a leader can notice the loss of the last write.

mod log_file;
mod manifest;
mod mark;
mod record;
mod repair;

use std::fs;
use std::path::{Path, PathBuf};

use self::log_file::{Contents, Damage, read_log};
pub(crate) use self::mark::Mark;
use crate::StorageError;

/// A log file or manifest without damage.
struct CheckedFile {
    path: PathBuf,
    contents: Contents,
}

impl CheckedFile {
    fn new(path: PathBuf, contents: Result<Contents, Damage>) -> Result<Self, StorageError> {
        match contents {
            Ok(contents) => Ok(Self { path, contents }),
            Err(Damage { at }) => {
                let what = format!("a damaged record at byte {at}, before a write that is whole");
                Err(StorageError::corrupt(&path.display().to_string(), what))
            }
        }
    }
}

/// The sequence numbers of the writes of a log file. RocksDB numbers all changes without a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sequences {
    first: u64,
    next: u64,
}

impl Sequences {
    /// Returns the sequence numbers of one write.
    fn of_write(write: &[u8]) -> Option<Self> {
        let (first, rest) = write.split_first_chunk()?;
        let first = u64::from_le_bytes(*first);
        let changes = u32::from_le_bytes(*rest.first_chunk()?);
        Some(Self { first, next: first.saturating_add(changes.into()) })
    }
}

/// Checks the directory, and then cuts off unsynced writes. `mark` is that of the store, or `None` if the directory has
/// no owner yet, and so no data of clients.
///
/// # Errors
/// `Corrupt` names the damaged file and the offset in it, and nothing is changed.
pub(crate) fn check_directory(directory: &Path, mark: Option<Mark>) -> Result<(), StorageError> {
    let (manifest, min_log_number) = manifest::check_manifest(directory)?;
    let mut files = vec![manifest];
    let mut previous: Option<(CheckedFile, Option<Sequences>)> = None;
    for (number, path) in log_files(directory, min_log_number)? {
        let (file, sequences) = check_log(number, path, mark)?;
        if let Some((previous, before)) = previous {
            check_order(&previous, before, sequences)?;
            files.push(previous);
        }
        previous = Some((file, sequences));
    }
    files.extend(previous.map(|(file, _)| file));
    files.iter().try_for_each(|file| repair::repair(directory, file))
}

/// Returns the log files from this number on, in the order of their numbers.
fn log_files(directory: &Path, min_log_number: u64) -> Result<Vec<(u64, PathBuf)>, StorageError> {
    let place = directory.display().to_string();
    let failed = |error: std::io::Error| StorageError::io(&place, "listing the data directory", error);
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_log = path.extension().is_some_and(|extension| extension == "log");
        let number = path.file_stem().and_then(|stem| stem.to_str()).and_then(|stem| stem.parse().ok());
        match number {
            Some(number) if is_log && number >= min_log_number => files.push((number, path)),
            _ => {}
        }
    }
    files.sort();
    Ok(files)
}

fn check_log(number: u64, path: PathBuf, mark: Option<Mark>) -> Result<(CheckedFile, Option<Sequences>), StorageError> {
    let data = read_file(&path)?;
    let mut sequences: Option<Sequences> = None;
    let contents = read_log(&data, number, mark, &mut |write| {
        let Some(found) = Sequences::of_write(write) else { return };
        sequences.get_or_insert(found).next = found.next;
    });
    Ok((CheckedFile::new(path, contents)?, sequences))
}

/// Rejects a log file that does not end where the next one begins. RocksDB begins the next one once all writes to the
/// one before are synced. The zeros or older data at the end of a file would hide lost writes otherwise.
fn check_order(
    previous: &CheckedFile,
    before: Option<Sequences>,
    after: Option<Sequences>,
) -> Result<(), StorageError> {
    let Some(after) = after else { return Ok(()) };
    let next = before.map(|before| before.next);
    if next == Some(after.first) {
        return Ok(());
    }
    let expected = next.map_or_else(|| "the first one".to_owned(), |next| next.to_string());
    let what = format!(
        "writes are missing at byte {}: the next log file begins with change {}, not {expected}",
        previous.contents.end, after.first
    );
    Err(StorageError::corrupt(&previous.path.display().to_string(), what))
}

fn read_file(path: &Path) -> Result<Vec<u8>, StorageError> {
    fs::read(path).map_err(|error| StorageError::io(&path.display().to_string(), "reading a file", error))
}
