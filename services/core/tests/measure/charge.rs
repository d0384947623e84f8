//! What is charged for locks is an upper bound of what is allocated, and no more than three times as much; and nothing is
//! charged for what ended.

use std::sync::Mutex;

use holdfast_core::{
    Acquire, LocksCommand, Metadata, Mode, NamespaceMessage, Owner, Query, Reset, Response, StateBytes, Wait,
};
use stats_alloc::Region;

use crate::shard::{Shard, namespace};
use crate::{ALLOCATOR, exclusive};

fn charged(shard: &Shard) -> StateBytes {
    let mut all = StateBytes::default();
    match shard.core.query(0, &Query::AccountState { account: namespace().account }).outcome {
        Ok(Response::AccountState(namespaces)) => namespaces.iter().for_each(|(_, bytes)| all.add(bytes)),
        other => panic!("not what is charged: {other:?}"),
    }
    all
}

/// What is charged with too little or too much.
static MISCHARGED: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Returns what was found to be charged with too little or too much since the last call.
pub(crate) fn mischarged() -> Vec<String> {
    std::mem::take(&mut *MISCHARGED.lock().unwrap())
}

/// How many times what is allocated a charge may be.
pub(crate) const MOST: i64 = 3;

/// Adds many things of owners, and ends them. What the namespace has before stays.
pub(crate) fn check(what: &str, number: u64, shard: Shard, add: impl FnMut(&mut Shard, u64)) {
    check_within(MOST, what, number, shard, add);
}

/// The same, with charges of up to so many times what is allocated.
pub(crate) fn check_within(most: i64, what: &str, number: u64, mut shard: Shard, add: impl FnMut(&mut Shard, u64)) {
    let before = charged(&shard);
    measure((what, most), number, &mut shard, add);
    reset(&mut shard);
    let left = charged(&shard);
    let left_for_things = left.total() - left.events;
    assert_eq!(left_for_things, before.total() - before.events, "nothing is charged for what ended: {left:?}");
    purge(shard);
}

/// Adds many things without owners, which no reset ends.
pub(crate) fn check_lasting(most: i64, what: &str, number: u64, mut shard: Shard, add: impl FnMut(&mut Shard, u64)) {
    measure((what, most), number, &mut shard, add);
    let before = charged(&shard);
    reset(&mut shard);
    assert_eq!(charged(&shard), before);
    purge(shard);
}

/// Adds many things, and compares what is charged with what is allocated.
fn measure((what, most): (&str, i64), number: u64, shard: &mut Shard, mut add: impl FnMut(&mut Shard, u64)) {
    let before = charged(shard).total();
    let region = Region::new(ALLOCATOR);
    (0..number).for_each(|index| add(shard, index));
    let change = region.change();
    let allocated = change.bytes_allocated as i64 - change.bytes_deallocated as i64;
    let charge = (charged(shard).total() - before) as i64;
    println!("{what}: {} charged and {} allocated each", charge / number as i64, allocated / number as i64);
    if allocated > charge || charge > most * allocated {
        MISCHARGED.lock().unwrap().push(what.to_owned());
    }
}

fn reset(shard: &mut Shard) {
    let reset = Reset { namespace: namespace(), live_owners: vec![], before_revision: None };
    shard.apply(LocksCommand::Reset(reset));
    run_backlog(shard);
}

/// Deletes the namespace, for which nothing is charged then.
fn purge(mut shard: Shard) {
    let message = NamespaceMessage::Purge { namespace: namespace() };
    shard.apply(LocksCommand::Deliver { source: "namespaces_00".into(), number: 2, message });
    run_backlog(&mut shard);
    assert_eq!(charged(&shard), StateBytes::default());
}

fn run_backlog(shard: &mut Shard) {
    while shard.core.has_backlog() {
        shard.advance(1);
    }
}

fn pairs(number: usize, bytes: usize) -> Metadata {
    (0..number).map(|key| (format!("{key:02}"), "x".repeat(bytes))).collect()
}

fn with_metadata(shard: &mut Shard, index: u64, metadata: Metadata) {
    let owner = Owner::Process(format!("process-{index:06}"));
    let name = format!("lock-{index:06}");
    shard.send_acquire(Acquire { metadata, ..Shard::request(owner, &[&name], Mode::Write) });
}

#[test]
fn no_more_is_allocated_than_charged_and_no_less_than_a_third() {
    let _alone = exclusive();
    let quiet = || Shard::with_event_bytes(0);
    check("holds", 30_000, quiet(), |shard, index| {
        shard.hold(&format!("process-{index:06}"), &[&format!("lock-{index:06}")])
    });
    check("readers of locks", 30_000, quiet(), |shard, index| {
        shard.read(&format!("process-{index:06}"), &[&format!("lock-{}", index / 5_000)], Wait::No);
    });
    check("deep paths", 5_000, quiet(), |shard, index| {
        let segments: Vec<String> = (0..16).map(|depth| format!("{index:06}-{depth:02}")).collect();
        shard.hold("process", &segments.iter().map(String::as_str).collect::<Vec<_>>());
    });
    check("metadata of few pairs", 10_000, quiet(), |shard, index| with_metadata(shard, index, pairs(1, 8)));
    check("metadata of many pairs", 10_000, quiet(), |shard, index| with_metadata(shard, index, pairs(64, 14)));
    check("waiting requests", 20_000, quiet(), |shard, index| {
        shard.acquire(&format!("process-{index:06}"), &["lock"], Wait::For(1_000_000));
    });
    check("waiting requests in deep paths", 5_000, quiet(), |shard, index| {
        let path = ["a", "b", "c", "d", "e", "f", "g", "h", &format!("lock-{:04}", index / 2)];
        shard.acquire(&format!("process-{index:06}"), &path, Wait::For(1_000_000));
    });
    check("sessions", 20_000, quiet(), |shard, index| shard.open_session(&format!("se_{index:016}")));
    check("requests with an id", 20_000, quiet(), |shard, index| {
        if index == 0 {
            shard.open_session("se_1");
        }
        shard.lock("se_1", &format!("request-{index}"), &format!("lock-{index:06}"));
    });
    check("events", 9_000, Shard::with_event_bytes(8 << 20), |shard, index| {
        shard.hold(&format!("process-{index:06}"), &["lock"]);
        shard.release(&format!("process-{index:06}"), &["lock"]);
    });
    assert_eq!(mischarged(), [""; 0]);
}
