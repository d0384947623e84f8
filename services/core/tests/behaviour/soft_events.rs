//! The events of a namespace whose lock table is in the memory of a leader.

use holdfast_core::locks::SoftTable;
use holdfast_core::{
    Bounds, Command, CommandError, CreateLatch, Effect, Event, EventKind, Kinds, LatchCommand, LatchIds, LocksCommand,
    Path, Query, Response, Revision, Rules, TableCommand,
};

use crate::durability::{soft, with_soft};
use crate::primitives;
use crate::soft_grants::{Leader, acquire, is_busy, release};
use crate::soft_reports::reported;
use crate::soft_tables::{begin, close, expire, open, table_session};
use crate::support::{ACCOUNT, Shard};

/// More than two steps copy.
const MANY: u64 = 1_100;

/// The events from a revision on, and where to read on.
fn read(leader: &Leader, mut from: Option<Revision>) -> Result<(Vec<Event>, Revision), CommandError> {
    let mut all = Vec::new();
    loop {
        let (namespace, prefix, kinds, limit) = (soft(), Path::default(), Kinds::ALL, 100);
        let query = Query::Events { namespace, from_revision: from, prefix, kinds, limit };
        match leader.table.query(&leader.log.core, 0, &query).expect("its table is here").outcome? {
            Response::Events { events, next_revision, more } => {
                all.extend(events);
                from = Some(next_revision);
                if !more {
                    return Ok((all, next_revision));
                }
            }
            other => panic!("no events: {other:?}"),
        }
    }
}

/// The kinds of the events of the epoch.
fn kinds(leader: &Leader) -> Vec<EventKind> {
    let (events, _) = read(leader, Some(leader.epoch.epoch)).expect("none is forgotten");
    events.iter().map(|event| event.kind).collect()
}

fn create_latch(leader: &mut Leader, path: &str) {
    let latch = CreateLatch { namespace: soft(), ..primitives::create(path, 2, LatchIds::Named) };
    primitives::latch(&mut leader.log, LatchCommand::Create(latch)).expect("latches are in the log");
    leader.follow();
}

#[test]
fn events_of_locks_sessions_and_latches_are_in_one_order() {
    let mut leader = Leader::new();
    let (_, start) = read(&leader, None).expect("it has begun");
    let session = leader.open("se_1", 0);
    let token = leader.granted(&session, "l");
    create_latch(&mut leader, "latch");
    leader.send(&session, release("l")).unwrap();
    leader.granted(&session, "m");
    close(&mut leader.log, "se_1");
    leader.follow();

    let (events, next) = read(&leader, Some(start)).expect("none is forgotten");
    let (first, last) = (EventKind::SessionOpened, EventKind::SessionEnded);
    let expected = [
        first,
        EventKind::Acquired,
        EventKind::LatchCreated,
        EventKind::Released,
        EventKind::Acquired,
        EventKind::Released,
        last,
    ];
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), expected);
    assert!(events.is_sorted_by(|one, other| one.revision < other.revision), "{events:?}");
    let block = leader.epoch.block;
    assert!(events.iter().all(|event| (block.first..=block.last).contains(&event.revision)), "{events:?}");
    assert_eq!((events[1].revision, events[1].fencing_token), (token, Some(token)));
    assert!(events.iter().all(|event| event.at_ms > leader.log.core.clock_ms()), "by the wall clock");
    assert_eq!(events[6].owner, events[0].owner);
    assert_eq!(read(&leader, Some(next)), Ok((Vec::new(), next)));
    let (of_grant, _) = read(&leader, Some(token)).expect("it is remembered");
    assert_eq!(of_grant[0].fencing_token, Some(token), "an owner can watch from its own grant");
}

