//! The rules for conditions, against steps that break them.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_core::{
    AccountId, AcquireOutcome, AwaitCondition, AwaitView, ConditionCommand, Effect, HolderView, Incarnation, LockState,
    LockView, LocksCommand, Metadata, Mode, NamespaceRef, Owner, Path, Phase, Reason, Refused, Reply, Response,
    SignalCondition, Wait, WaitId, WaitView, Woken,
};

use super::conditions::Signals;
use super::invariants::Step;
use super::permits::StepContext;
use super::shard_view::{NamespaceView, ShardView};

const CLOCK_MS: u64 = 1_000;
/// Of whoever holds the lock.
const TOKEN: u64 = 7;

fn namespace() -> NamespaceRef {
    NamespaceRef { account: AccountId(1), name: "alpha".to_owned(), incarnation: Incarnation(1) }
}

fn path() -> Path {
    Path::flat("l")
}

fn owner(name: &str) -> Owner {
    Owner::Process(name.to_owned())
}

fn lock(holder: Option<&str>, token: u64) -> LockView {
    let holder = holder.map(|name| HolderView {
        owner: owner(name),
        process_id: name.to_owned(),
        mode: Mode::Write,
        fencing_token: token,
        locked_at_ms: 0,
        deadline_ms: Some(CLOCK_MS + 1),
        requested_expires_at_ns: None,
        phase: Phase::Held,
        metadata: Metadata::new(),
        release_requested: None,
    });
    LockView { write_lock_holder: holder, state: LockState::WriteLocked, ..LockView::unlocked(&path(), token) }
}

/// An await with that number, whose owner gave up the token before it.
fn awaits(number: u64, ends_at_ms: u64) -> AwaitView {
    AwaitView {
        wait: WaitId(number),
        path: path(),
        condition: String::new(),
        owner: owner(&format!("a{number}")),
        process_id: format!("a{number}"),
        request_id: None,
        fencing_token: number - 1,
        queue_position: 0,
        attempt: 1,
        since_ms: 0,
        ends_at_ms: Some(ends_at_ms),
    }
}

/// A lock that somebody holds, and those who await its condition.
fn view(holder: Option<(&str, u64)>, numbers: &[u64]) -> ShardView {
    view_of(holder, numbers.iter().map(|number| awaits(*number, CLOCK_MS + 1)).collect())
}

fn view_of(holder: Option<(&str, u64)>, awaits: Vec<AwaitView>) -> ShardView {
    let locks: BTreeMap<Path, LockView> =
        holder.map(|(name, token)| (path(), lock(Some(name), token))).into_iter().collect();
    let conditions = BTreeMap::from([((path(), String::new()), awaits.len() as u64)]);
    let scene = NamespaceView { locks, awaits, conditions, ..NamespaceView::default() };
    ShardView { namespaces: BTreeMap::from([(namespace(), Rc::new(scene))]) }
}

fn signal(who: &str, id: Option<&str>, (signalled, awaiting): (u64, u64)) -> (LocksCommand, Response) {
    let signal = SignalCondition {
        namespace: namespace(),
        path: path(),
        owner: owner(who),
        condition: String::new(),
        all: false,
        fencing_token: None,
        signal_id: id.map(str::to_owned),
        message: None,
    };
    let response = Response::Signalled { success: true, signalled, awaiting, locks: vec![] };
    (LocksCommand::Condition(ConditionCommand::Signal(signal)), response)
}

fn woken(from: u64, wait: u64, woken: Woken) -> Effect {
    let (namespace, owner) = (namespace(), owner(&format!("a{from}")));
    let (from, wait) = (WaitId(from), WaitId(wait));
    Effect::AwaitWoken { namespace, from, wait, attempt: 1, owner, request_id: None, woken, not_granted: None }
}

