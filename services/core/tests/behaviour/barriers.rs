//! Barriers, call by call: what each party of a generation is told, whatever comes in between.

use holdfast_core::{
    ArrivalEnd, ArriveAtBarrier, BarrierAnswer, BarrierCommand, BarrierOutcome, BarrierQuery, BarrierView, Command,
    CommandError, ConfigureBarrier, Effect, EventKind, GenerationEnd, Kind, Kinds, LeaveBarrier, Limits, LocksCommand,
    Metadata, OnLoss, Owner, Path, Query, Response, WaitAtBarrier,
};

use crate::primitives::{acquire, limited, open_session, permits};
use crate::support::{Shard, orders, process};

pub(crate) fn barrier(shard: &mut Shard, command: BarrierCommand) -> Result<Response, CommandError> {
    shard.apply(&Command::Locks(LocksCommand::Barrier(command))).outcome
}

/// The first one makes a barrier of two.
pub(crate) fn arrival(owner: Owner) -> ArriveAtBarrier {
    ArriveAtBarrier {
        namespace: orders(),
        path: Path::flat("b"),
        ttl_ms: matches!(owner, Owner::Process(_)).then_some(1_000),
        owner,
        generation: None,
        parties: Some(2),
        double: None,
        metadata: Metadata::new(),
        request_id: None,
        message: None,
    }
}

pub(crate) fn arrive(shard: &mut Shard, arrive: ArriveAtBarrier) -> BarrierAnswer {
    match barrier(shard, BarrierCommand::Arrive(arrive)) {
        Ok(Response::AtBarrier { answer, .. }) => answer,
        other => panic!("it is no arrival: {other:?}"),
    }
}

pub(crate) fn leave(shard: &mut Shard, owner: Owner, generation: u64) -> BarrierAnswer {
    let (namespace, path, message) = (orders(), Path::flat("b"), None);
    match barrier(shard, BarrierCommand::Leave(LeaveBarrier { namespace, path, owner, generation, message })) {
        Ok(Response::AtBarrier { answer, .. }) => answer,
        other => panic!("nobody leaves: {other:?}"),
    }
}

pub(crate) fn outcome(shard: &Shard, owner: Option<Owner>, generation: u64, leaves: bool) -> BarrierAnswer {
    let (namespace, path, wait_ms) = (orders(), Path::flat("b"), 0);
    let wait = WaitAtBarrier { namespace, path, generation, owner, leaves, wait_ms };
    match shard.query(&Query::Barrier(BarrierQuery::Wait(wait))) {
        Ok(Response::AtBarrier { answer, .. }) => answer,
        other => panic!("no outcome: {other:?}"),
    }
}

pub(crate) fn view(shard: &Shard) -> Option<BarrierView> {
    let get = BarrierQuery::Get { namespace: orders(), path: Path::flat("b") };
    match shard.query(&Query::Barrier(get)) {
        Ok(Response::BarrierArrivals { barrier, .. }) => Some(barrier),
        Err(CommandError::PrimitiveNotFound { kind: Kind::Barrier, .. }) => None,
        other => panic!("no barrier: {other:?}"),
    }
}

fn configuration(parties: u32, double: bool, on_loss: OnLoss) -> ConfigureBarrier {
    ConfigureBarrier {
        namespace: orders(),
        path: Path::flat("b"),
        parties,
        double,
        on_loss,
        retain_ms: 60_000,
        description: String::new(),
        metadata: Metadata::new(),
    }
}

pub(crate) fn configure(shard: &mut Shard, parties: u32, double: bool, on_loss: OnLoss) {
    let configured = barrier(shard, BarrierCommand::Configure(configuration(parties, double, on_loss)));
    assert!(matches!(configured, Ok(Response::Barrier(_))), "{configured:?}");
}

fn delete(shard: &mut Shard) {
    let (namespace, path) = (orders(), Path::flat("b"));
    assert_eq!(barrier(shard, BarrierCommand::Delete { namespace, path }), Ok(Response::Done));
}

