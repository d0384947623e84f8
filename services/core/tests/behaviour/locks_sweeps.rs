//! Ends of more than a slice that were asked for, and what others see of them meanwhile.

use holdfast_core::{
    AccountId, Acquire, Answer, BelievedHold, Bounds, Command, FencingToken, JobState, Limits, LockInfo, LocksCommand,
    MessageStamp, Mode, NamespaceRef, Path, Phase, Query, Reason, Refusal, Release, Reply, Reset, Rules, ToRelease,
};

use crate::support::{Shard, assert_nothing_is_left, namespace, open, orders, process};
use crate::waiting::{asks, of_session, read, session_waits, waits, write};

/// A shard that ends two things in a slice.
fn shard() -> Shard {
    let mut shard = Shard::within(Bounds { ends_in_slice: 2, grants_in_slice: 2, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard
}

fn asked(shard: &mut Shard, command: LocksCommand) -> Reply {
    let reply = shard.apply(&Command::Locks(command));
    shard.core.verify();
    reply
}

/// In the present entry, so that nothing goes on before it.
fn asked_now(shard: &mut Shard, command: LocksCommand) -> Reply {
    shard.apply_now(&Command::Locks(command))
}

fn all_of(owner: &str) -> LocksCommand {
    LocksCommand::Release(Release { namespace: orders(), owner: process(owner), what: ToRelease::All, message: None })
}

/// Another entry without commands; a replica that was restored right before it does the same.
fn go_on(shard: &mut Shard) {
    let mut restored = shard.restored();
    shard.pass(0);
    restored.pass(0);
    assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
    shard.core.verify();
}

/// As many entries as it takes; how many.
fn finish(shard: &mut Shard) -> usize {
    let mut entries = 0;
    while shard.core.has_jobs() {
        go_on(shard);
        entries += 1;
        assert!(entries < 100, "it comes to an end");
    }
    entries
}

fn is_current(shard: &Shard, path: &str, fencing_token: FencingToken) -> bool {
    let query = Query::Check { namespace: orders(), path: Path::flat(path), fencing_token };
    let Ok(Answer::Checked { current, .. }) = shard.query(&query) else { panic!("not a check") };
    current
}

fn is_busy(shard: &mut Shard, request: Acquire) {
    let answer = asked_now(shard, LocksCommand::Acquire(request)).outcome;
    assert!(matches!(answer, Err(Refusal::Busy(_))), "{answer:?}");
}

#[test]
fn all_that_an_owner_has_is_over_at_once_and_ends_in_its_turn() {
    let mut shard = shard();
    let tokens = ["a", "b", "c", "d", "e"].map(|path| shard.granted(asks("p", &[write(path)])));
    shard.granted(asks("q", &[write("z")]));
    shard.enqueued(waits("p", &[write("z")]));
    let reply = asked(&mut shard, all_of("p"));
    assert_eq!(reply.outcome, Ok(Answer::Released { released: true, locks: vec![] }));
    let began = reply.awaits.expect("it takes more than a slice");
    assert_eq!(shard.core.job(began), JobState::Running);
    for (path, token) in ["a", "b", "c", "d", "e"].iter().zip(tokens) {
        assert!(!is_current(&shard, path, token), "{path} is over");
        assert_eq!(shard.get(path).write_lock_holder.map(|holder| holder.phase), Some(Phase::Transition));
    }
    is_busy(&mut shard, asks("p", &[write("new")]));
    assert_eq!(asked_now(&mut shard, all_of("p")).awaits, Some(began), "a repeat awaits what goes on");
    let late = shard.acquire_now(asks("q", &[write("e")])).outcome.expect_err("its turn has not come");
    assert_eq!(late.reason, Reason::Transition);
    asked_now(&mut shard, all_of("q"));
    assert_eq!(shard.settled(), [("p".into(), Err(Reason::Ended))], "nothing is granted to the owner");
    finish(&mut shard);
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 5, ended_waits: 1 });
    assert_eq!(asked(&mut shard, all_of("p")).awaits, None);
    shard.granted(asks("p", &[write("new")]));
    asked(&mut shard, all_of("p"));
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_lock_of_many_readers_is_deleted_in_slices_and_nobody_comes_in_between() {
    let mut shard = shard();
    for number in 0..5 {
        shard.granted(asks(&format!("p{number}"), &[read("l")]));
    }
    shard.enqueued(waits("w", &[write("l")]));
    let reply = asked(&mut shard, LocksCommand::Delete { namespace: orders(), path: Path::flat("l") });
    let began = reply.awaits.expect("it takes more than a slice");
    is_busy(&mut shard, asks("p9", &[read("l")]));
    assert_eq!(shard.settled(), [], "the readers that are left are still in the way");
    finish(&mut shard);
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 5, ended_waits: 0 });
    assert_eq!(shard.holders("l"), ["w"]);
}

