//! Snapshots in parts: which are written again, and which are retained.

use std::iter;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use futures::stream;
use holdfast_replication::testing::{EntryData, Section, StateMachineAdapter, TypeConfig};
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, FrozenState, LogLimits, ReplyMode, StateMachine, StateMachineError,
};
use holdfast_storage::{Identity, MemoryDisk, NodeStore, PartUpdate, SnapshotPart, StorageError};
use openraft::entry::RaftEntry;
use openraft::storage::RaftStateMachine;
use openraft::type_config::alias::{CommittedLeaderIdOf, EntryOf, LogIdOf};
use openraft::{EntryPayload, RaftSnapshotBuilder};
use parking_lot::Mutex;

use crate::common::node::RULES;

const REPLICA: u64 = 1;
const SHARDS: usize = 4;

/// Counts the sections of each shard.
#[derive(Default)]
struct SectionCounters {
    counts: Mutex<[u64; SHARDS]>,
    /// The shards whose parts the last snapshot writes.
    written: Mutex<Vec<u32>>,
    /// Whether the first shard has failed, and its last state can't be read where it is stored.
    is_damaged: AtomicBool,
}

fn damage() -> StorageError {
    let (place, what) = ("a test".to_owned(), "a wrong checksum".to_owned());
    StorageError::Corrupt { place, replica: Some(REPLICA), index: None, what }
}

fn part(number: u32, count: u64) -> SnapshotPart {
    SnapshotPart::from_chunks(format!("s{number}"), vec![Bytes::copy_from_slice(&count.to_be_bytes())])
}

fn count_in(part: &SnapshotPart) -> u64 {
    let chunk = part.chunks().next().expect("it has one").expect("it is readable");
    u64::from_be_bytes(chunk[..].try_into().expect("eight bytes"))
}

fn parts(counts: [u64; SHARDS]) -> Vec<SnapshotPart> {
    (0..).zip(counts).map(|(number, count)| part(number, count)).collect()
}

impl StateMachine for SectionCounters {
    fn assess(&self, _: u16, _: u32, _: &[u8]) -> Result<CommandCost, StateMachineError> {
        Ok(CommandCost { account: None, kind: 0, units: 1 })
    }

    fn price(&self, _: u32, _: u64, _: u8, min_units: u64) -> u64 {
        min_units
    }

    fn apply<'a>(
        &'a self,
        _: EntryHeader,
        shard: u32,
        _: &'a [Bytes],
        _: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        self.counts.lock()[shard as usize] += 1;
        Ok(Applied::Done(Vec::new()))
    }

    fn set_rules(&self, _: u16) {}

    fn on_leadership_change(&self, _: Option<u64>) {}

    fn clock_ms(&self) -> u64 {
        0
    }

    fn freeze(&self, is_saved: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
        let written: Vec<u32> = (0..SHARDS as u32).filter(|number| !is_saved(*number)).collect();
        let update = |(part, number): (SnapshotPart, u32)| {
            if written.contains(&number) { PartUpdate::Write(part) } else { PartUpdate::Retain(part.name().to_owned()) }
        };
        let mut frozen: Vec<PartUpdate> = parts(*self.counts.lock()).into_iter().zip(0..).map(update).collect();
        if self.is_damaged.load(Ordering::Relaxed) {
            frozen[0] = PartUpdate::Write(SnapshotPart::new("s0", || Box::new(iter::once(Err(damage())))));
        }
        *self.written.lock() = written;
        Ok(frozen)
    }

    fn restore(&self, _: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        *self.counts.lock() = std::array::from_fn(|number| count_in(&parts[number]));
        Ok(())
    }
}

/// A replica that applies what it is given.
struct Replica {
    store: NodeStore,
    machine: Arc<SectionCounters>,
    adapter: StateMachineAdapter,
}

impl Replica {
    /// Starts it as openraft does.
    async fn start(store: NodeStore) -> Self {
        let machine = Arc::<SectionCounters>::default();
        let (of_replica, limits) = (store.replica(REPLICA), LogLimits::default());
        let mut adapter = StateMachineAdapter::new(machine.clone(), of_replica, limits, RULES).expect("it is readable");
        if let Some(saved) = adapter.get_current_snapshot().await.expect("it is readable") {
            adapter.install_snapshot(&saved.meta, saved.snapshot).await.expect("it fits");
        }
        Self { store, machine, adapter }
    }

    async fn empty() -> Self {
        let identity = Identity { cluster_id: "parts".into(), node_id: "nd_1".into() };
        Self::start(NodeStore::in_memory(&MemoryDisk::new(), &identity).expect("the store opens")).await
    }

    /// Applies an entry with a section for each of these shards.
    async fn apply(&mut self, index: u64, shards: &[u32]) {
        let id = LogIdOf::<TypeConfig>::new(CommittedLeaderIdOf::<TypeConfig>::new(1), index);
        let section = |shard: &u32| Section { shard: *shard, commands: Vec::new() };
        let sections: Vec<Section> = shards.iter().map(section).collect();
        let payload = match shards {
            [] => EntryPayload::Blank,
            _ => EntryPayload::Normal(EntryData::commands(1, index, 0, &sections)),
        };
        let entry = EntryOf::<TypeConfig>::new(id, payload);
        self.adapter.apply(stream::iter([Ok((entry, None))])).await.expect("it is sound");
    }

