//! Commands through the queue, the log, and the state machine of a group.
//!
//! `replica`: the group has one member and no network, over memory (what the code costs) and over RocksDB (what it costs
//! with the disk). `replication`: three members over memory and loopback connections; not the time is measured but the
//! CPU time of the process, that is of all three nodes.

mod common;

use std::sync::Arc;
use std::time::Duration;

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast_storage::{MemoryDisk, NodeStore};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::{Builder, Runtime};

use common::group::{Leader, commands, identity};

const CLIENTS: [usize; 3] = [1, 16, 256];

fn in_memory(node: usize) -> NodeStore {
    NodeStore::in_memory(&MemoryDisk::new(), &identity(node)).expect("the store opens")
}

fn replica(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime starts");
    let dir = tempfile::tempdir().expect("a temporary directory");
    for disk in ["memory", "RocksDB"] {
        let leader = runtime.block_on(async {
            let store = match disk {
                "memory" => in_memory(0),
                _ => NodeStore::open(&dir.path().join("data"), &identity(0)).expect("the store opens"),
            };
            Leader::start(vec![store]).await
        });
        let mut group = criterion.benchmark_group(format!("replica over {disk}/acquire + release"));
        for clients in CLIENTS {
            let commands = commands(clients);
            group.throughput(Throughput::Elements(clients as u64));
            group.bench_function(BenchmarkId::from_parameter(format!("{clients} clients")), |bencher| {
                bencher.to_async(&runtime).iter(|| leader.pairs(&commands));
            });
        }
        group.finish();
        runtime.block_on(leader.shutdown());
    }
}

/// The CPU time of this process so far.
fn cpu_time() -> Duration {
    Duration::try_from(clock_gettime(ClockId::ProcessCPUTime)).expect("it is positive")
}

fn replication(criterion: &mut Criterion) {
    // One thread for all, so that the nodes do not wake up one another's. It runs on while criterion computes.
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime starts");
    let leader = Arc::new(runtime.block_on(async { Leader::start((0..3).map(in_memory).collect()).await }));
    let mut group = criterion.benchmark_group("replication/CPU of acquire + release on three nodes");
    for clients in CLIENTS {
        let commands = Arc::new(commands(clients));
        group.throughput(Throughput::Elements(clients as u64));
        group.bench_function(BenchmarkId::from_parameter(format!("{clients} clients")), |bencher| {
            bencher.iter_custom(|rounds| {
                let (leader, commands) = (Arc::clone(&leader), Arc::clone(&commands));
                let measuring = async move {
                    let began = cpu_time();
                    for _ in 0..rounds {
                        leader.pairs(&commands).await;
                    }
                    cpu_time() - began
                };
                runtime.block_on(runtime.spawn(measuring)).expect("the commands are applied")
            });
        });
    }
    group.finish();
    runtime.block_on(leader.shutdown());
}

criterion_group!(benches, replica, replication);
criterion_main!(benches);
