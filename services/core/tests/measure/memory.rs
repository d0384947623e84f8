//! What a hold and other things take in memory.

use holdfast_core::Wait;
use stats_alloc::Region;

use crate::shard::Shard;
use crate::{ALLOCATOR, exclusive};

/// Bytes for each of many things that are added one by one; the first ones, and the history with them, do not count.
fn bytes_each(what: &str, number: u64, mut add: impl FnMut(&mut Shard, u64)) -> i64 {
    let mut shard = Shard::new();
    (0..20_000).for_each(|index| add(&mut shard, index));
    let region = Region::new(ALLOCATOR);
    (20_000..20_000 + number).for_each(|index| add(&mut shard, index));
    let change = region.change();
    let each = (change.bytes_allocated as i64 - change.bytes_deallocated as i64) / number as i64;
    println!("{what}: {each} bytes each");
    each
}

/// As a random order of names is to an ordered index.
fn shuffled(index: u64) -> u64 {
    index.wrapping_mul(7_919) % 1_000_003
}

#[test]
fn a_simple_hold_takes_at_most_300_bytes() {
    let _alone = exclusive();
    let in_order = bytes_each("holds in order of name", 100_000, |shard, index| {
        shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]);
    });
    let in_any_order = bytes_each("holds in any order", 100_000, |shard, index| {
        let index = shuffled(index);
        shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")]);
    });
    assert!(in_order.max(in_any_order) <= 300);
}

#[test]
#[ignore = "prints figures"]
fn what_other_things_take() {
    let _alone = exclusive();
    bytes_each("holds of one owner", 100_000, |shard, index| {
        shard.hold("process", &[&format!("lock-{index:06}")]);
    });
    bytes_each("holds two deep, each with a parent of its own", 100_000, |shard, index| {
        shard.hold(&format!("process-{index:06}"), &[&format!("parent-{index:06}"), "child"]);
    });
    bytes_each("waiting requests for one lock", 50_000, |shard, index| {
        let wait = Wait::For(1_000_000);
        shard.acquire(&format!("process-{index:06}"), &["lock"], wait);
    });
    bytes_each("sessions", 100_000, |shard, index| shard.open_session(&format!("se_{index:016}")));
    bytes_each("sessions with one request granted", 100_000, |shard, index| {
        let session_id = format!("se_{index:016}");
        shard.open_session(&session_id);
        shard.lock(&session_id, "request-1", &format!("lock-{index:06}"));
    });
}