    /// Makes a snapshot. Returns the shards whose parts were written.
    async fn snapshot(&mut self) -> Vec<u32> {
        self.adapter.get_snapshot_builder().await.build_snapshot().await.expect("it is saved");
        self.machine.written.lock().clone()
    }

    /// The counts in the parts of the saved snapshot.
    fn saved(&self) -> [u64; SHARDS] {
        let saved = self.store.replica(REPLICA).snapshot().expect("it is readable").expect("there is one").parts();
        let names: Vec<&str> = saved.iter().map(SnapshotPart::name).collect();
        assert_eq!(names, ["s0", "s1", "s2", "s3"]);
        std::array::from_fn(|number| count_in(&saved[number]))
    }
}

#[tokio::test]
async fn a_replica_goes_on_without_a_new_snapshot_if_the_last_state_of_a_failed_shard_is_damaged() {
    let mut replica = Replica::empty().await;
    replica.apply(1, &[0, 1, 2, 3]).await;
    replica.snapshot().await;
    replica.machine.is_damaged.store(true, Ordering::Relaxed);
    replica.apply(2, &[1]).await;
    let kept = replica.adapter.get_snapshot_builder().await.build_snapshot().await.expect("the replica goes on");
    assert_eq!(kept.meta.last_log_id.map(|last| last.index), Some(1));
    assert_eq!(replica.saved(), [1, 1, 1, 1]);
    replica.machine.is_damaged.store(false, Ordering::Relaxed);
    replica.snapshot().await;
    assert_eq!(replica.saved(), [1, 2, 1, 1], "the shard has its state again");
}

#[tokio::test]
async fn only_parts_of_shards_with_sections_since_the_saved_snapshot_are_written() {
    let mut replica = Replica::empty().await;
    replica.apply(1, &[0, 1, 2]).await;
    assert_eq!(replica.snapshot().await, [0, 1, 2, 3]);
    replica.apply(2, &[2]).await;
    replica.apply(3, &[2]).await;
    assert_eq!(replica.snapshot().await, [2]);
    assert_eq!(replica.saved(), [1, 1, 3, 0]);
    replica.apply(4, &[]).await;
    assert!(replica.snapshot().await.is_empty());
    assert_eq!(replica.saved(), [1, 1, 3, 0]);

    let mut replica = Replica::start(replica.store).await;
    assert_eq!(*replica.machine.counts.lock(), [1, 1, 3, 0]);
    replica.apply(5, &[3]).await;
    assert_eq!(replica.snapshot().await, [3]);
    assert_eq!(replica.saved(), [1, 1, 3, 1]);
}

#[tokio::test]
async fn a_snapshot_that_was_not_saved_retains_nothing() {
    let mut replica = Replica::empty().await;
    replica.apply(1, &[0]).await;
    assert_eq!(replica.snapshot().await, [0, 1, 2, 3]);
    replica.apply(2, &[1]).await;
    drop(replica.adapter.get_snapshot_builder().await);
    replica.apply(3, &[2]).await;
    let mut late = replica.adapter.get_snapshot_builder().await;
    replica.apply(4, &[3]).await;
    assert_eq!(replica.snapshot().await, [1, 2, 3]);
    // The earlier one comes too late, and changes nothing.
    late.build_snapshot().await.expect("a newer one is saved");
    assert_eq!(replica.saved(), [1, 1, 1, 1]);
    replica.apply(5, &[0]).await;
    assert_eq!(replica.snapshot().await, [0]);
    assert_eq!(replica.saved(), [2, 1, 1, 1]);
}

#[tokio::test]
async fn an_installed_snapshot_has_the_same_parts_and_the_next_one_retains_them() {
    let (mut leader, mut follower) = (Replica::empty().await, Replica::empty().await);
    follower.apply(1, &[0, 1]).await;
    assert_eq!(follower.snapshot().await, [0, 1, 2, 3]);
    for index in 1..5 {
        leader.apply(index, &[0, 1]).await;
    }
    leader.snapshot().await;
    leader.apply(5, &[1]).await;
    assert_eq!(leader.snapshot().await, [1]);
    let sent = leader.adapter.get_current_snapshot().await.expect("it is readable").expect("there is one");
    follower.adapter.install_snapshot(&sent.meta, sent.snapshot).await.expect("it fits");
    assert_eq!(follower.saved(), [4, 5, 0, 0]);
    for replica in [&mut leader, &mut follower] {
        replica.apply(6, &[3]).await;
        assert_eq!(replica.snapshot().await, [3]);
    }
    assert_eq!((leader.saved(), follower.saved()), ([4, 5, 0, 1], [4, 5, 0, 1]));
}
