//! Conditions of a lock: who is woken when, and what becomes of a signal whose receiver ends.

use holdfast_core::{
    Acquire, AcquireOutcome, AwaitCondition, AwaitView, CancelAwait, Command, CommandError, ConditionCommand,
    ConditionQuery, Effect, FencingToken, Limits, LocksCommand, Owner, Path, Phase, Query, Reason, ReleaseTarget,
    Reset, Response, Rules, SignalCondition, Wait, Woken,
};

use crate::support::{ACCOUNT, Shard, assert_nothing_is_left, metadata, open, orders, process};
use crate::wait_requests::{at, session_owner, session_wait_request, try_request, wait_request, write};

pub(crate) fn shard() -> Shard {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    shard
}

/// A process gives up the lock `l`, for ten seconds, and then waits for it for five.
pub(crate) fn await_command(owner: Owner, fencing_token: FencingToken, condition: &str) -> AwaitCondition {
    AwaitCondition {
        namespace: orders(),
        path: Path::flat("l"),
        ttl_ms: matches!(owner, Owner::Process(_)).then_some(60_000),
        owner,
        fencing_token,
        condition: condition.into(),
        wait: Wait::For(10_000),
        relock_ms: Some(5_000),
        transition_ms: None,
        metadata: None,
        attempt: 7,
        abandoned: vec![],
        message: None,
    }
}

pub(crate) fn signal_command(owner: &str, condition: &str, all: bool) -> SignalCondition {
    SignalCondition {
        namespace: orders(),
        path: Path::flat("l"),
        owner: process(owner),
        condition: condition.into(),
        all,
        fencing_token: None,
        signal_id: None,
        message: None,
    }
}

/// An owner, and how its await ended.
type AwaitEnd = (String, Result<Woken, Reason>);

impl Shard {
    pub(crate) fn try_await(
        &mut self,
        awaits: AwaitCondition,
    ) -> Result<(AcquireOutcome, Option<Woken>), CommandError> {
        match self.run(LocksCommand::Condition(ConditionCommand::Await(awaits)))? {
            Response::Awaited { outcome, woken, .. } => Ok((outcome, woken)),
            other => panic!("not an answer to an await: {other:?}"),
        }
    }

    /// Locks `l` and gives it up. Returns the token that was given up.
    pub(crate) fn lock_and_await(&mut self, owner: &str, condition: &str) -> FencingToken {
        let token = self.granted(try_request(owner, &[write("l")]));
        match self.try_await(await_command(process(owner), token, condition)) {
            Ok((AcquireOutcome::Enqueued(_), None)) => token,
            other => panic!("it should await: {other:?}"),
        }
    }

    pub(crate) fn try_signal(&mut self, signal: SignalCondition) -> Option<(u64, u64)> {
        match self.run(LocksCommand::Condition(ConditionCommand::Signal(signal))) {
            Ok(Response::Signalled { success: true, signalled, awaiting, .. }) => Some((signalled, awaiting)),
            Ok(Response::Signalled { success: false, .. }) => None,
            other => panic!("not an answer to a signal: {other:?}"),
        }
    }

    /// `s` locks `l`, signals, and keeps the lock.
    pub(crate) fn lock_and_signal(&mut self, condition: &str, all: bool) -> (u64, u64) {
        self.granted(try_request("s", &[write("l")]));
        self.try_signal(signal_command("s", condition, all)).expect("it holds the lock")
    }

    fn awaits(&self) -> Vec<AwaitView> {
        let query = ConditionQuery::Waits { namespace: orders(), path: None, after: None, limit: 100 };
        match self.query(&Query::Condition(query)) {
            Ok(Response::Awaits { waits, .. }) => waits,
            other => panic!("not awaits: {other:?}"),
        }
    }

    pub(crate) fn awaiting_owners(&self) -> Vec<String> {
        self.awaits().into_iter().map(|awaits| awaits.process_id).collect()
    }

