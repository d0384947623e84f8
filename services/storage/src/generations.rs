//! The generations of snapshot parts: which there are, and which are in use. What is neither named by a record nor held
//! by anybody is removed.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use crate::engine::Engine;
use crate::key::Kind;
use crate::node::Inner;
use crate::queue::{Operation, WriteRequest};
use crate::recovery::read_snapshot_record;
use crate::snapshot_pointer::SnapshotPointer;
use crate::{PartSummary, ReplicaStore, StorageError, run_blocking};

/// The generations of all replicas of a node.
pub(crate) struct Generations(Mutex<GenerationTable>);

struct GenerationTable {
    /// The next one of any replica.
    next: u64,
    replicas: HashMap<u64, ReplicaGenerations>,
}

#[derive(Default)]
struct ReplicaGenerations {
    /// Those that may have pieces.
    existing: BTreeSet<u64>,
    /// Those in use by this process, with the number of users.
    held: BTreeMap<u64, usize>,
}

/// The two records of snapshots that a replica may have.
#[derive(Default)]
pub(crate) struct SnapshotRecords {
    pub(crate) current: Option<SnapshotPointer>,
    pub(crate) incoming: Option<SnapshotPointer>,
}

impl SnapshotRecords {
    /// Reads both. A damaged record of a snapshot that is being received counts as none: it can be received anew.
    pub(crate) fn read(engine: &dyn Engine, replica: u64) -> Result<Self, StorageError> {
        let current = read_snapshot_record(engine, Kind::Snapshot, replica)?;
        let incoming = match read_snapshot_record(engine, Kind::IncomingSnapshot, replica) {
            Err(error) if error.is_corrupt() => None,
            read => read?,
        };
        Ok(Self { current, incoming })
    }

    /// Returns the generations under which either has this part.
    pub(crate) fn generations_of(&self, part: &PartSummary) -> Vec<u64> {
        let known = [&self.current, &self.incoming].into_iter().flatten().filter_map(|known| known.same_part(part));
        let mut generations: Vec<u64> = known.map(|part| part.generation).collect();
        // An incoming snapshot shares parts with the current one.
        generations.dedup();
        generations
    }

    /// Returns the generations that either names.
    pub(crate) fn generations(&self) -> BTreeSet<u64> {
        [&self.current, &self.incoming].into_iter().flatten().flat_map(SnapshotPointer::generations).collect()
    }
}

impl Generations {
    /// Starts with those found on disk; `next` is above all of them.
    pub(crate) fn new(next: u64, existing: HashMap<u64, BTreeSet<u64>>) -> Self {
        let of_replica = |existing| ReplicaGenerations { existing, held: BTreeMap::new() };
        let replicas = existing.into_iter().map(|(replica, existing)| (replica, of_replica(existing))).collect();
        Self(Mutex::new(GenerationTable { next, replicas }))
    }

    fn lock(&self) -> MutexGuard<'_, GenerationTable> {
        self.0.lock()
    }

    /// Forgets those of a replica whose data is destroyed.
    pub(crate) fn remove(&self, replica: u64) {
        if let Some(own) = self.lock().replicas.get_mut(&replica) {
            own.existing.clear();
        }
    }
}

impl GenerationTable {
    fn hold(&mut self, replica: u64, generation: u64) {
        let own = self.replicas.entry(replica).or_default();
        own.existing.insert(generation);
        *own.held.entry(generation).or_default() += 1;
    }

    fn release(&mut self, replica: u64, generation: u64) {
        let Some(own) = self.replicas.get_mut(&replica) else { return };
        if let Some(users) = own.held.get_mut(&generation) {
            *users = users.saturating_sub(1);
            if *users == 0 {
                own.held.remove(&generation);
            }
        }
    }
}

/// Generations of a replica in use: they are not removed before it is dropped.
pub(crate) struct HeldGenerations {
    inner: Arc<Inner>,
    replica: u64,
    generations: Vec<u64>,
}

impl HeldGenerations {
    /// Holds none yet.
    pub(crate) fn none(store: &ReplicaStore) -> Self {
        Self { inner: Arc::clone(&store.inner), replica: store.replica, generations: Vec::new() }
    }

    /// Reads the records of snapshots and holds the generations that `choose` returns from those that they name.
    /// Nothing is removed in between.
    pub(crate) fn from_records<T>(
        store: &ReplicaStore,
        choose: impl FnOnce(SnapshotRecords) -> (T, Vec<u64>),
    ) -> Result<(T, Self), StorageError> {
        let mut held = Self::none(store);
        let mut state = store.inner.generations.lock();
        let records = store.inner.shared.read(|engine| SnapshotRecords::read(engine, store.replica))?;
        let (chosen, generations) = choose(records);
        generations.iter().for_each(|generation| state.hold(store.replica, *generation));
        drop(state);
        held.generations = generations;
        Ok((chosen, held))
    }

    /// Holds a new generation and returns it.
    pub(crate) fn add_new(&mut self) -> u64 {
        let mut state = self.inner.generations.lock();
        let generation = state.next;
        state.next = generation.saturating_add(1);
        state.hold(self.replica, generation);
        drop(state);
        self.generations.push(generation);
        generation
    }

    /// Holds one that another value holds, too.
    pub(crate) fn add(&mut self, generation: u64) {
        self.inner.generations.lock().hold(self.replica, generation);
        self.generations.push(generation);
    }

    /// Holds one of these alone, for as long as the result exists.
    pub(crate) fn only(&self, generation: u64) -> Self {
        let mut one = Self { inner: Arc::clone(&self.inner), replica: self.replica, generations: Vec::new() };
        one.add(generation);
        one
    }
}

impl Drop for HeldGenerations {
    fn drop(&mut self) {
        let mut state = self.inner.generations.lock();
        self.generations.iter().for_each(|generation| state.release(self.replica, *generation));
        drop(state);
        self.inner.remove_stale_generations(self.replica);
    }
}

impl Inner {
    /// Submits the removal of all generations of a replica that no record names and nobody holds. Those that it does
    /// not come to are removed at the next open.
    pub(crate) fn remove_stale_generations(&self, replica: u64) {
        run_blocking(|| self.submit_stale_removal(replica));
    }

    fn submit_stale_removal(&self, replica: u64) {
        let mut state = self.generations.lock();
        let Some(own) = state.replicas.get_mut(&replica) else { return };
        // After a failure nothing is written any more.
        let Ok(records) = self.shared.read(|engine| SnapshotRecords::read(engine, replica)) else { return };
        let named = records.generations();
        let is_stale = |generation: &u64| !named.contains(generation) && !own.held.contains_key(generation);
        let generations: Vec<u64> = own.existing.iter().copied().filter(is_stale).collect();
        if generations.is_empty() {
            return;
        }
        own.existing.retain(|generation| !generations.contains(generation));
        let operation = Operation::RemoveGenerations { generations };
        self.shared.submit(WriteRequest { replica, operation, done: Box::new(|_| {}) });
    }
}
