//! After a restart the log is applied in pieces, however long it is.

use std::alloc::System;

use bytes::Bytes;
use futures::StreamExt;
use holdfast_replication::testing::{EntryData, LogStore, Section, TypeConfig};
use holdfast_storage::{Identity, MemoryDisk, NodeStore};
use openraft::entry::RaftEntry;
use openraft::storage::RaftLogStorageExt;
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf};
use openraft::{EntryPayload, RaftLogReader};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ENTRIES: u64 = 400;
const ENTRY_BYTES: usize = 100_000;
/// What is read at a time, and as much again while it is decoded; the log has ten times that.
const MAX_MEMORY_BYTES: usize = 4_000_000;

fn entry(index: u64) -> EntryOf<TypeConfig> {
    let id = LogIdOf::<TypeConfig>::new(CommittedLeaderIdOf::<TypeConfig>::new(1), index);
    let commands = vec![Bytes::from(vec![(index % 251) as u8; ENTRY_BYTES])];
    EntryOf::<TypeConfig>::new(
        id,
        EntryPayload::Normal(EntryData::commands(1, index, 0, &[Section { shard: 0, commands }])),
    )
}

#[tokio::test]
async fn a_long_log_is_never_in_memory_as_a_whole() {
    let disk = MemoryDisk::new();
    let identity = Identity { cluster_id: "c".into(), node_id: "n".into() };
    let store = NodeStore::in_memory(&disk, &identity).expect("an empty disk opens");
    let mut log = LogStore::open(store.replica(1)).expect("an empty log opens");
    for index in 0..ENTRIES {
        log.blocking_append([entry(index)]).await.expect("the disk has room");
    }
    // As after a restart: nothing of it is in memory.
    let mut log = LogStore::open(store.replica(1)).expect("the log opens");
    let region = Region::new(ALLOCATOR);
    let held = || {
        let change = region.change();
        change.bytes_allocated as isize - change.bytes_deallocated as isize + change.bytes_reallocated
    };
    let mut most = 0;
    let mut read = 0;
    let mut entries = std::pin::pin!(log.entries_stream(0..ENTRIES).await);
    while let Some(next) = entries.next().await {
        assert!(next.expect("it can be read") == entry(read), "entry {read}");
        read += 1;
        most = most.max(held());
    }
    println!("{read} entries of {ENTRY_BYTES} bytes, {most} bytes held at most");
    assert_eq!(read, ENTRIES);
    assert!(most < MAX_MEMORY_BYTES as isize, "{most} bytes were held at a time");
}
