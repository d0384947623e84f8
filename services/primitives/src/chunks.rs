//! Snapshots as chunks. Each chunk but the last is an encoded list of items; the last is the empty list, so that a
//! snapshot that was cut off between two chunks is detected.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

use serde::{Serialize, de::DeserializeOwned};

use crate::codec::{self, DecodeError};

/// Maximum length of a chunk. Only a single item could exceed it, and none does: each item comes from a command, and
/// the frontends limit commands to much smaller sizes.
pub const MAX_CHUNK_BYTES: usize = 1 << 20;

/// The version byte and the number of items.
const HEADER_BYTES: usize = 16;

/// Collects items into chunks.
#[derive(Default)]
pub struct ChunkWriter {
    /// Complete chunks that nobody has taken yet.
    chunks: VecDeque<Vec<u8>>,
    body: Vec<u8>,
    items: u64,
}

impl ChunkWriter {
    /// Adds an item.
    pub fn push(&mut self, item: &impl Serialize) {
        let before = self.body.len();
        let body = std::mem::take(&mut self.body);
        self.body =
            postcard::to_extend(item, body).expect("items of snapshots have known lengths and never fail to encode");
        self.items += 1;
        if HEADER_BYTES + self.body.len() > MAX_CHUNK_BYTES && self.items > 1 {
            let last = self.body.split_off(before);
            self.items -= 1;
            self.flush();
            self.body = last;
            self.items = 1;
        }
    }

    /// Returns the first chunk that is complete and was not taken yet.
    pub fn take_chunk(&mut self) -> Option<Vec<u8>> {
        self.chunks.pop_front()
    }

    /// Completes the last chunks. No item may follow.
    pub fn end(&mut self) {
        if self.items > 0 {
            self.flush();
        }
        self.flush();
    }

    /// Returns the chunks.
    pub fn finish(mut self) -> Vec<Vec<u8>> {
        self.end();
        self.chunks.into()
    }

    /// Postcard encodes a list as its length followed by the items, so the items need not be encoded again.
    fn flush(&mut self) {
        let mut chunk = codec::encode(&self.items);
        chunk.append(&mut self.body);
        chunk.shrink_to_fit();
        self.chunks.push_back(chunk);
        self.items = 0;
    }
}

/// Returns the first entry after this key; the first of all, without a key. For those that write a map step by step.
pub fn first_after<K: Ord, V>(entries: &BTreeMap<K, V>, last: Option<K>) -> Option<(&K, &V)> {
    let from = last.map_or(Bound::Unbounded, Bound::Excluded);
    entries.range((from, Bound::Unbounded)).next()
}

/// Passes every item of the chunks to `take`, in the order in which they were pushed. Has two chunks at a time.
pub fn read<T: DeserializeOwned>(
    chunks: impl IntoIterator<Item: AsRef<[u8]>>,
    mut take: impl FnMut(T) -> Result<(), DecodeError>,
) -> Result<(), DecodeError> {
    let mut chunks = chunks.into_iter();
    let mut chunk = chunks.next().ok_or(DecodeError::Empty)?;
    loop {
        let items = codec::decode::<Vec<T>>(chunk.as_ref())?;
        match chunks.next() {
            Some(next) => chunk = next,
            None if items.is_empty() => return Ok(()),
            None => return Err(DecodeError::Snapshot("its end is missing")),
        }
        items.into_iter().try_for_each(&mut take)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(items: &[String]) -> Vec<Vec<u8>> {
        let mut writer = ChunkWriter::default();
        items.iter().for_each(|item| writer.push(item));
        writer.finish()
    }

    #[test]
    fn items_come_back_in_order_from_chunks_of_bounded_length() {
        let items: Vec<String> = (0..5_000).map(|number| format!("{number:-^1000}")).collect();
        let chunks = write(&items);
        assert!(chunks.len() > 4);
        assert!(chunks.iter().all(|chunk| chunk.len() <= MAX_CHUNK_BYTES));
        assert_eq!(chunks.last(), Some(&codec::encode(&0_u64)));
        let mut back = Vec::new();
        read(&chunks, |item: String| {
            back.push(item);
            Ok(())
        })
        .unwrap();
        assert_eq!(back, items);
    }

    #[test]
    fn a_snapshot_that_was_cut_short_is_refused() {
        let chunks = write(&["a".into(), "b".into()]);
        assert!(read(&chunks[..1], |_: String| Ok(())).is_err());
        assert!(read(&chunks[..0], |_: String| Ok(())).is_err());
        assert!(read(&chunks, |_: String| Ok(())).is_ok());
    }
}
