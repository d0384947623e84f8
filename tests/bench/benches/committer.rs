//! The committer over RocksDB: a batch is handed over and waited for until it is synced. The data is in the folder for
//! temporary files, which should be on the disk that is meant.

use std::sync::mpsc;

use bytes::Bytes;
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast_storage::{Identity, NodeStore, ReplicaStore};

/// About what an entry with one acquire has.
const ENTRY_BYTES: usize = 160;

struct Log {
    replica: ReplicaStore,
    next: u64,
}

impl Log {
    fn entries(&mut self, count: u64) -> Vec<(u64, Bytes)> {
        let first = self.next;
        self.next += count;
        (first..self.next).map(|index| (index, Bytes::from(vec![7; ENTRY_BYTES]))).collect()
    }
}

/// Appends so many entries to each log, and waits until all are durable.
fn commit(logs: &mut [Log], entries: u64) {
    let (tell, told) = mpsc::channel();
    for log in logs.iter_mut() {
        let tell = tell.clone();
        let entries = log.entries(entries);
        log.replica.append(entries, Box::new(move |result| drop(tell.send(result))));
    }
    for _ in logs {
        told.recv().expect("the callback is called").expect("the append is durable");
    }
}

fn committer(criterion: &mut Criterion) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let identity = Identity { cluster_id: "bench".to_owned(), node_id: "nd_1".to_owned() };
    let store = NodeStore::open(&dir.path().join("data"), &identity).expect("the store opens");
    let mut logs: Vec<Log> = (1..=16).map(|id| Log { replica: store.replica(id), next: 1 }).collect();
    let mut group = criterion.benchmark_group("committer/synced batch");
    for (groups, entries) in [(1, 1), (1, 16), (1, 256), (16, 1), (16, 16)] {
        let logs = &mut logs[..groups];
        group.throughput(Throughput::Elements(groups as u64 * entries));
        let id = BenchmarkId::from_parameter(format!("{groups} logs, {entries} entries each"));
        group.bench_function(id, |bencher| bencher.iter(|| commit(logs, entries)));
    }
    group.finish();
}

criterion_group!(benches, committer);
criterion_main!(benches);
