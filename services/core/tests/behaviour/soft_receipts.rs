//! Lock tables in the memory of a leader, rebuilt from what the clients of resumed sessions show: a gateway has checked
//! that it was granted to them once, not that they still have it.

use holdfast_core::{FencingToken, LocksCommand, Path, Query, Response, SessionView, TableReport};

use crate::durability::soft;
use crate::soft_grants::{Leader, acquire, owner, release};
use crate::soft_reports::{granted, lost, report, reported, take, waits};
use crate::soft_tables::{open, table_session};

/// Resumes a session of before whose gateway is lost. Returns it as its next connection sees it.
fn resume(leader: &mut Leader, id: &str, call: u64) -> SessionView {
    let mut resume = table_session(id, call, 0);
    resume.open.resume = true;
    let (resumed, _) = open(&mut leader.log, resume.clone());
    leader.follow();
    assert!(leader.table.unreported_resume(&leader.log.core, &resume.open).is_some(), "it has not reported");
    resumed
}

/// Shows these locks on the connection that resumed the session.
fn show_receipts(leader: &mut Leader, id: &str, call: u64, locks: &[(&str, FencingToken)]) -> SessionView {
    let resumed = resume(leader, id, call);
    reported(leader, &resumed, locks);
    resumed
}

/// The token of the hold of a lock.
fn token(leader: &Leader, lock: &str) -> Option<FencingToken> {
    let query = Query::Lock { namespace: soft(), path: Path::flat(lock) };
    match leader.table.query(&leader.log.core, 0, &query).expect("it is about the table").outcome {
        Ok(Response::Lock(lock)) => lock.write_lock_holder.map(|holder| holder.fencing_token),
        other => panic!("no lock: {other:?}"),
    }
}

#[test]
fn what_is_shown_is_held_under_the_same_tokens_and_in_its_place() {
    let mut leader = Leader::new();
    let (holder, waiter) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (granted_token, other) = (leader.granted(&holder, "l"), leader.granted(&holder, "m"));
    leader.send(&waiter, acquire("l")).unwrap();

    let mut leader = leader.next();
    let resumed = show_receipts(&mut leader, "se_1", 91, &[("l", granted_token), ("m", other)]);
    assert!(leader.table.has_reported(holder.number) && resumed.epoch > holder.epoch);
    let of_before = report(&leader, &holder, vec![granted("l", granted_token)]);
    assert!(take(&mut leader, of_before).is_err(), "the gateway that it had is too late");
    let waiting = resume(&mut leader, "se_2", 92);
    let shown =
        TableReport { pending: vec![waits("l", Some(granted_token + 1))], ..report(&leader, &waiting, Vec::new()) };
    assert_eq!(take(&mut leader, shown), Ok(Response::Done));
    assert_eq!((leader.holder("l"), leader.holder("m")), (owner(&resumed), owner(&resumed)));
    assert_eq!(token(&leader, "l"), Some(granted_token));
    assert!(lost(&mut leader).is_empty());
    assert_eq!(leader.send(&resumed, release("l")), Ok(Response::Done));
    assert_eq!(leader.holder("l"), owner(&waiting));
}

#[test]
fn what_was_released_is_not_held_again_if_another_session_has_it() {
    let mut leader = Leader::new();
    let (liar, holder) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let old = leader.granted(&liar, "l");
    leader.send(&liar, release("l")).unwrap();
    let newer = leader.granted(&holder, "l");
    let mut leader = leader.next();
    show_receipts(&mut leader, "se_1", 91, &[("l", old)]);
    show_receipts(&mut leader, "se_2", 92, &[("l", newer)]);
    assert_eq!((leader.holder("l"), token(&leader, "l")), (owner(&holder), Some(newer)));
    assert_eq!(lost(&mut leader), [("se_1".to_owned(), Path::flat("l"), old)]);
    assert_eq!(leader.table.take_conflicts(), 1);
}

