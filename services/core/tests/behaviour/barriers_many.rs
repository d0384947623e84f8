//! Barriers with many arrivals, and ends of more of them than a slice ends.

use holdfast_core::{
    ArriveAtBarrier, BarrierCommand, BarrierOutcome, BarrierQuery, Bounds, Command, JobState, Limits, LocksCommand,
    MAX_PAGE_BYTES, Metadata, OnLoss, Owner, Path, Query, Release, ReleaseTarget, Reset, Response, Rules, codec,
};

use crate::barriers::{arrival, arrive, barrier, configure, outcome, view};
use crate::primitives::{acquire, limited, open_session, permits};
use crate::support::{Shard, orders, process, purge};

/// A shard that ends two things in a slice.
fn shard() -> Shard {
    let mut shard = Shard::with_bounds(Bounds { ends_per_slice: 2, grants_per_slice: 2, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard
}

fn at(path: &str, owner: Owner) -> ArriveAtBarrier {
    ArriveAtBarrier { path: Path::flat(path), ..arrival(owner) }
}

/// As many entries as it takes; a restored replica goes on where this one was.
fn finish(shard: &mut Shard) {
    for entries in 0.. {
        if !shard.core.has_backlog() {
            return;
        }
        let mut restored = shard.restored();
        shard.advance_by(0);
        restored.advance_by(0);
        assert_eq!(restored.core.snapshot(), shard.core.snapshot());
        shard.core.verify();
        assert!(entries < 100, "it comes to an end");
    }
}

/// The command in the present entry, so that nothing goes on before it.
fn now(shard: &mut Shard, arrive: ArriveAtBarrier) -> BarrierOutcome {
    match shard.apply_now(&Command::Locks(LocksCommand::Barrier(BarrierCommand::Arrive(arrive)))).outcome {
        Ok(Response::AtBarrier { answer, .. }) => answer.outcome,
        other => panic!("it is no arrival: {other:?}"),
    }
}

/// Nobody meets an arrival of a session that has ended, though the slice that ends it has yet to come.
#[test]
fn the_arrivals_of_a_session_that_ends_in_slices_count_no_more_at_once() {
    for on_loss in [OnLoss::Break, OnLoss::Withdraw] {
        let mut shard = shard();
        configure(&mut shard, 2, false, on_loss);
        let session = open_session(&mut shard, "se_1");
        for path in ["a", "b", "c", "d", "e"] {
            assert_eq!(arrive(&mut shard, at(path, session.clone())).outcome, BarrierOutcome::Waiting);
        }
        let (namespace, session_id, message) = (orders(), "se_1".to_owned(), None);
        let close = LocksCommand::CloseSession { namespace, session_id, message };
        assert_eq!(shard.apply(&Command::Locks(close)).outcome, Ok(Response::Done));
        assert!(shard.core.has_backlog(), "it takes more than a slice");
        for path in ["e", "d", "b"] {
            assert_eq!(now(&mut shard, at(path, process("p1"))), BarrierOutcome::Waiting, "{path}: {on_loss:?}");
            assert_eq!(now(&mut shard, at(path, process("p2"))), BarrierOutcome::Tripped, "{path}: {on_loss:?}");
        }
        finish(&mut shard);
        assert_eq!(shard.core.footprint(), Default::default());
    }
}

#[test]
fn whoever_releases_all_in_slices_counts_no_more_at_once_and_each_arrival_is_counted_once() {
    let mut shard = shard();
    for path in ["a", "b", "c", "d", "e"] {
        arrive(&mut shard, at(path, process("p")));
    }
    let (owner, what) = (process("p"), ReleaseTarget::All);
    let release = LocksCommand::Release(Release { namespace: orders(), owner, what, message: None });
    let began = shard.apply(&Command::Locks(release)).awaits.expect("it takes more than a slice");
    assert_eq!(now(&mut shard, at("e", process("q"))), BarrierOutcome::Waiting);
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 5, ended_waits: 0 });
    assert_eq!(shard.core.footprint().holds, 1);
}

/// A process is as old as the oldest that it has, whichever table that is in and in whatever order it ends.
#[test]
fn a_reset_of_old_processes_finds_them_by_permits_and_by_arrivals() {
    for in_slices in [false, true] {
        let mut shard = if in_slices { shard() } else { limited(Limits::default()) };
        arrive(&mut shard, at("a", process("arrived")));
        assert!(acquire(&mut shard, permits(process("granted"), "r", 1)).is_ok());
        let before = shard.core.revision() + 1;
        for path in ["c", "d", "e"] {
            arrive(&mut shard, at(path, process("granted")));
        }
        assert!(acquire(&mut shard, permits(process("arrived"), "r", 1)).is_ok());
        arrive(&mut shard, at("f", process("young")));
        let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(before) };
        let reply = shard.apply(&Command::Locks(LocksCommand::Reset(reset)));
        match (in_slices, reply.awaits, reply.outcome) {
            (true, Some(began), Ok(_)) => {
                finish(&mut shard);
                assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 6, ended_waits: 0 });
            }
            (false, None, Ok(Response::Reset { removed_holds: 6, removed_waiters: 0 })) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(shard.core.footprint().holds, 1, "the young one stays");
    }
}

#[test]
fn a_thousand_meet_and_all_are_shown_within_a_page() {
    let mut shard = limited(Limits::default());
    configure(&mut shard, 1_000, true, OnLoss::Break);
    let with = |number: u32| ArriveAtBarrier {
        metadata: Metadata::from([("k".to_owned(), "v".repeat(2_000))]),
        ttl_ms: Some(1_000_000),
        ..arrival(process(&format!("p{number:04}")))
    };
    let mut last = None;
    for number in 0..999 {
        last = Some(arrive(&mut shard, with(number)));
    }
    let get = Query::Barrier(BarrierQuery::Get { namespace: orders(), path: Path::flat("b") });
    let Ok(Response::BarrierArrivals { arrivals, .. }) = shard.query(&get) else { panic!("its arrivals") };
    assert!(arrivals.len() == 999 && codec::size(&arrivals) <= MAX_PAGE_BYTES, "all are shown, without metadata");
    let tripped = arrive(&mut shard, with(999));
    assert_eq!((tripped.outcome, tripped.index), (BarrierOutcome::Tripped, Some(999)));
    let of_first = outcome(&shard, Some(process("p0000")), last.unwrap().generation, false);
    assert_eq!((of_first.outcome, of_first.index), (BarrierOutcome::Tripped, Some(0)));
    assert_eq!(view(&shard).unwrap().inside, 1_000);
    shard.core.verify();
    assert_eq!(shard.restored().core.snapshot(), shard.core.snapshot());
}

#[test]
fn nothing_is_left_of_a_namespace_with_barriers() {
    let mut shard = limited(Limits::default());
    arrive(&mut shard, arrival(process("p1")));
    let (namespace, path) = (orders(), Path::flat("b"));
    assert!(shard.apply(&purge(2, orders())).outcome.is_ok());
    assert!(barrier(&mut shard, BarrierCommand::Delete { namespace, path }).is_err());
    assert_eq!(shard.core.footprint(), Default::default());
    assert_eq!(shard.core.next_deadline_ms(), None);
}
