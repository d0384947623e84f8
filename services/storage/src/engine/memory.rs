//! The in-memory engine: a disk in memory that outlives the store that uses it, and that tests can crash, fill and
//! damage.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::{Engine, KeyValue, Visitor};
use crate::StorageError;
use crate::batch::{Batch, Write};
use crate::key::{self, Kind};

/// Where in a synced write a planned crash occurs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// Nothing of the write reaches the disk.
    BeforeSync,
    /// The write reaches the disk, but no callback reports it.
    AfterSync,
}

/// A disk in memory. Clones are handles to the same disk.
#[derive(Clone)]
pub struct MemoryDisk {
    state: Arc<Mutex<DiskState>>,
}

#[derive(Default)]
struct DiskState {
    data: BTreeMap<Vec<u8>, Bytes>,
    bytes: usize,
    store_id: String,
    /// Counts crashes; a store that was opened before the last crash is detached.
    crashes: u64,
    attached: bool,
    writes: u64,
    scans: u64,
    crash_at: Option<(u64, CrashPoint)>,
    fail_next_sync: bool,
    capacity: Option<usize>,
    sync_delay: Duration,
}

impl Default for MemoryDisk {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryDisk {
    /// Creates an empty disk with a random store id.
    pub fn new() -> Self {
        Self::with_store_id(&uuid::Uuid::new_v4().to_string())
    }

    /// Creates an empty disk with a given store id, for deterministic simulations.
    pub fn with_store_id(store_id: &str) -> Self {
        Self { state: Arc::new(Mutex::new(DiskState { store_id: store_id.to_owned(), ..DiskState::default() })) }
    }

    /// Simulates a power loss: unsynced writes are lost, and the store that uses the disk is detached. Its later writes
    /// have no effect, and none of its callbacks reports success any more. The disk can be reopened immediately.
    pub fn crash(&self) {
        self.state.lock().crash();
    }

    /// Plans a crash in the `nth` synced write from now (the next one is 1).
    pub fn crash_at_write(&self, nth: u64, point: CrashPoint) {
        let mut disk = self.state.lock();
        disk.crash_at = Some((disk.writes + nth.max(1), point));
    }

    /// Makes the next sync fail. Nothing of that write is kept.
    pub fn fail_next_sync(&self) {
        self.state.lock().fail_next_sync = true;
    }

    /// Limits the disk to this many bytes of keys and values; a write beyond it fails as on a full disk.
    pub fn set_capacity(&self, bytes: Option<usize>) {
        self.state.lock().capacity = bytes;
    }

    /// Makes every sync take this long in the runtime's time, which a simulator controls. Zero by default.
    pub fn set_sync_delay(&self, delay: Duration) {
        self.state.lock().sync_delay = delay;
    }

    /// Flips one bit of a stored log entry. Returns whether the entry exists.
    pub fn corrupt_entry(&self, replica: u64, index: u64) -> bool {
        let key = key::of_entry(replica, index);
        self.state.lock().data.get_mut(&key).map(flip_bit).is_some()
    }

    /// Flips one bit of each stored piece of a replica's snapshots. Returns the number of pieces.
    pub fn corrupt_pieces(&self, replica: u64) -> usize {
        let (from, to) =
            (key::of_replica(Kind::SnapshotPiece, replica), key::after_replica(Kind::SnapshotPiece, replica));
        let mut disk = self.state.lock();
        let pieces = disk.data.range_mut(from..to);
        pieces.fold(0, |count, (_, value)| {
            flip_bit(value);
            count + 1
        })
    }

    /// Flips one bit of the record of the snapshot that a replica receives. Returns whether there is one.
    pub fn corrupt_incoming(&self, replica: u64) -> bool {
        let key = key::of_replica(Kind::IncomingSnapshot, replica);
        self.state.lock().data.get_mut(&key).map(flip_bit).is_some()
    }

    /// Removes a stored log entry without the store's knowledge. Returns whether the entry existed.
    pub fn remove_entry(&self, replica: u64, index: u64) -> bool {
        self.state.lock().data.remove(&key::of_entry(replica, index)).is_some()
    }

    /// Returns the number of synced writes so far.
    pub fn writes(&self) -> u64 {
        self.state.lock().writes
    }

    /// Returns the number of reads of more than one key so far.
    pub fn scans(&self) -> u64 {
        self.state.lock().scans
    }

    /// Returns the bytes of all keys and values.
    pub fn used_bytes(&self) -> usize {
        self.state.lock().bytes
    }

    pub(crate) fn store_id(&self) -> String {
        self.state.lock().store_id.clone()
    }

