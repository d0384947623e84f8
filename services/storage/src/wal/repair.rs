//! Brings a checked file into the form that RocksDB reads to the same end: RocksDB can't tell a torn write from damage
//! or from older data of a recycled file.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::CheckedFile;
use crate::StorageError;

/// The extension of the file with the rest of a torn write. Neither RocksDB nor this crate reads it.
const TORN: &str = "torn";

/// Cuts off what is behind the last whole write. A torn write is saved first, in a file beside it; there is one such
/// file at most.
pub(super) fn repair(directory: &Path, file: &CheckedFile) -> Result<(), StorageError> {
    let CheckedFile { path, contents } = file;
    if contents.end == contents.length && contents.stale_gaps.is_empty() {
        return Ok(());
    }
    let cut = || -> io::Result<()> {
        if contents.is_torn {
            save_rest(directory, path, contents.end)?;
        }
        let file = OpenOptions::new().write(true).open(path)?;
        for gap in &contents.stale_gaps {
            file.write_all_at(&vec![0; gap.len()], gap.start as u64)?;
        }
        file.set_len(contents.end as u64)?;
        file.sync_all()?;
        File::open(directory)?.sync_all()
    };
    let place = path.display().to_string();
    cut().map_err(|error| StorageError::io(&place, "cutting off an unsynced write", error))?;
    if contents.is_torn {
        let at = contents.end;
        tracing::warn!(file = place, at, "unacknowledged torn write truncated");
    }
    Ok(())
}

fn save_rest(directory: &Path, path: &Path, end: usize) -> io::Result<()> {
    for entry in fs::read_dir(directory)? {
        let old = entry?.path();
        if old.extension().is_some_and(|extension| extension == TORN) {
            fs::remove_file(old)?;
        }
    }
    let mut saved = path.as_os_str().to_owned();
    saved.push(".");
    saved.push(TORN);
    let mut file = File::create(saved)?;
    file.write_all(fs::read(path)?.get(end..).unwrap_or_default())?;
    file.sync_all()
}
