//! Ends of more than a slice that were asked for, and what others see of them meanwhile.

use holdfast_core::{
    AccountId, Acquire, Bounds, Command, CommandError, Effect, FencingToken, JobState, Limits, LockInfo, LocksCommand,
    MessageSeq, Mode, NamespaceRef, Path, Phase, Query, Reason, Release, ReleaseTarget, Reply, ReportedHold, Reset,
    Response, Rules,
};

use crate::support::{Shard, assert_nothing_is_left, namespace, open, orders, process};
use crate::wait_requests::{open_command, read, session_owner, session_wait_request, try_request, wait_request, write};

/// A shard that ends two things in a slice.
fn shard() -> Shard {
    let mut shard = Shard::with_bounds(Bounds { ends_per_slice: 2, grants_per_slice: 2, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard
}

fn apply_checked(shard: &mut Shard, command: LocksCommand) -> Reply {
    let reply = shard.apply(&Command::Locks(command));
    shard.core.verify();
    reply
}

/// In the present entry, so that nothing goes on before it.
fn apply_now_checked(shard: &mut Shard, command: LocksCommand) -> Reply {
    shard.apply_now(&Command::Locks(command))
}

fn release_all(owner: &str) -> LocksCommand {
    LocksCommand::Release(Release {
        namespace: orders(),
        owner: process(owner),
        what: ReleaseTarget::All,
        message: None,
    })
}

/// Another entry without commands; a replica that was restored right before it does the same.
fn next_entry(shard: &mut Shard) {
    let mut restored = shard.restored();
    assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "restoring a replica changes nothing");
    shard.advance_by(0);
    restored.advance_by(0);
    assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
    shard.core.verify();
}

/// As many entries as it takes; how many.
fn finish(shard: &mut Shard) -> usize {
    let mut entries = 0;
    while shard.core.has_backlog() {
        next_entry(shard);
        entries += 1;
        assert!(entries < 100, "it comes to an end");
    }
    entries
}

fn is_current(shard: &Shard, path: &str, fencing_token: FencingToken) -> bool {
    let query = Query::Check { namespace: orders(), path: Path::flat(path), fencing_token };
    let Ok(Response::Checked { current, .. }) = shard.query(&query) else { panic!("not a check") };
    current
}

fn assert_busy(shard: &mut Shard, request: Acquire) {
    let answer = apply_now_checked(shard, LocksCommand::Acquire(request)).outcome;
    assert!(matches!(answer, Err(CommandError::Busy(_))), "{answer:?}");
}

#[test]
fn all_that_an_owner_has_is_over_at_once_and_ends_in_its_turn() {
    let mut shard = shard();
    let tokens = ["a", "b", "c", "d", "e"].map(|path| shard.granted(try_request("p", &[write(path)])));
    shard.granted(try_request("q", &[write("z")]));
    shard.enqueued(wait_request("p", &[write("z")]));
    let reply = apply_checked(&mut shard, release_all("p"));
    assert_eq!(reply.outcome, Ok(Response::Released { released: true, locks: vec![] }));
    let began = reply.awaits.expect("it takes more than a slice");
    assert_eq!(shard.core.job_state(began), JobState::Running);
    for (path, token) in ["a", "b", "c", "d", "e"].iter().zip(tokens) {
        assert!(!is_current(&shard, path, token), "{path} is over");
        assert_eq!(shard.get(path).write_lock_holder.map(|holder| holder.phase), Some(Phase::Transition));
    }
    assert_busy(&mut shard, try_request("p", &[write("new")]));
    assert_eq!(apply_now_checked(&mut shard, release_all("p")).awaits, Some(began), "a repeat awaits what goes on");
    let late = shard.acquire_now(try_request("q", &[write("e")])).outcome.expect_err("its turn has not come");
    assert_eq!(late.reason, Reason::Transition);
    apply_now_checked(&mut shard, release_all("q"));
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::Ended))], "nothing is granted to the owner");
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 5, ended_waits: 1 });
    assert_eq!(apply_checked(&mut shard, release_all("p")).awaits, None);
    shard.granted(try_request("p", &[write("new")]));
    apply_checked(&mut shard, release_all("p"));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_lock_of_many_readers_is_deleted_in_slices_and_nobody_comes_in_between() {
    let mut shard = shard();
    for number in 0..5 {
        shard.granted(try_request(&format!("p{number}"), &[read("l")]));
    }
    shard.enqueued(wait_request("w", &[write("l")]));
    let reply = apply_checked(&mut shard, LocksCommand::Delete { namespace: orders(), path: Path::flat("l") });
    let began = reply.awaits.expect("it takes more than a slice");
    assert_busy(&mut shard, try_request("p9", &[read("l")]));
    assert_eq!(shard.resolved_waits(), [], "the readers that are left are still in the way");
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 5, ended_waits: 0 });
    assert_eq!(shard.holders("l"), ["w"]);
}