    pub(crate) fn attach(&self) -> Result<MemoryEngine, StorageError> {
        let mut disk = self.state.lock();
        let place = format!("in-memory disk {}", disk.store_id);
        if disk.attached {
            return Err(StorageError::InUse { place });
        }
        disk.attached = true;
        Ok(MemoryEngine { disk: self.clone(), place, crashes: disk.crashes })
    }
}

fn flip_bit(value: &mut Bytes) {
    let mut damaged = value.to_vec();
    damaged[0] ^= 1;
    *value = damaged.into();
}

impl DiskState {
    fn crash(&mut self) {
        self.crashes += 1;
        self.attached = false;
        self.crash_at = None;
        self.fail_next_sync = false;
    }

    fn apply(&mut self, batch: &Batch) {
        for change in batch.writes() {
            match change {
                Write::Put(key, value) => {
                    self.remove(key);
                    self.bytes += key.len() + value.len();
                    self.data.insert(key.clone(), Bytes::copy_from_slice(value));
                }
                Write::Delete(key) => self.remove(key),
                Write::DeleteRange(from, to) if from >= to => {}
                Write::DeleteRange(from, to) => {
                    let doomed: Vec<_> =
                        self.data.range(from.clone()..to.clone()).map(|(key, _)| key.clone()).collect();
                    doomed.iter().for_each(|key| self.remove(key));
                }
            }
        }
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(value) = self.data.remove(key) {
            self.bytes -= key.len() + value.len();
        }
    }
}

/// The attachment of one open store to a disk.
pub(crate) struct MemoryEngine {
    disk: MemoryDisk,
    place: String,
    crashes: u64,
}

impl MemoryEngine {
    fn crashed(&self) -> StorageError {
        StorageError::Crashed { place: self.place.clone() }
    }
}

impl Drop for MemoryEngine {
    fn drop(&mut self) {
        let mut disk = self.disk.state.lock();
        if disk.crashes == self.crashes {
            disk.attached = false;
        }
    }
}

impl Engine for MemoryEngine {
    fn location(&self) -> &str {
        &self.place
    }

    fn write_synced(&self, batch: &Batch) -> Result<(), StorageError> {
        let mut disk = self.disk.state.lock();
        if disk.crashes != self.crashes {
            return Err(self.crashed());
        }
        disk.writes += 1;
        let crash = disk.crash_at.filter(|(at, _)| *at <= disk.writes).map(|(_, point)| point);
        if crash == Some(CrashPoint::BeforeSync) {
            disk.crash();
            return Err(self.crashed());
        }
        if std::mem::take(&mut disk.fail_next_sync) {
            return Err(StorageError::io(&self.place, "a synced write", "input/output error"));
        }
        if disk.capacity.is_some_and(|capacity| disk.bytes + batch.bytes() > capacity) {
            return Err(StorageError::io(&self.place, "a synced write", "no space left on device"));
        }
        disk.apply(batch);
        if crash == Some(CrashPoint::AfterSync) {
            disk.crash();
            return Err(self.crashed());
        }
        Ok(())
    }

    fn free_bytes(&self) -> Option<u64> {
        let disk = self.disk.state.lock();
        disk.capacity.map(|capacity| capacity.saturating_sub(disk.bytes) as u64)
    }

    fn sync_delay(&self) -> Duration {
        self.disk.state.lock().sync_delay
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        let disk = self.disk.state.lock();
        if disk.crashes != self.crashes {
            return Err(self.crashed());
        }
        Ok(disk.data.get(key).cloned())
    }

    fn scan(&self, from: &[u8], to: &[u8], visit: Visitor<'_>) -> Result<(), StorageError> {
        if from >= to {
            return Ok(());
        }
        self.disk.state.lock().scans += 1;
        // Reads pair by pair, so that the disk is not locked while the visitor runs.
        let mut after = Bound::Included(from.to_vec());
        loop {
            let next = {
                let disk = self.disk.state.lock();
                if disk.crashes != self.crashes {
                    return Err(self.crashed());
                }
                let mut range = disk.data.range((after, Bound::Excluded(to.to_vec())));
                range.next().map(|(key, value)| (key.clone(), value.clone()))
            };
            let Some((key, value)) = next else { return Ok(()) };
            if !visit(&key, &value)? {
                return Ok(());
            }
            after = Bound::Excluded(key);
        }
    }

    fn last(&self, from: &[u8], to: &[u8]) -> Result<Option<KeyValue>, StorageError> {
        let disk = self.disk.state.lock();
        if disk.crashes != self.crashes {
            return Err(self.crashed());
        }
        if from >= to {
            return Ok(None);
        }
        let last = disk.data.range(from.to_vec()..to.to_vec()).next_back();
        Ok(last.map(|(key, value)| (key.clone(), value.clone())))
    }
}
