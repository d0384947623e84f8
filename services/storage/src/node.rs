//! The store of a node: opening and closing it, its identity, and its records of peers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};

use crate::batch_builder::BatchBuilder;
use crate::committer::{Committer, Shared};
use crate::directory::{Directory, Marker};
use crate::disk_space::DiskSpace;
use crate::engine::Engine;
use crate::engine::rocks::RocksEngine;
use crate::generations::Generations;
use crate::key::{self, Kind};
use crate::queue::{Operation, WriteRequest};
use crate::recovery::{self, FORMAT, Recovered};
use crate::{MemoryDisk, ReplicaStore, StorageError};

const MAX_ID_BYTES: usize = 256;

/// The owner of the data. The first open writes it; every later one compares it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Cluster of the node.
    pub cluster_id: String,
    /// Name of the node in the cluster.
    pub node_id: String,
}

impl Identity {
    fn check(&self) -> Result<(), StorageError> {
        for (what, value) in [("the cluster id", &self.cluster_id), ("the node id", &self.node_id)] {
            if value.is_empty() || value.len() > MAX_ID_BYTES || value.contains(char::is_control) {
                return Err(StorageError::InvalidIdentity { what, value: value.clone() });
            }
        }
        Ok(())
    }
}

/// The store of one node; a cheap handle. Dropping the last handle of it and of its replicas blocks until the committer
/// has finished the queue and released the directory; [`NodeStore::close`] waits for that without blocking.
#[derive(Clone)]
pub struct NodeStore {
    pub(crate) inner: Arc<Inner>,
}

/// A lock for each replica that has used it.
type ReplicaLocks = Mutex<HashMap<u64, Arc<tokio::sync::Mutex<()>>>>;

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) disk_space: DiskSpace,
    store_id: String,
    existing_replicas: Vec<u64>,
    /// The highest rules that a replica has applied.
    pub(crate) rules: AtomicU16,
    pub(crate) generations: Generations,
    /// Held by a replica while it saves a snapshot; one at a time per replica.
    pub(crate) snapshot_locks: ReplicaLocks,
    /// Held by a replica while it receives a snapshot.
    pub(crate) receive_locks: ReplicaLocks,
    /// Held for one batch of pieces: however many replicas save snapshots, no commit waits for more than one batch.
    pub(crate) snapshot_batch_lock: tokio::sync::Mutex<()>,
    /// Set if the committer is a thread.
    thread: OnceLock<JoinHandle<()>>,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.shared.queue.close();
        let Some(thread) = self.thread.take() else { return };
        // The thread must not outlive `main`: RocksDB's statics are gone then, and closing it aborts the process. A
        // callback on that thread may drop the last handle; then there is nothing to join.
        if thread.thread().id() != std::thread::current().id() {
            // A committer that panicked has already reported it.
            let _ = thread.join();
        }
    }
}

impl NodeStore {
    /// Opens the data directory of a node, or creates it (readable by its owner only).
    ///
    /// # Errors
    /// `OwnerMismatch` for the data of another node or cluster, `InUse` if another process has it open, `UnknownFormat`
    /// for data of another version, `Corrupt` for damaged or missing files, `Io` otherwise. None of them changes
    /// anything in the directory, except that an unsynced write at the end of the log may be cut off.
    pub fn open(dir: &Path, identity: &Identity) -> Result<Self, StorageError> {
        identity.check()?;
        let directory = Directory::open(dir, identity, FORMAT)?;
        let engine = RocksEngine::open(directory)?;
        let new_store_id = uuid::Uuid::new_v4().to_string();
        let recovered = recovery::recover(&engine, identity, &new_store_id, engine.directory().is_marked())?;
        engine.directory().write_marker(&recovered.marker)?;
        let (store, committer) = Self::assemble(Box::new(engine), recovered);
        let thread = committer.spawn_thread()?;
        let set = store.inner.thread.set(thread);
        debug_assert!(set.is_ok(), "a store has one committer");
        Ok(store)
    }