/// The hold counts as over, so that a restored replica must not schedule the upgrade of a sole reader.
#[test]
fn an_upgrade_of_a_hold_that_is_being_deleted_stays_blocked_in_a_restored_replica() {
    let mut shard = shard();
    for owner in ["q", "r", "p"] {
        shard.granted(try_request(owner, &[read("l")]));
    }
    shard.enqueued(Acquire { allow_upgrade: true, ..wait_request("p", &[write("l")]) });
    apply_checked(&mut shard, LocksCommand::Delete { namespace: orders(), path: Path::flat("l") });
    next_entry(&mut shard);
    assert_eq!(shard.holders("l"), ["p"], "its hold is the last one");
    finish(&mut shard);
    assert_eq!(shard.resolved_waits(), [("p".into(), Err(Reason::Upgrade))]);
}

#[test]
fn a_namespace_stands_still_while_it_is_reset_and_those_alive_keep_what_they_have() {
    let mut shard = shard();
    let names = ["a", "b", "c", "d"];
    let tokens = names.map(|path| shard.granted(try_request("dead", &[write(path)])));
    let kept = shard.granted(try_request("live", &[write("k")]));
    shard.enqueued(wait_request("dead too", &[write("k")]));
    shard.enqueued(wait_request("live", &[write("d")]));
    let reset =
        LocksCommand::Reset(Reset { namespace: orders(), live_owners: vec!["live".into()], before_revision: None });
    let began = apply_checked(&mut shard, reset.clone()).awaits.expect("it takes more than a slice");
    assert!(is_current(&shard, "d", tokens[3]), "its turn has not come");
    assert_busy(&mut shard, try_request("live", &[write("new")]));
    assert_busy(&mut shard, wait_request("late", &[write("d")]));
    assert_eq!(
        shard.acquire_now(try_request("live", &[write("k")])).outcome.ok(),
        Some(kept),
        "what is held may be extended"
    );
    assert_eq!(apply_now_checked(&mut shard, reset).awaits, Some(began));
    assert_eq!(shard.holders("d"), ["dead"]);
    let other = Reset { namespace: orders(), live_owners: vec![], before_revision: None };
    assert!(matches!(apply_now_checked(&mut shard, LocksCommand::Reset(other)).outcome, Err(CommandError::Busy(_))));
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 4, ended_waits: 1 });
    assert_eq!((shard.holders("d"), shard.holders("k")), (vec!["live".into()], vec!["live".into()]));
}

#[test]
fn while_a_namespace_is_reset_no_session_is_opened_but_those_alive_are_resumed() {
    let mut shard = shard();
    shard.open_session("se_1");
    for path in ["a", "b", "c"] {
        shard.granted(try_request("dead", &[write(path)]));
    }
    let reset = Reset { namespace: orders(), live_owners: vec!["se_1".into()], before_revision: None };
    apply_checked(&mut shard, LocksCommand::Reset(reset)).awaits.expect("it takes more than a slice");
    let mut open = |id: &str, resume, call| {
        apply_now_checked(&mut shard, LocksCommand::OpenSession(open_command(id, resume, call))).outcome
    };
    assert!(matches!(open("se_2", false, 2), Err(CommandError::Busy(_))));
    assert!(matches!(open("se_1", true, 3), Ok(Response::SessionOpened { resumed: true, .. })));
    assert_eq!(open("se_2", true, 4), Err(CommandError::SessionNotFound("se_2".into())));
    finish(&mut shard);
    assert!(shard.open_session_as("se_2", false, 2).is_ok(), "a repeat after the reset opens it");
}

