//! What is reported to a leader is entered into its table in steps, each of which does little, whatever happens between
//! them.

use holdfast_core::{
    Bounds, CommandError, Durability, FencingToken, Forfeit, ForfeitedHold, Limits, LocksCommand, MessageSeq,
    NamespaceMessage, NamespaceRef, OpenSession, OpenTableSession, Owner, Path, Query, Release, ReleaseTarget,
    ReportedRequest, ReportedWait, Response, Rules, SessionCommand, SessionView, TableCommand, TableReport, TableState,
};

use crate::durability::{soft, with_soft};
use crate::soft_grants::{Leader, acquire, is_busy, owner, release};
use crate::soft_reports::{granted, hold, lost, report, reported, take, waits};
use crate::soft_tables::{close, expire, open, table_session};
use crate::support::{ACCOUNT, Shard, namespace};
use crate::wait_requests::open_command;

/// What one step may enter.
const UNITS: u64 = 4;
const LOCKS: u64 = 20;

/// What is in a part of a report.
type PartContents = (Vec<ReportedRequest>, Vec<ReportedWait>);

/// A leader whose steps enter little.
fn leader_of(units: u64) -> Leader {
    let few = usize::try_from(units).expect("it is small");
    let bounds = Bounds { ends_per_slice: few, grants_per_slice: few, ..Bounds::of(Rules::TWO) };
    Leader::of(with_soft(Shard::with_bounds(bounds)), 1)
}

fn usage_of(leader: &Leader, namespace: &NamespaceRef) -> (u64, u64) {
    match leader.table.usage(&leader.log.core, 0, namespace).expect("its table is here").outcome {
        Ok(Response::Usage { holds, waiting, .. }) => (holds, waiting),
        other => panic!("no usage: {other:?}"),
    }
}

fn usage(leader: &Leader) -> (u64, u64) {
    usage_of(leader, &soft())
}

fn lock(number: u64) -> String {
    format!("l{number}")
}

fn acquired(leader: &mut Leader, session: &SessionView) -> Vec<(String, FencingToken)> {
    (0..LOCKS).map(|number| (lock(number), leader.granted(session, &lock(number)))).collect()
}

fn claims(locks: &[(String, FencingToken)]) -> Vec<ReportedRequest> {
    locks.iter().map(|(lock, token)| granted(lock, *token)).collect()
}

/// Reports in parts.
fn take_parts(leader: &mut Leader, session: &SessionView, contents: Vec<PartContents>) {
    let parts = u32::try_from(contents.len()).expect("there are few");
    for (part, (granted, pending)) in (1..).zip(contents) {
        let of_part = TableReport { part, parts, pending, ..report(leader, session, granted) };
        assert_eq!(take(leader, of_part), Ok(Response::Done));
    }
}

/// A leader to which a session has reported all locks. Nothing else is missing, and the first step is done.
fn reported_to_next(units: u64, transition_ms: u64) -> (Leader, SessionView, SessionView, Vec<(String, FencingToken)>) {
    let mut leader = leader_of(units);
    let (holder, other) = (leader.open("se_1", transition_ms), leader.open("se_2", 0));
    let locks = acquired(&mut leader, &holder);
    let mut leader = leader.next();
    reported(&mut leader, &other, &[]);
    let whole = report(&leader, &holder, claims(&locks));
    take(&mut leader, whole).unwrap();
    (leader, holder, other, locks)
}

/// Does all that is due now. Returns how many steps that takes.
fn finish(leader: &mut Leader) -> u64 {
    let context = leader.context();
    let mut steps = 0;
    while leader.table.next_deadline_ms().is_some_and(|due_ms| due_ms <= context.now_ms) {
        leader.table.rebuild_all(&leader.log.core, &context);
        leader.table.advance(&context);
        leader.table.verify();
        steps += 1;
        assert!(steps < 200, "it ends");
    }
    steps
}

fn state(leader: &mut Leader) -> TableState {
    match leader.log.query(&Query::TableState { namespace: soft() }) {
        Ok(Response::TableState(mut state)) => {
            state.has_begun = true;
            leader.table.complete_state(&leader.log.core, &soft(), &mut state);
            state
        }
        other => panic!("no state: {other:?}"),
    }
}

