//! The record of a replica's current snapshot, and of one that it receives: its parts, each with the generation of its
//! pieces.
//!
//! ```text
//! record := format u8 · number of parts u32 · part* · meta
//! part   := generation u64 · pieces u32 · bytes u64 · digest · length of the name u16 · name    numbers big-endian
//! ```

use bytes::{Buf, Bytes};
use sha2::{Digest, Sha256};

use crate::PartSummary;

/// The format of the record, and the only one that this version reads.
const FORMAT: u8 = 2;

/// Bytes of the digest of a part.
pub const DIGEST_BYTES: usize = 32;

/// A snapshot of a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SnapshotPointer {
    /// In the order in which they were saved.
    pub(crate) parts: Vec<PartPointer>,
    pub(crate) meta: Bytes,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PartPointer {
    /// No part with other content has it, of any replica.
    pub(crate) generation: u64,
    pub(crate) summary: PartSummary,
}

/// The digest of a part, piece by piece.
#[derive(Clone, Default)]
pub(crate) struct PartDigest(Sha256);

impl PartDigest {
    /// Adds the next piece.
    pub(crate) fn add(&mut self, ends_chunk: bool, bytes: &[u8]) {
        self.0.update([u8::from(ends_chunk)]);
        self.0.update((bytes.len() as u64).to_be_bytes());
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> [u8; DIGEST_BYTES] {
        self.0.finalize().into()
    }
}

impl SnapshotPointer {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut record = vec![FORMAT];
        record.extend_from_slice(&(self.parts.len() as u32).to_be_bytes());
        for PartPointer { generation, summary: PartSummary { name, pieces, bytes, digest } } in &self.parts {
            record.extend_from_slice(&generation.to_be_bytes());
            record.extend_from_slice(&pieces.to_be_bytes());
            record.extend_from_slice(&bytes.to_be_bytes());
            record.extend_from_slice(digest);
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
            let bytes = u64::from_be_bytes(take(&mut record)?);
            let digest = take(&mut record)?;
            let length = usize::from(u16::from_be_bytes(take(&mut record)?));
            let name = String::from_utf8(record.get(..length)?.to_vec()).ok()?;
            record.advance(length);
            parts.push(PartPointer { generation, summary: PartSummary { name, pieces, bytes, digest } });
        }
        Some(Self { parts, meta: record })
    }

    /// Returns the generations of all parts.
    pub(crate) fn generations(&self) -> impl Iterator<Item = u64> {
        self.parts.iter().map(|part| part.generation)
    }

    /// Returns the part with the same content.
    pub(crate) fn same_part(&self, summary: &PartSummary) -> Option<&PartPointer> {
        self.parts.iter().find(|part| part.summary == *summary)
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
        let summary = |generation| PartSummary { name: format!("p{generation}"), pieces: 3, bytes: 9, digest: [7; 32] };
        let part = |generation: &u64| PartPointer { generation: *generation, summary: summary(*generation) };
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
    fn parts_differ_by_where_their_chunks_and_pieces_end() {
        let digest = |pieces: &[(bool, &[u8])]| {
            let mut digest = PartDigest::default();
            pieces.iter().for_each(|(ends_chunk, bytes)| digest.add(*ends_chunk, bytes));
            digest.finish()
        };
        let whole = digest(&[(true, b"ab")]);
        assert_eq!(whole, digest(&[(true, b"ab")]));
        let others = [digest(&[(true, b"a"), (true, b"b")]), digest(&[(false, b"a"), (true, b"b")]), digest(&[])];
        assert!(others.iter().all(|other| *other != whole) && others[0] != others[1]);
    }
}