#[test]
fn what_a_client_does_not_list_ends_in_slices_and_the_session_waits_for_it() {
    let mut shard = shard();
    shard.open_session("se_1");
    let names = ["a", "b", "c", "d", "e"];
    let tokens = names.map(|path| shard.granted(session_wait_request("se_1", path, &[write(path)])));
    let info = report(None, &[("c", Mode::Write, tokens[2])], &["d"]);
    let began = apply_checked(&mut shard, LocksCommand::LockInfo(info)).awaits.expect("it takes more than a slice");
    assert_busy(&mut shard, session_wait_request("se_1", "new", &[write("new")]));
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 3, ended_waits: 0 });
    let left = names.map(|path| shard.holders(path).len());
    assert_eq!(left, [0, 0, 1, 1, 0]);
    shard.granted(session_wait_request("se_1", "new", &[write("new")]));
}

/// A report of a session: holds by path and token, and pending requests.
fn report(message: Option<MessageSeq>, held: &[(&str, Mode, FencingToken)], pending: &[&str]) -> LockInfo {
    let hold = |(path, mode, fencing_token): &(&str, Mode, FencingToken)| ReportedHold {
        path: Path::flat(*path),
        mode: *mode,
        fencing_token: *fencing_token,
    };
    let pending = pending.iter().map(|id| (*id).to_owned()).collect();
    let held = held.iter().map(hold).collect();
    LockInfo { namespace: orders(), session_id: "se_1".into(), message, held, pending }
}

fn lost_in(reply: Reply) -> Vec<FencingToken> {
    let Ok(Response::Reconciled { lost, .. }) = reply.outcome else { panic!("{:?}", reply.outcome) };
    lost.into_iter().map(|hold| hold.fencing_token).collect()
}

#[test]
fn a_report_in_parts_counts_when_the_last_is_there() {
    let mut shard = shard();
    let epoch = shard.open_session("se_1").epoch;
    let names = ["a", "b", "c", "d", "e", "f"];
    let tokens = names.map(|path| shard.granted(session_wait_request("se_1", path, &[write(path)])));
    let message = Some(MessageSeq { epoch, seq: 1 });
    let listed = |index: usize| (names[index], Mode::Write, tokens[index]);
    let part = LocksCommand::LockInfoPart(report(message, &[listed(0), ("gone", Mode::Write, 1)], &["b"]));
    assert_eq!(lost_in(apply_checked(&mut shard, part.clone())), [1]);
    assert_eq!(lost_in(apply_checked(&mut shard, part)), [1], "a copy of a part changes nothing");
    assert_busy(&mut shard, session_wait_request("se_1", "new", &[write("new")]));
    next_entry(&mut shard);
    assert_eq!(names.map(|path| shard.holders(path).len()), [1; 6], "nothing has ended");
    let other = LocksCommand::LockInfoPart(report(message, &[listed(2)], &[]));
    assert!(lost_in(apply_checked(&mut shard, other.clone())).is_empty());
    let last = LocksCommand::LockInfo(report(message, &[listed(3)], &[]));
    let began = apply_checked(&mut shard, last.clone()).awaits;
    finish(&mut shard);
    assert_eq!(names.map(|path| shard.holders(path).len()), [1, 1, 1, 1, 0, 0]);
    assert_eq!(began, None, "what was not listed fitted into the slice");
    for late in [other, last] {
        assert_eq!(apply_checked(&mut shard, late).outcome, Ok(Response::Ignored));
    }
    shard.granted(session_wait_request("se_1", "new", &[write("new")]));
}

#[test]
fn a_new_connection_begins_its_report_anew() {
    let mut shard = shard();
    shard.open_session("se_1");
    let names = ["a", "b", "c", "d", "e"];
    let tokens = names.map(|path| shard.granted(session_wait_request("se_1", path, &[write(path)])));
    let listed = |index: usize| (names[index], Mode::Write, tokens[index]);
    apply_checked(&mut shard, LocksCommand::LockInfoPart(report(None, &[listed(0)], &[])));
    let began = apply_checked(&mut shard, LocksCommand::LockInfo(report(None, &[listed(1)], &[]))).awaits;
    let began = began.expect("it takes more than a slice");
    shard.open_session_as("se_1", true, 7).unwrap();
    assert!(matches!(shard.core.job_state(began), JobState::Done { .. }));
    next_entry(&mut shard);
    let left = names.iter().filter(|path| !shard.holders(path).is_empty()).count();
    assert!(left >= 3, "what had not ended stays: {left}");
    apply_checked(&mut shard, LocksCommand::LockInfo(report(None, &[listed(4)], &[])));
    finish(&mut shard);
    assert_eq!(names.map(|path| shard.holders(path).len()), [0, 0, 0, 0, 1]);
}

