//! The rules for every entry, against states that break them: a check that has never failed proves nothing.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_core::{
    AccountId, Claim, Event, EventKind, HolderView, Incarnation, LockState, LockView, Mode, NamespaceRef, Owner, Path,
    Phase, WaitId, WaitView,
};

use super::invariants::{self, Grant, Step};
use super::shard_view::{NamespaceView, ShardView};

const CLOCK_MS: u64 = 1_000;

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
}

fn owner(name: &str) -> Owner {
    Owner::Process(name.to_owned())
}

fn path(segments: &[&str]) -> Path {
    Path(segments.iter().map(|segment| (*segment).to_owned()).collect())
}

/// A write hold.
fn hold(name: &str, segments: &[&str], token: u64) -> LockView {
    let holder = HolderView {
        owner: owner(name),
        process_id: name.to_owned(),
        mode: Mode::Write,
        fencing_token: token,
        locked_at_ms: 0,
        deadline_ms: Some(CLOCK_MS + 1),
        requested_expires_at_ns: None,
        phase: Phase::Held,
        metadata: BTreeMap::new(),
        release_requested: None,
    };
    LockView {
        path: path(segments),
        state: LockState::WriteLocked,
        locked_at_ms: Some(0),
        write_lock_holder: Some(holder),
        read_lock_holders: Vec::new(),
        holders_total: 1,
        waiting: 0,
        revision: token,
    }
}

fn wait(number: u64, name: &str, segments: &[&str]) -> WaitView {
    WaitView {
        wait: WaitId(number),
        owner: owner(name),
        request_id: None,
        claims: vec![claim(segments)],
        upgrade: false,
        attempt: 1,
        ends_at_ms: Some(CLOCK_MS),
    }
}

fn claim(segments: &[&str]) -> Claim {
    Claim { path: path(segments), mode: Mode::Write }
}

fn view(locks: Vec<LockView>, waits: Vec<WaitView>) -> ShardView {
    let locks = locks.into_iter().map(|lock| (lock.path.clone(), lock)).collect();
    let scene = NamespaceView { locks, waits, ..NamespaceView::default() };
    ShardView { namespaces: BTreeMap::from([(namespace(), Rc::new(scene))]) }
}

fn granted(name: &str, segments: &[&str], token: u64) -> Grant {
    let claims = vec![claim(segments)];
    Grant { namespace: namespace(), owner: owner(name), claims, token, wait: None, allow_upgrade: false }
}

/// The checks that find something in a step.
fn findings(
    before: &ShardView,
    after: &ShardView,
    granted: &[Grant],
    events: &[Event],
    highest_token: u64,
) -> Vec<String> {
    let events: Vec<(NamespaceRef, Event)> = events.iter().map(|event| (namespace(), event.clone())).collect();
    let step = Step { before, after, effects: &[], granted, events: &events, highest_token };
    let mut found = Vec::new();
    invariants::check(&step, CLOCK_MS, &mut |what| {
        let name = what.split(']').next().unwrap_or_default();
        found.push(name.trim_start_matches('[').to_owned());
    });
    found
}

#[test]
fn holds_that_exclude_one_another_are_found() {
    let (nothing, apart) = (view(vec![], vec![]), view(vec![hold("p", &["a", "x"], 1), hold("q", &["b"], 2)], vec![]));
    assert_eq!(findings(&nothing, &apart, &[], &[], 0), Vec::<String>::new());
    let above = view(vec![hold("p", &["a", "x"], 1), hold("q", &["a"], 2)], vec![]);
    assert_eq!(findings(&nothing, &above, &[], &[], 0), ["conflicting holds"]);
    let own = view(vec![hold("p", &["a", "x"], 1), hold("p", &["a"], 2)], vec![]);
    assert_eq!(findings(&nothing, &own, &[], &[], 0), Vec::<String>::new());
}

#[test]
fn a_token_that_does_not_rise_is_found() {
    let (nothing, one) = (view(vec![], vec![]), view(vec![hold("p", &["a"], 5)], vec![]));
    assert_eq!(findings(&nothing, &one, &[], &[], 4), Vec::<String>::new());
    assert_eq!(findings(&nothing, &one, &[], &[], 5), ["tokens rise"]);
    // A hold that existed before keeps its token.
    assert_eq!(findings(&one, &one, &[], &[], 9), Vec::<String>::new());
}

#[test]
fn what_ends_before_its_time_is_found() {
    let (before, nothing) = (view(vec![hold("p", &["a"], 5)], vec![]), view(vec![], vec![]));
    let expired = Event {
        revision: 6,
        at_ms: 0,
        kind: EventKind::Expired,
        owner: owner("p"),
        process_id: "p".to_owned(),
        fencing_token: Some(5),
        claims: vec![claim(&["a"])],
    };
    assert_eq!(findings(&before, &nothing, &[], std::slice::from_ref(&expired), 5), ["nothing expires early"]);
    let released = Event { kind: EventKind::Released, ..expired };
    assert_eq!(findings(&before, &nothing, &[], &[released], 5), Vec::<String>::new());
}

#[test]
fn who_is_served_before_one_who_waits_is_found() {
    let waits = || vec![wait(1, "q", &["a"])];
    let before = view(vec![hold("r", &["a", "y"], 1)], waits());
    let after = view(vec![hold("r", &["a", "y"], 1), hold("p", &["a", "x"], 2)], waits());
    let passed = granted("p", &["a", "x"], 2);
    assert_eq!(findings(&before, &after, &[passed], &[], 1), ["first come first served"]);
    // A lock that the waiting owner does not request may be granted to any other.
    let after = view(vec![hold("r", &["a", "y"], 1), hold("p", &["b"], 2)], waits());
    assert_eq!(findings(&before, &after, &[granted("p", &["b"], 2)], &[], 1), Vec::<String>::new());
    // No owner waits for an owner that waits for it, even by another request.
    let others = || vec![wait(1, "q", &["a"]), wait(2, "q", &["b"])];
    let before = view(vec![hold("r", &["a", "y"], 1), hold("p", &["b"], 2)], others());
    let after = view(vec![hold("r", &["a", "y"], 1), hold("p", &["b"], 2), hold("p", &["a", "x"], 3)], others());
    assert_eq!(findings(&before, &after, &[granted("p", &["a", "x"], 3)], &[], 2), Vec::<String>::new());
    let before = view(vec![hold("p", &["a", "y"], 1)], waits());
    let after = view(vec![hold("p", &["a", "y"], 1), hold("p", &["a", "x"], 2)], waits());
    assert_eq!(findings(&before, &after, &[granted("p", &["a", "x"], 2)], &[], 1), Vec::<String>::new());
}

#[test]
fn who_waits_for_too_long_is_found() {
    let (mut found, one_waits) = (Vec::new(), view(vec![], vec![wait(1, "q", &["a"])]));
    invariants::no_overdue_wait(&one_waits, CLOCK_MS - 1, &mut |what| found.push(what));
    assert_eq!(found, Vec::<String>::new());
    invariants::no_overdue_wait(&one_waits, CLOCK_MS, &mut |what| found.push(what));
    assert_eq!(found.len(), 1);
}