    /// Whose awaits were woken by the last entry, and how each await that ended did.
    pub(crate) fn awaits_told(&mut self) -> (Vec<(String, Woken)>, Vec<AwaitEnd>) {
        let (mut woken, mut resolved) = (Vec::new(), Vec::new());
        let name = |owner: &Owner| match owner {
            Owner::Process(process_id) => process_id.clone(),
            Owner::Session { session_id, .. } => session_id.clone(),
        };
        for effect in self.core.take_effects() {
            match effect {
                Effect::AwaitWoken { owner, woken: why, .. } => woken.push((name(&owner), why)),
                Effect::AwaitResolved { owner, outcome, woken: why, .. } => {
                    let outcome = match outcome {
                        AcquireOutcome::Granted { .. } => Ok(why.expect("it was woken")),
                        AcquireOutcome::Refused(refused) => Err(refused.reason),
                        other => panic!("it is over: {other:?}"),
                    };
                    resolved.push((name(&owner), outcome));
                }
                _ => {}
            }
        }
        (woken, resolved)
    }
}

fn pairs(names: &[&str], woken: Woken) -> Vec<(String, Woken)> {
    names.iter().map(|name| ((*name).to_owned(), woken)).collect()
}

/// Two await a condition, the first was signalled and waits for the lock, which `s` has.
fn one_signalled_of_two() -> (Shard, FencingToken) {
    let mut shard = shard();
    let token = shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "c");
    assert_eq!(shard.lock_and_signal("c", false), (1, 1));
    assert_eq!(shard.awaits_told().0, pairs(&["a"], Woken::Signalled));
    assert_eq!((shard.waiting_owners(), shard.awaiting_owners()), (vec!["a".to_owned()], vec!["b".to_owned()]));
    (shard, token)
}

