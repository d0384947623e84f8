//! Sessions: epochs, messages out of order, what is left of them, and what a client knows after a resume.

use holdfast_core::{
    Acquire, CommandError, Effect, KeepAliveOutcome, Limits, LockInfo, LocksCommand, MessageSeq, Mode, OpenSession,
    Owner, Path, Phase, Query, Reason, Release, ReleaseTarget, ReportedHold, Response, RevokedReason, SessionEnd,
    SessionKeepAlive, Wait,
};

use crate::support::{Shard, assert_nothing_is_left, orders};
use crate::wait_requests::{at, open_command, read, session_owner, session_wait_request, try_request, write};

fn message(epoch: u64, seq: u64) -> Option<MessageSeq> {
    Some(MessageSeq { epoch, seq })
}

fn release_by_name(name: &str) -> ReleaseTarget {
    ReleaseTarget::Request { request_id: name.into() }
}

fn reported_hold(path: &str, mode: Mode, fencing_token: u64) -> ReportedHold {
    ReportedHold { path: at(path), mode, fencing_token }
}

fn expire(shard: &mut Shard, number: u64) -> Response {
    let known_revision = shard.core.revision();
    shard.run(LocksCommand::ExpireSessions { ids: vec![number], known_revision }).unwrap()
}

fn lock_info(shard: &mut Shard, held: &[ReportedHold], pending: &[&str]) -> Response {
    let info = LockInfo {
        namespace: orders(),
        session_id: "se_1".into(),
        message: None,
        held: held.to_vec(),
        pending: pending.iter().map(|name| (*name).to_owned()).collect(),
    };
    shard.run(LocksCommand::LockInfo(info)).unwrap()
}

#[test]
fn messages_of_an_earlier_epoch_are_refused_and_those_with_a_lower_number_ignored() {
    let mut shard = Shard::new();
    let first = shard.open_session("se_1").epoch;
    let lock = |epoch, seq, name: &str| Acquire {
        message: message(epoch, seq),
        ..session_wait_request("se_1", name, &[write(name)])
    };
    shard.granted(lock(first, 5, "a"));
    assert_eq!(shard.try_acquire(lock(first, 4, "b")), Ok(Response::Ignored));
    assert_eq!(shard.holders("b"), [""; 0]);
    shard.granted(lock(first, 5, "a"));
    let second = shard.open_session_as("se_1", true, 2).unwrap().epoch;
    assert!(second > first);
    let superseded = Err(CommandError::Superseded { epoch: second });
    assert_eq!(shard.try_acquire(lock(first, 6, "b")), superseded);
    let release = Release {
        namespace: orders(),
        owner: session_owner("se_1"),
        what: release_by_name("a"),
        message: message(first, 7),
    };
    assert_eq!(shard.run(LocksCommand::Release(release.clone())), superseded);
    let close =
        LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: message(first, 8) };
    assert_eq!(shard.run(close), superseded);
    assert_eq!(shard.holders("a"), ["se_1"]);
    shard.granted(lock(second, 1, "b"));
    let old = Release { message: message(second, 1), ..release };
    assert_eq!(shard.run(LocksCommand::Release(old)), Ok(Response::Ignored));
    assert!(matches!(shard.try_acquire(lock(second + 1, 2, "c")), Err(CommandError::Malformed(_))));
}

#[test]
fn a_repeated_opening_supersedes_nobody_and_a_second_one_is_told_to_the_first() {
    let mut shard = Shard::new();
    let first = shard.open_session("se_1");
    assert_eq!(shard.open_session_as("se_1", false, 1), Ok(first.clone()));
    assert!(!shard.core.take_effects().iter().any(|effect| matches!(effect, Effect::SessionOpened { .. })));
    assert_eq!(shard.open_session_as("se_1", false, 2), Err(CommandError::IdTaken));
    let second = shard.open_session_as("se_1", true, 3).unwrap();
    assert_eq!(second.number, first.number);
    let opened = Effect::SessionOpened {
        namespace: orders(),
        number: first.number,
        session_id: "se_1".into(),
        epoch: second.epoch,
        ttl_ms: 10_000,
    };
    assert_eq!(shard.core.take_effects(), [opened]);
    assert_eq!(shard.open_session_as("se_2", true, 4), Err(CommandError::SessionNotFound("se_2".into())));
}

