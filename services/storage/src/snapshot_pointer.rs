//! The record of a replica's current snapshot: its parts, each with the generation of its pieces.
//!
//! ```text
//! record := format u8 · number of parts u32 · part* · meta
//! part   := generation u64 · pieces u32 · length of the name u16 · name          all numbers big-endian
//! ```

use std::ops::Range;

use bytes::{Buf, Bytes};

/// The format of the record, and the only one that this version reads.
const FORMAT: u8 = 1;

/// The current snapshot of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotPointer {
    /// In the order in which they were saved.
    pub(crate) parts: Vec<PartPointer>,
    pub(crate) meta: Bytes,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartPointer {
    pub(crate) name: String,
    /// No other part of any replica has it.
    pub(crate) generation: u64,
    pub(crate) pieces: u32,
}

impl SnapshotPointer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = vec![FORMAT];
        record.extend_from_slice(&(self.parts.len() as u32).to_be_bytes());
        for PartPointer { name, generation, pieces } in &self.parts {
            record.extend_from_slice(&generation.to_be_bytes());
            record.extend_from_slice(&pieces.to_be_bytes());
            record.extend_from_slice(&(name.len() as u16).to_be_bytes());
            record.extend_from_slice(name.as_bytes());
        }
        record.extend_from_slice(&self.meta);
        record
    }

    /// Decodes a record; returns `None` if it is cut off or has another format.
    pub(crate) fn decode(mut record: Bytes) -> Option<Self> {
        if take::<1>(&mut record)? != [FORMAT] {
            return None;
        }
        let mut parts = Vec::new();
        for _ in 0..u32::from_be_bytes(take(&mut record)?) {
            let generation = u64::from_be_bytes(take(&mut record)?);
            let pieces = u32::from_be_bytes(take(&mut record)?);
            let length = usize::from(u16::from_be_bytes(take(&mut record)?));
            let name = String::from_utf8(record.get(..length)?.to_vec()).ok()?;
            record.advance(length);
            parts.push(PartPointer { name, generation, pieces });
        }
        Some(Self { parts, meta: record })
    }

    /// Returns the ranges of generations below `end` that no part has.
    pub(crate) fn gaps(&self, end: u64) -> Vec<Range<u64>> {
        let mut generations: Vec<u64> = self.parts.iter().map(|part| part.generation).collect();
        generations.sort_unstable();
        let (mut gaps, mut from) = (Vec::new(), 0);
        for generation in generations.into_iter().chain([end]) {
            if from < generation {
                gaps.push(from..generation);
            }
            from = generation.saturating_add(1);
        }
        gaps
    }
}

fn take<const N: usize>(record: &mut Bytes) -> Option<[u8; N]> {
    let taken = *record.first_chunk::<N>()?;
    record.advance(N);
    Some(taken)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(generations: &[u64]) -> SnapshotPointer {
        let name = |generation: &u64| format!("p{generation}");
        let part = |generation| PartPointer { name: name(generation), generation: *generation, pieces: 3 };
        SnapshotPointer { parts: generations.iter().map(part).collect(), meta: Bytes::from_static(b"meta") }
    }

    #[test]
    fn a_pointer_is_read_back_and_a_cut_or_foreign_one_is_refused() {
        for pointer in [SnapshotPointer::default(), pointer(&[7, 1 << 40, 3])] {
            let record = Bytes::from(pointer.encode());
            assert_eq!(SnapshotPointer::decode(record.clone()), Some(pointer.clone()));
            for length in 0..record.len() - pointer.meta.len() {
                assert_eq!(SnapshotPointer::decode(record.slice(..length)), None, "{length} bytes");
            }
            let foreign = Bytes::from([&[FORMAT + 1][..], &record[1..]].concat());
            assert_eq!(SnapshotPointer::decode(foreign), None);
        }
    }

    #[test]
    fn gaps_are_what_no_part_has() {
        assert_eq!(pointer(&[]).gaps(4), std::slice::from_ref(&(0..4)));
        assert_eq!(pointer(&[5, 2, 6]).gaps(7), [0..2, 3..5]);
        assert_eq!(pointer(&[0, 1]).gaps(9), std::slice::from_ref(&(2..9)));
    }
}