fn release_all(leader: &mut Leader, session: &SessionView, seq: u64) -> Result<Response, CommandError> {
    let what = Owner::Session { session_id: session.session_id.clone(), holder: None };
    let message = Some(MessageSeq { epoch: session.epoch, seq });
    leader.apply(&LocksCommand::Release(Release { namespace: soft(), owner: what, what: ReleaseTarget::All, message }))
}

#[test]
fn holds_and_waits_are_entered_in_steps_and_the_table_is_complete_after_the_last() {
    let mut leader = leader_of(UNITS);
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let locks = acquired(&mut leader, &holder);
    let mut leader = leader.next();
    let later = leader.open("se_3", 0);
    let pending = (0..LOCKS).map(|number| waits(&lock(number), Some(100 - number))).collect();
    let whole = TableReport { pending, ..report(&leader, &waiter, Vec::new()) };
    take(&mut leader, whole).unwrap();
    let whole = report(&leader, &holder, claims(&locks));
    take(&mut leader, whole).unwrap();
    assert_eq!(usage(&leader), (UNITS, 0), "the last report is a step");

    let context = leader.context();
    let (mut before, mut missing, mut steps) = (usage(&leader), 2, 0);
    while leader.table.is_rebuilding(&leader.log.core) {
        assert_eq!(leader.table.next_deadline_ms(), Some(context.now_ms), "more is due at once");
        assert!(!leader.table.take_completed() && !leader.table.is_ready_to_answer(&leader.log.core, &soft()));
        let now = state(&mut leader);
        assert!(!now.is_ready() && now.missing <= missing && now.waiting_for.is_empty(), "{now:?}");
        missing = now.missing;
        leader.table.rebuild_all(&leader.log.core, &context);
        leader.table.verify();
        let (holds, waiting) = usage(&leader);
        assert!(holds + waiting - before.0 - before.1 <= UNITS, "{before:?} to {holds}, {waiting} in one step");
        assert!(waiting == 0 || holds == LOCKS, "requests are queued after all claims");
        (before, steps) = ((holds, waiting), steps + 1);
        assert!(steps < 100, "it ends");
    }
    assert!(steps >= 2 * LOCKS / UNITS - 1, "{steps}");
    assert!(leader.table.take_completed(), "those who wait are woken");
    assert_eq!((usage(&leader), missing, state(&mut leader).is_ready()), ((LOCKS, LOCKS), 1, true));
    leader.granted(&later, "free");
    assert_eq!(leader.table.take_conflicts(), 0);
}

#[test]
fn who_asks_meanwhile_waits_for_the_last_step() {
    for units in [1, 2] {
        let (mut leader, holder, other, _) = reported_to_next(units, 0);
        let mut calls = 0;
        // Each of these calls is a step, too.
        while is_busy(&leader.send(&other, acquire("free"))) {
            calls += 1;
            assert!(calls < 100, "it ends");
        }
        assert!(calls >= LOCKS / units - 2, "{calls}");
        assert_eq!((leader.holder("free"), leader.holder("l0")), (owner(&other), owner(&holder)));
    }
}

#[test]
fn a_list_of_commands_is_one_step() {
    let (mut leader, _, other, _) = reported_to_next(UNITS, 0);
    let command_of = |seq| {
        let message = MessageSeq { epoch: other.epoch, seq };
        let request = acquire("free");
        LocksCommand::Session(SessionCommand { account: ACCOUNT, session: other.number, message, request })
    };
    let answered = leader.apply(&LocksCommand::Batch((1..=8).map(command_of).collect()));
    assert!(matches!(&answered, Ok(Response::Batch(outcomes)) if outcomes.iter().all(is_busy)), "{answered:?}");
    assert_eq!(usage(&leader), (2 * UNITS, 0));
}