/// The end of the wait for the lock of an await, which is refused without a token.
fn resolved(from: u64, wait: u64, token: Option<u64>) -> Effect {
    let outcome = match token {
        Some(fencing_token) => AcquireOutcome::Granted { fencing_token },
        None => AcquireOutcome::Refused(Box::new(Refused {
            reason: Reason::TimedOut,
            blockers: vec![],
            queue_position: None,
            cycle: vec![],
        })),
    };
    Effect::AwaitResolved {
        namespace: namespace(),
        wait: WaitId(wait),
        attempt: 1,
        owner: owner(&format!("a{from}")),
        request_id: None,
        fencing_token: from - 1,
        outcome,
        woken: Some(Woken::Signalled),
        lock: Box::new(lock(None, 1)),
    }
}

/// A step: the command with its reply, the effects, and the state after it.
type TestStep = (Option<(LocksCommand, Response)>, Vec<Effect>, ShardView);

/// The checks that find something in steps from a state on.
fn findings(mut before: ShardView, steps: Vec<TestStep>) -> Vec<String> {
    let (mut signals, mut found) = (Signals::default(), Vec::new());
    for (done, effects, after) in steps {
        let (command, response) = done.unzip();
        let reply = response.map(|response| Reply { outcome: Ok(response), clock_ms: CLOCK_MS, awaits: None });
        let (granted, events) = (&[], &[]);
        let step = Step { before: &before, after: &after, effects: &effects, granted, events, highest_token: 0 };
        let context =
            StepContext { clock_ms: CLOCK_MS, is_settled: true, command: command.as_ref(), has_session: &|_| true };
        signals.check(&step, &context, reply.as_ref(), &mut |what| {
            found.push(what.split(']').next().unwrap_or_default().trim_start_matches('[').to_owned());
        });
        before = after;
    }
    found
}

fn none() -> Vec<String> {
    Vec::new()
}

fn held(numbers: &[u64]) -> ShardView {
    view(Some(("s", TOKEN)), numbers)
}

#[test]
fn a_signal_wakes_the_first_and_only_one() {
    let right = (Some(signal("s", None, (1, 1))), vec![woken(2, 9, Woken::Signalled)], held(&[4]));
    assert_eq!(findings(held(&[2, 4]), vec![right]), none());
    let nobody = (Some(signal("s", None, (0, 2))), vec![], held(&[2, 4]));
    assert_eq!(findings(held(&[2, 4]), vec![nobody]), ["signals"]);
    let lost = (Some(signal("s", None, (1, 1))), vec![], held(&[2, 4]));
    assert_eq!(findings(held(&[2, 4]), vec![lost]), ["signals"]);
    let both = vec![woken(2, 9, Woken::Signalled), woken(4, 10, Woken::Signalled)];
    assert_eq!(findings(held(&[2, 4]), vec![(Some(signal("s", None, (1, 1))), both, held(&[]))]), ["signals"]);
    let last = (Some(signal("s", None, (1, 1))), vec![woken(4, 9, Woken::Signalled)], held(&[2]));
    assert_eq!(findings(held(&[2, 4]), vec![last]), ["first come first served"]);
    assert_eq!(findings(held(&[2]), vec![(None, vec![woken(2, 9, Woken::Signalled)], held(&[]))]), ["signals"]);
}

#[test]
fn a_signal_without_the_lock_or_a_repeat_that_wakes_another_is_found() {
    let step = |who| (Some(signal(who, None, (1, 0))), vec![woken(2, 9, Woken::Signalled)], held(&[]));
    assert_eq!(findings(held(&[2]), vec![step("s")]), none());
    assert!(findings(held(&[2]), vec![step("q")]).contains(&"signals".to_owned()));
    let first = || (Some(signal("s", Some("i"), (1, 1))), vec![woken(2, 9, Woken::Signalled)], held(&[4]));
    let again = |counts, effects, after| (Some(signal("s", Some("i"), counts)), effects, after);
    assert_eq!(findings(held(&[2, 4]), vec![first(), again((1, 1), vec![], held(&[4]))]), none());
    let twice = again((1, 1), vec![woken(4, 10, Woken::Signalled)], held(&[]));
    assert_eq!(findings(held(&[2, 4]), vec![first(), twice]), ["signals"]);
    assert_eq!(findings(held(&[2, 4]), vec![first(), again((0, 0), vec![], held(&[4]))]), ["signals"]);
}

