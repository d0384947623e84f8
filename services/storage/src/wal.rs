//! Checks RocksDB's write-ahead log strictly before RocksDB reads it, and its manifest, which has the same format.
//!
//! RocksDB detects a wrong checksum. It does not detect a damaged length near the end of the file, which it treats as a
//! torn write. Nor does it detect a type that changed into one of a recycled file, which it treats as old data. Both
//! would silently drop acknowledged writes. This check accepts only complete records, followed by at most one record
//! that the end of the file cuts off. Such a torn tail was never acknowledged, because every write is synced before its
//! acknowledgement.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::StorageError;

const BLOCK_BYTES: usize = 32 * 1024;
/// Checksum (4), length (2), type (1).
const HEADER_BYTES: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Rejects the directory if one of its log files is damaged. The error names the file and the offset in it.
pub(crate) fn check_directory(directory: &Path) -> Result<(), StorageError> {
    let place = directory.display().to_string();
    let failed = |error: std::io::Error| StorageError::io(&place, "listing the data directory", error);
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let is_manifest = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"MANIFEST-"));
        if is_manifest || path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    files.iter().try_for_each(|file| check_file(file))
}

fn check_file(path: &Path) -> Result<(), StorageError> {
    let place = path.display().to_string();
    let failed = |error: std::io::Error| StorageError::io(&place, "reading a log file", error);
    let mut file = File::open(path).map_err(failed)?;
    let mut check = LogChecker::default();
    let mut block = Vec::with_capacity(BLOCK_BYTES);
    loop {
        block.clear();
        file.by_ref().take(BLOCK_BYTES as u64).read_to_end(&mut block).map_err(failed)?;
        let at_end = block.len() < BLOCK_BYTES;
        check.check_block(&block, at_end).map_err(|damage| {
            let what = format!("{} at byte {}", damage.what, check.offset + damage.at as u64);
            StorageError::corrupt(&place, what)
        })?;
        check.offset += block.len() as u64;
        if at_end {
            return Ok(());
        }
    }
}

struct Damage {
    what: &'static str,
    at: usize,
}

#[derive(Default)]
struct LogChecker {
    /// Offset of the current block in the file.
    offset: u64,
    /// Whether the current write continues in the next record.
    in_fragmented_write: bool,
    /// Whether only zeros may follow: space that was allocated and never written.
    only_zeros: bool,
}

impl LogChecker {
    fn check_block(&mut self, block: &[u8], at_end: bool) -> Result<(), Damage> {
        let mut at = 0;
        while at + HEADER_BYTES <= block.len() || (self.only_zeros && at < block.len()) {
            let rest = &block[at..];
            if self.only_zeros || is_unwritten(rest) {
                if rest.iter().any(|byte| *byte != 0) {
                    return Err(Damage { what: "data after unwritten space", at });
                }
                self.only_zeros = true;
                return Ok(());
            }
            let length = usize::from(u16::from_le_bytes([rest[4], rest[5]]));
            let Some(body) = rest.get(6..HEADER_BYTES + length) else {
                if at_end && !is_damaged_length(rest) {
                    return Ok(());
                }
                return Err(Damage { what: "damaged length of a record", at });
            };
            if !checksum_matches(rest, body) {
                return Err(Damage { what: "checksum mismatch of a record", at });
            }
            self.check_fragment_order(rest[6]).map_err(|what| Damage { what, at })?;
            at += HEADER_BYTES + length;
        }
        Ok(())
    }

    /// Checks that the records of a write are in order: first, middle ones, last; or one full record.
    fn check_fragment_order(&mut self, kind: u8) -> Result<(), &'static str> {
        let (expected_inside, inside_after) = match kind {
            FULL => (false, false),
            FIRST => (false, true),
            MIDDLE => (true, true),
            LAST => (true, false),
            _ => return Err("unknown type of a record"),
        };
        if self.in_fragmented_write != expected_inside {
            return Err("a record in the wrong place");
        }
        self.in_fragmented_write = inside_after;
        Ok(())
    }
}

fn is_unwritten(rest: &[u8]) -> bool {
    rest[..HEADER_BYTES].iter().all(|byte| *byte == 0)
}

/// Returns whether a record that the end of the file seems to cut off is actually complete, with a damaged length. Its
/// checksum then matches for a shorter length, or another complete record begins after its start.
fn is_damaged_length(rest: &[u8]) -> bool {
    let mut checksum = crc32c::crc32c(&rest[6..HEADER_BYTES]);
    for byte in &rest[HEADER_BYTES..] {
        if mask(checksum) == stored_checksum(rest) {
            return true;
        }
        checksum = crc32c::crc32c_append(checksum, std::slice::from_ref(byte));
    }
    if mask(checksum) == stored_checksum(rest) {
        return true;
    }
    (1..rest.len().saturating_sub(HEADER_BYTES)).any(|start| {
        let candidate = &rest[start..];
        let length = usize::from(u16::from_le_bytes([candidate[4], candidate[5]]));
        let body = candidate.get(6..HEADER_BYTES + length);
        matches!(candidate[6], FULL..=LAST) && body.is_some_and(|body| checksum_matches(candidate, body))
    })
}

/// Returns whether the checksum matches. `body` is the type and the payload of the record that begins with `record`.
fn checksum_matches(record: &[u8], body: &[u8]) -> bool {
    mask(crc32c::crc32c(body)) == stored_checksum(record)
}

fn stored_checksum(record: &[u8]) -> u32 {
    u32::from_le_bytes([record[0], record[1], record[2], record[3]])
}

/// Returns the masked form in which a checksum is stored, so that checksums of data that contains checksums stay
/// effective.
fn mask(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: u8, payload: &[u8]) -> Vec<u8> {
        let body = [&[kind], payload].concat();
        let mut record = mask(crc32c::crc32c(&body)).to_le_bytes().to_vec();
        record.extend_from_slice(&u16::try_from(payload.len()).expect("payloads of tests are short").to_le_bytes());
        record.extend_from_slice(&body);
        record
    }

    fn file() -> Vec<u8> {
        [record(FULL, b"first write"), record(FIRST, b"a write in"), record(LAST, b"two parts"), record(FULL, b"end")]
            .concat()
    }

    fn is_accepted(data: &[u8]) -> bool {
        LogChecker::default().check_block(data, true).is_ok()
    }

    #[test]
    fn a_file_cut_off_anywhere_is_a_torn_tail() {
        let file = file();
        assert!((0..=file.len()).all(|length| is_accepted(&file[..length])));
    }

    #[test]
    fn every_flipped_bit_is_refused() {
        let file = file();
        for bit in 0..file.len() * 8 {
            let mut damaged = file.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_accepted(&damaged), "bit {} of byte {}", bit % 8, bit / 8);
        }
    }

    #[test]
    fn unwritten_space_is_accepted_at_the_end_only() {
        let whole = file();
        assert!(is_accepted(&[&whole[..], &[0; 100]].concat()));
        assert!(!is_accepted(&[&whole[..], &[0; 100], &record(FULL, b"more")].concat()));
    }
}
