//! The state machine of a locks shard by itself: what a command costs, and whether that depends on what is held.

mod common;

use criterion::{BatchSize, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use holdfast_core::Application;
use holdfast_core::Path;
use holdfast_core::shard::ShardState;
use std::hint::black_box;
use std::time::{Duration, Instant};

use common::{HOUR_MS, SHARD, acquire, acquire_all, context_at, get_query, release, release_all, shard_with};

/// An acquire and a release, each in an entry of its own, beside so many other holds.
fn pairs(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/acquire + release");
    for holds in [0, 1_000, 100_000, 1_000_000] {
        let mut core = shard_with(holds, HOUR_MS);
        let (take, give) = (acquire("mine", "me", HOUR_MS), release("mine", "me"));
        group.throughput(Throughput::Elements(1));
        group.bench_function(BenchmarkId::from_parameter(format!("{holds} other holds")), |bencher| {
            bencher.iter(|| {
                for command in [&take, &give] {
                    core.advance(&context_at(2));
                    black_box(core.apply(&context_at(2), command));
                }
            });
        });
    }
    group.finish();
}

/// A set of eight paths, and a path of eight segments: all or nothing, taken and released.
fn sets_and_depth(criterion: &mut Criterion) {
    let set: Vec<Path> = (0..8).map(|number| Path::flat(format!("one-of-{number}"))).collect();
    let deep = vec![Path((0..8).map(|level| format!("level-{level}")).collect())];
    let mut group = criterion.benchmark_group("core/acquire + release");
    for (name, paths) in [("a set of 8", set), ("8 deep", deep)] {
        let mut core = shard_with(1_000, HOUR_MS);
        let (take, give) = (acquire_all(&paths, "me", HOUR_MS), release_all(&paths, "me"));
        group.throughput(Throughput::Elements(1));
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                for command in [&take, &give] {
                    core.advance(&context_at(2));
                    black_box(core.apply(&context_at(2), command));
                }
            });
        });
    }
    group.finish();
}

/// A read of one lock among many.
fn reads(criterion: &mut Criterion) {
    let core = shard_with(100_000, HOUR_MS);
    let query = get_query("lock-50000");
    criterion.bench_function("core/get, 100000 holds", |bencher| bencher.iter(|| black_box(core.query(2, &query))));
}

/// All holds of a shard end in the same entry.
fn expiry(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/expiry at once");
    group.sample_size(10);
    for holds in [1_000, 100_000] {
        // Not a clone, which would share what is then copied within the measurement.
        let chunks = shard_with(holds, 1_000).snapshot();
        let full = || ShardState::restore(Application::Locks, SHARD, &chunks).expect("the snapshot is whole");
        group.throughput(Throughput::Elements(holds));
        group.bench_function(BenchmarkId::from_parameter(holds), |bencher| {
            let expire = |mut core: ShardState| {
                core.advance(&context_at(HOUR_MS));
                assert_eq!(core.next_deadline_ms(), None);
                core
            };
            bencher.iter_batched(full, expire, BatchSize::PerIteration);
        });
    }
    group.finish();
}

/// How long a snapshot holds up its shard: while the state is frozen, and then by the copies of what the next commands
/// change. What was frozen is dropped outside of the measurement, as the task that saves it does.
fn freezing(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/snapshot");
    group.sample_size(10);
    for holds in [1_000, 100_000, 1_000_000] {
        let mut core = shard_with(holds, HOUR_MS);
        let (take, give) = (acquire("mine", "me", HOUR_MS), release("mine", "me"));
        let mut timed = |times_freeze: bool, rounds: u64| {
            let mut taken = Duration::ZERO;
            for _ in 0..rounds {
                let began = Instant::now();
                let frozen = black_box(core.freeze());
                let froze = began.elapsed();
                for command in [&take, &give] {
                    core.advance(&context_at(2));
                    black_box(core.apply(&context_at(2), command));
                }
                taken += if times_freeze { froze } else { began.elapsed() - froze };
                drop(frozen);
            }
            taken
        };
        group.bench_function(format!("freeze, {holds} holds"), |bencher| bencher.iter_custom(|n| timed(true, n)));
        group.bench_function(format!("the pair after it, {holds} holds"), |bencher| {
            bencher.iter_custom(|n| timed(false, n));
        });
    }
    group.finish();
}

/// A snapshot of a shard, and starting from it.
fn snapshots(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("core/snapshot");
    group.sample_size(10);
    let holds = 100_000;
    let core = shard_with(holds, HOUR_MS);
    let chunks = core.snapshot();
    let bytes: usize = chunks.iter().map(Vec::len).sum();
    eprintln!("a snapshot of {holds} holds has {bytes} bytes");
    group.throughput(Throughput::Elements(holds));
    group.bench_function("make, 100000 holds", |bencher| bencher.iter(|| black_box(core.snapshot())));
    group.bench_function("restore, 100000 holds", |bencher| {
        bencher.iter(|| ShardState::restore(Application::Locks, SHARD, &chunks).expect("the snapshot is whole"));
    });
    group.finish();
}

criterion_group!(benches, pairs, sets_and_depth, reads, expiry, freezing, snapshots);
criterion_main!(benches);
