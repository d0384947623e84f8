//! What Curator checks of its barriers, asked of ours: a gate with several who wait, entering and leaving a double
//! barrier together, one party too many, parties that die on either side, and patience that ends.

use holdfast_core::{
    ArriveAtBarrier, BarrierOutcome, BarrierQuery, Command, CommandError, GenerationEnd, Kind, Limits, LocksCommand,
    OnLoss, Owner, Path, Query, Response, WaitAtBarrier,
};

use crate::barriers::{arrival, arrive, configure, leave, outcome, view};
use crate::primitives::{limited, open_session};
use crate::support::{Shard, orders, process};

/// Longer than a test takes.
const LONG_MS: u64 = 50_000;
/// When an arrival of [`mortal`] ends.
const SHORT_MS: u64 = 1_000;
/// How long a configured barrier stays when nobody is in it.
const RETAIN_MS: u64 = 60_000;

fn party(number: usize) -> Owner {
    process(&format!("p{number}"))
}

fn long(owner: Owner) -> ArriveAtBarrier {
    ArriveAtBarrier { ttl_ms: Some(LONG_MS), ..arrival(owner) }
}

/// The arrival of a process that dies.
fn mortal(owner: Owner) -> ArriveAtBarrier {
    ArriveAtBarrier { ttl_ms: Some(SHORT_MS), ..arrival(owner) }
}

/// Lets these arrive, one after the other; what each is told, and in which generation.
fn enter(shard: &mut Shard, parties: impl IntoIterator<Item = usize>) -> Vec<(BarrierOutcome, u64)> {
    let told = parties.into_iter().map(|number| arrive(shard, long(party(number))));
    let told = told.map(|answer| (answer.outcome, answer.generation)).collect();
    shard.core.verify();
    told
}

/// What one that does not arrive is told of a generation.
fn outcome_for_outsider(shard: &Shard, generation: u64) -> Result<BarrierOutcome, CommandError> {
    let (namespace, path) = (orders(), Path::flat("b"));
    let wait = WaitAtBarrier { namespace, path, generation, owner: None, leaves: false, wait_ms: 0 };
    match shard.query(&Query::Barrier(BarrierQuery::Wait(wait)))? {
        Response::AtBarrier { answer, .. } => Ok(answer.outcome),
        other => panic!("no outcome: {other:?}"),
    }
}

/// How many have arrived, and how many are inside.
fn figures(shard: &Shard) -> (u32, u32) {
    let shown = view(shard).expect("it is there");
    (shown.arrived, shown.inside)
}

fn close_session(shard: &mut Shard, session_id: &str) {
    let (namespace, session_id, message) = (orders(), session_id.to_owned(), None);
    let close = LocksCommand::CloseSession { namespace, session_id, message };
    assert_eq!(shard.apply(&Command::Locks(close)).outcome, Ok(Response::Done));
}

/// A barrier with nobody in it is gone in time, and leaves nothing.
fn assert_gone_in_time(shard: &mut Shard) {
    assert_eq!(figures(shard), (0, 0));
    shard.advance_by(RETAIN_MS);
    assert_eq!(view(shard), None);
    assert_eq!(shard.core.footprint(), Default::default());
}

/// The simple barrier: several wait until it is removed. Here one party opens it, and the next generation is closed.
#[test]
fn all_who_wait_at_a_gate_go_on_when_it_opens() {
    const CLIENTS: usize = 5;
    let shard = &mut limited(Limits::default());
    let absent = outcome_for_outsider(shard, 1);
    assert!(matches!(absent, Err(CommandError::PrimitiveNotFound { kind: Kind::Barrier, .. })), "{absent:?}");
    configure(shard, 1, false, OnLoss::Break);
    for _ in 0..2 {
        let closed = view(shard).unwrap().generation;
        for _ in 0..CLIENTS {
            assert_eq!(outcome_for_outsider(shard, closed), Ok(BarrierOutcome::Waiting));
        }
        let opened = arrive(shard, long(party(0)));
        assert_eq!((opened.outcome, opened.generation), (BarrierOutcome::Tripped, closed));
        for shard in [&*shard, &shard.restored()] {
            for _ in 0..CLIENTS {
                assert_eq!(
                    outcome_for_outsider(shard, closed),
                    Ok(BarrierOutcome::Tripped),
                    "whoever comes late goes on, too"
                );
            }
        }
    }
    assert_gone_in_time(shard);
}

