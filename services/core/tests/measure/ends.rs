//! How long the longest step is of what ends very much.

use std::time::{Duration, Instant};

use holdfast_core::LocksCommand;

use crate::alone;
use crate::shard::{Shard, namespace};

/// A session that holds so many paths.
fn with_holds(holds: u64) -> Shard {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    for number in 0..holds {
        shard.hold_for("se_1", "thread", &format!("lock{number}"));
    }
    shard
}

/// Closes the session, and goes on until nothing is left: the longest step, and how many.
fn end(mut shard: Shard) -> (Duration, u32) {
    let (mut longest, mut steps) = (Duration::ZERO, 0);
    let mut step = |shard: &mut Shard, work: &dyn Fn(&mut Shard)| {
        let start = Instant::now();
        work(shard);
        longest = longest.max(start.elapsed());
        steps += 1;
        shard.core.drop_effects();
    };
    let close = LocksCommand::CloseSession { namespace: namespace(), session_id: "se_1".into(), message: None };
    step(&mut shard, &|shard| drop(shard.apply(close.clone())));
    while shard.core.has_jobs() {
        step(&mut shard, &|shard| shard.advance(0));
    }
    assert_eq!(shard.core.footprint(), Default::default());
    (longest, steps)
}

/// The steps of a large end are as long as those of a small one.
#[test]
fn the_longest_step_of_the_end_of_a_session_does_not_grow_with_what_it_holds() {
    let _alone = alone();
    let (_, few) = end(with_holds(5_120));
    let (_, many) = end(with_holds(51_200));
    assert_eq!((few, many), (12, 102), "512 ends in each, then the end itself");
}

#[test]
#[ignore = "it takes minutes, and its figures depend on the machine"]
fn the_end_of_a_session_with_very_many_holds() {
    let _alone = alone();
    for holds in [200_000, 1_000_000] {
        let shard = with_holds(holds);
        let (longest, steps) = end(shard);
        println!("{holds} holds end in {steps} steps; the longest takes {longest:?}");
    }
}