/// The signal went on to `b`, which has the lock once `s` releases it.
fn assert_handed_on(mut shard: Shard) {
    assert_eq!((shard.waiting_owners(), shard.awaiting_owners()), (vec!["b".to_owned()], vec![]));
    shard.core.take_effects();
    shard.release_paths("s", &["l"]);
    assert_eq!(shard.awaits_told().1, [("b".to_owned(), Ok(Woken::Signalled))]);
    shard.release_paths("b", &["l"]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_signal_is_handed_on_when_its_receiver_waits_for_the_lock_too_long() {
    let (mut shard, _) = one_signalled_of_two();
    shard.advance_by(5_000);
    let (woken, resolved) = shard.awaits_told();
    assert_eq!(resolved, [("a".to_owned(), Err(Reason::TimedOut))]);
    assert_eq!(woken, pairs(&["b"], Woken::Signalled), "in the same entry");
    assert_handed_on(shard);
}

#[test]
fn a_signal_is_handed_on_when_its_receiver_leaves() {
    let (mut shard, fencing_token) = one_signalled_of_two();
    // Another call of the same await; both leave.
    shard.try_await(AwaitCondition { attempt: 8, ..await_command(process("a"), fencing_token, "c") }).unwrap();
    let cancel = CancelAwait {
        namespace: orders(),
        path: Path::flat("l"),
        owner: process("a"),
        fencing_token,
        attempts: vec![7, 8],
    };
    shard.run(LocksCommand::Condition(ConditionCommand::Cancel(cancel))).unwrap();
    assert_eq!(shard.awaits_told().0, pairs(&["b"], Woken::Signalled));
    assert_handed_on(shard);
}

#[test]
fn a_signal_is_handed_on_when_its_receiver_releases_everything() {
    let (mut shard, _) = one_signalled_of_two();
    assert!(shard.try_release(process("a"), ReleaseTarget::All));
    assert_eq!(shard.awaits_told().0, pairs(&["b"], Woken::Signalled));
    assert_handed_on(shard);
}

#[test]
fn a_signal_is_handed_on_when_a_reset_ends_its_receiver() {
    let (mut shard, _) = one_signalled_of_two();
    let live_owners = vec!["b".to_owned(), "s".to_owned()];
    shard.run(LocksCommand::Reset(Reset { namespace: orders(), live_owners, before_revision: None })).unwrap();
    let (woken, resolved) = shard.awaits_told();
    assert_eq!(resolved, [("a".to_owned(), Err(Reason::Ended))]);
    assert_eq!(woken, pairs(&["b"], Woken::Signalled));
    assert_handed_on(shard);
}

#[test]
fn a_signal_is_handed_on_past_all_that_end_in_the_same_entry() {
    let mut shard = shard();
    let mut ids = Vec::new();
    for session_id in ["se_1", "se_2"] {
        ids.push(shard.open_session(session_id).number);
        let token = shard
            .granted(holdfast_core::Acquire { wait: Wait::No, ..session_wait_request(session_id, "r", &[write("l")]) });
        let awaits = AwaitCondition { relock_ms: None, ..await_command(session_owner(session_id), token, "c") };
        shard.try_await(AwaitCondition { wait: Wait::Unlimited, ..awaits }).unwrap();
    }
    shard.lock_and_await("b", "c");
    assert_eq!(shard.lock_and_signal("c", false), (1, 2));
    shard.core.take_effects();
    let known_revision = shard.core.revision();
    shard.run(LocksCommand::ExpireSessions { ids, known_revision }).unwrap();
    let (woken, resolved) = shard.awaits_told();
    assert_eq!(resolved.len(), 2, "{resolved:?}");
    assert_eq!(woken, pairs(&["b"], Woken::Signalled), "not to the one that ended, too");
    assert_handed_on(shard);
}

#[test]
fn a_signal_is_handed_on_when_waiting_for_the_lock_would_close_a_cycle() {
    let mut shard = shard();
    // a holds m, which s waits for under l.
    shard.granted(try_request("a", &[write("m")]));
    shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.queued(wait_request("s", &[write("m")]), Reason::Held);
    assert_eq!(shard.try_signal(signal_command("s", "c", false)).unwrap().0, 1);
    let (woken, resolved) = shard.awaits_told();
    assert_eq!(resolved, [("a".to_owned(), Err(Reason::Deadlock))]);
    assert!(woken.contains(&("b".to_owned(), Woken::Signalled)), "{woken:?}");
    assert_eq!((shard.waiting_owners(), shard.awaiting_owners()), (vec!["s".to_owned(), "b".to_owned()], vec![]));
    assert_eq!(shard.holders("m"), ["a"], "its other hold stays");
    shard.core.verify();
}

#[test]
fn nothing_is_handed_on_of_what_elapsed_or_of_a_signal_to_all() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.advance_by(1_000);
    shard.lock_and_await("b", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.core.take_effects();
    shard.advance_by(9_000);
    assert_eq!(shard.awaits_told().0, pairs(&["a"], Woken::Elapsed));
    assert!(shard.try_release(process("a"), ReleaseTarget::All));
    assert_eq!(shard.awaiting_owners(), ["b"], "a had no signal to hand on");
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    assert_eq!(shard.try_signal(signal_command("s", "c", true)), Some((1, 0)));
    shard.lock_and_await("s", "c");
    assert_eq!(shard.waiting_owners(), ["b"]);
    assert!(shard.try_release(process("b"), ReleaseTarget::All));
    assert_eq!(shard.awaiting_owners(), ["s"], "a signal to all is for those who awaited then");
    shard.core.verify();
}

#[test]
fn whoever_got_the_lock_has_had_its_signal() {
    let (mut shard, _) = one_signalled_of_two();
    shard.release_paths("s", &["l"]);
    assert_eq!(shard.holders("l"), ["a"]);
    shard.release_paths("a", &["l"]);
    assert_eq!((shard.waiting_owners(), shard.awaiting_owners()), (vec![], vec!["b".to_owned()]));
}

#[test]
fn the_new_hold_does_not_have_the_requested_end_of_the_one_given_up() {
    let mut shard = shard();
    let lock = Acquire { requested_expires_at_ns: Some(5), ..try_request("a", &[write("l")]) };
    let token = shard.granted(lock);
    let end = |shard: &Shard| shard.get("l").write_lock_holder.unwrap().requested_expires_at_ns;
    assert_eq!(end(&shard), Some(5));
    shard.try_await(await_command(process("a"), token, "c")).unwrap();
    shard.advance_by(10_000);
    assert_eq!((shard.holders("l"), end(&shard)), (vec!["a".to_owned()], None));
}

#[test]
fn a_woken_owner_waits_behind_everybody_who_waits_then() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    shard.try_signal(signal_command("s", "c", false)).unwrap();
    assert_eq!(shard.waiting_owners(), ["w", "a"]);
    shard.release_paths("s", &["l"]);
    assert_eq!(shard.holders("l"), ["w"]);
    shard.release_paths("w", &["l"]);
    assert_eq!(shard.holders("l"), ["a"]);
}

#[test]
fn giving_up_grants_the_next_in_the_same_entry() {
    let mut shard = shard();
    let token = shard.granted(try_request("a", &[write("l")]));
    shard.queued(wait_request("w", &[write("l")]), Reason::Held);
    shard.try_await(await_command(process("a"), token, "c")).unwrap();
    assert_eq!(shard.granted_owners(), ["w"]);
    assert_eq!(shard.awaiting_owners(), ["a"]);
}

#[test]
fn only_the_hold_of_that_token_is_given_up() {
    let mut shard = shard();
    let refused =
        |shard: &mut Shard, owner: &str, token| match shard.try_await(await_command(process(owner), token, "")) {
            Ok((AcquireOutcome::Refused(refused), None)) => refused.reason,
            other => panic!("it should be refused: {other:?}"),
        };
    assert_eq!(refused(&mut shard, "a", 1), Reason::NotHeld);
    let token = shard.granted(try_request("a", &[write("l")]));
    assert_eq!(refused(&mut shard, "a", token + 1), Reason::NotHeld);
    assert_eq!(refused(&mut shard, "b", token), Reason::NotHeld);
    let read = shard.granted(try_request("r", &[crate::wait_requests::read("m")]));
    let of_reader = AwaitCondition { path: at("m"), ..await_command(process("r"), read, "") };
    assert!(matches!(shard.try_await(of_reader), Ok((AcquireOutcome::Refused(_), None))), "a reader");
    assert_eq!(shard.holders("l"), ["a"], "nothing changed");
}

#[test]
fn a_repeat_finds_the_await_the_wait_and_the_hold() {
    let mut shard = shard();
    let token = shard.lock_and_await("a", "c");
    let again = |shard: &mut Shard| shard.try_await(await_command(process("a"), token, "c")).unwrap();
    assert!(matches!(again(&mut shard), (AcquireOutcome::Enqueued(_), None)));
    shard.lock_and_signal("c", false);
    assert!(matches!(again(&mut shard), (AcquireOutcome::Enqueued(_), Some(Woken::Signalled))));
    shard.release_paths("s", &["l"]);
    let (AcquireOutcome::Granted { fencing_token }, Some(Woken::Signalled)) = again(&mut shard) else {
        panic!("it has the lock")
    };
    assert!(fencing_token > token && shard.is_current(fencing_token));
    assert_eq!(shard.awaiting_owners(), Vec::<String>::new());
    shard.core.verify();
}

#[test]
fn the_terms_of_the_newest_call_count() {
    for is_woken in [false, true] {
        let mut shard = shard();
        let token = shard.lock_and_await("a", "c");
        shard.granted(try_request("s", &[write("l")]));
        if is_woken {
            shard.try_signal(signal_command("s", "c", false)).unwrap();
        }
        let newest = AwaitCondition {
            ttl_ms: Some(7_000),
            transition_ms: Some(300),
            metadata: Some(metadata(&[("k", "v")])),
            attempt: 8,
            ..await_command(process("a"), token, "c")
        };
        shard.try_await(newest.clone()).unwrap();
        // Neither an older call nor one that says nothing of them changes the others.
        shard.try_await(AwaitCondition { attempt: 7, ttl_ms: Some(9_000), ..newest.clone() }).unwrap();
        shard.try_await(AwaitCondition { transition_ms: None, metadata: None, ..newest }).unwrap();
        if !is_woken {
            shard.try_signal(signal_command("s", "c", false)).unwrap();
        }
        shard.release_paths("s", &["l"]);
        let holder = |shard: &Shard| shard.get("l").write_lock_holder;
        assert_eq!(holder(&shard).unwrap().metadata, metadata(&[("k", "v")]), "{is_woken}");
        for (after_ms, phase) in
            [(6_999, Some(Phase::Held)), (1, Some(Phase::Transition)), (299, Some(Phase::Transition)), (1, None)]
        {
            shard.advance_by(after_ms);
            assert_eq!(holder(&shard).map(|holder| holder.phase), phase, "{is_woken} {after_ms}");
        }
    }
}

#[test]
fn a_repeated_signal_wakes_nobody() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "c");
    shard.granted(try_request("s", &[write("l")]));
    let signal = |id: &str| SignalCondition { signal_id: Some(id.into()), ..signal_command("s", "c", false) };
    assert_eq!(shard.try_signal(signal("1")), Some((1, 1)));
    assert_eq!(shard.try_signal(signal("1")), Some((1, 1)));
    assert_eq!(shard.awaiting_owners(), ["b"]);
    assert_eq!(shard.try_signal(signal("2")), Some((1, 0)));
}