#[test]
fn readers_are_woken_by_what_a_leader_decides() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let woken = |leader: &mut Leader| {
        let effects = leader.table.take_effects().into_iter();
        let from = effects.filter_map(|effect| match effect {
            Effect::Events { namespace, from_revision } if namespace == soft() => Some(from_revision),
            _ => None,
        });
        from.collect::<Vec<Revision>>()
    };
    let opened = woken(&mut leader);
    assert_eq!(opened.len(), 1, "{opened:?}");
    let token = leader.granted(&session, "l");
    assert_eq!(woken(&mut leader), [token]);
    assert!(woken(&mut leader).is_empty());
}

#[test]
fn a_session_that_expires_has_ended_before_its_holds_do() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 500);
    leader.granted(&session, "l");
    expire(&mut leader.log, session.number);
    leader.follow();
    leader.advance_by(500);
    let expected = [EventKind::SessionOpened, EventKind::Acquired, EventKind::SessionEnded, EventKind::Expired];
    assert_eq!(kinds(&leader), expected);
}

#[test]
fn the_events_of_a_leader_begin_with_its_epoch_and_can_be_read_before_its_table_is_complete() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let other = leader.open("se_2", 0);
    let token = leader.granted(&session, "l");
    let (_, next) = read(&leader, Some(token)).expect("it is remembered");

    let mut leader = leader.next();
    let oldest = leader.epoch.epoch;
    let compacted = Err(CommandError::RevisionCompacted { oldest });
    assert_eq!((read(&leader, Some(next)), read(&leader, Some(oldest - 1))), (compacted.clone(), compacted.clone()));
    assert_eq!(read(&leader, Some(oldest)), Ok((Vec::new(), oldest + 1)), "nothing was ever asked for");
    close(&mut leader.log, "se_2");
    leader.follow();
    assert!(!leader.table.is_ready_to_answer(&leader.log.core, &soft()), "it waits for a report");
    assert_eq!(kinds(&leader), [EventKind::SessionEnded], "of {}", other.session_id);
    reported(&mut leader, &session, &[("l", token)]);
    assert_eq!(kinds(&leader), [EventKind::SessionEnded], "a hold that is taken over is not granted again");
    leader.send(&session, release("l")).unwrap();
    assert_eq!(kinds(&leader), [EventKind::SessionEnded, EventKind::Released]);
    assert_eq!(read(&leader, Some(next)), compacted, "also once there are some");
}

#[test]
fn what_the_log_did_between_an_epoch_and_its_table_is_among_the_events() {
    let mut leader = Leader::new();
    leader.epoch = begin(&mut leader.log, 2);
    open(&mut leader.log, table_session("se_1", 1, 0));
    leader.table = SoftTable::begin(&leader.log.core, &leader.epoch).expect("it has just begun");
    assert_eq!(kinds(&leader), [EventKind::SessionOpened]);
    leader.follow();
    assert_eq!(kinds(&leader), [EventKind::SessionOpened], "it is told of it once more");
}

/// A latch shows revisions of the log.
#[test]
fn a_start_above_all_events_is_no_place_among_them() {
    let mut leader = Leader::new();
    let no_place = |leader: &Leader, now: Revision| {
        for above in [now + 1, leader.log.core.revision(), Revision::MAX] {
            assert_eq!(read(leader, Some(above)), Err(CommandError::RevisionCompacted { oldest: now }));
        }
    };
    let (_, now) = read(&leader, None).expect("it has begun");
    no_place(&leader, now);
    let session = leader.open("se_1", 0);
    let (_, now) = read(&leader, None).expect("it has begun");
    no_place(&leader, now);
    assert_eq!(read(&leader, Some(now)), Ok((Vec::new(), now)));
    leader.granted(&session, "l");
    assert_eq!(read(&leader, Some(now)).expect("it is there").0.len(), 1);
}

