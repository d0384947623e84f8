//! What the suites share: one suite runs on RocksDB and on its twin.

use bytes::Bytes;
use holdfast_storage::{
    Completion, Identity, MemoryDisk, NodeStore, PartUpdate, ReplicaStore, SnapshotPart, StorageError, StoredSnapshot,
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

/// A part of a snapshot as it is read: its name and its chunks.
pub(crate) type ReadPart = (String, Vec<Bytes>);

pub(crate) fn part(name: &str, chunks: Vec<Bytes>) -> ReadPart {
    (name.to_owned(), chunks)
}

pub(crate) fn read_part(part: &SnapshotPart) -> Result<ReadPart, StorageError> {
    Ok((part.name().to_owned(), part.chunks().collect::<Result<_, _>>()?))
}

pub(crate) fn read_parts(snapshot: &StoredSnapshot) -> Result<(Bytes, Vec<ReadPart>), StorageError> {
    let parts = snapshot.parts().iter().map(read_part).collect::<Result<_, _>>()?;
    Ok((snapshot.meta().clone(), parts))
}

/// Reads the whole current snapshot.
pub(crate) fn read_snapshot(replica: &ReplicaStore) -> Result<Option<(Bytes, Vec<ReadPart>)>, StorageError> {
    replica.snapshot()?.as_ref().map(read_parts).transpose()
}

pub(crate) fn write(name: &str, chunks: Vec<Bytes>) -> PartUpdate {
    PartUpdate::Write(SnapshotPart::from_chunks(name, chunks))
}

pub(crate) fn write_all(parts: &[ReadPart]) -> Vec<PartUpdate> {
    parts.iter().map(|(name, chunks)| write(name, chunks.clone())).collect()
}

pub(crate) fn retain(name: &str) -> PartUpdate {
    PartUpdate::Retain(name.to_owned())
}