#[test]
fn a_namespace_stands_still_while_it_is_reset_and_those_alive_keep_what_they_have() {
    let mut shard = shard();
    let names = ["a", "b", "c", "d"];
    let tokens = names.map(|path| shard.granted(asks("dead", &[write(path)])));
    let kept = shard.granted(asks("live", &[write("k")]));
    shard.enqueued(waits("dead too", &[write("k")]));
    shard.enqueued(waits("live", &[write("d")]));
    let reset =
        LocksCommand::Reset(Reset { namespace: orders(), live_owners: vec!["live".into()], before_revision: None });
    let began = asked(&mut shard, reset.clone()).awaits.expect("it takes more than a slice");
    assert!(is_current(&shard, "d", tokens[3]), "its turn has not come");
    is_busy(&mut shard, asks("live", &[write("new")]));
    is_busy(&mut shard, waits("late", &[write("d")]));
    assert_eq!(shard.acquire_now(asks("live", &[write("k")])).outcome.ok(), Some(kept), "what is held may be extended");
    assert_eq!(asked_now(&mut shard, reset).awaits, Some(began));
    assert_eq!(shard.holders("d"), ["dead"]);
    let other = Reset { namespace: orders(), live_owners: vec![], before_revision: None };
    assert!(matches!(asked_now(&mut shard, LocksCommand::Reset(other)).outcome, Err(Refusal::Busy(_))));
    finish(&mut shard);
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 4, ended_waits: 1 });
    assert_eq!((shard.holders("d"), shard.holders("k")), (vec!["live".into()], vec!["live".into()]));
}

#[test]
fn what_a_client_does_not_list_ends_in_slices_and_the_session_waits_for_it() {
    let mut shard = shard();
    shard.open_session("se_1");
    let names = ["a", "b", "c", "d", "e"];
    let tokens = names.map(|path| shard.granted(session_waits("se_1", path, &[write(path)])));
    let held = vec![BelievedHold { path: Path::flat("c"), mode: Mode::Write, fencing_token: tokens[2] }];
    let info =
        LockInfo { namespace: orders(), session_id: "se_1".into(), message: None, held, pending: vec!["d".into()] };
    let began = asked(&mut shard, LocksCommand::LockInfo(info)).awaits.expect("it takes more than a slice");
    is_busy(&mut shard, session_waits("se_1", "new", &[write("new")]));
    finish(&mut shard);
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 3, ended_waits: 0 });
    let left = names.map(|path| shard.holders(path).len());
    assert_eq!(left, [0, 0, 1, 1, 0]);
    shard.granted(session_waits("se_1", "new", &[write("new")]));
}

#[test]
fn what_comes_while_sixteen_go_on_has_to_come_again() {
    let mut shard = shard();
    for owner in 0..17 {
        for hold in 0..3 {
            shard.granted(asks(&format!("p{owner}"), &[write(&format!("{owner}-{hold}"))]));
        }
    }
    // One entry, so that none of them goes on in between.
    shard.pass(0);
    let mut release = |owner: u32| shard.apply_now(&Command::Locks(all_of(&format!("p{owner}")))).outcome;
    for owner in 0..16 {
        assert!(release(owner).is_ok());
    }
    assert!(matches!(release(16), Err(Refusal::Busy(_))));
    finish(&mut shard);
    assert_eq!(shard.core.footprint().holds, 3);
}

#[test]
fn namespaces_of_one_account_take_turns() {
    let mut shard = shard();
    let other = namespace("carts", 2);
    let of = |owner: &str, namespace: &NamespaceRef| {
        let what = ToRelease::All;
        LocksCommand::Release(Release { namespace: namespace.clone(), owner: process(owner), what, message: None })
    };
    shard.apply(&open(2, other.clone(), Limits::default()));
    for namespace in [orders(), other.clone()] {
        for number in 0..20 {
            let path = format!("l{number}");
            let request = Acquire { namespace: namespace.clone(), ..asks("p", &[write(&path)]) };
            shard.apply(&Command::Locks(LocksCommand::Acquire(request)));
        }
    }
    let first = asked(&mut shard, of("p", &orders())).awaits.expect("it takes more than a slice");
    let second = asked_now(&mut shard, of("p", &other)).awaits.expect("it takes more than a slice");
    for _ in 0..10 {
        go_on(&mut shard);
    }
    let left = shard.core.footprint().holds;
    assert!((1..=22).contains(&left), "{left} are left");
    assert_eq!([first, second].map(|began| shard.core.job(began)), [JobState::Running; 2], "both are under way");
    finish(&mut shard);
    assert_eq!(shard.core.footprint().holds, 0);
}

