//! The content of one synced write, which is atomic.

/// One change of the key-value engine.
#[derive(Clone, Debug)]
pub(crate) enum Write {
    Put(Vec<u8>, Vec<u8>),
    Delete(Vec<u8>),
    /// Deletes from the first key (inclusive) to the second (exclusive); both are of the same kind.
    DeleteRange(Vec<u8>, Vec<u8>),
}

/// Changes in order; a later one sees the earlier ones.
#[derive(Clone, Debug, Default)]
pub(crate) struct Batch {
    writes: Vec<Write>,
    bytes: usize,
}

impl Batch {
    /// Stores the concatenated parts and their checksum under the key.
    pub(crate) fn put(&mut self, key: Vec<u8>, parts: &[&[u8]]) {
        let value = crate::checksum::encode(&key, parts);
        self.bytes += key.len() + value.len();
        self.writes.push(Write::Put(key, value));
    }

    pub(crate) fn delete(&mut self, key: Vec<u8>) {
        self.bytes += key.len();
        self.writes.push(Write::Delete(key));
    }

    pub(crate) fn delete_range(&mut self, from: Vec<u8>, to: Vec<u8>) {
        self.bytes += from.len() + to.len();
        self.writes.push(Write::DeleteRange(from, to));
    }

    pub(crate) fn writes(&self) -> &[Write] {
        &self.writes
    }

    /// Returns the bytes of all keys and values.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.writes.is_empty()
    }
}
