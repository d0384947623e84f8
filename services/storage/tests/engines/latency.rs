//! How long a synced batch takes. Prints figures; run it with `--test engines -- --ignored --nocapture`.

use std::time::Instant;

use bytes::Bytes;
use holdfast_storage::NodeStore;

use crate::common::{commit, identity};

#[tokio::test]
#[ignore = "a measurement"]
async fn synced_batch_latency() {
    let dir = tempfile::tempdir_in(".").expect("a directory on a real disk");
    let store = NodeStore::open(dir.path(), &identity()).expect("the store opens");
    for size in [1_u64, 16, 256] {
        let (mut index, mut times) = (0, Vec::new());
        for _ in 0..2000 {
            let entries: Vec<_> = (index..index + size).map(|index| (index, Bytes::from(vec![7; 160]))).collect();
            index += size;
            let started = Instant::now();
            commit(|done| store.replica(size).append(entries, done)).await.expect("the append is durable");
            times.push(started.elapsed());
        }
        times.sort();
        println!("{size} entries of 160 bytes: p50 {:?}, p99 {:?}", times[1000], times[1980]);
    }
    store.close().await;
}