#[test]
fn a_sign_of_life_is_answered_with_the_session_unless_its_connection_was_superseded() {
    let mut shard = Shard::new();
    let first = shard.open_session("se_1");
    let alive = |id: &str, epoch| Query::KeepAlive { namespace: orders(), session_id: id.into(), epoch };
    assert_eq!((first.ttl_ms, first.remaining_ms), (10_000, 10_000));
    assert_eq!(shard.query(&alive("se_1", Some(first.epoch))), Ok(Response::Session(first.clone())));
    let second = shard.open_session_as("se_1", true, 2).unwrap();
    assert_eq!(shard.query(&alive("se_1", Some(first.epoch))), Err(CommandError::Superseded { epoch: second.epoch }));
    assert_eq!(shard.query(&alive("se_1", None)), Ok(Response::Session(second.clone())));
    assert_eq!(shard.query(&alive("se_2", None)), Err(CommandError::SessionNotFound("se_2".into())));
    let one = |id: &str, epoch| SessionKeepAlive { key: 0, namespace: orders(), session_id: id.into(), epoch };
    let sessions = vec![one("se_1", second.epoch), one("se_1", first.epoch), one("se_2", 1)];
    let outcomes = vec![
        KeepAliveOutcome::Recorded { remaining_ms: 10_000 },
        KeepAliveOutcome::Rejected(CommandError::Superseded { epoch: second.epoch }),
        KeepAliveOutcome::Rejected(CommandError::SessionNotFound("se_2".into())),
    ];
    assert_eq!(shard.query(&Query::KeepAlives { sessions }), Ok(Response::KeptAlive(outcomes)));
}

#[test]
fn a_session_that_was_resumed_since_the_leader_looked_is_not_expired() {
    let mut shard = Shard::new();
    let number = shard.open_session("se_1").number;
    let known_revision = shard.core.revision();
    shard.open_session_as("se_1", true, 2).unwrap();
    let late = shard.run(LocksCommand::ExpireSessions { ids: vec![number, 99], known_revision });
    assert_eq!(late, Ok(Response::SessionsExpired { ended: vec![] }));
    assert_eq!(expire(&mut shard, number), Response::SessionsExpired { ended: vec![number] });
}

#[test]
fn an_expired_session_leaves_holds_in_transition_and_a_closed_one_nothing() {
    for expires in [true, false] {
        let mut shard = Shard::new();
        let number = shard.open_session("se_1").number;
        let slow = Acquire { transition_ms: 50, ..session_wait_request("se_1", "1", &[write("slow")]) };
        let token = shard.granted(slow);
        shard.granted(session_wait_request("se_1", "2", &[write("fast")]));
        if expires {
            expire(&mut shard, number);
        } else {
            let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_1".into(), message: None };
            shard.run(close).unwrap();
        }
        let effects = shard.core.take_effects();
        let ended = if expires { SessionEnd::Expired } else { SessionEnd::Closed };
        assert!(effects.iter().any(|effect| matches!(effect, Effect::SessionEnded { reason, .. } if *reason == ended)));
        let revoked = effects.iter().filter(|effect| matches!(effect, Effect::Revoked { .. })).count();
        assert_eq!(revoked, if expires { 2 } else { 0 });
        shard.granted(try_request("p", &[write("fast")]));
        if expires {
            assert_eq!(
                shard.get("slow").write_lock_holder.map(|it| (it.phase, it.fencing_token)),
                Some((Phase::Transition, token))
            );
            assert_eq!(shard.refused(try_request("p", &[write("slow")])).reason, Reason::Transition);
            shard.open_session_as("se_1", false, 2).unwrap();
            let namesake = Acquire { wait: Wait::No, ..session_wait_request("se_1", "1", &[write("slow")]) };
            assert_eq!(shard.refused(namesake).reason, Reason::Transition);
            shard.advance_by(50);
        }
        shard.granted(try_request("p", &[write("slow")]));
    }
}

#[test]
fn a_hold_ends_with_the_last_request_that_claims_it() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let token = shard.granted(session_wait_request("se_1", "1", &[write("a"), read("b")]));
    assert_eq!(shard.granted(session_wait_request("se_1", "2", &[write("a")])), token, "it has it");
    shard.try_release(session_owner("se_1"), release_by_name("1"));
    assert_eq!((shard.holders("a"), shard.holders("b")), (vec!["se_1".to_owned()], vec![]));
    shard.try_release(session_owner("se_1"), release_by_name("2"));
    assert_eq!(shard.holders("a"), [""; 0]);
}