/// Curator's barriers tell some of one generation that all came, and others that not all did (#838), because each
/// decides by its own clock. Here whoever gives up asks, and is told what all are told.
#[test]
fn whoever_gives_up_after_the_trip_is_told_that_all_came() {
    let shard = &mut limited(Limits::default());
    let first = arrive(shard, arrival(process("p1")));
    assert_eq!((first.outcome, first.index), (BarrierOutcome::Waiting, None));
    let last = arrive(shard, arrival(process("p2")));
    assert_eq!((last.outcome, last.generation, last.index), (BarrierOutcome::Tripped, first.generation, Some(1)));
    // The patience of the first one ends now, before it has heard of the trip.
    let left = leave(shard, process("p1"), first.generation);
    assert_eq!(
        (left.outcome, left.index, left.next_generation),
        (BarrierOutcome::Tripped, Some(0), last.next_generation)
    );
    for restored in [false, true] {
        let shard = if restored { shard.restored() } else { shard.restored().restored() };
        assert_eq!(outcome(&shard, Some(process("p1")), first.generation, false).outcome, BarrierOutcome::Tripped);
    }
    assert_eq!(view(shard).unwrap().arrived, 0, "the next generation is empty");
}

/// The same at the other side of the decision: it was given up before all had come, and so for everybody.
#[test]
fn whoever_gives_up_before_the_trip_breaks_it_for_all_and_late_ones_begin_anew() {
    let shard = &mut limited(Limits::default());
    configure(shard, 3, false, OnLoss::Break);
    let first = arrive(shard, arrival(process("p1")));
    arrive(shard, arrival(process("p2")));
    assert_eq!(leave(shard, process("p1"), first.generation).outcome, BarrierOutcome::Broken);
    assert_eq!(outcome(shard, Some(process("p2")), first.generation, false).outcome, BarrierOutcome::Broken);
    // The third comes for the generation that was: it is late, and is not counted in the next one.
    let late = arrive(shard, ArriveAtBarrier { generation: Some(first.generation), ..arrival(process("p3")) });
    assert_eq!((late.outcome, late.ended), (BarrierOutcome::Past, Some(GenerationEnd::Broken)));
    let next = arrive(shard, ArriveAtBarrier { generation: Some(late.next_generation), ..arrival(process("p3")) });
    assert_eq!((next.outcome, view(shard).unwrap().arrived), (BarrierOutcome::Waiting, 1));
    assert!(next.generation > first.generation);
}

/// Curator's double barrier lets one pass alone when it wakes for nothing (#1290). Here whatever wakes a party, it is
/// told that it waits until the generation has ended.
#[test]
fn nobody_passes_alone_however_often_it_asks() {
    let shard = &mut limited(Limits::default());
    configure(shard, 2, true, OnLoss::Withdraw);
    let first = arrive(shard, arrival(process("p1")));
    for _ in 0..3 {
        // Somebody comes and goes, which wakes all who wait.
        let other = arrive(shard, ArriveAtBarrier { path: Path::flat("c"), ..arrival(process("p2")) });
        assert_eq!(other.outcome, BarrierOutcome::Waiting);
        shard.advance_by(100);
        assert_eq!(outcome(shard, Some(process("p1")), first.generation, false).outcome, BarrierOutcome::Waiting);
        let repeated = arrive(shard, ArriveAtBarrier { generation: Some(first.generation), ..arrival(process("p1")) });
        assert_eq!((repeated.outcome, view(shard).unwrap().arrived), (BarrierOutcome::Waiting, 1));
    }
    assert_eq!(arrive(shard, arrival(process("p2"))).outcome, BarrierOutcome::Tripped);
    assert_eq!(outcome(shard, Some(process("p1")), first.generation, false).index, Some(0));
}

