//! openraft's own suite for logs and state machines, over RocksDB and over its twin in memory.

use std::sync::Arc;

use holdfast_replication::LogLimits;
use holdfast_replication::testing::{LogStore, StateMachineAdapter, TypeConfig};
use holdfast_storage::{Identity, MemoryDisk, NodeStore};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};

use crate::common::journal::Journal;
use crate::common::node::RULES;

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
