//! openraft's own suite for logs and state machines, over RocksDB and over its twin in memory.

use std::sync::Arc;

use crate::common::node::RULES;
use bytes::Bytes;
use holdfast_replication::testing::{LogStore, StateMachineAdapter, TypeConfig};
use holdfast_replication::{
    Applied, ApplyFailure, CommandCost, EntryHeader, FrozenState, LogLimits, ReplyMode, StateMachine, StateMachineError,
};
use holdfast_storage::{Identity, MemoryDisk, NodeStore, PartUpdate, SnapshotPart};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use parking_lot::Mutex;

/// Remembers every command with its stamp.
#[derive(Default)]
struct Journal {
    entries: Mutex<Vec<(u64, Bytes)>>,
}

impl StateMachine for Journal {
    fn assess(&self, _: u16, _: u32, _: &[u8]) -> Result<CommandCost, StateMachineError> {
        Ok(CommandCost { account: None, units: 1 })
    }

    fn price(&self, _: u32, _: u64, min_units: u64) -> u64 {
        min_units
    }

    fn apply<'a>(
        &'a self,
        stamp: EntryHeader,
        _: u32,
        commands: &'a [Bytes],
        _: ReplyMode,
    ) -> Result<Applied<'a>, ApplyFailure> {
        let mut entries = self.entries.lock();
        entries.extend(commands.iter().map(|command| (stamp.now_ms, command.clone())));
        Ok(Applied::Done(commands.to_vec()))
    }

    fn set_rules(&self, _: u16) {}

    fn on_leadership_change(&self, _: Option<u64>) {}

    fn clock_ms(&self) -> u64 {
        self.entries.lock().iter().map(|(now_ms, _)| *now_ms).max().unwrap_or(0)
    }

    fn freeze(&self, _: &dyn Fn(u32) -> bool) -> Result<FrozenState, StateMachineError> {
        let entries = self.entries.lock().clone();
        let chunk = |(now_ms, command): &(u64, Bytes)| [&now_ms.to_be_bytes()[..], command].concat().into();
        let chunks = entries.iter().map(chunk).collect();
        Ok(vec![PartUpdate::Write(SnapshotPart::from_chunks("entries", chunks))])
    }

    fn restore(&self, _: u64, parts: &[SnapshotPart]) -> Result<(), StateMachineError> {
        let mut restored = Vec::new();
        for chunk in parts.iter().flat_map(SnapshotPart::chunks) {
            let chunk = chunk.map_err(|error| StateMachineError(error.to_string()))?;
            let (stamp, command) = chunk.split_first_chunk().ok_or_else(|| StateMachineError("short chunk".into()))?;
            restored.push((u64::from_be_bytes(*stamp), Bytes::copy_from_slice(command)));
        }
        *self.entries.lock() = restored;
        Ok(())
    }
}

/// Where the suite's stores live.
enum Engine {
    Rocks,
    Memory,
}

/// Keeps what a store needs until its test is over.
enum Guard {
    Directory { _directory: tempfile::TempDir },
    Disk { _disk: MemoryDisk },
}

impl StoreBuilder<TypeConfig, LogStore, StateMachineAdapter, Guard> for Engine {
    async fn build(&self) -> Result<(Guard, LogStore, StateMachineAdapter), StorageError<TypeConfig>> {
        let identity = Identity { cluster_id: "suite".into(), node_id: "nd_1".into() };
        let (guard, store) = match self {
            Self::Rocks => {
                let directory = tempfile::tempdir().expect("a temporary directory");
                let store = NodeStore::open(&directory.path().join("data"), &identity).expect("the store opens");
                (Guard::Directory { _directory: directory }, store)
            }
            Self::Memory => {
                let disk = MemoryDisk::new();
                let store = NodeStore::in_memory(&disk, &identity).expect("the store opens");
                (Guard::Disk { _disk: disk }, store)
            }
        };
        let log = LogStore::open(store.replica(1)).expect("an empty log opens");
        let (machine, limits) = (Arc::new(Journal::default()), LogLimits::default());
        let adapter =
            StateMachineAdapter::new(machine, store.replica(1), limits, RULES).expect("an empty adapter opens");
        Ok((guard, log, adapter))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_the_suite_of_openraft_on_rocksdb() {
    Suite::test_all(Engine::Rocks).await.expect("the suite passes");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_the_suite_of_openraft_in_memory() {
    Suite::test_all(Engine::Memory).await.expect("the suite passes");
}
