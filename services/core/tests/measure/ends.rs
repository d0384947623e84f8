//! How long the longest step is of what ends very much.

use std::time::{Duration, Instant};

use holdfast_core::{Bounds, LockInfo, LocksCommand, Mode, Path, Query, ReportedHold, Response};

use crate::exclusive;
use crate::shard::{Shard, bounds, namespace};

/// A session that holds so many paths.
fn session_with_holds(holds: u64) -> Shard {
    session_with_holds_within(bounds(), holds)
}

/// As before there were slices.
fn bounds_without_slices() -> Bounds {
    Bounds { ends_per_slice: usize::MAX, grants_per_slice: usize::MAX, ..bounds() }
}

fn session_with_holds_within(bounds: Bounds, holds: u64) -> Shard {
    let mut shard = Shard::with_bounds(bounds);
    shard.open_session("se_1");
    for number in 0..holds {
        shard.hold_for("se_1", "thread", &format!("lock{number}"));
    }
    shard
}

/// Closes the session, and goes on until nothing is left: the longest step, and how many.
fn close_session(mut shard: Shard) -> (Duration, u32) {
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
    while shard.core.has_backlog() {
        step(&mut shard, &|shard| shard.advance(0));
    }
    assert_eq!(shard.core.footprint(), Default::default());
    (longest, steps)
}

/// The steps of a large end are as long as those of a small one.
#[test]
fn the_longest_step_of_the_end_of_a_session_does_not_grow_with_what_it_holds() {
    let _alone = exclusive();
    let (_, few) = close_session(session_with_holds(5_120));
    let (_, many) = close_session(session_with_holds(51_200));
    assert_eq!((few, many), (22, 202), "256 ends in each, then the end itself");
}

#[test]
#[ignore = "it takes minutes, and its figures depend on the machine"]
fn the_end_of_a_session_with_very_many_holds() {
    let _alone = exclusive();
    for holds in [200_000, 1_000_000] {
        let (longest, steps) = close_session(session_with_holds(holds));
        println!("{holds} holds end in {steps} steps; the longest takes {longest:?}");
        let (at_once, steps) = close_session(session_with_holds_within(bounds_without_slices(), holds));
        assert_eq!(steps, 1);
        println!("at once it takes {at_once:?}");
    }
}

/// The shortest time of some in which a resumed session is told that it has all that its client believes to hold; each
/// of its holds is of a holder of its own.
fn time_reconcile(holds: u64) -> Duration {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let mut held = Vec::new();
    for number in 0..holds {
        shard.hold_for("se_1", &format!("thread{number}"), &format!("lock{number}"));
        let (path, fencing_token) = (Path::flat(format!("lock{number}")), shard.core.revision());
        held.push(ReportedHold { path, mode: Mode::Write, fencing_token });
    }
    let none = Response::Reconciled { lost: vec![], ended_holds: 0, ended_waits: 0 };
    let (namespace, session_id) = (namespace(), "se_1".to_owned());
    let believed =
        Query::ReconcileHolds { namespace: namespace.clone(), session_id: session_id.clone(), held: held.clone() };
    let info = LocksCommand::LockInfo(LockInfo { namespace, session_id, message: None, held, pending: vec![] });
    let times = (0..3).map(|_| {
        let start = Instant::now();
        assert_eq!(shard.apply(info.clone()), none);
        assert_eq!(shard.core.query(0, &believed).outcome, Ok(none.clone()));
        start.elapsed()
    });
    times.min().expect("some")
}

/// Each hold is found by its path and token: looking through all holders for each takes 256 times as long.
#[test]
#[ignore = "prints figures"]
fn what_a_session_holds_is_compared() {
    let _alone = exclusive();
    for holds in [500, 8_000] {
        println!("{holds} holds are compared in {:?}", time_reconcile(holds));
    }
}
