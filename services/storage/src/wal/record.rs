//! The records of RocksDB's log files and manifests, as `db/log_format.h` in its source has them. A file consists of
//! blocks of 32 KiB. A write is one record, or several if it does not fit into the rest of a block. A rest that is too
//! short for a header has zeros.

use std::ops::Range;

pub(super) const BLOCK_BYTES: usize = 32 * 1024;

/// Checksum (4), length (2), kind (1).
const PLAIN_HEADER_BYTES: usize = 7;
/// The same, and the low 32 bits of the number of the file (4).
const RECYCLABLE_HEADER_BYTES: usize = 11;
/// The checksum covers everything from here.
const KIND_AT: usize = 6;
/// What RocksDB adds to the number of a kind in a recyclable file.
const RECYCLABLE_KINDS: u8 = 4;

/// Which part of a write a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Full,
    First,
    Middle,
    Last,
}

impl Kind {
    fn of(number: u8) -> Option<Self> {
        match number {
            1 => Some(Self::Full),
            2 => Some(Self::First),
            3 => Some(Self::Middle),
            4 => Some(Self::Last),
            _ => None,
        }
    }

    pub(super) fn begins_write(self) -> bool {
        matches!(self, Self::Full | Self::First)
    }

    pub(super) fn ends_write(self) -> bool {
        matches!(self, Self::Full | Self::Last)
    }
}

/// The header of the records of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// A manifest, or a log file of a store that does not recycle them.
    Plain,
    /// A log file with this number. It may have had other numbers before, and then has records with those behind its
    /// end.
    Recyclable { number: u32 },
}

impl Format {
    /// Returns the format of a log file with this number.
    pub(super) fn of_log(number: u64) -> Self {
        let [a, b, c, d, ..] = number.to_le_bytes();
        Self::Recyclable { number: u32::from_le_bytes([a, b, c, d]) }
    }

    pub(super) fn header_bytes(self) -> usize {
        match self {
            Self::Plain => PLAIN_HEADER_BYTES,
            Self::Recyclable { .. } => RECYCLABLE_HEADER_BYTES,
        }
    }

    /// Returns the kind in the header at `at`, or `None` if there is no header of this file. Does not check length and
    /// checksum.
    pub(super) fn kind_at(self, data: &[u8], at: usize) -> Option<Kind> {
        let header = data.get(at..at + self.header_bytes())?;
        match self {
            Self::Plain => Kind::of(header[KIND_AT]),
            Self::Recyclable { number } => {
                let kind = Kind::of(header[KIND_AT].wrapping_sub(RECYCLABLE_KINDS))?;
                (header[PLAIN_HEADER_BYTES..] == number.to_le_bytes()).then_some(kind)
            }
        }
    }

    /// Returns the record whose header is at `at`, if its length fits into block and file. Does not check the checksum.
    pub(super) fn header_at(self, data: &[u8], at: usize) -> Option<Record> {
        let kind = self.kind_at(data, at)?;
        let length = usize::from(u16::from_le_bytes([data[at + 4], data[at + 5]]));
        let start = at + self.header_bytes();
        let payload = start..start + length;
        (payload.end <= block_end(at).min(data.len())).then_some(Record { kind, start: at, payload })
    }

    /// Returns the record at `at`, if it is whole.
    pub(super) fn record_at(self, data: &[u8], at: usize) -> Option<Record> {
        self.header_at(data, at).filter(|record| record.is_whole(data))
    }
}

/// A record of a file.
pub(super) struct Record {
    pub(super) kind: Kind,
    start: usize,
    pub(super) payload: Range<usize>,
}

impl Record {
    /// Returns whether the checksum matches.
    pub(super) fn is_whole(&self, data: &[u8]) -> bool {
        let stored = data[self.start..].first_chunk().map(|bytes| u32::from_le_bytes(*bytes));
        stored == Some(mask(crc32c::crc32c(&data[self.start + KIND_AT..self.payload.end])))
    }
}

/// Returns the end of the block of `at`.
pub(super) fn block_end(at: usize) -> usize {
    (at / BLOCK_BYTES + 1) * BLOCK_BYTES
}

/// Returns the masked form in which a checksum is stored, so that checksums of data that contains checksums stay
/// effective.
fn mask(checksum: u32) -> u32 {
    checksum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
pub(super) mod testing {
    //! Writes files as RocksDB does.

    use super::*;

    /// Returns one record.
    pub(crate) fn record(format: Format, kind: Kind, payload: &[u8]) -> Vec<u8> {
        let (added, number) = match format {
            Format::Plain => (0, Vec::new()),
            Format::Recyclable { number } => (RECYCLABLE_KINDS, number.to_le_bytes().to_vec()),
        };
        let body = [&[kind as u8 + 1 + added], &number[..], payload].concat();
        let mut record = mask(crc32c::crc32c(&body)).to_le_bytes().to_vec();
        record.extend_from_slice(&u16::try_from(payload.len()).expect("a record fits into a block").to_le_bytes());
        record.extend_from_slice(&body);
        record
    }

    /// Appends a write to a file.
    pub(crate) fn add_write(data: &mut Vec<u8>, format: Format, mut payload: &[u8]) {
        let mut begins = true;
        loop {
            let mut rest = block_end(data.len()) - data.len();
            if rest < format.header_bytes() {
                data.extend(std::iter::repeat_n(0, rest));
                rest = BLOCK_BYTES;
            }
            let (fragment, later) = payload.split_at(payload.len().min(rest - format.header_bytes()));
            let kind = match (begins, later.is_empty()) {
                (true, true) => Kind::Full,
                (true, false) => Kind::First,
                (false, false) => Kind::Middle,
                (false, true) => Kind::Last,
            };
            data.extend(record(format, kind, fragment));
            if later.is_empty() {
                return;
            }
            (payload, begins) = (later, false);
        }
    }
}
