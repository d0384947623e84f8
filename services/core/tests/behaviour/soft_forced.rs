//! Locks of a table in the memory of a leader that are forced open: what the next leader makes of it.

use holdfast_core::{
    Claim, Mode, Path, ReportedHold, ReportedRequest, Response, SessionAcquire, SessionRequest, SessionView,
};

use crate::soft_grants::{Leader, acquire, owner, release};
use crate::soft_reports::{granted, hold, report, reported, take};

/// A request for some locks in one mode.
fn acquire_all(locks: &[&str], mode: Mode) -> SessionRequest {
    let SessionRequest::Acquire(one) = acquire(locks[0]) else { unreachable!() };
    let claims = locks.iter().map(|lock| Claim { path: Path::flat(*lock), mode }).collect();
    SessionRequest::Acquire(SessionAcquire { claims, ..one })
}

#[test]
fn a_lock_that_was_opened_by_force_takes_no_other_of_its_request_with_it() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let token = match leader.send(&holder, acquire_all(&["a", "b"], Mode::Write)) {
        Ok(Response::Granted { fencing_token }) => fencing_token,
        other => panic!("not granted: {other:?}"),
    };
    let forfeit = leader.force_open("a").expect("it is complete");
    leader.forfeit(&forfeit);
    assert_eq!((leader.holder("a"), leader.holder("b")), (None, owner(&holder)));

    let mut leader = leader.next();
    reported(&mut leader, &waiter, &[]);
    let both = ReportedRequest { claimed: 2, claims: vec![hold("a", token), hold("b", token)], ..granted("a", token) };
    let whole = report(&leader, &holder, vec![both]);
    take(&mut leader, whole).unwrap();
    assert_eq!((leader.holder("a"), leader.holder("b")), (None, owner(&holder)));
    let taken = leader.send(&waiter, acquire("b"));
    assert!(!matches!(taken, Ok(Response::Granted { .. })), "it is held: {taken:?}");
}

#[test]
fn what_is_granted_while_the_log_is_told_to_open_a_lock_outlives_that_and_its_leader() {
    let mut leader = Leader::new();
    let (holder, other, third) = (leader.open("se_1", 0), leader.open("se_2", 0), leader.open("se_3", 0));
    let read = |leader: &mut Leader, session: &SessionView| match leader.send(session, acquire_all(&["l"], Mode::Read))
    {
        Ok(Response::Granted { fencing_token }) => fencing_token,
        other => panic!("not granted: {other:?}"),
    };
    let first = read(&mut leader, &holder);
    let forfeit = leader.force_open("l").expect("it is complete");
    // The entry is under way.
    let meanwhile = read(&mut leader, &other);
    leader.send(&holder, release("l")).unwrap();
    let again = read(&mut leader, &holder);
    assert!(first < meanwhile && meanwhile < again);
    leader.forfeit(&forfeit);
    let refused = leader.send(&third, acquire("l"));
    assert!(!matches!(refused, Ok(Response::Granted { .. })), "two read it: {refused:?}");

    let mut leader = leader.next();
    let read_hold = |token| ReportedRequest {
        claims: vec![ReportedHold { mode: Mode::Read, ..hold("l", token) }],
        ..granted("l", token)
    };
    for (session, token) in [(&holder, again), (&other, meanwhile)] {
        let whole = report(&leader, session, vec![read_hold(token)]);
        take(&mut leader, whole).unwrap();
    }
    reported(&mut leader, &third, &[]);
    assert_eq!(leader.table.take_conflicts(), 0);
    let refused = leader.send(&third, acquire("l"));
    assert!(!matches!(refused, Ok(Response::Granted { .. })), "two read it: {refused:?}");
}