#[test]
fn ten_enter_a_double_barrier_together_and_leave_it_together_again_and_again() {
    const PARTIES: usize = 10;
    let shard = &mut limited(Limits::default());
    configure(shard, PARTIES as u32, true, OnLoss::Break);
    for _ in 0..3 {
        let told = enter(shard, 0..PARTIES);
        let generation = told[0].1;
        let (last, before) = told.split_last().unwrap();
        assert!(before.iter().all(|told| *told == (BarrierOutcome::Waiting, generation)), "{told:?}");
        assert_eq!((*last, figures(shard)), ((BarrierOutcome::Tripped, generation), (0, PARTIES as u32)));
        for number in 0..PARTIES {
            let answer = outcome(shard, Some(party(number)), generation, false);
            assert_eq!((answer.outcome, answer.index), (BarrierOutcome::Tripped, Some(number as u32)));
        }
        // They leave in another order than they came.
        for number in (1..PARTIES).rev() {
            assert_eq!(leave(shard, party(number), generation).outcome, BarrierOutcome::Waiting);
            assert_eq!(figures(shard), (0, number as u32));
        }
        let last = leave(shard, party(0), generation);
        assert_eq!((last.outcome, last.lost), (BarrierOutcome::Left, Some(0)));
        for number in 0..PARTIES {
            let answer = outcome(shard, Some(party(number)), generation, true);
            assert_eq!((answer.outcome, answer.lost), (BarrierOutcome::Left, Some(0)), "party {number}");
        }
    }
    assert_gone_in_time(shard);
}

/// Curator's double barrier breaks when more enter than there are parties (#99).
#[test]
fn those_too_many_enter_the_next_round_and_nobody_is_inside_beside_the_parties() {
    let shard = &mut limited(Limits::default());
    configure(shard, 3, true, OnLoss::Break);
    let told = enter(shard, 0..8);
    let [first, second] = [told[0].1, told[3].1];
    let outcomes: Vec<_> = told.iter().map(|(outcome, _)| *outcome).collect();
    let (waiting, full) = (BarrierOutcome::Waiting, BarrierOutcome::Full);
    assert_eq!(outcomes, [waiting, waiting, BarrierOutcome::Tripped, waiting, waiting, waiting, full, full]);
    assert_eq!(told[6].1, second, "which those wait for who have not arrived");
    assert_eq!(figures(shard), (3, 3));
    for number in 0..3 {
        assert_eq!(outcome_for_outsider(shard, second), Ok(BarrierOutcome::Waiting), "somebody is inside");
        leave(shard, party(number), first);
    }
    assert_eq!((outcome_for_outsider(shard, second), figures(shard)), (Ok(BarrierOutcome::Tripped), (0, 3)));
    // Those who were too many arrive again, and wait for one more and for those inside.
    let third = enter(shard, 6..9);
    assert!(third.iter().all(|told| *told == (BarrierOutcome::Waiting, third[0].1)), "{third:?}");
    for number in 3..6 {
        leave(shard, party(number), second);
    }
    assert_eq!((outcome_for_outsider(shard, third[0].1), figures(shard)), (Ok(BarrierOutcome::Tripped), (0, 3)));
}

/// In Curator the dead count until their nodes are gone, and those whose time is over count on (#601).
#[test]
fn parties_that_die_before_all_have_come_are_replaced_by_others() {
    let shard = &mut limited(Limits::default());
    configure(shard, 5, true, OnLoss::Withdraw);
    let session = open_session(shard, "se_1");
    let generation = arrive(shard, arrival(session)).generation;
    assert_eq!(arrive(shard, mortal(party(0))).generation, generation);
    enter(shard, 1..3);
    assert_eq!(figures(shard), (4, 0));
    close_session(shard, "se_1");
    assert_eq!(figures(shard), (3, 0));
    shard.advance_by(SHORT_MS);
    assert_eq!(figures(shard), (2, 0));
    let others = enter(shard, 3..6);
    let expected = [BarrierOutcome::Waiting, BarrierOutcome::Waiting, BarrierOutcome::Tripped];
    assert_eq!(others, expected.map(|outcome| (outcome, generation)), "it takes three others");
    let indexes: Vec<_> =
        (1..6).map(|number| outcome(shard, Some(party(number)), generation, false).index.unwrap()).collect();
    assert_eq!(indexes, [0, 1, 2, 3, 4], "without the dead");
    let late = arrive(shard, ArriveAtBarrier { generation: Some(generation), ..long(party(0)) });
    assert_eq!((late.outcome, late.ended), (BarrierOutcome::Past, Some(GenerationEnd::Tripped)));
}