    /// Opens an in-memory disk inside a tokio runtime, which runs the committer as a task.
    ///
    /// # Errors
    /// As [`NodeStore::open`], and `NoRuntime` outside a runtime.
    pub fn in_memory(disk: &MemoryDisk, identity: &Identity) -> Result<Self, StorageError> {
        identity.check()?;
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| StorageError::NoRuntime)?;
        let engine = disk.attach()?;
        let recovered = recovery::recover(&engine, identity, &disk.store_id(), false)?;
        let (store, committer) = Self::assemble(Box::new(engine), recovered);
        committer.spawn_task(&runtime);
        Ok(store)
    }

    fn assemble(engine: Box<dyn Engine>, recovered: Recovered) -> (Self, Committer) {
        let Recovered { marker: Marker { store_id, .. }, replicas, generations, next_generation, rules } = recovered;
        let mut existing_replicas: Vec<u64> = replicas.keys().copied().collect();
        existing_replicas.sort_unstable();
        let shared = Shared::new(engine);
        let committer = Committer::new(shared.clone(), BatchBuilder::new(replicas));
        let inner = Inner {
            shared,
            disk_space: DiskSpace::default(),
            store_id,
            existing_replicas,
            rules: AtomicU16::new(rules),
            generations: Generations::new(next_generation, generations),
            snapshot_locks: Mutex::default(),
            receive_locks: Mutex::default(),
            snapshot_batch_lock: tokio::sync::Mutex::default(),
            thread: OnceLock::new(),
        };
        (Self { inner: Arc::new(inner) }, committer)
    }

    /// Sets the bytes to keep free on the disk; 0, the default, for no limit. See [`NodeStore::has_space`].
    pub fn set_reserve(&self, bytes: u64) {
        self.inner.disk_space.set_reserve(bytes);
    }

    /// Returns whether the node may accept data. The store performs all writes even without space: callers must hold
    /// back what can wait.
    pub fn has_space(&self) -> bool {
        self.inner.disk_space.has_space(&self.inner.shared)
    }

    /// Returns the random id that was created with the data directory and never changes. It distinguishes a node that
    /// lost its disk from one that did not.
    pub fn store_id(&self) -> &str {
        &self.inner.store_id
    }

    /// Returns the replicas that had data when the store was opened, in order.
    pub fn existing_replicas(&self) -> &[u64] {
        &self.inner.existing_replicas
    }

    /// Returns the store id of the node on which a peer replica was first seen.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn peer_pin(&self, replica: u64) -> Result<Option<String>, StorageError> {
        self.inner.shared.read(|engine| {
            let pin = recovery::read_record(engine, &key::of_replica(Kind::PeerPin, replica), Some(replica))?;
            pin.map(|pin| String::from_utf8(pin.into()).map_err(|_| not_utf8(engine, replica))).transpose()
        })
    }

    /// Records the store that hosts a peer replica. Durable when it returns; a later pin replaces it.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn pin_peer(&self, replica: u64, store_id: &str) -> Result<(), StorageError> {
        self.inner.commit(replica, Operation::PinPeer { store_id: store_id.to_owned() }).await
    }

    /// Returns the longest recorded leader lease in milliseconds.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn longest_lease_ms(&self) -> Result<Option<u64>, StorageError> {
        self.inner.shared.read(|engine| {
            let Some(stored) = recovery::read_record(engine, &key::of_node(Kind::LongestLease), None)? else {
                return Ok(None);
            };
            let bytes = <[u8; 8]>::try_from(stored.as_ref());
            let bytes =
                bytes.map_err(|_| StorageError::corrupt(engine.location(), "damaged record of the longest lease"))?;
            Ok(Some(u64::from_be_bytes(bytes)))
        })
    }

    /// Records the longest leader lease that this node has seen, in milliseconds. Durable when it returns.
    ///
    /// # Errors
    /// When it could not be made durable.
    pub async fn save_longest_lease_ms(&self, ms: u64) -> Result<(), StorageError> {
        // It belongs to no replica.
        self.inner.commit(0, Operation::SaveLongestLease { ms }).await
    }

    /// Returns the highest rules that a replica of this node has ever applied, as recorded by
    /// [`ReplicaStore::record_rules`]; 0 if there are none. A program that does not know them must not use the data.
    pub fn highest_rules(&self) -> u16 {
        self.inner.rules.load(Ordering::Relaxed)
    }

    /// Returns the store of one replica; it need not have data yet.
    pub fn replica(&self, replica_id: u64) -> ReplicaStore {
        ReplicaStore::new(self.inner.clone(), replica_id)
    }

    /// Finishes the queue, stops the committer and releases the directory. Later calls return `Closed`.
    pub async fn close(&self) {
        self.inner.shared.queue.close();
        // An error would mean that the sender was dropped, but `self` keeps it.
        let _ = self.inner.shared.stopped().wait_for(|stopped| *stopped).await;
    }

    /// Becomes `Some` when a write or sync fails: this node must then be stopped.
    pub fn failed(&self) -> watch::Receiver<Option<StorageError>> {
        self.inner.shared.failed()
    }
}

impl Inner {
    /// Submits an operation and waits until it is durable.
    pub(crate) async fn commit(&self, replica: u64, operation: Operation) -> Result<(), StorageError> {
        let (tell, told) = oneshot::channel();
        let done = Box::new(move |result| {
            // The waiting caller may have been dropped.
            let _ = tell.send(result);
        });
        self.shared.submit(WriteRequest { replica, operation, done });
        told.await.unwrap_or_else(|_| Err(self.shared.closed()))
    }
}

fn not_utf8(engine: &dyn Engine, replica: u64) -> StorageError {
    let what = "the store id of a peer is not text".to_owned();
    StorageError::Corrupt { place: engine.location().to_owned(), replica: Some(replica), index: None, what }
}