#[test]
fn a_repeat_of_a_message_that_released_all_awaits_what_goes_on() {
    let mut shard = shard();
    let epoch = shard.open_session("se_1").epoch;
    for path in ["a", "b", "c"] {
        shard.granted(session_waits("se_1", path, &[write(path)]));
    }
    let message = Some(MessageStamp { epoch, seq: 1 });
    let release = Release { namespace: orders(), owner: of_session("se_1"), what: ToRelease::All, message };
    let began = asked(&mut shard, LocksCommand::Release(release.clone())).awaits;
    assert!(began.is_some(), "it takes more than a slice");
    let again = asked_now(&mut shard, LocksCommand::Release(release.clone()));
    assert_eq!((again.outcome, again.awaits), (Ok(Answer::Ignored), began));
    is_busy(&mut shard, session_waits("se_1", "a", &[write("a")]));
    finish(&mut shard);
    let again = asked(&mut shard, LocksCommand::Release(release));
    assert_eq!((again.outcome, again.awaits), (Ok(Answer::Ignored), None));
}

#[test]
fn a_reset_of_what_is_older_spares_whoever_has_nothing_older_however_long_it_takes() {
    let mut shard = shard();
    for path in ["a", "m", "z"] {
        shard.granted(asks("old", &[write(path)]));
    }
    shard.granted(asks("held early", &[write("k")]));
    let before = shard.core.revision() + 1;
    for path in ["b", "n", "y"] {
        shard.granted(asks("young", &[write(path)]));
        shard.granted(asks("old", &[write(&format!("late {path}"))]));
    }
    shard.enqueued(waits("young", &[write("z")]));
    shard.granted(asks("held early", &[write("c")]));
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(before) };
    let began = asked(&mut shard, LocksCommand::Reset(reset)).awaits.expect("it takes more than a slice");
    finish(&mut shard);
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 8, ended_waits: 0 });
    let left = ["b", "n", "y", "z"].map(|path| shard.holders(path));
    assert_eq!(left, [["young"], ["young"], ["young"], ["young"]]);
    assert_eq!(shard.core.footprint().holds, 4);
}

/// The look for those who are old enough takes several slices too, and a restored replica goes on with it.
#[test]
fn a_reset_finds_those_who_are_old_in_slices() {
    let bounds = Bounds { ends_in_slice: 4, looks_in_slice: 3, ..Bounds::of(Rules::TWO) };
    let mut shard = Shard::within(bounds);
    shard.rules = Rules::TWO;
    for number in 0..12 {
        shard.granted(asks(&format!("p{number}"), &[write(&format!("l{number:02}"))]));
    }
    let reset = Reset { namespace: orders(), live_owners: vec![], before_revision: Some(shard.core.revision() - 1) };
    let began = asked(&mut shard, LocksCommand::Reset(reset)).awaits.expect("it takes more than a slice");
    let entries = finish(&mut shard);
    assert!(entries >= 8, "{entries} entries");
    assert_eq!(shard.core.job(began), JobState::Done { ended_holds: 10, ended_waits: 0 });
}

/// One account's ends may each take long to work out; another account's end comes in the same entry.
#[test]
fn what_is_due_of_one_account_does_not_wait_for_that_of_another() {
    let mut shard = Shard::within(Bounds { looks_in_slice: 64, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    let other = NamespaceRef { account: AccountId(8), ..namespace("orders", 2) };
    shard.apply(&open(2, other.clone(), Limits::default()));
    // Who waits for whom takes more than a slice to find out.
    shard.granted(asks("h", &[write("x"), write("y")]));
    for number in 0..4 {
        let owner = format!("f{number}");
        let holds: Vec<_> = (0..32).map(|hold| write(&format!("f/{number}/{hold}"))).collect();
        shard.granted(asks(&owner, &holds));
        shard.enqueued(waits(&owner, &[write("x")]));
        shard.enqueued(waits(&owner, &[write("y")]));
    }
    let short = |owner: &str, path: &str| Acquire { ttl_ms: Some(1_000), ..asks(owner, &[write(path)]) };
    for number in 0..20 {
        let path = format!("d{number}");
        shard.granted(short("d", &path));
        shard.enqueued(Acquire { ttl_ms: Some(60_000), ..waits(&format!("after {number}"), &[write(&path)]) });
    }
    shard.granted(Acquire { namespace: other.clone(), ..short("q", "last") });
    shard.pass(2_000);
    let locks = shard.query(&Query::Locks { namespace: other, prefix: Path::default(), after: None, limit: 10 });
    assert_eq!(locks, Ok(Answer::Locks { locks: vec![], more: false }), "it has ended");
    assert!(shard.core.has_jobs(), "the other account has not");
    assert!(finish(&mut shard) > 2);
}
