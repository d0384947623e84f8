//! Keys: one kind byte, the replica id and an index, both big-endian, so that a log is one ascending range.

/// The kind of a key. The order is the order on disk; numbers are never reused with another meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Format, owner and store id; one per node.
    Identity = 0x01,
    /// Store id of the node that hosts a peer replica.
    PeerPin = 0x02,
    /// The longest leader lease that the node has seen, in milliseconds; one per node.
    LongestLease = 0x03,
    /// The highest rules that a replica of the node has applied; one per node.
    Rules = 0x04,
    /// Present from the first write of a replica until its data is destroyed.
    Replica = 0x10,
    Vote = 0x11,
    /// Index and meta of the last purged entry.
    Purged = 0x12,
    /// Named values of the layer above.
    Meta = 0x13,
    /// The parts of the current snapshot with their generations, and its meta.
    Snapshot = 0x14,
    /// The same of a snapshot that is received from another replica.
    IncomingSnapshot = 0x15,
    Log = 0x20,
    SnapshotPiece = 0x30,
}

/// The column family of a key. Each has its own memtable: logs are written and deleted continuously, the small state is
/// overwritten in place, and snapshots are large. If mixed, each would be compacted along with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnFamilyId {
    State,
    Log,
    Snapshot,
}

impl ColumnFamilyId {
    /// Returns the column family of a key.
    pub(crate) fn of(key: &[u8]) -> Self {
        match key.first() {
            Some(&kind) if kind == Kind::Log as u8 => Self::Log,
            Some(&kind) if kind == Kind::SnapshotPiece as u8 => Self::Snapshot,
            _ => Self::State,
        }
    }
}

/// Returns the key of a record that exists once per node.
pub(crate) fn of_node(kind: Kind) -> Vec<u8> {
    vec![kind as u8]
}

/// Returns the key of a record that exists once per replica. It is also the prefix of all keys of that kind and
/// replica.
pub(crate) fn of_replica(kind: Kind, replica: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(21);
    key.push(kind as u8);
    key.extend_from_slice(&replica.to_be_bytes());
    key
}

/// Returns the key of a log entry.
pub(crate) fn of_entry(replica: u64, index: u64) -> Vec<u8> {
    let mut key = of_replica(Kind::Log, replica);
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// Returns the key of a named value.
pub(crate) fn of_meta(replica: u64, name: &str) -> Vec<u8> {
    let mut key = of_replica(Kind::Meta, replica);
    key.extend_from_slice(name.as_bytes());
    key
}

/// Returns the key of a piece of a snapshot part.
pub(crate) fn of_snapshot_piece(replica: u64, generation: u64, number: u32) -> Vec<u8> {
    let mut key = of_generation(replica, generation);
    key.extend_from_slice(&number.to_be_bytes());
    key
}

/// Returns the first key of a generation of snapshot parts. The range up to the next one contains all its pieces.
pub(crate) fn of_generation(replica: u64, generation: u64) -> Vec<u8> {
    let mut key = of_replica(Kind::SnapshotPiece, replica);
    key.extend_from_slice(&generation.to_be_bytes());
    key
}

/// Returns the first key after all keys of this kind and replica.
pub(crate) fn after_replica(kind: Kind, replica: u64) -> Vec<u8> {
    match replica.checked_add(1) {
        Some(next) => of_replica(kind, next),
        None => vec![kind as u8 + 1],
    }
}

/// Returns the first key after all keys of this kind.
pub(crate) fn after_kind(kind: Kind) -> Vec<u8> {
    vec![kind as u8 + 1]
}

/// Returns the replica of a key that has one.
pub(crate) fn replica_of(key: &[u8]) -> Option<u64> {
    number_at(key, 1)
}

/// Returns the index of a log entry, or the generation of a piece of a snapshot.
pub(crate) fn index_of(key: &[u8]) -> Option<u64> {
    number_at(key, 9)
}

/// Returns the number of a piece of a snapshot.
pub(crate) fn piece_of(key: &[u8]) -> Option<u32> {
    let bytes = key.get(17..21)?;
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn number_at(key: &[u8], offset: usize) -> Option<u64> {
    let bytes = key.get(offset..offset + 8)?;
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_log_ascend_with_the_index_and_stay_inside_their_range() {
        let (low, high) = (of_replica(Kind::Log, 7), after_replica(Kind::Log, 7));
        let keys: Vec<_> = [0, 1, 255, 256, u64::MAX].iter().map(|index| of_entry(7, *index)).collect();
        assert!(keys.windows(2).all(|pair| pair[0] < pair[1]));
        assert!(keys.iter().all(|key| low < *key && *key < high));
        assert_eq!(keys.iter().filter_map(|key| index_of(key)).collect::<Vec<_>>(), [0, 1, 255, 256, u64::MAX]);
        assert_eq!(replica_of(&keys[0]), Some(7));
    }

    #[test]
    fn the_largest_replica_id_has_an_end_too() {
        assert!(of_entry(u64::MAX, u64::MAX) < after_replica(Kind::Log, u64::MAX));
        assert!(after_replica(Kind::Log, u64::MAX) < of_replica(Kind::SnapshotPiece, 0));
    }
}
