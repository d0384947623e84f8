//! What takes more than one entry, and what others see of it meanwhile.

use holdfast_core::{
    AccountId, Acquire, AcquireOutcome, Bounds, Claim, Command, Effect, FencingToken, Kinds, Limits, LockState,
    LocksCommand, Mode, NamespaceRef, Path, Phase, Query, Reason, Response, Rules, Wait, WaitId,
};

use crate::support::{Shard, assert_nothing_is_left, lock_request, namespace, open, orders};

const EVENTS: u32 = 1_000;

/// A shard that ends and grants two things in a slice.
fn shard() -> Shard {
    let mut shard = Shard::with_bounds(Bounds { ends_per_slice: 2, grants_per_slice: 2, ..Bounds::of(Rules::TWO) });
    shard.rules = Rules::TWO;
    shard
}

fn acquire_of(owner: &str, names: &[&str]) -> Acquire {
    let claims = names.iter().map(|name| Claim { path: Path::flat(*name), mode: Mode::Write }).collect();
    Acquire { claims, ..lock_request(owner, Mode::Write) }
}

fn enqueue(shard: &mut Shard, request: Acquire, ms: u64) -> WaitId {
    match shard.try_acquire(Acquire { wait: Wait::For(ms), ..request }) {
        Ok(Response::Acquired { outcome: AcquireOutcome::Enqueued(enqueued), .. }) => enqueued.wait,
        other => panic!("it does not wait: {other:?}"),
    }
}

/// Another entry without commands. It does the same to a replica that was restored right before it.
fn next_entry(shard: &mut Shard) {
    let mut restored = shard.restored();
    shard.advance_by(0);
    restored.advance_by(0);
    assert_eq!(restored.core.snapshot(), shard.core.snapshot(), "a restored replica goes on where it was");
    shard.core.verify();
}

fn held(shard: &Shard, names: &[&str]) -> Vec<String> {
    let is_held = |name: &&&str| shard.get(name).state != LockState::Unlocked;
    names.iter().filter(is_held).map(|name| (*name).to_owned()).collect()
}

/// The grants and timeouts that the last entry told of, by wait.
fn resolved_waits(shard: &mut Shard) -> Vec<(WaitId, Result<FencingToken, Reason>)> {
    let effects = shard.core.take_effects().into_iter();
    let settled = effects.filter_map(|effect| match effect {
        Effect::WaitResolved { wait, outcome: AcquireOutcome::Granted { fencing_token }, .. } => {
            Some((wait, Ok(fencing_token)))
        }
        Effect::WaitResolved { wait, outcome: AcquireOutcome::Refused(refused), .. } => {
            Some((wait, Err(refused.reason)))
        }
        _ => None,
    });
    settled.collect()
}

/// The paths of all events from a revision on, in order.
fn event_paths(shard: &Shard, from: u64) -> Vec<String> {
    let query = Query::Events {
        namespace: orders(),
        from_revision: Some(from),
        prefix: Path::default(),
        kinds: Kinds::LOCKS,
        limit: EVENTS,
    };
    let Ok(Response::Events { events, .. }) = shard.query(&query) else { panic!("not events") };
    events.iter().flat_map(|event| &event.claims).map(|claim| claim.path.0.join("/")).collect()
}

fn is_current(shard: &Shard, name: &str, fencing_token: FencingToken) -> bool {
    let query = Query::Check { namespace: orders(), path: Path::flat(name), fencing_token };
    let Ok(Response::Checked { current, .. }) = shard.query(&query) else { panic!("not a check") };
    current
}

