//! The rules for barriers, against steps that break them.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_core::{
    AccountId, Application, ArrivalView, BarrierCommand, BarrierView, Claim, EndedGeneration, Event, EventKind,
    GenerationEnd, Incarnation, LocksCommand, Metadata, Mode, NamespaceRef, Owner, Path, PermitsEnd,
};

use super::barriers::Meetings;
use super::invariants::Step;
use super::permits::StepContext;
use super::shard_view::{BarrierState, NamespaceView, ShardView};
use super::twins::new_shard;

const CLOCK_MS: u64 = 1_000;
const PARTIES: u32 = 2;

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
}

fn arrival(name: &str, deadline_ms: u64) -> ArrivalView {
    ArrivalView {
        owner: Owner::Process(name.to_owned()),
        process_id: name.to_owned(),
        request_id: None,
        inside: false,
        arrived_at_ms: 0,
        deadline_ms: Some(deadline_ms),
        metadata: Metadata::new(),
    }
}

fn here(name: &str) -> ArrivalView {
    arrival(name, CLOCK_MS + 1)
}

/// A barrier of two parties in that generation.
fn barrier(generation: u64, arrivals: Vec<ArrivalView>, ended: &[(u64, GenerationEnd)]) -> BarrierState {
    let arrived = arrivals.len() as u32;
    let view = BarrierView { parties: PARTIES, generation, arrived, ..BarrierView::absent(&Path::flat("b"), 1) };
    let ended = ended.iter().map(|(generation, end)| EndedGeneration {
        generation: *generation,
        end: *end,
        parties: PARTIES,
        at_ms: 0,
        lost: None,
    });
    BarrierState { view, arrivals, ended: ended.collect() }
}

fn view(barrier: Option<BarrierState>) -> ShardView {
    let barriers: BTreeMap<Path, BarrierState> = barrier.into_iter().map(|it| (Path::flat("b"), it)).collect();
    let scene = NamespaceView { barriers, ..NamespaceView::default() };
    ShardView { namespaces: BTreeMap::from([(namespace(), Rc::new(scene))]) }
}

fn event(kind: EventKind) -> (NamespaceRef, Event) {
    let claims = vec![Claim { path: Path::flat("b"), mode: Mode::Write }];
    let owner = Owner::Process(String::new());
    let process_id = String::new();
    (namespace(), Event { revision: 9, at_ms: 0, kind, owner, process_id, fencing_token: None, claims })
}

fn tripped(generation: u64, parties: u32) -> EventKind {
    EventKind::BarrierTripped { generation, parties }
}

fn broken(generation: u64) -> EventKind {
    EventKind::BarrierBroken { generation, parties: 1, cause: PermitsEnd::Expired }
}

/// The checks that find something in steps, each to a state by events. Nobody can be asked, because the core is empty.
fn findings(steps: Vec<(Option<BarrierState>, Vec<EventKind>)>, command: Option<&LocksCommand>) -> Vec<String> {
    let (core, mut meetings, mut found) = (new_shard("locks_00", None), Meetings::default(), Vec::new());
    assert_eq!(core.application(), Application::Locks);
    let mut before = ShardView::default();
    for (place, (state, events)) in steps.into_iter().enumerate() {
        let after = view(state);
        let step = Step { before: &before, after: &after, effects: &[], granted: &[], events: &[], highest_token: 0 };
        let context = StepContext { clock_ms: CLOCK_MS, is_settled: true, command, has_session: &|_| true };
        let events: Vec<(NamespaceRef, Event)> = events.into_iter().map(event).collect();
        meetings.check(place, &step, &context, (&core, &events), &mut |what| {
            found.push(what.split(']').next().unwrap_or_default().trim_start_matches('[').to_owned());
        });
        before = after;
    }
    found
}

fn none() -> Vec<String> {
    Vec::new()
}

#[test]
fn who_counts_twice_or_too_long_or_in_vain_is_found() {
    let state = |arrivals| findings(vec![(Some(barrier(5, arrivals, &[])), vec![])], None);
    assert_eq!(state(vec![here("p")]), none());
    assert_eq!(state(vec![here("p"), here("q")]), ["arrivals"]);
    assert_eq!(state(vec![here("p"), here("p")]), ["arrivals", "arrivals"]);
    assert_eq!(state(vec![arrival("p", CLOCK_MS)]), ["arrivals"]);
    let mut wrong = barrier(5, vec![here("p")], &[]);
    wrong.view.arrived = 0;
    assert_eq!(findings(vec![(Some(wrong), vec![])], None), ["arrivals"]);
}

#[test]
fn a_generation_that_trips_with_others_than_its_parties_is_found() {
    let gathered = || (Some(barrier(5, vec![here("p")], &[])), vec![]);
    let next = |parties| (Some(barrier(6, vec![], &[(5, GenerationEnd::Tripped)])), vec![tripped(5, parties)]);
    assert_eq!(findings(vec![gathered(), next(PARTIES)], None), none());
    assert_eq!(findings(vec![gathered(), next(1)], None), ["one outcome"]);
    assert_eq!(findings(vec![gathered(), next(3)], None), ["one outcome"]);
}

#[test]
fn a_generation_that_is_broken_though_all_are_there_is_found() {
    let next = || (Some(barrier(6, vec![], &[(5, GenerationEnd::Broken)])), vec![broken(5)]);
    let with = |arrival| findings(vec![(Some(barrier(5, vec![arrival], &[])), vec![]), next()], None);
    assert_eq!(with(here("p")), ["one outcome"]);
    // It counts too long before its generation is broken.
    assert_eq!(with(arrival("p", CLOCK_MS)), ["arrivals"]);
    let delete = BarrierCommand::Delete { namespace: namespace(), path: Path::flat("b") };
    let deleted = findings(
        vec![(Some(barrier(5, vec![here("p")], &[])), vec![]), (None, vec![broken(5)])],
        Some(&LocksCommand::Barrier(delete)),
    );
    assert_eq!(deleted, none());
}

#[test]
fn a_generation_that_ends_twice_or_otherwise_or_without_an_outcome_is_found() {
    let start = || (Some(barrier(5, vec![here("p")], &[])), vec![]);
    let next = |generation, end| (Some(barrier(generation, vec![], &[(5, end)])), vec![]);
    let first = || (Some(barrier(6, vec![], &[(5, GenerationEnd::Tripped)])), vec![tripped(5, PARTIES)]);
    assert_eq!(findings(vec![start(), first(), next(6, GenerationEnd::Tripped)], None), none());
    assert_eq!(findings(vec![start(), first(), next(6, GenerationEnd::Broken)], None), ["one outcome"]);
    assert_eq!(findings(vec![start(), first(), first()], None), ["one outcome"; 2]);
    let vanished = findings(vec![start(), (Some(barrier(6, vec![], &[])), vec![])], None);
    assert_eq!(vanished, ["one outcome"]);
}

#[test]
fn a_generation_that_comes_again_is_found() {
    let of = |generation| (Some(barrier(generation, vec![], &[])), vec![]);
    assert_eq!(findings(vec![of(5), (None, vec![]), of(6)], None), none());
    assert_eq!(findings(vec![of(5), (None, vec![]), of(5)], None), ["one outcome"]);
    assert_eq!(findings(vec![of(5), of(4)], None), ["one outcome"]);
}

#[test]
fn an_arrival_that_ends_too_soon_is_found() {
    let alone = || (Some(barrier(5, vec![here("p")], &[])), vec![]);
    assert_eq!(findings(vec![alone(), (Some(barrier(5, vec![], &[])), vec![])], None), ["nothing expires early"]);
}