#[test]
fn a_request_id_is_one_request_as_long_as_it_is_not_released() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let token = shard.granted(session_wait_request("se_1", "1", &[write("a")]));
    assert_eq!(shard.granted(session_wait_request("se_1", "1", &[write("a")])), token);
    let taken = Err(CommandError::RequestIdTaken("1".into()));
    assert_eq!(shard.try_acquire(session_wait_request("se_1", "1", &[read("a")])), taken);
    assert_eq!(shard.try_acquire(session_wait_request("se_1", "1", &[write("b")])), taken);
    let owner = Owner::Session { session_id: "se_1".into(), holder: Some("thread".into()) };
    assert_eq!(shard.try_acquire(Acquire { owner, ..session_wait_request("se_1", "1", &[write("a")]) }), taken);
    shard.try_release(session_owner("se_1"), release_by_name("1"));
    shard.granted(session_wait_request("se_1", "1", &[write("b")]));
}

#[test]
fn a_repeat_after_the_owner_changed_the_mode_is_told_what_is_held_now() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let ask = |name: &str, claim| Acquire { allow_upgrade: true, ..session_wait_request("se_1", name, &[claim]) };
    let first = shard.granted(ask("reads", read("a")));
    let second = shard.granted(ask("writes", write("a")));
    assert!(second > first);
    // The first token is no longer that of any hold.
    assert_eq!(shard.granted(ask("reads", read("a"))), second);
    shard.granted(ask("weaker", read("a")));
    assert_eq!(shard.refused(ask("writes", write("a"))).reason, Reason::NotHeld);
    assert_eq!(shard.granted(ask("reads", read("a"))), second);
}

#[test]
fn requests_and_messages_of_unknown_sessions_are_refused() {
    let mut shard = Shard::new();
    let unknown = CommandError::SessionNotFound("se_9".into());
    assert_eq!(shard.try_acquire(session_wait_request("se_9", "1", &[write("a")])), Err(unknown.clone()));
    let (owner, what) = (session_owner("se_9"), ReleaseTarget::All);
    let release = LocksCommand::Release(Release { namespace: orders(), owner, what, message: None });
    assert_eq!(shard.run(release), Err(unknown.clone()));
    let close = LocksCommand::CloseSession { namespace: orders(), session_id: "se_9".into(), message: None };
    assert_eq!(shard.run(close), Err(unknown.clone()));
    let session_id = "se_9".to_owned();
    assert_eq!(shard.query(&Query::ReconcileHolds { namespace: orders(), session_id, held: vec![] }), Err(unknown));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn one_session_does_not_release_what_another_holds_and_threads_of_one_exclude_one_another() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    shard.open_session("se_2");
    shard.granted(session_wait_request("se_1", "1", &[write("a")]));
    assert!(!shard.try_release(session_owner("se_2"), release_by_name("1")));
    let paths = vec![at("a")];
    assert!(!shard.try_release(session_owner("se_2"), ReleaseTarget::Paths { paths, fencing_token: None }));
    let thread = Owner::Session { session_id: "se_1".into(), holder: Some("t".into()) };
    let second = Acquire { owner: thread, ..session_wait_request("se_1", "2", &[write("a")]) };
    shard.queued(second, Reason::Held);
    assert!(shard.try_release(session_owner("se_1"), ReleaseTarget::All), "of all its threads");
    assert_eq!((shard.holders("a"), shard.waiting_owners()), (vec![], vec![]));
}

#[test]
fn what_a_resumed_client_does_not_list_ends_and_what_is_pending_stays() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let kept = shard.granted(session_wait_request("se_1", "1", &[write("kept")]));
    shard.granted(session_wait_request("se_1", "2", &[write("unlisted")]));
    shard.granted(session_wait_request("se_1", "3", &[write("answer lost")]));
    shard.granted(try_request("p", &[write("held")]));
    shard.queued(session_wait_request("se_1", "4", &[write("held")]), Reason::Held);
    shard.queued(session_wait_request("se_1", "5", &[read("held")]), Reason::Held);
    let answer = lock_info(&mut shard, &[reported_hold("kept", Mode::Write, kept)], &["3", "4"]);
    assert_eq!(answer, Response::Reconciled { lost: vec![], ended_holds: 1, ended_waits: 1 });
    assert_eq!(shard.resolved_waits(), [("se_1".into(), Err(Reason::Ended))]);
    let held = ["kept", "unlisted", "answer lost"].map(|path| shard.holders(path).len());
    assert_eq!((held, shard.waiting_owners().len()), ([1, 0, 1], 1));
}