#[test]
fn a_signal_that_is_not_handed_on_is_found() {
    let first = || (Some(signal("s", None, (1, 1))), vec![woken(2, 9, Woken::Signalled)], held(&[4]));
    let on = (None, vec![resolved(2, 9, None), woken(4, 10, Woken::Signalled)], held(&[]));
    assert_eq!(findings(held(&[2, 4]), vec![first(), on]), none());
    let swallowed = (None, vec![resolved(2, 9, None)], held(&[4]));
    assert_eq!(findings(held(&[2, 4]), vec![first(), swallowed]), ["signals"]);
    // Nobody awaits the condition any more.
    let alone = || (Some(signal("s", None, (1, 0))), vec![woken(2, 9, Woken::Signalled)], held(&[]));
    assert_eq!(findings(held(&[2]), vec![alone(), (None, vec![resolved(2, 9, None)], held(&[]))]), none());
    // Whoever got the lock has had its signal.
    let granted = || (None, vec![resolved(2, 9, Some(11))], view(Some(("a2", 11)), &[4]));
    assert_eq!(findings(held(&[2, 4]), vec![first(), granted(), (None, vec![], view(None, &[4]))]), none());
}

#[test]
fn who_is_woken_without_the_lock_or_before_the_queue_or_its_time_is_found() {
    let first = || (Some(signal("s", None, (1, 0))), vec![woken(2, 9, Woken::Signalled)], held(&[]));
    let granted = |holder| (None, vec![resolved(2, 9, Some(11))], view(holder, &[]));
    assert_eq!(findings(held(&[2]), vec![first(), granted(Some(("a2", 11)))]), none());
    assert_eq!(findings(held(&[2]), vec![first(), granted(None)]), ["signals"]);
    assert_eq!(findings(held(&[2]), vec![(None, vec![woken(2, 9, Woken::Elapsed)], held(&[]))]), ["signals"]);
    let mut queued = held(&[2]);
    let scene = queued.namespaces.get_mut(&namespace()).and_then(Rc::get_mut).expect("nobody else has it");
    scene.waits.push(WaitView {
        wait: WaitId(5),
        owner: owner("w"),
        request_id: None,
        claims: vec![],
        upgrade: false,
        attempt: 1,
        ends_at_ms: None,
    });
    let front = (Some(signal("s", None, (1, 0))), vec![woken(2, 3, Woken::Signalled)], held(&[]));
    assert_eq!(findings(queued, vec![front]), ["first come first served"]);
}

#[test]
fn a_repeat_that_gives_up_the_new_hold_is_found() {
    let again = || {
        let awaits = AwaitCondition {
            namespace: namespace(),
            path: path(),
            owner: owner("s"),
            fencing_token: TOKEN - 1,
            condition: String::new(),
            wait: Wait::For(1),
            relock_ms: Some(1),
            ttl_ms: Some(1),
            transition_ms: None,
            metadata: None,
            attempt: 1,
            abandoned: vec![],
            message: None,
        };
        let outcome = AcquireOutcome::Granted { fencing_token: TOKEN };
        let response = Response::Awaited { outcome, woken: Some(Woken::Signalled), locks: vec![] };
        Some((LocksCommand::Condition(ConditionCommand::Await(awaits)), response))
    };
    assert_eq!(findings(held(&[]), vec![(again(), vec![], held(&[]))]), none());
    let found = findings(held(&[]), vec![(again(), vec![], view(None, &[8]))]);
    assert_eq!(found, ["signals", "signals"]);
}

#[test]
fn those_who_are_due_go_before_a_signal_that_meets_them() {
    let before = || view_of(Some(("s", TOKEN)), vec![awaits(2, CLOCK_MS), awaits(4, CLOCK_MS + 1)]);
    let moved = || vec![woken(2, 9, Woken::Elapsed), woken(4, 10, Woken::Signalled)];
    let right = (Some(signal("s", None, (1, 0))), moved(), held(&[]));
    assert_eq!(findings(before(), vec![right]), none());
    let miscounted = (Some(signal("s", None, (2, 0))), moved(), held(&[]));
    assert!(findings(before(), vec![miscounted]).contains(&"signals".to_owned()));
}