#[test]
fn what_was_released_and_nobody_has_is_held_once_more() {
    let mut leader = Leader::new();
    let liar = leader.open("se_1", 0);
    leader.open("se_2", 0);
    let old = leader.granted(&liar, "l");
    leader.send(&liar, release("l")).unwrap();
    let mut leader = leader.next();
    show_receipts(&mut leader, "se_1", 91, &[("l", old)]);
    let other = show_receipts(&mut leader, "se_2", 92, &[]);
    assert_eq!((leader.holder("l"), token(&leader, "l")), (owner(&liar), Some(old)));
    assert_eq!(leader.table.take_conflicts(), 0);
    assert!(leader.granted(&other, "free") > old);
}

#[test]
fn a_grant_of_an_epoch_long_past_counts_unless_there_is_a_later_one() {
    let mut leader = Leader::new();
    let (first, second) = (leader.open("se_1", 0), leader.open("se_2", 0));
    let (kept, given_up) = (leader.granted(&first, "kept"), leader.granted(&first, "given up"));
    let mut leader = leader.next();
    reported(&mut leader, &first, &[("kept", kept), ("given up", given_up)]);
    reported(&mut leader, &second, &[]);
    leader.send(&first, release("given up")).unwrap();
    let later = leader.granted(&second, "given up");
    assert!(later > leader.epoch.epoch && leader.epoch.epoch > given_up);
    let mut leader = leader.next();
    show_receipts(&mut leader, "se_1", 91, &[("kept", kept), ("given up", given_up)]);
    show_receipts(&mut leader, "se_2", 92, &[("given up", later)]);
    assert_eq!((leader.holder("kept"), token(&leader, "kept")), (owner(&first), Some(kept)));
    assert_eq!((leader.holder("given up"), token(&leader, "given up")), (owner(&second), Some(later)));
}

#[test]
fn a_session_that_resumes_and_shows_nothing_is_waited_for() {
    let mut leader = Leader::new();
    let (silent, later) = (leader.open("se_1", 0), leader.open("se_2", 0));
    leader.granted(&silent, "l");
    let mut leader = leader.next();
    reported(&mut leader, &later, &[]);
    for call in 91..95 {
        resume(&mut leader, "se_1", call);
        assert!(crate::soft_grants::is_busy(&leader.send(&later, acquire("l"))));
    }
    assert!(leader.log.core.needs_report(silent.number), "no resume counts as a keep-alive");
    crate::soft_tables::expire(&mut leader.log, silent.number);
    leader.follow();
    assert!(leader.granted(&later, "l") > leader.epoch.epoch);
}

#[test]
fn a_list_of_parts_continues_no_report_of_the_gateway_before() {
    let mut leader = Leader::new();
    let session = leader.open("se_1", 0);
    let (first, second) = (leader.granted(&session, "a"), leader.granted(&session, "b"));
    let mut leader = leader.next();
    let part = |leader: &Leader, of: &SessionView, part, lock: &str, token| {
        let whole = report(leader, of, vec![granted(lock, token)]);
        LocksCommand::Table(holdfast_core::TableCommand::Report(TableReport { part, parts: 2, ..whole }))
    };
    let of_gateway = part(&leader, &session, 1, "a", first);
    assert_eq!(leader.apply(&of_gateway), Ok(Response::Done));
    let resumed = resume(&mut leader, "se_1", 91);
    let continued = part(&leader, &resumed, 2, "b", second);
    assert!(leader.apply(&continued).is_err(), "its own first part is missing");
    for (at, (lock, token)) in [("a", first), ("b", second)].into_iter().enumerate() {
        let shown = part(&leader, &resumed, at as u32 + 1, lock, token);
        assert_eq!(leader.apply(&shown), Ok(Response::Done));
    }
    assert_eq!((leader.holder("a"), leader.holder("b")), (owner(&resumed), owner(&resumed)));
}