#[test]
fn a_signal_that_wakes_somebody_is_remembered_however_little_room_is_left() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "c");
    shard.granted(try_request("s", &[write("l")]));
    let used = match shard.query(&Query::AccountState { account: ACCOUNT }) {
        Ok(Response::AccountState(namespaces)) => namespaces[0].1.total(),
        other => panic!("no state: {other:?}"),
    };
    shard.apply(&open(2, orders(), Limits { max_state_bytes: used, ..Limits::default() })).outcome.unwrap();
    let unheard = SignalCondition { signal_id: Some("1".into()), ..signal_command("s", "other", false) };
    let refused = shard.run(LocksCommand::Condition(ConditionCommand::Signal(unheard)));
    assert!(matches!(refused, Err(CommandError::QuotaExceeded { .. })), "{refused:?}");
    assert_eq!(shard.try_signal(signal_command("s", "other", false)), Some((0, 0)));
    let signal = SignalCondition { signal_id: Some("x".repeat(128)), ..signal_command("s", "c", false) };
    assert_eq!(shard.try_signal(signal.clone()), Some((1, 1)));
    assert_eq!(shard.try_signal(signal), Some((1, 1)), "a repeat");
    assert_eq!(shard.awaiting_owners(), ["b"]);
    shard.core.verify();
}

