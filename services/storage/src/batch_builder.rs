//! Turns operations into changes of keys. Tracks which replicas have data, and how far their logs are purged.

use std::collections::HashMap;

use bytes::Bytes;

use crate::batch::Batch;
use crate::key::{self, Kind};
use crate::limits::MAX_POINT_DELETES;
use crate::queue::{LogRow, Operation, SnapshotPiece};

/// Turns operations into changes of keys.
#[derive(Debug, Default)]
pub(crate) struct BatchBuilder {
    /// Replicas with data, and the index up to which their log was purged.
    replicas: HashMap<u64, Option<u64>>,
}

impl BatchBuilder {
    /// Starts with the replicas found on disk.
    pub(crate) fn new(replicas: HashMap<u64, Option<u64>>) -> Self {
        Self { replicas }
    }

    /// Adds the changes of one operation to the batch.
    pub(crate) fn add(&mut self, batch: &mut Batch, replica: u64, operation: &Operation) {
        match operation {
            Operation::PinPeer { store_id } => {
                return batch.put(key::of_replica(Kind::PeerPin, replica), &[store_id.as_bytes()]);
            }
            Operation::SaveLongestLease { ms } => {
                return batch.put(key::of_node(Kind::LongestLease), &[&ms.to_be_bytes()]);
            }
            Operation::SaveRules { rules } => {
                return batch.put(key::of_node(Kind::Rules), &[&rules.to_be_bytes()]);
            }
            Operation::Destroy => return self.destroy(batch, replica),
            Operation::DiscardIncoming => return batch.delete(key::of_replica(Kind::IncomingSnapshot, replica)),
            Operation::RemoveGenerations { generations } => return remove_generations(batch, replica, generations),
            Operation::Flush => return,
            _ => {}
        }
        if let std::collections::hash_map::Entry::Vacant(new) = self.replicas.entry(replica) {
            new.insert(None);
            batch.put(key::of_replica(Kind::Replica, replica), &[]);
        }
        match operation {
            Operation::Append { rows } => {
                for LogRow { index, head, body } in rows {
                    batch.put(key::of_entry(replica, *index), &[head, body]);
                }
            }
            Operation::SaveVote { vote } => batch.put(key::of_replica(Kind::Vote, replica), &[vote]),
            Operation::Truncate { from } => {
                batch.delete_range(key::of_entry(replica, *from), key::after_replica(Kind::Log, replica));
            }
            Operation::Purge { to, meta } => self.purge(batch, replica, *to, meta),
            Operation::SaveMeta { name, value } => batch.put(key::of_meta(replica, name), &[value]),
            Operation::SaveSnapshotPieces { pieces } => save_pieces(batch, replica, pieces),
            Operation::SwitchSnapshot { pointer } => {
                batch.put(key::of_replica(Kind::Snapshot, replica), &[&pointer.encode()]);
            }
            Operation::SaveIncoming { pointer } => {
                batch.put(key::of_replica(Kind::IncomingSnapshot, replica), &[&pointer.encode()]);
            }
            Operation::PinPeer { .. }
            | Operation::SaveLongestLease { .. }
            | Operation::SaveRules { .. }
            | Operation::Flush
            | Operation::DiscardIncoming
            | Operation::RemoveGenerations { .. }
            | Operation::Destroy => {}
        }
    }

    fn purge(&mut self, batch: &mut Batch, replica: u64, to: u64, meta: &Bytes) {
        let purged = self.replicas.entry(replica).or_default();
        let first = purged.map_or(0, |purged| purged.saturating_add(1));
        let upto = purged.map_or(to, |purged| purged.max(to));
        if first <= to {
            if to - first < MAX_POINT_DELETES {
                (first..=to).for_each(|index| batch.delete(key::of_entry(replica, index)));
            } else {
                let end = match to.checked_add(1) {
                    Some(next) => key::of_entry(replica, next),
                    None => key::after_replica(Kind::Log, replica),
                };
                batch.delete_range(key::of_entry(replica, first), end);
            }
        }
        *purged = Some(upto);
        batch.put(key::of_replica(Kind::Purged, replica), &[&upto.to_be_bytes(), meta]);
    }

    fn destroy(&mut self, batch: &mut Batch, replica: u64) {
        self.replicas.remove(&replica);
        for kind in [Kind::Replica, Kind::Vote, Kind::Purged, Kind::Snapshot, Kind::IncomingSnapshot] {
            batch.delete(key::of_replica(kind, replica));
        }
        for kind in [Kind::Meta, Kind::Log, Kind::SnapshotPiece] {
            batch.delete_range(key::of_replica(kind, replica), key::after_replica(kind, replica));
        }
    }
}

fn remove_generations(batch: &mut Batch, replica: u64, generations: &[u64]) {
    for generation in generations {
        let end = key::of_generation(replica, generation.saturating_add(1));
        batch.delete_range(key::of_generation(replica, *generation), end);
    }
}

fn save_pieces(batch: &mut Batch, replica: u64, pieces: &[SnapshotPiece]) {
    for piece in pieces {
        let flag = [u8::from(piece.ends_chunk)];
        batch.put(key::of_snapshot_piece(replica, piece.generation, piece.number), &[&flag, &piece.bytes]);
    }
}