#[test]
fn a_hold_that_a_pending_request_changed_meanwhile_is_not_lost() {
    let mut shard = shard();
    shard.open_session("se_1");
    let token = shard.granted(session_wait_request("se_1", "r1", &[read("l")]));
    shard.granted(try_request("p", &[read("l")]));
    let upgrade = Acquire { allow_upgrade: true, ..session_wait_request("se_1", "r2", &[write("l")]) };
    shard.enqueued(upgrade);
    assert!(lost_in(apply_checked(&mut shard, LocksCommand::LockInfoPart(report(None, &[], &["r2"])))).is_empty());
    apply_checked(&mut shard, release_all("p"));
    assert!(!is_current(&shard, "l", token), "the upgrade was granted");
    let mut restored = shard.restored();
    for shard in [&mut shard, &mut restored] {
        let last = LocksCommand::LockInfo(report(None, &[("l", Mode::Read, token)], &[]));
        assert!(lost_in(apply_checked(shard, last)).is_empty());
        assert_eq!(shard.holders("l"), ["se_1"]);
    }
}

#[test]
fn a_listed_hold_that_an_unlisted_request_upgrades_is_revoked() {
    let mut shard = shard();
    shard.open_session("se_1");
    let token = shard.granted(session_wait_request("se_1", "r1", &[read("l")]));
    shard.granted(try_request("p", &[read("l")]));
    shard.enqueued(Acquire { allow_upgrade: true, ..session_wait_request("se_1", "r2", &[write("l")]) });
    let part = LocksCommand::LockInfoPart(report(None, &[("l", Mode::Read, token)], &[]));
    assert!(lost_in(apply_checked(&mut shard, part)).is_empty());
    apply_checked(&mut shard, release_all("p"));
    let revoked = shard.core.take_effects().into_iter().find_map(|effect| match effect {
        Effect::Revoked { fencing_token, .. } => Some(fencing_token),
        _ => None,
    });
    assert_eq!(revoked, Some(token), "its client relies on it");
    assert!(lost_in(apply_checked(&mut shard, LocksCommand::LockInfo(report(None, &[], &[])))).is_empty());
    assert!(shard.holders("l").is_empty());
}

#[test]
fn what_comes_while_sixteen_go_on_has_to_come_again() {
    let mut shard = shard();
    for owner in 0..17 {
        for hold in 0..3 {
            shard.granted(try_request(&format!("p{owner}"), &[write(&format!("{owner}-{hold}"))]));
        }
    }
    // One entry, so that none of them goes on in between.
    shard.advance_by(0);
    let mut release = |owner: u32| shard.apply_now(&Command::Locks(release_all(&format!("p{owner}")))).outcome;
    for owner in 0..16 {
        assert!(release(owner).is_ok());
    }
    assert!(matches!(release(16), Err(CommandError::Busy(_))));
    finish(&mut shard);
    assert_eq!(shard.core.footprint().holds, 3);
}

#[test]
fn namespaces_of_one_account_take_turns() {
    let mut shard = shard();
    let other = namespace("carts", 2);
    let of = |owner: &str, namespace: &NamespaceRef| {
        let what = ReleaseTarget::All;
        LocksCommand::Release(Release { namespace: namespace.clone(), owner: process(owner), what, message: None })
    };
    shard.apply(&open(2, other.clone(), Limits::default()));
    for namespace in [orders(), other.clone()] {
        for number in 0..20 {
            let path = format!("l{number}");
            let request = Acquire { namespace: namespace.clone(), ..try_request("p", &[write(&path)]) };
            shard.apply(&Command::Locks(LocksCommand::Acquire(request)));
        }
    }
    let first = apply_checked(&mut shard, of("p", &orders())).awaits.expect("it takes more than a slice");
    let second = apply_now_checked(&mut shard, of("p", &other)).awaits.expect("it takes more than a slice");
    for _ in 0..10 {
        next_entry(&mut shard);
    }
    let left = shard.core.footprint().holds;
    assert!((1..=22).contains(&left), "{left} are left");
    assert_eq!([first, second].map(|began| shard.core.job_state(began)), [JobState::Running; 2], "both are under way");
    finish(&mut shard);
    assert_eq!(shard.core.footprint().holds, 0);
}

