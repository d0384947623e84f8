//! Reads the manifest that CURRENT names. It has the same records as a log file, and says which log files have data
//! that is in no table yet.

use std::path::{Path, PathBuf};

use super::CheckedFile;
use super::log_file::read_manifest;
use crate::StorageError;

// Tags of RocksDB's `VersionEdit::EncodeTo`, in the order in which it writes them. Files follow.
const DATABASE_ID: u64 = (1 << 13) + 1;
const COMPARATOR: u64 = 1;
const LOG_NUMBER: u64 = 2;
const PREVIOUS_LOG_NUMBER: u64 = 9;
const NEXT_FILE_NUMBER: u64 = 3;
const MAX_COLUMN_FAMILY: u64 = 203;
const MIN_LOG_NUMBER: u64 = 10;

/// Reads the manifest. Returns it, and the lowest number of a log file that may have data. RocksDB ignores log files
/// with lower numbers; it deletes them, or renames them and writes into them under a higher number.
pub(super) fn check_manifest(directory: &Path) -> Result<(CheckedFile, u64), StorageError> {
    let path = current_manifest(directory)?;
    let data = super::read_file(&path)?;
    let mut min_log_number = 0;
    let contents = read_manifest(&data, &mut |edit| {
        min_log_number = min_log_number.max(min_log_number_of(edit).unwrap_or(0));
    });
    Ok((CheckedFile::new(path, contents)?, min_log_number))
}

fn current_manifest(directory: &Path) -> Result<PathBuf, StorageError> {
    let current = directory.join("CURRENT");
    let place = current.display().to_string();
    let content = super::read_file(&current)?;
    let name = content.strip_suffix(b"\n").and_then(|name| std::str::from_utf8(name).ok());
    let path = name.filter(|name| name.starts_with("MANIFEST-")).map(|name| directory.join(name));
    path.filter(|path| path.is_file()).ok_or_else(|| {
        let named = String::from_utf8_lossy(&content);
        StorageError::corrupt(&place, format!("it names no manifest of the directory, but {:?}", named.trim()))
    })
}

/// Returns the lowest number of a log file to keep, if the edit sets it.
fn min_log_number_of(edit: &[u8]) -> Option<u64> {
    let mut rest = edit;
    loop {
        match take_varint(&mut rest)? {
            MIN_LOG_NUMBER => return take_varint(&mut rest),
            LOG_NUMBER | PREVIOUS_LOG_NUMBER | NEXT_FILE_NUMBER | MAX_COLUMN_FAMILY => {
                take_varint(&mut rest)?;
            }
            DATABASE_ID | COMPARATOR => {
                let length = usize::try_from(take_varint(&mut rest)?).ok()?;
                rest = rest.get(length..)?;
            }
            _ => return None,
        }
    }
}

/// Takes a number from the front: seven bits a byte, the lowest first.
fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..u64::BITS).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        number |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_log_number_is_found_behind_the_other_fields() {
        let id = [&[0x81, 0x40, 3][..], b"abc"].concat();
        let edit = [&id[..], &[1, 1, b'c', 2, 5, 9, 0, 3, 0x80, 1, 203, 1, 2], &[10, 0xac, 2], &[4, 9]].concat();
        assert_eq!(min_log_number_of(&edit), Some(300));
        for length in 0..edit.len() - 2 {
            let cut = min_log_number_of(&edit[..length]);
            assert!(cut.is_none(), "{length}: {cut:?}");
        }
    }

    #[test]
    fn an_edit_without_it_and_an_overlong_number_have_none() {
        assert_eq!(min_log_number_of(&[2, 5, 103, 10, 7]), None);
        assert_eq!(min_log_number_of(&[]), None);
        assert_eq!(min_log_number_of(&[[10].as_slice(), &[0xff; 11]].concat()), None);
    }
}
