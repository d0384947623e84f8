//! Reads one log file or manifest, and tells the end of an unsynced write from damage.
//!
//! The committer has one unsynced write at most. After a power loss any blocks of it may be missing, and what is in
//! their place is zeros or, in a recycled file, older data. So whatever follows the last whole write is no damage,
//! unless another write begins behind it: that one was begun after a sync of everything before it. A manifest may have
//! several unsynced records. It is never recycled, so what is missing of them has zeros.

use std::ops::Range;

use super::mark::Mark;
use super::record::{BLOCK_BYTES, Format, Record, block_end};

/// Bytes of a page, which reaches the disk as a whole or not at all.
const PAGE_BYTES: usize = 4096;
/// Bytes of a manifest that may be unsynced: the records of a flush are a few hundred each.
const MAX_UNSYNCED_MANIFEST_BYTES: usize = 64 * 1024;

/// The content of an undamaged file.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Contents {
    /// Where the last whole write ends.
    pub(super) end: usize,
    /// Bytes of the file.
    pub(super) length: usize,
    /// Whether there are parts of an unsynced write behind the end. Else there is nothing, zeros, or data of the file's
    /// earlier numbers.
    pub(super) is_torn: bool,
    /// Ends of blocks before the end that should be zeros and are not. The zeros were unsynced, and the write behind
    /// them reached the disk.
    pub(super) stale_gaps: Vec<Range<usize>>,
}

/// The first record of a file that is damaged, although a later write is whole.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Damage {
    pub(super) at: usize,
}

/// Reads a log file. Calls `visit` with each whole write up to the end. A file whose first write is whole and lacks the
/// mark is damaged: it is of another store, or the mark is wrong.
pub(super) fn read_log(
    data: &[u8],
    number: u64,
    mark: Option<Mark>,
    visit: &mut dyn FnMut(&[u8]),
) -> Result<Contents, Damage> {
    // A store that did not recycle its files has plain ones. It had no marks either.
    if Format::Plain.record_at(data, 0).is_some() {
        return LogReader { data, format: Format::Plain, mark: None, unsynced: 0 }.read(visit);
    }
    LogReader { data, format: Format::of_log(number), mark, unsynced: 0 }.read(visit)
}

/// Reads a manifest. Calls `visit` with each whole write up to the end.
pub(super) fn read_manifest(data: &[u8], visit: &mut dyn FnMut(&[u8])) -> Result<Contents, Damage> {
    LogReader { data, format: Format::Plain, mark: None, unsynced: MAX_UNSYNCED_MANIFEST_BYTES }.read(visit)
}

struct LogReader<'a> {
    data: &'a [u8],
    format: Format,
    /// `None` if nothing in the file was chosen by a client.
    mark: Option<Mark>,
    /// Bytes that may be unsynced although another write begins in them.
    unsynced: usize,
}

