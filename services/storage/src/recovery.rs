//! Recovery at open: the owner of the data, the replicas with data, and the leftovers of a crash.

use std::collections::{BTreeSet, HashMap};

use crate::batch::Batch;
use crate::directory::Marker;
use crate::engine::Engine;
use crate::generations::SnapshotRecords;
use crate::key::{self, Kind};
use crate::snapshot_pointer::SnapshotPointer;
use crate::{Identity, StorageError, checksum};

/// The format that this version writes, and the only one that it reads.
pub(crate) const FORMAT: u32 = 2;

/// The state of the data directory as found or created.
pub(crate) struct Recovered {
    pub(crate) marker: Marker,
    /// Replicas with data, and the index up to which their log was purged.
    pub(crate) replicas: HashMap<u64, Option<u64>>,
    /// The generations of snapshot parts by replica, without leftovers.
    pub(crate) generations: HashMap<u64, BTreeSet<u64>>,
    /// Above every generation of a part of a complete or incomplete snapshot.
    pub(crate) next_generation: u64,
    /// The highest rules that a replica has applied; 0 if there are none.
    pub(crate) rules: u16,
}

/// Checks the owner, or sets it if there is no data yet, and removes leftovers of incomplete snapshots.
pub(crate) fn recover(
    engine: &dyn Engine,
    identity: &Identity,
    new_store_id: &str,
    is_marked: bool,
) -> Result<Recovered, StorageError> {
    let marker = load_or_create_marker(engine, identity, new_store_id, is_marked)?;
    let mut replicas = HashMap::new();
    engine.scan(&key::of_node(Kind::Replica), &key::after_kind(Kind::Replica), &mut |key, stored| {
        let replica = key::replica_of(key).filter(|_| checksum::verify(key, stored).is_some());
        let replica = replica.ok_or_else(|| StorageError::corrupt(engine.location(), "damaged record of a replica"))?;
        replicas.insert(replica, None);
        Ok(true)
    })?;
    let (mut next_generation, mut generations) = (1, HashMap::new());
    let mut leftovers = Batch::default();
    for (replica, purged) in &mut replicas {
        *purged = read_purged(engine, *replica)?.map(|(index, _)| index);
        let (named, highest) = collect_stale_generations(engine, *replica, &mut leftovers)?;
        next_generation = next_generation.max(highest + 1);
        generations.insert(*replica, named);
    }
    if !leftovers.is_empty() {
        engine.write_synced(&leftovers)?;
    }
    let rules = match read_record(engine, &key::of_node(Kind::Rules), None)? {
        Some(stored) => {
            let rules = <[u8; 2]>::try_from(&stored[..]);
            rules
                .map(u16::from_be_bytes)
                .map_err(|_| StorageError::corrupt(engine.location(), "a bad record of rules"))?
        }
        None => 0,
    };
    Ok(Recovered { marker, replicas, generations, next_generation, rules })
}

fn load_or_create_marker(
    engine: &dyn Engine,
    identity: &Identity,
    new_store_id: &str,
    is_marked: bool,
) -> Result<Marker, StorageError> {
    let place = engine.location();
    if let Some(stored) = read_record(engine, &key::of_node(Kind::Identity), None)? {
        let marker = Marker::decode(&stored, place, FORMAT)?;
        marker.check_owner(identity, place)?;
        engine.set_store_id(&marker.store_id);
        return Ok(marker);
    }
    let kinds = [Kind::PeerPin, Kind::Replica, Kind::Vote, Kind::Log];
    for kind in kinds {
        if is_marked || engine.first(&key::of_node(kind), &key::after_kind(kind))?.is_some() {
            return Err(StorageError::corrupt(place, "the record of its owner is missing from the database"));
        }
    }
    engine.set_store_id(new_store_id);
    let marker = Marker { format: FORMAT, identity: identity.clone(), store_id: new_store_id.to_owned() };
    let mut batch = Batch::default();
    batch.put(key::of_node(Kind::Identity), &[marker.encode().as_bytes()]);
    engine.write_synced(&batch)?;
    Ok(marker)
}

/// Adds the deletion of every generation to the batch that neither the current snapshot names nor one that is being
/// received, and that of a damaged record of the latter. Returns the others, and the highest of all. Reads one key per
/// generation.
fn collect_stale_generations(
    engine: &dyn Engine,
    replica: u64,
    batch: &mut Batch,
) -> Result<(BTreeSet<u64>, u64), StorageError> {
    if read_snapshot_record(engine, Kind::IncomingSnapshot, replica).is_err_and(|error| error.is_corrupt()) {
        batch.delete(key::of_replica(Kind::IncomingSnapshot, replica));
    }
    let named = SnapshotRecords::read(engine, replica)?.generations();
    let mut highest = named.last().copied().unwrap_or(0);
    let end = key::after_replica(Kind::SnapshotPiece, replica);
    let mut from = key::of_replica(Kind::SnapshotPiece, replica);
    while let Some((found, _)) = engine.first(&from, &end)? {
        let damaged =
            || StorageError::corrupt(engine.location(), format!("bad key of a snapshot of replica {replica}"));
        let generation = key::index_of(&found).filter(|generation| *generation < u64::MAX).ok_or_else(damaged)?;
        let after = key::of_generation(replica, generation + 1);
        if !named.contains(&generation) {
            batch.delete_range(key::of_generation(replica, generation), after.clone());
        }
        highest = highest.max(generation);
        from = after;
    }
    Ok((named, highest))
}

/// Returns the verified value of a key.
pub(crate) fn read_record(
    engine: &dyn Engine,
    key: &[u8],
    replica: Option<u64>,
) -> Result<Option<bytes::Bytes>, StorageError> {
    let Some(stored) = engine.get(key)? else { return Ok(None) };
    checksum::verify_bytes(key, stored).map(Some).ok_or_else(|| StorageError::Corrupt {
        place: engine.location().to_owned(),
        replica,
        index: None,
        what: format!("checksum mismatch of the record {:#04x}", key.first().copied().unwrap_or_default()),
    })
}

/// Returns index and meta of the last purged entry.
pub(crate) fn read_purged(engine: &dyn Engine, replica: u64) -> Result<Option<(u64, bytes::Bytes)>, StorageError> {
    let Some(mut stored) = read_record(engine, &key::of_replica(Kind::Purged, replica), Some(replica))? else {
        return Ok(None);
    };
    let Some(index) = stored.first_chunk::<8>().map(|bytes| u64::from_be_bytes(*bytes)) else {
        return Err(malformed_record(engine, replica));
    };
    Ok(Some((index, stored.split_off(8))))
}

/// Returns the pointer to the current snapshot.
pub(crate) fn read_snapshot_pointer(
    engine: &dyn Engine,
    replica: u64,
) -> Result<Option<SnapshotPointer>, StorageError> {
    read_snapshot_record(engine, Kind::Snapshot, replica)
}

/// Returns the record of a replica's snapshot of this kind.
pub(crate) fn read_snapshot_record(
    engine: &dyn Engine,
    kind: Kind,
    replica: u64,
) -> Result<Option<SnapshotPointer>, StorageError> {
    let Some(stored) = read_record(engine, &key::of_replica(kind, replica), Some(replica))? else {
        return Ok(None);
    };
    SnapshotPointer::decode(stored).map(Some).ok_or_else(|| malformed_record(engine, replica))
}

fn malformed_record(engine: &dyn Engine, replica: u64) -> StorageError {
    let what = "a record does not have its format".to_owned();
    StorageError::Corrupt { place: engine.location().to_owned(), replica: Some(replica), index: None, what }
}