/// Leaving must end, whoever dies meanwhile (#753, #1055).
#[test]
fn parties_that_die_inside_hold_nobody_up() {
    let shard = &mut limited(Limits::default());
    configure(shard, 5, true, OnLoss::Break);
    let session = open_session(shard, "se_1");
    let generation = arrive(shard, arrival(session)).generation;
    arrive(shard, mortal(party(0)));
    assert_eq!(enter(shard, 1..4)[2], (BarrierOutcome::Tripped, generation));
    assert_eq!(leave(shard, party(1), generation).outcome, BarrierOutcome::Waiting);
    close_session(shard, "se_1");
    shard.advance_by(SHORT_MS);
    assert_eq!(figures(shard), (0, 2), "one has left and two have died");
    assert_eq!(outcome(shard, Some(party(1)), generation, true).outcome, BarrierOutcome::Waiting);
    assert_eq!(leave(shard, party(2), generation).outcome, BarrierOutcome::Waiting);
    let last = leave(shard, party(3), generation);
    assert_eq!((last.outcome, last.lost), (BarrierOutcome::Left, Some(2)));
    for number in 0..4 {
        let answer = outcome(shard, Some(party(number)), generation, true);
        assert_eq!((answer.outcome, answer.lost), (BarrierOutcome::Left, Some(2)), "party {number}");
    }
    // In the next round the last one inside dies: that lets the others go.
    let generation = arrive(shard, mortal(party(4))).generation;
    enter(shard, 0..4);
    for number in 0..4 {
        assert_eq!(leave(shard, party(number), generation).outcome, BarrierOutcome::Waiting);
    }
    assert_eq!(figures(shard), (0, 1));
    shard.advance_by(SHORT_MS);
    for number in 0..4 {
        let answer = outcome(shard, Some(party(number)), generation, true);
        assert_eq!((answer.outcome, answer.lost), (BarrierOutcome::Left, Some(1)), "party {number}");
    }
    assert_gone_in_time(shard);
}

/// One whose patience ends before all have come, and one whose patience ends before all have left.
#[test]
fn patience_that_ends_on_either_side_has_one_outcome_for_all() {
    let shard = &mut limited(Limits::default());
    configure(shard, 3, true, OnLoss::Break);
    let broken = enter(shard, 0..2)[0].1;
    assert_eq!(leave(shard, party(0), broken).outcome, BarrierOutcome::Broken);
    assert_eq!(outcome(shard, Some(party(1)), broken, false).outcome, BarrierOutcome::Broken);
    let late = arrive(shard, ArriveAtBarrier { generation: Some(broken), ..long(party(2)) });
    assert_eq!((late.outcome, late.ended), (BarrierOutcome::Past, Some(GenerationEnd::Broken)));
    assert_eq!(figures(shard), (0, 0), "nobody of the broken one is counted");
    let told = enter(shard, 0..3);
    assert_eq!(told[2], (BarrierOutcome::Tripped, late.next_generation));
    let generation = late.next_generation;
    for _ in 0..2 {
        assert_eq!(leave(shard, party(0), generation).outcome, BarrierOutcome::Waiting);
        assert_eq!(figures(shard), (0, 2), "it has left, though it does not wait for the others any more");
    }
    leave(shard, party(1), generation);
    let last = leave(shard, party(2), generation);
    assert_eq!((last.outcome, last.lost), (BarrierOutcome::Left, Some(0)));
    let answer = outcome(shard, Some(party(0)), generation, true);
    assert_eq!((answer.outcome, answer.lost), (BarrierOutcome::Left, Some(0)), "it asks later");
    assert_gone_in_time(shard);
}