#[test]
fn a_client_is_told_of_what_it_believes_to_hold_and_does_not() {
    let mut shard = Shard::new();
    shard.open_session("se_1");
    let (a, b) = (session_wait_request("se_1", "1", &[write("a")]), session_wait_request("se_1", "2", &[read("b")]));
    let (a, b) = (shard.granted(a), shard.granted(b));
    shard.delete("a");
    let deleted = shard.core.take_effects();
    let is_it = |effect: &Effect| matches!(effect, Effect::Revoked { reason: RevokedReason::Deleted, path, .. } if *path == Path::flat("a"));
    assert!(deleted.iter().any(is_it));
    let other = shard.granted(try_request("p", &[write("a")]));
    let held =
        vec![reported_hold("a", Mode::Write, a), reported_hold("b", Mode::Read, b), reported_hold("c", Mode::Write, 1)];
    let query = Query::ReconcileHolds { namespace: orders(), session_id: "se_1".into(), held: held.clone() };
    let asked = shard.query(&query).unwrap();
    assert_eq!(lock_info(&mut shard, &held, &[]), asked);
    let Response::Reconciled { lost, ended_holds: 0, ended_waits: 0 } = asked else {
        panic!("nothing ends: {asked:?}")
    };
    let told: Vec<_> = lost.iter().map(|hold| (&hold.path, hold.fencing_token)).collect();
    assert_eq!(told, [(&at("a"), a), (&at("c"), 1)]);
    let owners: Vec<_> = lost.iter().map(|hold| hold.current_owner.as_ref().map(|it| it.fencing_token)).collect();
    assert_eq!(owners, [Some(other), None]);
    assert_eq!(shard.holders("b"), ["se_1"]);
}

#[test]
fn a_full_namespace_refuses_one_more_session() {
    let mut shard = Shard::with_limits(Limits { max_sessions_per_namespace: 1, ..Limits::default() });
    shard.open_session("se_1");
    assert!(matches!(shard.open_session_as("se_2", false, 1), Err(CommandError::QuotaExceeded { max: 1, .. })));
    shard.open_session_as("se_1", true, 2).unwrap();
}

/// They learn of the process only if it is another one.
#[test]
fn a_resume_costs_the_same_however_many_holders_a_session_has_unless_another_process_resumes_it() {
    const HOLDERS: u64 = 50;
    let mut shard = Shard::new();
    shard.open_session("se_1");
    for number in 0..HOLDERS {
        let owner = Owner::Session { session_id: "se_1".into(), holder: Some(format!("t{number}")) };
        let request = session_wait_request("se_1", &format!("r{number}"), &[write(&format!("l{number}"))]);
        shard.granted(Acquire { owner, ..request });
    }
    let mut units = |open: OpenSession| {
        let before = shard.core.units();
        shard.run(LocksCommand::OpenSession(open)).unwrap();
        shard.core.units() - before
    };
    let same = units(open_command("se_1", true, 2));
    let other = units(OpenSession { process_id: "elsewhere".into(), ..open_command("se_1", true, 3) });
    assert_eq!(other, same + HOLDERS);
    assert_eq!(shard.get("l7").write_lock_holder.expect("it is held").process_id, "elsewhere");
    shard.core.verify();
}

#[test]
fn commands_in_order_are_each_as_if_they_came_alone() {
    let mut shard = Shard::new();
    let epoch = shard.open_session("se_1").epoch;
    let lock = |seq, name: &str| {
        let stamp = message(epoch, seq);
        LocksCommand::Acquire(Acquire { message: stamp, ..session_wait_request("se_1", name, &[write(name)]) })
    };
    let release = |seq, name: &str| {
        let (owner, what) = (session_owner("se_1"), release_by_name(name));
        LocksCommand::Release(Release { namespace: orders(), owner, what, message: message(epoch, seq) })
    };
    let list = LocksCommand::Batch(vec![lock(1, "a"), release(2, "a"), lock(3, "b"), lock(2, "late")]);
    let before = shard.core.revision();
    let Ok(Response::Batch(answers)) = shard.run(list.clone()) else { panic!("a list is answered by a list") };
    assert!(matches!(&answers[0], Ok(Response::Acquired { .. })));
    assert!(matches!(&answers[1], Ok(Response::Released { released: true, .. })));
    assert!(matches!(&answers[2], Ok(Response::Acquired { .. })));
    assert_eq!(answers[3], Ok(Response::Ignored));
    assert_eq!(shard.core.revision(), before + 3);
    assert_eq!((shard.holders("a").len(), shard.holders("b").len(), shard.holders("late").len()), (0, 1, 0));
    // A copy of it changes nothing.
    let Ok(Response::Batch(copies)) = shard.run(list.clone()) else { panic!("a list is answered by a list") };
    assert_eq!((&copies[0], &copies[1]), (&Ok(Response::Ignored), &Ok(Response::Ignored)));
    assert_eq!(shard.core.revision(), before + 3);
    let nested = shard.run(LocksCommand::Batch(vec![lock(9, "c"), list]));
    assert!(matches!(nested, Err(CommandError::Malformed(_))));
    assert!(shard.holders("c").is_empty());
}