#[test]
fn the_queue_keeps_its_order_over_all_steps() {
    let mut leader = leader_of(1);
    let holder = leader.open("holder", 0);
    let waiters: Vec<SessionView> = (0..7).map(|number| leader.open(&format!("se_{number}"), 0)).collect();
    let token = leader.granted(&holder, "l");
    let mut leader = leader.next();
    let tickets = [Some(7), None, Some(3), Some(9), None, Some(1), Some(5)];
    for (waiter, ticket) in waiters.iter().zip(tickets) {
        let whole = TableReport { pending: vec![waits("l", ticket)], ..report(&leader, waiter, Vec::new()) };
        take(&mut leader, whole).unwrap();
    }
    reported(&mut leader, &holder, &[("l", token)]);
    // What is released in the middle goes to the first one, which is queued, or is granted when it is.
    leader.send(&holder, release("l")).unwrap();
    assert!(finish(&mut leader) > 5);
    for at in [5, 2, 6, 0, 3, 1, 4] {
        assert_eq!(leader.holder("l"), owner(&waiters[at]), "{at}");
        leader.send(&waiters[at], release("l")).unwrap();
    }
    assert_eq!(leader.holder("l"), None);
}

#[test]
fn of_claims_that_conflict_the_latest_counts_in_whatever_step_it_is_entered() {
    let mut leader = leader_of(1);
    let (stale, holder) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let old = acquired(&mut leader, &stale);
    for number in 0..LOCKS {
        leader.send(&stale, release(&lock(number))).unwrap();
    }
    let new = acquired(&mut leader, &holder);
    let mut leader = leader.next();
    for (session, locks) in [(&stale, &old), (&holder, &new)] {
        let whole = report(&leader, session, claims(locks));
        take(&mut leader, whole).unwrap();
    }
    assert!(finish(&mut leader) >= 2 * LOCKS - 2);
    assert!((0..LOCKS).all(|number| leader.holder(&lock(number)) == owner(&holder)));
    let mut told = lost(&mut leader);
    told.sort();
    let mut expected: Vec<_> =
        old.into_iter().map(|(lock, token)| ("se_1".to_owned(), Path::flat(&lock), token)).collect();
    expected.sort();
    assert_eq!((told, leader.table.take_conflicts()), (expected, LOCKS));
}

#[test]
fn what_is_released_between_two_steps_is_not_entered() {
    let (mut leader, holder, other, locks) = reported_to_next(UNITS, 0);
    assert_eq!(usage(&leader), (UNITS, 0));
    // The highest token is entered first.
    for number in [LOCKS - 1, 0, 7] {
        let released = leader.send(&holder, release(&lock(number)));
        assert!(matches!(released, Ok(Response::Done | Response::Released { .. })), "{released:?}");
    }
    finish(&mut leader);
    assert_eq!(usage(&leader), (LOCKS - 3, 0));
    for number in [LOCKS - 1, 0, 7] {
        leader.granted(&other, &lock(number));
    }

    let mut leader = leader.next();
    reported(&mut leader, &other, &[]);
    let pending = vec![waits("w", Some(1))];
    let whole = TableReport { pending, ..report(&leader, &holder, claims(&locks)) };
    take(&mut leader, whole).unwrap();
    release_all(&mut leader, &holder, 1_000).unwrap();
    finish(&mut leader);
    assert_eq!((usage(&leader), leader.holder("w")), ((0, 0), None));
}