#[test]
fn readers_hear_of_events_that_the_log_forgot_before_they_were_copied() {
    let bounds = Bounds { retained_events: 1, ..Bounds::of(Rules::TWO) };
    let mut leader = Leader::of(with_soft(Shard::with_bounds(bounds)), 1);
    let (_, next) = read(&leader, None).expect("it has begun");
    for number in 1..=3 {
        open(&mut leader.log, table_session(&format!("se_{number}"), number, 0));
    }
    leader.follow();
    let Err(CommandError::RevisionCompacted { oldest }) = read(&leader, Some(next)) else { panic!("two are missing") };
    let (events, next) = read(&leader, Some(oldest)).expect("it is there");
    assert_eq!(events.iter().map(|event| event.kind).collect::<Vec<_>>(), [EventKind::SessionOpened], "the last one");
    leader.open("se_4", 0);
    assert_eq!(read(&leader, Some(next)).expect("it is there").0.len(), 1);
}

#[test]
fn many_events_are_copied_in_steps_and_nothing_is_decided_before_the_last() {
    let mut leader = Leader::new();
    let (_, start) = read(&leader, None).expect("it has begun");
    let session = leader.open("first", 0);
    leader.granted(&session, "l");
    for number in 1..=MANY {
        let open = table_session(&format!("se_{number}"), 10_000 + number, 0);
        let open = Command::Locks(LocksCommand::Table(TableCommand::OpenSession(open)));
        assert!(leader.log.apply(&open).outcome.is_ok());
    }
    leader.follow();
    leader.table.take_completed();
    assert!(is_busy(&leader.send(&session, acquire("m"))), "its call did one more step");
    let before = read(&leader, Some(start)).expect("none is forgotten").0.len() as u64;
    assert!((3..2 + MANY).contains(&before), "{before}");
    assert!(!leader.table.take_completed());
    let now_ms = leader.context().now_ms;
    while leader.table.next_deadline_ms().is_some_and(|due_ms| due_ms <= now_ms) {
        leader.table.copy_events(&leader.log.core);
        leader.table.verify();
    }
    assert!(leader.table.take_completed(), "those who wait are woken");
    let token = leader.granted(&session, "m");
    let (events, _) = read(&leader, Some(start)).expect("none is forgotten");
    assert_eq!(events.len() as u64, MANY + 3);
    assert!(events.is_sorted_by(|one, other| one.revision < other.revision));
    assert!(events[2..events.len() - 1].iter().all(|event| event.kind == EventKind::SessionOpened));
    assert_eq!(events.last().and_then(|event| event.fencing_token), Some(token));
}

#[test]
fn events_are_charged_and_give_way() {
    let bounds = Bounds { min_event_bytes: 100, ..Bounds::of(Rules::TWO) };
    let mut leader = Leader::of(with_soft(Shard::with_bounds(bounds)), 1);
    let session = leader.open("se_1", 0);
    let query = Query::AccountState { account: ACCOUNT };
    let charged = |leader: &mut Leader| {
        let mut state = leader.log.query(&query).expect("it has namespaces");
        leader.table.add_counts(&leader.log.core, &query, &mut state);
        let Response::AccountState(namespaces) = state else { panic!("{state:?}") };
        let found = namespaces.iter().find(|(name, _)| *name == soft().name);
        found.map(|(_, bytes)| bytes.events).expect("it is open")
    };
    let before = charged(&mut leader);
    for _ in 0..10 {
        leader.granted(&session, "l");
        leader.send(&session, release("l")).unwrap();
    }
    let after = charged(&mut leader);
    assert!(after > before + 10 * 100, "{before}, then {after}");
    let (_, next) = read(&leader, None).expect("it has begun");
    leader.table.take_changed_charges();
    leader.table.evict_events(Some(ACCOUNT));
    assert_eq!(leader.table.take_changed_charges().len(), 1);
    leader.table.verify();
    assert!(charged(&mut leader) < after);
    let forgotten = read(&leader, Some(leader.epoch.epoch));
    assert!(matches!(forgotten, Err(CommandError::RevisionCompacted { oldest }) if oldest < next), "{forgotten:?}");
    leader.table.evict_events(None);
    assert!(leader.table.take_changed_charges().is_empty(), "the latest stay");
}