#[test]
fn an_await_that_is_due_elapses_before_a_signal_of_the_same_entry() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.core.take_effects();
    shard.advance_by(10_000);
    let now = LocksCommand::Condition(ConditionCommand::Signal(signal_command("s", "c", false)));
    let outcome = shard.apply_now(&Command::Locks(now)).outcome;
    assert!(matches!(outcome, Ok(Response::Signalled { signalled: 0, awaiting: 0, .. })), "{outcome:?}");
    assert_eq!(shard.awaits_told().0, pairs(&["a"], Woken::Elapsed));
}

#[test]
fn an_await_that_is_due_elapses_before_a_signal_while_others_are_still_moved() {
    let mut shard = shard();
    for number in 0..300 {
        shard.lock_and_await(&format!("p{number:03}"), "c");
    }
    shard.lock_and_await("a", "d");
    assert_eq!(shard.lock_and_signal("c", true), (300, 0));
    shard.advance_by(10_000);
    assert!(shard.core.has_backlog() && shard.awaiting_owners().contains(&"a".to_owned()), "the others go first");
    let now = LocksCommand::Condition(ConditionCommand::Signal(signal_command("s", "d", false)));
    let outcome = shard.apply_now(&Command::Locks(now)).outcome;
    assert!(matches!(outcome, Ok(Response::Signalled { signalled: 0, awaiting: 0, .. })), "{outcome:?}");
    let mut woken = shard.awaits_told().0;
    while shard.core.has_backlog() {
        shard.advance_by(0);
        woken.extend(shard.awaits_told().0);
    }
    assert!(woken.contains(&("a".to_owned(), Woken::Elapsed)), "{} were woken", woken.len());
    shard.core.verify();
}

#[test]
fn a_deleted_lock_leaves_those_who_await_its_conditions() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.granted(try_request("s", &[write("l")]));
    shard.delete("l");
    assert_eq!(shard.awaiting_owners(), ["a"]);
    assert_eq!(shard.lock_and_signal("c", false), (1, 0));
}

#[test]
fn purged_conditions_leave_nothing() {
    let mut shard = shard();
    shard.lock_and_await("a", "c");
    shard.lock_and_await("b", "d");
    shard.apply(&crate::support::purge(2, orders())).outcome.unwrap();
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
    assert_nothing_is_left(&shard.core);
}

#[test]
fn more_than_one_entry_moves_are_made_in_several_and_in_order() {
    let mut shard = shard();
    let names: Vec<String> = (0..600).map(|number| format!("p{number:03}")).collect();
    for name in &names {
        shard.lock_and_await(name, "c");
    }
    assert_eq!(shard.lock_and_signal("c", true), (600, 0));
    let first = shard.waiting_owners().len();
    assert!(first < 600 && shard.core.has_backlog(), "{first}");
    assert!(shard.restored().waiting_owners().len() == first);
    while shard.core.has_backlog() {
        shard.advance_by(0);
    }
    assert_eq!(shard.waiting_owners(), names);
    shard.core.verify();
}