#[test]
fn a_repeat_of_a_message_that_released_all_awaits_what_goes_on() {
    let mut shard = shard();
    let epoch = shard.open_session("se_1").epoch;
    for path in ["a", "b", "c"] {
        shard.granted(session_wait_request("se_1", path, &[write(path)]));
    }
    let message = Some(MessageSeq { epoch, seq: 1 });
    let release = Release { namespace: orders(), owner: session_owner("se_1"), what: ReleaseTarget::All, message };
    let began = apply_checked(&mut shard, LocksCommand::Release(release.clone())).awaits;
    assert!(began.is_some(), "it takes more than a slice");
    let again = apply_now_checked(&mut shard, LocksCommand::Release(release.clone()));
    assert_eq!((again.outcome, again.awaits), (Ok(Response::Ignored), began));
    assert_busy(&mut shard, session_wait_request("se_1", "a", &[write("a")]));
    finish(&mut shard);
    let again = apply_checked(&mut shard, LocksCommand::Release(release));
    assert_eq!((again.outcome, again.awaits), (Ok(Response::Ignored), None));
}

#[test]
fn a_reset_of_what_is_older_spares_whoever_has_nothing_older_however_long_it_takes() {
    let mut shard = shard();
    for path in ["a", "m", "z"] {
        shard.granted(try_request("old", &[write(path)]));
    }
    shard.granted(try_request("held early", &[write("k")]));
    let before = shard.core.revision() + 1;
    for path in ["b", "n", "y"] {
        shard.granted(try_request("young", &[write(path)]));
        shard.granted(try_request("old", &[write(&format!("late {path}"))]));
    }
    shard.enqueued(wait_request("young", &[write("z")]));
    shard.granted(try_request("held early", &[write("c")]));
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(before) };
    let began = apply_checked(&mut shard, LocksCommand::Reset(reset)).awaits.expect("it takes more than a slice");
    finish(&mut shard);
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 8, ended_waits: 0 });
    let left = ["b", "n", "y", "z"].map(|path| shard.holders(path));
    assert_eq!(left, [["young"], ["young"], ["young"], ["young"]]);
    assert_eq!(shard.core.footprint().holds, 4);
}

/// The look for those who are old enough takes several slices too, and a restored replica goes on with it.
#[test]
fn a_reset_finds_those_who_are_old_in_slices() {
    let bounds = Bounds { ends_per_slice: 4, visits_per_slice: 3, ..Bounds::of(Rules::TWO) };
    let mut shard = Shard::with_bounds(bounds);
    shard.rules = Rules::TWO;
    for number in 0..12 {
        shard.granted(try_request(&format!("p{number}"), &[write(&format!("l{number:02}"))]));
    }
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(shard.core.revision() - 1) };
    let began = apply_checked(&mut shard, LocksCommand::Reset(reset)).awaits.expect("it takes more than a slice");
    let entries = finish(&mut shard);
    assert!(entries >= 8, "{entries} entries");
    assert_eq!(shard.core.job_state(began), JobState::Done { ended_holds: 10, ended_waits: 0 });
}

/// One account's ends may each take long to work out; another account's end comes in the same entry.
#[test]
fn what_is_due_of_one_account_does_not_wait_for_that_of_another() {
    let mut shard = Shard::with_bounds(Bounds { visits_per_slice: 64, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    let other = NamespaceRef { account: AccountId(8), ..namespace("orders", 2) };
    shard.apply(&open(2, other.clone(), Limits::default()));
    // Who waits for whom takes more than a slice to find out.
    shard.granted(try_request("h", &[write("x"), write("y")]));
    for number in 0..4 {
        let owner = format!("f{number}");
        let holds: Vec<_> = (0..32).map(|hold| write(&format!("f/{number}/{hold}"))).collect();
        shard.granted(try_request(&owner, &holds));
        shard.enqueued(wait_request(&owner, &[write("x")]));
        shard.enqueued(wait_request(&owner, &[write("y")]));
    }
    let short = |owner: &str, path: &str| Acquire { ttl_ms: Some(1_000), ..try_request(owner, &[write(path)]) };
    for number in 0..20 {
        let path = format!("d{number}");
        shard.granted(short("d", &path));
        shard.enqueued(Acquire { ttl_ms: Some(60_000), ..wait_request(&format!("after {number}"), &[write(&path)]) });
    }
    shard.granted(Acquire { namespace: other.clone(), ..short("q", "last") });
    shard.advance_by(2_000);
    let locks = shard.query(&Query::Locks { namespace: other, prefix: Path::default(), after: None, limit: 10 });
    assert_eq!(locks, Ok(Response::Locks { locks: vec![], next: None }), "it has ended");
    assert!(shard.core.has_backlog(), "the other account has not");
    assert!(finish(&mut shard) > 2);
}