#[test]
fn the_dead_are_not_counted() {
    for on_loss in [OnLoss::Break, OnLoss::Withdraw] {
        let shard = &mut limited(Limits::default());
        configure(shard, 2, false, on_loss);
        let session = open_session(shard, "se_1");
        let dead = arrive(shard, ArriveAtBarrier { parties: None, ..arrival(session) });
        let (namespace, session_id, message) = (orders(), "se_1".to_owned(), None);
        let close = LocksCommand::CloseSession { namespace, session_id, message };
        assert_eq!(shard.apply(&Command::Locks(close)).outcome, Ok(Response::Done));
        let timed_out = arrive(shard, arrival(process("p1")));
        assert_eq!(timed_out.outcome, BarrierOutcome::Waiting, "{on_loss:?}");
        shard.advance_by(1_000);
        let next = arrive(shard, arrival(process("p2")));
        assert_eq!((next.outcome, view(shard).unwrap().arrived), (BarrierOutcome::Waiting, 1), "{on_loss:?}");
        let is_same = next.generation == dead.generation;
        assert_eq!(is_same, on_loss == OnLoss::Withdraw);
        let of_dead = outcome(shard, Some(process("p1")), timed_out.generation, false).outcome;
        assert_eq!(of_dead, if is_same { BarrierOutcome::Withdrawn } else { BarrierOutcome::Broken });
        assert_eq!(arrive(shard, arrival(process("p3"))).outcome, BarrierOutcome::Tripped);
    }
}

#[test]
fn one_too_many_waits_for_a_later_round() {
    let shard = &mut limited(Limits::default());
    configure(shard, 2, true, OnLoss::Break);
    let first = arrive(shard, arrival(process("p1")));
    assert_eq!(arrive(shard, arrival(process("p2"))).outcome, BarrierOutcome::Tripped);
    let third = arrive(shard, arrival(process("p3")));
    arrive(shard, arrival(process("p4")));
    let fifth = arrive(shard, arrival(process("p5")));
    assert_eq!((fifth.outcome, fifth.generation), (BarrierOutcome::Full, third.generation));
    assert_eq!(arrive(shard, arrival(process("p1"))).outcome, BarrierOutcome::Tripped, "it is inside");
    assert_eq!(leave(shard, process("p1"), first.generation).outcome, BarrierOutcome::Waiting);
    assert_eq!(outcome(shard, None, third.generation, false).outcome, BarrierOutcome::Waiting);
    let left = leave(shard, process("p2"), first.generation);
    // That was the last one, so the next two are inside, in the same step: who was in its own is forgotten.
    assert_eq!((left.outcome, left.lost, left.index), (BarrierOutcome::Left, Some(0), None));
    assert_eq!(outcome(shard, Some(process("p3")), third.generation, false).outcome, BarrierOutcome::Tripped);
    let again = arrive(shard, ArriveAtBarrier { generation: Some(left.next_generation), ..arrival(process("p5")) });
    assert_eq!(again.outcome, BarrierOutcome::Waiting);
}

#[test]
fn all_have_left_also_when_some_die_inside() {
    let shard = &mut limited(Limits::default());
    configure(shard, 3, true, OnLoss::Break);
    let session = open_session(shard, "se_1");
    let first = arrive(shard, ArriveAtBarrier { request_id: Some("r".into()), ..arrival(session.clone()) });
    arrive(shard, ArriveAtBarrier { ttl_ms: Some(60_000), ..arrival(process("p1")) });
    assert_eq!(arrive(shard, arrival(process("p2"))).outcome, BarrierOutcome::Tripped);
    assert_eq!(leave(shard, session.clone(), first.generation).outcome, BarrierOutcome::Waiting);
    shard.core.take_effects();
    shard.advance_by(1_000);
    assert_eq!(outcome(shard, Some(session), first.generation, true).outcome, BarrierOutcome::Waiting);
    let left = leave(shard, process("p1"), first.generation);
    assert_eq!((left.outcome, left.lost), (BarrierOutcome::Left, Some(1)));
    let told = shard.core.take_effects().into_iter().find_map(|effect| match effect {
        Effect::MetAtBarrier { request_id, answer, .. } => {
            Some((request_id, answer.outcome, answer.index, answer.lost))
        }
        _ => None,
    });
    assert_eq!(told, Some(("r".to_owned(), BarrierOutcome::Left, Some(0), Some(1))));
    assert_eq!(leave(shard, process("p2"), first.generation).outcome, BarrierOutcome::Left, "whoever asks is told");
}