#[test]
fn a_copy_of_a_release_of_before_the_report_releases_nothing() {
    let mut leader = leader_of(UNITS);
    let (holder, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let locks = acquired(&mut leader, &holder);
    let mut leader = leader.next();
    reported(&mut leader, &other, &[]);
    let whole = TableReport { seq: 500, ..report(&leader, &holder, claims(&locks)) };
    take(&mut leader, whole).unwrap();
    for number in [LOCKS - 1, 0] {
        assert_eq!(leader.send_as(&holder, 400, release(&lock(number))), Ok(Response::Ignored));
    }
    assert_eq!(release_all(&mut leader, &holder, 500), Ok(Response::Ignored));
    finish(&mut leader);
    assert_eq!(usage(&leader), (LOCKS, 0));
}

#[test]
fn requests_that_wait_for_what_is_released_meanwhile_keep_their_places() {
    let mut leader = leader_of(UNITS);
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let locks = acquired(&mut leader, &holder);
    let mut leader = leader.next();
    let pending = (0..LOCKS).map(|number| waits(&lock(number), Some(1 + number))).collect();
    let whole = TableReport { pending, ..report(&leader, &waiter, Vec::new()) };
    take(&mut leader, whole).unwrap();
    let whole = report(&leader, &holder, claims(&locks));
    take(&mut leader, whole).unwrap();
    let context = leader.context();
    while usage(&leader).1 == 0 {
        leader.table.rebuild_all(&leader.log.core, &context);
    }
    leader.send(&waiter, release("l19")).unwrap();
    release_all(&mut leader, &holder, 1_000).unwrap();
    finish(&mut leader);
    assert_eq!(usage(&leader), (LOCKS - 1, 0));
    assert_eq!((leader.holder("l18"), leader.holder("l19")), (owner(&waiter), None));
}

#[test]
fn a_session_that_expires_between_two_steps_is_waited_for_with_what_was_not_entered() {
    let (mut leader, holder, other, _) = reported_to_next(UNITS, 500);
    expire(&mut leader.log, holder.number);
    leader.follow();
    finish(&mut leader);
    assert!(!leader.table.is_ready_to_answer(&leader.log.core, &soft()));
    for lock in ["l0", "l19", "free"] {
        assert!(is_busy(&leader.send(&other, acquire(lock))), "{lock}: its transition runs");
    }
    let now = state(&mut leader);
    assert!(!now.is_ready() && now.missing == 1 && now.waiting_for.is_empty(), "{now:?}");
    leader.advance_by(499);
    finish(&mut leader);
    assert!(is_busy(&leader.send(&other, acquire("free"))));
    leader.advance_by(1);
    finish(&mut leader);
    assert_eq!(usage(&leader), (0, 0));
    leader.granted(&other, "l0");
    leader.granted(&other, "l19");
}

#[test]
fn nothing_of_a_session_that_closes_between_two_steps_stays() {
    let mut leader = leader_of(UNITS);
    let (closes, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let locks = acquired(&mut leader, &closes);
    let mut leader = leader.next();
    let pending = vec![waits("w", Some(1))];
    let whole = TableReport { pending, ..report(&leader, &closes, claims(&locks)) };
    take(&mut leader, whole).unwrap();
    let pending = vec![waits("l0", Some(2)), waits("l19", Some(3))];
    let whole = TableReport { pending, ..report(&leader, &other, Vec::new()) };
    take(&mut leader, whole).unwrap();
    close(&mut leader.log, "se_1");
    leader.follow();
    finish(&mut leader);
    assert_eq!(usage(&leader), (2, 0));
    assert_eq!(["l0", "l19", "w"].map(|lock| leader.holder(lock)), [owner(&other), owner(&other), None]);
    assert!(!leader.table.is_rebuilding(&leader.log.core));
}

#[test]
fn what_is_opened_by_force_between_two_steps_is_not_held() {
    let (mut leader, holder, other, locks) = reported_to_next(UNITS, 0);
    assert!(is_busy(&leader.force_open("l0").map(|_| Response::Done)), "not all of its holds are there");
    for (lock, fencing_token) in [&locks[19], &locks[0]] {
        let holds = vec![ForfeitedHold { session: holder.number, fencing_token: *fencing_token }];
        leader.forfeit(&Forfeit { namespace: soft(), path: Path::flat(lock), holds });
    }
    finish(&mut leader);
    assert_eq!(lost(&mut leader), [("se_1".to_owned(), Path::flat("l0"), locks[0].1)]);
    assert_eq!(usage(&leader), (LOCKS - 2, 0));
    leader.granted(&other, "l0");
    leader.granted(&other, "l19");
}

#[test]
fn a_request_whose_first_claim_ended_between_two_steps_has_the_others() {
    let mut leader = leader_of(1);
    let (one, other) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (low, middle) = (leader.granted(&one, "b"), leader.granted(&other, "m"));
    let high = leader.granted(&one, "a");
    let mut leader = leader.next();
    let both = ReportedRequest { claimed: 2, claims: vec![hold("a", high), hold("b", low)], ..granted("a", high) };
    let whole = report(&leader, &one, vec![both]);
    take(&mut leader, whole).unwrap();
    reported(&mut leader, &other, &[("m", middle)]);
    assert_eq!(usage(&leader), (1, 0));
    let holds = vec![ForfeitedHold { session: one.number, fencing_token: high }];
    leader.forfeit(&Forfeit { namespace: soft(), path: Path::flat("a"), holds });
    finish(&mut leader);
    assert_eq!(["a", "b", "m"].map(|lock| leader.holder(lock)), [None, owner(&one), owner(&other)]);
    leader.send(&one, release("a")).unwrap();
    assert_eq!(["b", "m"].map(|lock| leader.holder(lock)), [None, owner(&other)]);
}

#[test]
fn a_large_table_does_not_hold_up_a_small_one() {
    let small = namespace("small", 3);
    let mut leader = leader_of(UNITS);
    let message = NamespaceMessage::open_durable(small.clone(), Limits::default(), Durability::Session);
    let deliver = LocksCommand::Deliver { source: "namespaces_00".into(), number: 3, message };
    leader.log.apply(&holdfast_core::Command::Locks(deliver)).outcome.unwrap();
    let large = leader.open("se_1", 0);
    let in_small = OpenSession { namespace: small.clone(), ..open_command("se_2", false, 77) };
    let (of_small, _) = open(&mut leader.log, OpenTableSession { open: in_small, ..table_session("se_2", 77, 0) });
    leader.follow();
    let locks = acquired(&mut leader, &large);
    let token = leader.granted(&of_small, "l");
    let mut leader = leader.next();
    let whole = report(&leader, &large, claims(&locks));
    take(&mut leader, whole).unwrap();
    let pending = (0..2 * UNITS).map(|number| waits(&lock(number), Some(1 + number))).collect();
    let of_small =
        TableReport { namespace: small.clone(), pending, ..report(&leader, &of_small, vec![granted("l", token)]) };
    leader.apply(&LocksCommand::Table(TableCommand::Report(of_small))).unwrap();
    let context = leader.context();
    for _ in 0..5 {
        let before = (usage(&leader).0, usage_of(&leader, &small).0);
        leader.table.rebuild_all(&leader.log.core, &context);
        let after = (usage(&leader).0, usage_of(&leader, &small).0);
        let entered = after.0 + after.1 - before.0 - before.1;
        assert!(entered <= 2 * UNITS, "they share a slice, and one of grants: {before:?} to {after:?}");
    }
    assert_eq!(usage_of(&leader, &small), (1 + 2 * UNITS, 0));
    assert!(usage(&leader).0 < LOCKS);
    finish(&mut leader);
    assert_eq!(usage(&leader), (LOCKS, 0));
}

#[test]
fn claims_and_waits_of_all_parts_are_entered_in_one_order() {
    // The locks in the parts of a report.
    let (of_three, of_two) = ([vec![0, 3], vec![4, 1], vec![2, 5]], [vec![5, 0, 2], vec![3, 1, 4]]);
    for units in [1, 3] {
        let mut leader = leader_of(units);
        let [stale, holder, one, other] = ["se_1", "se_2", "se_3", "se_4"].map(|id| leader.open(id, 0));
        let (mut old, mut new) = (Vec::new(), Vec::new());
        for number in 0..6 {
            old.push(leader.granted(&stale, &lock(number)));
            leader.send(&stale, release(&lock(number))).unwrap();
            new.push(leader.granted(&holder, &lock(number)));
        }
        let mut leader = leader.next();
        let held = |tokens: &[FencingToken], part: &[u64]| -> PartContents {
            (part.iter().map(|number| granted(&lock(*number), tokens[*number as usize])).collect(), Vec::new())
        };
        take_parts(&mut leader, &stale, of_three.iter().map(|part| held(&old, part)).collect());
        // The first one comes first for locks with an even number.
        let awaited = |is_first: bool, part: &[u64]| -> PartContents {
            let ticket = |number: u64| 1 + 2 * number + u64::from(is_first != number.is_multiple_of(2));
            (Vec::new(), part.iter().map(|number| waits(&lock(*number), Some(ticket(*number)))).collect())
        };
        take_parts(&mut leader, &one, of_three.iter().map(|part| awaited(true, part)).collect());
        take_parts(&mut leader, &other, of_two.iter().map(|part| awaited(false, part)).collect());
        take_parts(&mut leader, &holder, of_two.iter().map(|part| held(&new, part)).collect());
        finish(&mut leader);
        assert_eq!((usage(&leader), leader.table.take_conflicts()), ((6, 12), 6));
        for number in 0..6 {
            let (first, second) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
            for (holds, next) in [(&holder, first), (first, second)] {
                assert_eq!(leader.holder(&lock(number)), owner(holds), "{number}");
                leader.send(holds, release(&lock(number))).unwrap();
                assert_eq!(leader.holder(&lock(number)), owner(next), "{number}");
            }
        }
    }
}

#[test]
fn what_is_given_up_of_a_later_part_is_not_entered() {
    for is_entering in [false, true] {
        let mut leader = leader_of(1);
        let (holder, waiter, last) = (leader.open("se_1", 0), leader.open("se_2", 0), leader.open("se_3", 0));
        let locks = acquired(&mut leader, &holder);
        let mut leader = leader.next();
        let pending = [vec![("l0", 4), ("l1", 1)], vec![("l2", 3), ("l3", 2)], vec![("l4", 5)]];
        let part_of = |waiting: Vec<(&str, u64)>| -> PartContents {
            (Vec::new(), waiting.into_iter().map(|(lock, ticket)| waits(lock, Some(ticket))).collect())
        };
        take_parts(&mut leader, &waiter, pending.map(part_of).into());
        if is_entering {
            reported(&mut leader, &last, &[]);
        }
        take_parts(&mut leader, &holder, locks.chunks(10).map(|part| (claims(part), Vec::new())).collect());
        assert_eq!(usage(&leader), (u64::from(is_entering), 0));
        leader.send(&waiter, release("l2")).unwrap();
        // Claims are entered from the last one on.
        leader.send(&holder, release("l15")).unwrap();
        if !is_entering {
            reported(&mut leader, &last, &[]);
        }
        finish(&mut leader);
        assert_eq!(usage(&leader), (LOCKS - 1, 4));
        for number in 0..5 {
            leader.send(&holder, release(&lock(number))).unwrap();
            let next = if number == 2 { None } else { owner(&waiter) };
            assert_eq!(leader.holder(&lock(number)), next, "{number}");
        }
    }
}

#[test]
fn nothing_of_a_session_that_ends_while_requests_are_queued_stays() {
    for expires in [false, true] {
        let mut leader = leader_of(1);
        let (holder, ends, stays) = (leader.open("se_1", 0), leader.open("se_2", 500), leader.open("se_3", 0));
        let locks = acquired(&mut leader, &holder);
        let mut leader = leader.next();
        let part_of = |part: u64, first: u64| -> PartContents {
            let of_part = (0..LOCKS).filter(|number| number % 2 == part);
            (Vec::new(), of_part.map(|number| waits(&lock(number), Some(2 * number + first))).collect())
        };
        take_parts(&mut leader, &ends, vec![part_of(0, 1), part_of(1, 1)]);
        take_parts(&mut leader, &stays, vec![part_of(0, 2), part_of(1, 2)]);
        take_parts(&mut leader, &holder, vec![(claims(&locks), Vec::new())]);
        let context = leader.context();
        while usage(&leader).1 < LOCKS / 2 {
            leader.table.rebuild_all(&leader.log.core, &context);
        }
        if expires {
            expire(&mut leader.log, ends.number);
        } else {
            close(&mut leader.log, "se_2");
        }
        leader.follow();
        finish(&mut leader);
        assert!(leader.table.is_ready_to_answer(&leader.log.core, &soft()), "it held nothing");
        assert_eq!(usage(&leader), (LOCKS, LOCKS));
        for number in 0..LOCKS {
            leader.send(&holder, release(&lock(number))).unwrap();
            assert_eq!(leader.holder(&lock(number)), owner(&stays), "{number}");
        }
    }
}
