//! The bytes of commands and replies: what every one of them pays, at the gateway and on each replica.

mod common;

use criterion::{Criterion, criterion_group, criterion_main};
use holdfast_core::{Command, Reply, codec};
use std::hint::black_box;

use common::{HOUR_MS, acquire, context_at, shard_with};

fn codec(criterion: &mut Criterion) {
    let command = acquire("invoice-42", "worker-7", HOUR_MS);
    let mut core = shard_with(1, HOUR_MS);
    let reply = core.apply(&context_at(1), &command);
    let (command_bytes, reply_bytes) = (codec::encode(&command), codec::encode(&reply));
    eprintln!("an acquire has {} bytes, its reply {}", command_bytes.len(), reply_bytes.len());
    let mut group = criterion.benchmark_group("codec");
    group.bench_function("encode an acquire", |bencher| bencher.iter(|| codec::encode(black_box(&command))));
    group.bench_function("decode an acquire", |bencher| {
        bencher.iter(|| codec::decode::<Command>(black_box(&command_bytes)).expect("it was encoded here"));
    });
    group.bench_function("encode its reply", |bencher| bencher.iter(|| codec::encode(black_box(&reply))));
    group.bench_function("decode its reply", |bencher| {
        bencher.iter(|| codec::decode::<Reply>(black_box(&reply_bytes)).expect("it was encoded here"));
    });
    group.finish();
}

criterion_group!(benches, codec);
criterion_main!(benches);