#[test]
fn a_repeat_finds_its_generation_by_number_or_by_request_id() {
    let shard = &mut limited(Limits::default());
    let session = open_session(shard, "se_1");
    let named = ArriveAtBarrier { request_id: Some("r1".into()), ..arrival(session.clone()) };
    let first = arrive(shard, named.clone());
    let last = ArriveAtBarrier { generation: Some(first.generation), ..arrival(process("p1")) };
    assert_eq!(arrive(shard, last.clone()).outcome, BarrierOutcome::Tripped);
    for repeat in [named.clone(), last] {
        let again = arrive(shard, repeat);
        assert_eq!((again.outcome, again.generation), (BarrierOutcome::Tripped, first.generation));
    }
    assert_eq!(view(shard).unwrap().arrived, 0, "no repeat has arrived");
    let other = arrive(shard, ArriveAtBarrier { generation: Some(first.generation), ..arrival(process("p9")) });
    assert_eq!((other.outcome, other.ended), (BarrierOutcome::Past, Some(GenerationEnd::Tripped)));
    let later = ArriveAtBarrier { generation: Some(other.next_generation + 1), ..arrival(process("p9")) };
    let refused = barrier(shard, BarrierCommand::Arrive(later));
    assert!(matches!(&refused, Err(CommandError::InvalidArgument(text)) if text.starts_with("generation: ")));
    // Whoever names the generation that gathers is in no earlier one, whatever the id of its request.
    let next = arrive(shard, ArriveAtBarrier { generation: Some(other.next_generation), ..named });
    assert_eq!((next.outcome, view(shard).unwrap().arrived), (BarrierOutcome::Waiting, 1));
}

/// Or whoever left first would arrive in a generation that has ended.
#[test]
fn whoever_waited_for_the_others_to_leave_is_told_which_generation_gathers_then() {
    let shard = &mut limited(Limits::default());
    configure(shard, 2, true, OnLoss::Break);
    let session = open_session(shard, "se_1");
    let first = arrive(shard, ArriveAtBarrier { request_id: Some("r".into()), ..arrival(session.clone()) });
    for name in ["p1", "p2", "p3"] {
        arrive(shard, arrival(process(name)));
    }
    assert_eq!(leave(shard, session, first.generation).outcome, BarrierOutcome::Waiting);
    shard.core.take_effects();
    let last = leave(shard, process("p1"), first.generation);
    let told = shard.core.take_effects().into_iter().find_map(|effect| match effect {
        Effect::MetAtBarrier { request_id, answer, .. } if request_id == "r" => Some(answer),
        _ => None,
    });
    let gathers = view(shard).unwrap().generation;
    assert_eq!((last.outcome, last.next_generation), (BarrierOutcome::Left, gathers));
    assert_eq!(told.map(|answer| (answer.outcome, answer.next_generation)), Some((BarrierOutcome::Left, gathers)));
}

#[test]
fn a_barrier_that_was_not_configured_has_the_figures_of_its_first_arrival() {
    let shard = &mut limited(Limits::default());
    let absent = barrier(shard, BarrierCommand::Arrive(ArriveAtBarrier { parties: None, ..arrival(process("p1")) }));
    assert!(matches!(absent, Err(CommandError::PrimitiveNotFound { kind: Kind::Barrier, .. })), "{absent:?}");
    arrive(shard, arrival(process("p1")));
    for (field, other) in [
        ("parties: ", ArriveAtBarrier { parties: Some(3), ..arrival(process("p2")) }),
        ("double: ", ArriveAtBarrier { double: Some(true), ..arrival(process("p2")) }),
    ] {
        let refused = barrier(shard, BarrierCommand::Arrive(other.clone()));
        let text = if let Err(CommandError::InvalidArgument(text)) = refused { text } else { String::new() };
        assert!(text.starts_with(field) && text.contains("configure"), "it names the field and what helps: {text}");
        shard.core.verify();
    }
    configure(shard, 3, false, OnLoss::Break);
    let shown = arrive(shard, ArriveAtBarrier { parties: Some(7), double: Some(true), ..arrival(process("p2")) });
    assert_eq!(shown.outcome, BarrierOutcome::Waiting, "figures in uses are ignored");
    // Fewer parties than have come are complete at once.
    configure(shard, 2, false, OnLoss::Break);
    assert_eq!(outcome(shard, Some(process("p2")), shown.generation, false).index, Some(1));
}

