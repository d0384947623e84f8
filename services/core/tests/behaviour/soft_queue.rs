//! Requests that wait are queued in the same order at the next leader of a table in memory, and are granted once all
//! that had a place are queued.

use holdfast_core::{
    AcquireOutcome, Claim, CommandError, Effect, FencingToken, Metadata, Mode, Path, ReportedHold, ReportedRequest,
    ReportedWait, Response, SessionAcquire, SessionRequest, SessionView, TableReport, Wait, WaitId,
};

use crate::soft_grants::{Leader, acquire, owner, release};
use crate::soft_reports::{granted, report, take, waits};

fn path(lock: &str) -> Path {
    Path(lock.split('/').map(str::to_owned).collect())
}

/// Asks for a lock of the tree under the id that its path makes.
fn acquire_path(lock: &str) -> SessionRequest {
    SessionRequest::Acquire(SessionAcquire {
        holder: None,
        claims: vec![Claim { path: path(lock), mode: Mode::Write }],
        transition_ms: 0,
        wait: Wait::Unlimited,
        allow_upgrade: false,
        request_id: lock.to_owned(),
    })
}

fn release_path(lock: &str) -> SessionRequest {
    SessionRequest::Release { request_id: lock.to_owned(), is_known: true }
}

fn token(outcome: Result<Response, CommandError>) -> FencingToken {
    match outcome {
        Ok(Response::Granted { fencing_token }) => fencing_token,
        other => panic!("not granted: {other:?}"),
    }
}

fn wait_id(outcome: Result<Response, CommandError>) -> WaitId {
    match outcome {
        Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) => enqueued.wait,
        other => panic!("it does not wait: {other:?}"),
    }
}

fn holds(lock: &str, fencing_token: FencingToken) -> ReportedRequest {
    ReportedRequest {
        request_id: lock.to_owned(),
        claims: vec![ReportedHold { path: path(lock), mode: Mode::Write, fencing_token }],
        ..granted(lock, fencing_token)
    }
}

fn waits_for(lock: &str, ticket: WaitId) -> ReportedWait {
    ReportedWait {
        request_id: lock.to_owned(),
        holder: None,
        metadata: Metadata::new(),
        claims: vec![Claim { path: path(lock), mode: Mode::Write }],
        ticket: Some(ticket),
    }
}

fn report_all(leader: &mut Leader, of: &SessionView, granted: Vec<ReportedRequest>, pending: Vec<ReportedWait>) {
    let whole = TableReport { pending, ..report(leader, of, granted) };
    assert_eq!(take(leader, whole), Ok(Response::Done));
}

/// The requests that were granted since, in order.
fn granted_since(leader: &mut Leader) -> Vec<String> {
    let effects = leader.table.take_effects().into_iter();
    let granted = effects.filter_map(|effect| match effect {
        Effect::WaitResolved { request_id, outcome: AcquireOutcome::Granted { .. }, .. } => request_id,
        _ => None,
    });
    granted.collect()
}

#[test]
fn a_request_that_lets_a_later_one_pass_does_so_at_the_next_leader() {
    let mut leader = Leader::new();
    let [a, b, holder, other] = ["se_a", "se_b", "se_h", "se_q"].map(|id| leader.open(id, 0));
    let below = token(leader.send(&holder, acquire_path("a/x")));
    let beside = token(leader.send(&other, acquire_path("a/y")));
    let of_b = token(leader.send(&b, acquire_path("b")));
    let first = wait_id(leader.send(&a, acquire_path("a/x")));
    let second = wait_id(leader.send(&b, acquire_path("a")));
    let third = wait_id(leader.send(&a, acquire_path("b")));
    assert!(leader.send(&holder, release_path("a/x")).is_ok());
    // The first one would be granted, but `a` waits for `b`, which waits for all of the tree.
    assert!(granted_since(&mut leader).is_empty() && below < beside);

    let mut leader = leader.next();
    report_all(&mut leader, &a, Vec::new(), vec![waits_for("a/x", first), waits_for("b", third)]);
    report_all(&mut leader, &b, vec![holds("b", of_b)], vec![waits_for("a", second)]);
    report_all(&mut leader, &holder, Vec::new(), Vec::new());
    report_all(&mut leader, &other, vec![holds("a/y", beside)], Vec::new());
    let asked_again = [
        wait_id(leader.send(&a, acquire_path("a/x"))),
        wait_id(leader.send(&b, acquire_path("a"))),
        wait_id(leader.send(&a, acquire_path("b"))),
    ];
    assert!(asked_again.is_sorted() && asked_again[0].0 > leader.epoch.epoch, "none is refused: {asked_again:?}");
    assert!(leader.send(&other, release_path("a/y")).is_ok());
    assert_eq!(granted_since(&mut leader), ["a"]);
    assert!(leader.send(&b, release_path("a")).is_ok() && leader.send(&b, release_path("b")).is_ok());
    assert_eq!(granted_since(&mut leader), ["a/x", "b"]);
}

#[test]
fn what_is_free_is_granted_once_all_are_queued_and_the_new_come_last() {
    let mut leader = Leader::new();
    let sessions = ["se_h", "se_1", "se_2", "se_3"].map(|id| leader.open(id, 0));
    let [holder, first, second, new] = &sessions;
    leader.granted(holder, "l");
    let places = [first, second].map(|it| wait_id(leader.send(it, acquire("l"))));

    let mut leader = leader.next();
    // Its request never reached a leader.
    report_all(&mut leader, new, Vec::new(), vec![waits("l", None)]);
    report_all(&mut leader, second, Vec::new(), vec![waits("l", Some(places[1].0))]);
    report_all(&mut leader, first, Vec::new(), vec![waits("l", Some(places[0].0))]);
    report_all(&mut leader, holder, Vec::new(), Vec::new());
    for next in [first, second, new] {
        assert_eq!(leader.holder("l"), owner(next));
        assert!(leader.send(next, release("l")).is_ok());
    }
}

#[test]
fn requests_of_one_place_and_of_one_to_come_are_queued_one_after_the_other() {
    let mut leader = Leader::new();
    let sessions = ["se_h", "se_1", "se_2", "se_3"].map(|id| leader.open(id, 0));
    let [holder, first, second, third] = &sessions;
    let held = leader.granted(holder, "l");
    let ticket = wait_id(leader.send(first, acquire("l")));

    let mut leader = leader.next();
    let later = leader.epoch.epoch + 5;
    report_all(&mut leader, holder, vec![granted("l", held)], Vec::new());
    report_all(&mut leader, third, Vec::new(), vec![waits("l", Some(later))]);
    report_all(&mut leader, first, Vec::new(), vec![waits("l", Some(ticket.0))]);
    report_all(&mut leader, second, Vec::new(), vec![waits("l", Some(ticket.0))]);
    let places = [first, second, third].map(|session| wait_id(leader.send(session, acquire("l"))));
    assert!(places.is_sorted() && places[0] != places[1], "{places:?}");
}