impl LogReader<'_> {
    fn read(&self, visit: &mut dyn FnMut(&[u8])) -> Result<Contents, Damage> {
        let mut contents = Contents { length: self.data.len(), ..Contents::default() };
        let (mut at, mut write, mut begin) = (0, Vec::new(), None);
        let invalid = loop {
            let rest = block_end(at) - at;
            if rest < self.format.header_bytes() {
                at += rest;
                continue;
            }
            let Some(record) = self.format.record_at(self.data, at) else { break at };
            if record.kind.begins_write() == begin.is_some() {
                break at;
            }
            let start = *begin.get_or_insert(at);
            write.extend_from_slice(&self.data[record.payload.clone()]);
            at = record.payload.end;
            if record.kind.ends_write() {
                if self.mark.is_some_and(|mark| !mark.is_in(&write)) {
                    if start == 0 {
                        return Err(Damage { at: start });
                    }
                    break start;
                }
                visit(&write);
                self.find_stale_gap(&mut contents, start);
                contents.end = at;
                write.clear();
                begin = None;
            }
        };
        contents.is_torn = self.search_behind(invalid)? || self.has_rest(contents.end, invalid);
        Ok(contents)
    }

    fn find_stale_gap(&self, contents: &mut Contents, start: usize) {
        let gap = contents.end..start;
        if self.data[gap.clone()].iter().any(|byte| *byte != 0) {
            contents.stale_gaps.push(gap);
        }
    }

    /// Fails if a later write of the store begins behind the first invalid record. Returns whether a block begins with
    /// another record of the same number: that belongs to the write that is not whole.
    fn search_behind(&self, invalid: usize) -> Result<bool, Damage> {
        let mut found = false;
        for at in invalid..self.data.len() {
            let Some(record) = self.format.header_at(self.data, at) else { continue };
            if record.kind.begins_write() {
                // The mark is checked first: clients can't make this search compute many checksums.
                if self.has_mark(&record) && record.is_whole(self.data) {
                    if at - invalid >= self.unsynced || !self.lacks_page(invalid, at) {
                        return Err(Damage { at: invalid });
                    }
                    found = true;
                }
            } else {
                found = found || at % BLOCK_BYTES == 0;
            }
        }
        Ok(found)
    }

    /// Returns whether a page between the two has zeros only, as far as it is behind the first.
    fn lacks_page(&self, invalid: usize, later: usize) -> bool {
        let mut start = invalid;
        loop {
            let end = (start / PAGE_BYTES + 1) * PAGE_BYTES;
            if end > later {
                return false;
            }
            if self.data[start..end].iter().all(|byte| *byte == 0) {
                return true;
            }
            start = end;
        }
    }

    /// Returns whether the write that begins with the record begins with the mark, if there is one. The end of a block
    /// may cut the mark in two.
    fn has_mark(&self, record: &Record) -> bool {
        let Some(mark) = self.mark else { return true };
        let end = record.payload.end;
        let mut head = self.data[record.payload.start..end.min(record.payload.start + Mark::HEAD_BYTES)].to_vec();
        if head.len() < Mark::HEAD_BYTES && end.is_multiple_of(BLOCK_BYTES) {
            let next = self.format.record_at(self.data, end);
            head.extend(next.iter().flat_map(|next| &self.data[next.payload.clone()]));
        }
        mark.is_in(&head)
    }

    /// Returns whether the file ends with the beginning of a write. A plain file has nothing else behind its end.
    fn has_rest(&self, end: usize, invalid: usize) -> bool {
        match self.format {
            Format::Plain => self.data[end..].iter().any(|byte| *byte != 0),
            Format::Recyclable { .. } => self.format.kind_at(self.data, invalid).is_some(),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::rngs::StdRng;
    use rand::{Rng, SeedableRng};

    use super::super::mark::testing::write;
    use super::super::record::Kind;
    use super::super::record::testing::{add_write, record};
    use super::*;

    const NUMBER: u64 = (7 << 32) + 12;
    const EARLIER: u64 = (7 << 32) + 8;

    fn mark() -> Mark {
        Mark::of_store("67e55044-10b1-426f-9247-bb680e5fe0c8")
    }

    /// A log file of three writes: one of a record, one over several blocks, one of a record.
    fn log(number: u64) -> Vec<u8> {
        let mut data = Vec::new();
        for (sequence, bytes) in [(1, 300), (2, 70_000), (3, 300)] {
            add_write(&mut data, Format::of_log(number), &write(Some(mark()), sequence, 1, &vec![b'x'; bytes]));
        }
        data
    }

    fn read(data: &[u8]) -> Result<(usize, Contents), Damage> {
        let mut writes = 0;
        let contents = read_log(data, NUMBER, Some(mark()), &mut |_| writes += 1)?;
        Ok((writes, contents))
    }

    /// The number of writes, and whether the file is torn.
    fn count(data: &[u8]) -> Result<(usize, bool), Damage> {
        read(data).map(|(writes, contents)| (writes, contents.is_torn))
    }

    /// A file with the first two writes, and where each ends.
    fn two_writes() -> (Vec<u8>, [usize; 3]) {
        let mut data = log(NUMBER);
        let last = data.len();
        let third = write(Some(mark()), 3, 1, &[b'x'; 300]).len() + 11;
        let first = write(Some(mark()), 1, 1, &[b'x'; 300]).len() + 11;
        data.truncate(last - third);
        (data, [first, last - third, last])
    }

    #[test]
    fn a_file_cut_off_anywhere_ends_with_its_last_whole_write() {
        let data = log(NUMBER);
        let (_, [first, second, third]) = two_writes();
        for length in (0..data.len()).step_by(97).chain(second - 40..=third) {
            let writes = [first, second, third].iter().filter(|end| **end <= length).count();
            let (found, contents) = read(&data[..length]).unwrap();
            assert_eq!((found, contents.length), (writes, length));
            assert_eq!(contents.end, [0, first, second, third][writes]);
        }
        assert_eq!(count(&data), Ok((3, false)));
    }

    #[test]
    fn every_flipped_bit_before_the_last_write_is_damage_and_in_the_last_write_a_torn_one() {
        let data = log(NUMBER);
        let (_, [first, second, _]) = two_writes();
        // All bits of headers, and one of each sampled byte.
        let headers = [0, first, BLOCK_BYTES, second].into_iter().flat_map(|at| at..at + 14);
        let bits = headers.flat_map(|at| (0..8).map(move |bit| (at, bit)));
        for (at, bit) in bits.chain((0..data.len()).step_by(53).map(|at| (at, at % 8))) {
            let mut damaged = data.clone();
            damaged[at] ^= 1 << bit;
            let found = read(&damaged);
            if at < second {
                let damage = found.expect_err("a later write is whole");
                assert!(damage.at <= at && at - damage.at < BLOCK_BYTES, "bit {bit} of byte {at}: {damage:?}");
            } else {
                let (writes, contents) = found.unwrap_or_else(|damage| panic!("bit {bit} of byte {at}: {damage:?}"));
                assert_eq!((writes, contents.end), (2, second));
            }
        }
    }

    #[test]
    fn data_of_an_earlier_number_behind_the_end_is_not_counted() {
        let (mut data, [_, second, _]) = two_writes();
        let older = log(EARLIER);
        let longer = [&older[..], &log(EARLIER)].concat();
        data.extend_from_slice(&longer[second..]);
        let (writes, contents) = read(&data).unwrap();
        assert_eq!((writes, contents.end, contents.is_torn), (2, second, false));
        // A file that is renamed and has nothing of its own yet.
        assert_eq!(count(&older), Ok((0, false)));
        // The same writes of an earlier number at the very place of the next one.
        let (mut data, _) = two_writes();
        data.extend(record(Format::of_log(EARLIER), Kind::Full, &write(Some(mark()), 3, 1, b"old")));
        assert_eq!(count(&data), Ok((2, false)));
    }

    #[test]
    fn blocks_of_the_last_write_may_be_missing_in_any_combination() {
        const PAGE: usize = 4096;
        let format = Format::of_log(NUMBER);
        let random = &mut StdRng::seed_from_u64(4);
        let (before, [_, second, _]) = two_writes();
        for older in [Vec::new(), log(EARLIER).repeat(3)] {
            let mut whole = before.clone();
            add_write(&mut whole, format, &write(Some(mark()), 3, 1, &forged_records().repeat(1000)));
            let pages = second / PAGE..whole.len().div_ceil(PAGE);
            assert!(pages.len() > 40);
            for sample in 0..120 {
                let mut data = whole.clone();
                let mut missing = 0;
                for page in pages.clone() {
                    // Each single block first, then random ones.
                    let is_missing = if sample < pages.len() { page - pages.start == sample } else { random.random() };
                    if is_missing {
                        missing += 1;
                        for at in (page * PAGE).max(second)..((page + 1) * PAGE).min(data.len()) {
                            data[at] = older.get(at).copied().unwrap_or(0);
                        }
                    }
                }
                let (writes, contents) = read(&data).unwrap_or_else(|damage| panic!("sample {sample}: {damage:?}"));
                assert_eq!(writes, if missing == 0 { 3 } else { 2 }, "sample {sample}");
                assert!(missing == 0 || contents.end == second);
            }
        }
    }

    /// What a client could write who knows the number of the file, but not the mark.
    fn forged_records() -> Vec<u8> {
        let mut forged = Vec::new();
        for kind in [Kind::Full, Kind::First, Kind::Middle, Kind::Last] {
            forged.extend(record(Format::of_log(NUMBER), kind, &write(None, 9, 1, b"forged")));
            forged.extend(record(Format::Plain, kind, &write(None, 9, 1, b"forged")));
        }
        forged
    }

    #[test]
    fn a_write_without_the_mark_is_not_counted_and_is_no_witness() {
        let (mut data, [_, second, _]) = two_writes();
        data.extend(forged_records());
        let (writes, contents) = read(&data).unwrap();
        assert_eq!((writes, contents.end, contents.is_torn), (2, second, true));
        let other = Mark::of_store("67e55044-10b1-426f-9247-bb680e5fe0c9");
        let found = read_log(&log(NUMBER), NUMBER, Some(other), &mut |_| panic!("no write has this mark"));
        assert_eq!(found, Err(Damage { at: 0 }), "nothing of another store is cut off");
        // A directory without an owner has no data of clients, and no mark is known.
        let mut writes = 0;
        read_log(&log(NUMBER), NUMBER, None, &mut |_| writes += 1).unwrap();
        assert_eq!(writes, 3);
    }

    /// A manifest whose second record has this many bytes, and where that begins and ends.
    fn manifest(second: usize) -> (Vec<u8>, [usize; 2]) {
        let (mut data, mut ends) = (Vec::new(), Vec::new());
        for bytes in [3_000, second, 3_000, 5_000] {
            add_write(&mut data, Format::Plain, &vec![b'x'; bytes]);
            ends.push(data.len());
        }
        (data, [ends[0], ends[1]])
    }

    #[test]
    fn a_page_of_the_records_of_a_flush_may_be_missing_in_a_manifest_and_no_other_byte() {
        let (whole, [begin, end]) = manifest(6_000);
        for page in begin / PAGE_BYTES..=end / PAGE_BYTES {
            let mut data = whole.clone();
            data[(page * PAGE_BYTES).max(begin)..(page + 1) * PAGE_BYTES].fill(0);
            let contents = read_manifest(&data, &mut |_| {}).unwrap();
            assert_eq!((contents.end, contents.is_torn), (begin, true), "page {page}");
        }
        for at in (begin..end).step_by(97) {
            let mut data = whole.clone();
            data[at] ^= 1;
            assert_eq!(read_manifest(&data, &mut |_| {}), Err(Damage { at: begin }), "byte {at}");
        }
        let (mut data, [begin, _]) = manifest(MAX_UNSYNCED_MANIFEST_BYTES);
        data[begin..PAGE_BYTES].fill(0);
        assert_eq!(read_manifest(&data, &mut |_| {}), Err(Damage { at: begin }), "that was synced");
    }

    #[test]
    fn a_later_write_is_a_witness_wherever_a_block_cuts_its_mark() {
        let format = Format::of_log(NUMBER);
        // Between the first header that fits at the end of a block, and the first whole mark.
        for rest in 0..60 {
            let mut data = Vec::new();
            let length = BLOCK_BYTES - rest - 11 - Mark::HEAD_BYTES;
            add_write(&mut data, format, &write(Some(mark()), 1, 1, &vec![b'x'; length]));
            assert_eq!(data.len(), BLOCK_BYTES - rest);
            add_write(&mut data, format, &write(Some(mark()), 2, 1, &[b'y'; 100]));
            assert_eq!(count(&data), Ok((2, false)), "{rest}");
            data[500] ^= 1;
            assert_eq!(count(&data), Err(Damage { at: 0 }), "{rest}");
        }
    }

    #[test]
    fn older_data_in_the_rest_of_a_block_is_found_and_no_damage() {
        let format = Format::of_log(NUMBER);
        let mut data = Vec::new();
        add_write(&mut data, format, &write(Some(mark()), 1, 1, &vec![b'x'; BLOCK_BYTES - 8 - 11 - Mark::HEAD_BYTES]));
        add_write(&mut data, format, &write(Some(mark()), 2, 1, b"next block"));
        data[BLOCK_BYTES - 3] = 1;
        let (writes, contents) = read(&data).unwrap();
        assert_eq!((writes, contents.end), (2, data.len()));
        assert_eq!(contents.stale_gaps, std::slice::from_ref(&(BLOCK_BYTES - 8..BLOCK_BYTES)));
    }

    #[test]
    fn plain_files_are_read_too_and_every_flipped_bit_before_the_last_write_is_damage() {
        let mut data = Vec::new();
        for sequence in 1..4 {
            add_write(&mut data, Format::Plain, &write(None, sequence, 1, b"of a store without recycling"));
        }
        assert_eq!(count(&data), Ok((3, false)));
        let last = data.len() / 3 * 2;
        for bit in 0..last * 8 {
            let mut damaged = data.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(read_manifest(&damaged, &mut |_| {}).is_err(), "bit {bit}");
        }
        let torn = [&data[..data.len() - 1], &[0; 100]].concat();
        let contents = read_manifest(&torn, &mut |_| {}).unwrap();
        assert_eq!((contents.end, contents.is_torn), (last, true));
        let unwritten = [&data[..], &[0; 100]].concat();
        let contents = read_manifest(&unwritten, &mut |_| {}).unwrap();
        assert_eq!((contents.end, contents.is_torn), (data.len(), false));
    }
}