#[test]
fn what_is_due_counts_as_over_at_once_and_ends_in_its_turn() {
    let mut shard = shard();
    let names = ["a", "b", "c", "d", "e"];
    let tokens: Vec<FencingToken> = names.iter().map(|name| shard.granted(acquire_of(name, &[name]))).collect();
    let before = shard.core.revision() + 1;
    shard.advance_by(1_000);
    assert_eq!(held(&shard, &names), ["c", "d", "e"], "the earliest two have ended");
    assert!(shard.core.has_backlog());
    assert_eq!(shard.core.next_deadline_ms(), Some(shard.core.clock_ms()));
    for (name, token) in names.iter().zip(&tokens) {
        assert!(!is_current(&shard, name, *token), "{name} is over, ended or not");
    }
    let holder = shard.get("e").write_lock_holder.expect("its end comes later");
    assert_eq!((holder.phase, holder.deadline_ms), (Phase::Transition, Some(2_000)));
    // Its owner can't have it go on, and others are not let in sooner than when it ends.
    let extension = Acquire { fencing_token: Some(tokens[4]), ..acquire_of("e", &["e"]) };
    let mut other = shard.restored();
    assert_eq!(other.refused(extension).reason, Reason::NotHeld);
    let mut other = shard.restored();
    assert_eq!(other.refused(acquire_of("e", &["e"])).reason, Reason::NotHeld);
    assert_eq!(held(&other, &names), ["e"], "the entry of a command does a slice too");
    let mut other = shard.restored();
    assert_eq!(other.refused(acquire_of("f", &["e"])).reason, Reason::Transition);
    next_entry(&mut shard);
    assert_eq!(held(&shard, &names), ["e"]);
    next_entry(&mut shard);
    assert_eq!(event_paths(&shard, before), names, "they ended in order of time");
    assert!(!shard.core.has_backlog());
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_hold_that_is_due_is_in_its_transition_before_its_turn_and_may_be_renewed() {
    let mut shard = shard();
    for name in ["a", "b"] {
        shard.granted(acquire_of(name, &[name]));
    }
    let token = shard.granted(Acquire { transition_ms: 500, ..acquire_of("c", &["c"]) });
    shard.advance_by(1_100);
    assert_eq!(held(&shard, &["a", "b", "c"]), ["c"]);
    let holder = shard.get("c").write_lock_holder.expect("it is in transition");
    assert_eq!((holder.phase, holder.deadline_ms), (Phase::Transition, Some(2_500)));
    assert!(!is_current(&shard, "c", token));
    assert_eq!(shard.granted(Acquire { fencing_token: Some(token), ..acquire_of("c", &["c"]) }), token);
    assert!(is_current(&shard, "c", token));
}

#[test]
fn a_storm_of_one_account_delays_no_end_of_another() {
    let mut shard = shard();
    let quiet = NamespaceRef { account: AccountId(1_000), ..namespace("quiet", 1) };
    shard.apply(&open(2, quiet.clone(), Limits::default()));
    for number in 0..20 {
        shard.granted(acquire_of(&format!("p{number}"), &[&format!("l{number}")]));
    }
    shard.granted(Acquire { namespace: quiet.clone(), ..acquire_of("p", &["l"]) });
    shard.advance_by(1_000);
    let query = Query::Lock { namespace: quiet, path: Path::flat("l") };
    let Ok(Response::Lock(lock)) = shard.query(&query) else { panic!("not a lock") };
    assert_eq!(lock.state, LockState::Unlocked, "it has its share of the first slice");
    assert_eq!(shard.core.footprint().holds, 19, "and so has the other one");
}

#[test]
fn grants_go_on_in_order_and_before_anybody_who_comes_later() {
    let mut shard = shard();
    let all = Acquire {
        claims: vec![Claim { path: Path::default(), mode: Mode::Write }],
        ..lock_request("all", Mode::Write)
    };
    shard.granted(all.clone());
    let names = ["a", "b", "c", "d", "e"];
    let waits: Vec<WaitId> = names.iter().map(|name| enqueue(&mut shard, acquire_of(name, &[name]), 60_000)).collect();
    shard.core.take_effects();
    let delete = LocksCommand::Delete { namespace: orders(), path: Path::default() };
    shard.apply(&Command::Locks(delete));
    let first = resolved_waits(&mut shard);
    assert_eq!(first.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), waits[..2]);
    assert!(shard.core.has_backlog());
    // A command that comes now is behind those who are left, and does not work for them.
    let late = shard.acquire_now(acquire_of("late", &["e"])).outcome.expect_err("others wait for it");
    assert_eq!(late.reason, Reason::Queued);
    assert_eq!(resolved_waits(&mut shard), vec![]);
    next_entry(&mut shard);
    let second = resolved_waits(&mut shard);
    assert_eq!(second.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), waits[2..4]);
    let free = shard.acquire_now(acquire_of("other", &["z"])).outcome.expect("nobody waits for it");
    next_entry(&mut shard);
    let third = resolved_waits(&mut shard);
    assert_eq!(third.iter().map(|(wait, _)| *wait).collect::<Vec<_>>(), waits[4..]);
    let tokens = [first, second, third].concat().into_iter().map(|(_, token)| token.expect("it is granted"));
    assert!(tokens.clone().is_sorted(), "tokens rise in the order of the queue");
    assert!(tokens.into_iter().next_back() > Some(free));
    assert!(!shard.core.has_backlog());
}

#[test]
fn a_wait_that_is_over_is_not_granted_in_a_later_slice() {
    let mut shard = shard();
    shard.granted(Acquire { ttl_ms: Some(60_000), ..acquire_of("p", &["l"]) });
    let names = ["a", "b", "c"];
    for name in names {
        shard.granted(acquire_of(name, &[name]));
    }
    let over = enqueue(&mut shard, acquire_of("q", &["l"]), 1_000);
    // Three holds are due before the wait is: its turn comes in the next entry, and the lock is free before that.
    shard.advance_by(1_000);
    shard.core.take_effects();
    let release = holdfast_core::Release {
        namespace: orders(),
        owner: crate::support::process("p"),
        what: holdfast_core::ReleaseTarget::All,
        message: None,
    };
    shard.apply_now(&Command::Locks(LocksCommand::Release(release)));
    assert_eq!(resolved_waits(&mut shard), vec![(over, Err(Reason::TimedOut))]);
}

/// By rules 1 all of it is done at once.
#[test]
fn by_rules_1_nothing_is_left_for_the_next_entry() {
    let mut shard = Shard::new();
    for number in 0..600 {
        shard.granted(acquire_of(&format!("p{number}"), &[&format!("l{number}")]));
    }
    shard.advance_by(1_000);
    assert_nothing_is_left(&shard.core);
}
