//! What the suites share: one suite runs on RocksDB and on its twin.

use bytes::Bytes;
use holdfast_storage::{
    Completion, Identity, MemoryDisk, NodeStore, PartUpdate, ReplicaStore, SnapshotPart, StorageError,
};
use tokio::sync::oneshot;

/// A disk of either kind that can be opened again and again.
pub(crate) enum Disk {
    Rocks(tempfile::TempDir),
    Memory(MemoryDisk),
}

impl Disk {
    pub(crate) fn both() -> [Self; 2] {
        [Self::Rocks(tempfile::tempdir().expect("a temporary directory")), Self::Memory(MemoryDisk::new())]
    }

    pub(crate) fn open(&self) -> NodeStore {
        self.open_as(&identity()).expect("the store opens")
    }

    pub(crate) fn open_as(&self, identity: &Identity) -> Result<NodeStore, StorageError> {
        match self {
            Self::Rocks(dir) => NodeStore::open(&dir.path().join("data"), identity),
            Self::Memory(disk) => NodeStore::in_memory(disk, identity),
        }
    }
}

pub(crate) fn identity() -> Identity {
    owner("c1", "nd_1")
}

pub(crate) fn owner(cluster: &str, node: &str) -> Identity {
    Identity { cluster_id: cluster.to_owned(), node_id: node.to_owned() }
}

/// Waits for the callback of one operation.
pub(crate) async fn commit(operation: impl FnOnce(Completion)) -> Result<(), StorageError> {
    let (tell, told) = oneshot::channel();
    operation(Box::new(move |result| tell.send(result).expect("the test waits")));
    told.await.expect("the callback is called")
}

pub(crate) fn bytes(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

/// The entry that the tests write at an index.
pub(crate) fn entry(index: u64) -> Bytes {
    Bytes::from(format!("entry {index} {}", "x".repeat((index % 40) as usize)))
}

pub(crate) fn entries(range: std::ops::Range<u64>) -> Vec<(u64, Bytes)> {
    range.map(|index| (index, entry(index))).collect()
}

pub(crate) async fn append(replica: &ReplicaStore, range: std::ops::Range<u64>) {
    replica.ready().await;
    commit(|done| replica.append(entries(range), done)).await.expect("the append is durable");
}

pub(crate) fn read_all(replica: &ReplicaStore) -> Vec<(u64, Bytes)> {
    replica.read(0, u64::MAX, usize::MAX).expect("the log is readable")
}

pub(crate) fn part(name: &str, chunks: Vec<Bytes>) -> SnapshotPart {
    SnapshotPart { name: name.to_owned(), chunks }
}

pub(crate) fn write(name: &str, chunks: Vec<Bytes>) -> PartUpdate {
    PartUpdate::Write(part(name, chunks))
}

pub(crate) fn retain(name: &str) -> PartUpdate {
    PartUpdate::Retain(name.to_owned())
}