#[test]
fn those_in_a_deleted_barrier_are_told_so_and_its_numbers_never_come_again() {
    let shard = &mut limited(Limits::default());
    configure(shard, 2, true, OnLoss::Break);
    let first = arrive(shard, arrival(process("p1")));
    arrive(shard, arrival(process("p2")));
    let third = arrive(shard, arrival(process("p3")));
    delete(shard);
    assert_eq!(view(shard), None);
    assert_eq!(outcome(shard, Some(process("p3")), third.generation, false).outcome, BarrierOutcome::Broken);
    let left = outcome(shard, Some(process("p1")), first.generation, true);
    assert_eq!((left.outcome, left.lost), (BarrierOutcome::Left, Some(2)));
    let again = arrive(shard, arrival(process("p3")));
    assert!(again.generation > left.next_generation.max(third.generation));
    assert_eq!(outcome(shard, Some(process("p3")), third.generation, false).outcome, BarrierOutcome::Broken);
    delete(shard);
    shard.advance_by(10 * 60 * 1_000);
    let late = shard.query(&Query::Barrier(BarrierQuery::Wait(WaitAtBarrier {
        namespace: orders(),
        path: Path::flat("b"),
        generation: third.generation,
        owner: None,
        leaves: false,
        wait_ms: 0,
    })));
    assert!(matches!(late, Err(CommandError::PrimitiveNotFound { .. })), "{late:?}");
    assert_eq!(shard.core.footprint(), Default::default());
}

#[test]
fn a_barrier_with_nobody_in_it_is_gone_after_its_time() {
    let shard = &mut limited(Limits::default());
    configure(shard, 2, false, OnLoss::Withdraw);
    arrive(shard, ArriveAtBarrier { ttl_ms: Some(100_000), ..arrival(process("p1")) });
    shard.advance_by(99_999);
    assert!(view(shard).is_some_and(|it| it.arrived == 1 && it.gone_at_ms.is_none()), "somebody is in it");
    shard.advance_by(1);
    shard.advance_by(59_999);
    assert!(view(shard).is_some_and(|it| it.arrived == 0 && it.gone_at_ms.is_some()));
    shard.advance_by(1);
    assert_eq!(view(shard), None);
}

#[test]
fn ids_of_arrivals_are_those_of_no_other_request_of_the_session() {
    let shard = &mut limited(Limits::default());
    let session = open_session(shard, "se_1");
    let named = |id: &str| ArriveAtBarrier { request_id: Some(id.into()), ..arrival(session.clone()) };
    assert!(acquire(shard, permits(session.clone(), "r1", 1)).is_ok());
    let taken = |id: &str| Err(CommandError::RequestIdTaken(id.into()));
    assert_eq!(barrier(shard, BarrierCommand::Arrive(named("r1"))), taken("r1"));
    arrive(shard, named("r2"));
    assert_eq!(acquire(shard, permits(session.clone(), "r2", 1)).map(|_| Response::Done), taken("r2"));
    let other = ArriveAtBarrier { path: Path::flat("c"), ..named("r2") };
    assert_eq!(barrier(shard, BarrierCommand::Arrive(other)), taken("r2"));
}

#[test]
fn watchers_of_barriers_see_how_each_generation_ends() {
    let shard = &mut limited(Limits::default());
    configure(shard, 1, true, OnLoss::Break);
    let one = arrive(shard, arrival(process("p1"))).generation;
    leave(shard, process("p1"), one);
    configure(shard, 2, false, OnLoss::Break);
    let two = arrive(shard, arrival(process("p1"))).generation;
    leave(shard, process("p1"), two);
    let (prefix, kinds) = (Path::flat("b"), [Kind::Barrier].into_iter().collect::<Kinds>());
    let events = Query::Events { namespace: orders(), from_revision: Some(1), prefix, kinds, limit: 10 };
    let cause = ArrivalEnd::Released;
    let expected = [
        EventKind::BarrierTripped { generation: one, parties: 1 },
        EventKind::BarrierLeft { generation: one, parties: 1, cause },
        EventKind::BarrierBroken { generation: two, parties: 1, cause },
    ];
    for shard in [&*shard, &shard.restored()] {
        let Ok(Response::Events { events, .. }) = shard.query(&events) else { panic!("not events") };
        assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), expected);
    }
}
