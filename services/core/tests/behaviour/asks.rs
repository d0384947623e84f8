//! Requests to release what somebody holds: who is asked, what is kept of it, and what force ends.

use holdfast_core::{
    Acquire, AcquireOutcome, AcquirePermits, AskRelease, AskedHold, AskedHolds, CommandError, Effect, EventKind,
    FencingToken, Kind, Kinds, Limits, LockInfo, LocksCommand, MAX_ASKED, Mode, Path, PermitCommand, Query, Reason,
    ReleaseRequest, ReleaseTarget, ReportedHold, Response, RevokedReason, Rules,
};

use crate::primitives::{acquire, permits};
use crate::support::{Shard, WALL_AHEAD_MS, assert_nothing_is_left, orders, process, request_id};
use crate::wait_requests::{at, read, session_owner, session_wait_request, try_request, wait_request, write};

fn shard() -> Shard {
    let mut shard = Shard::new();
    shard.rules = Rules::TWO;
    shard
}

/// A polite request for a lock; `number` tells it apart.
pub(crate) fn polite(path: &str, number: u64) -> AskRelease {
    AskRelease {
        namespace: orders(),
        kind: Kind::Lock,
        path: at(path),
        member: None,
        request_id: request_id(number),
        by: "key".into(),
        reason: "why".into(),
        within_ms: None,
        force: false,
    }
}

fn force(path: &str, number: u64, within_ms: u64) -> AskRelease {
    AskRelease { within_ms: Some(within_ms), force: true, ..polite(path, number) }
}

/// How many holds a request concerns, and whether there are more.
fn run_ask(shard: &mut Shard, ask: AskRelease) -> (u64, bool) {
    match shard.run(LocksCommand::AskRelease(ask)) {
        Ok(Response::ReleaseAsked { asked, truncated, .. }) => (asked, truncated),
        other => panic!("not an answer to a request: {other:?}"),
    }
}

/// What the answer to a repeat of a request for permits says of requests to release the hold.
fn asked_of_extension(shard: &mut Shard, request: AcquirePermits) -> Option<ReleaseRequest> {
    match shard.run(LocksCommand::Permit(PermitCommand::Acquire(request))) {
        Ok(Response::PermitsAcquired { release_requested, .. }) => release_requested.map(|request| *request),
        other => panic!("not an answer to an extension: {other:?}"),
    }
}

/// What sessions were told since the last time.
fn sessions_told(shard: &mut Shard) -> Vec<(String, AskedHolds)> {
    let told = |effect| match effect {
        Effect::ReleaseRequested { session_id, asked, .. } => Some((session_id, asked)),
        _ => None,
    };
    shard.core.take_effects().into_iter().filter_map(told).collect()
}

fn revoked(shard: &mut Shard) -> Vec<(Path, RevokedReason)> {
    let revoked = |effect| match effect {
        Effect::Revoked { path, reason, .. } => Some((path, reason)),
        Effect::PermitsRevoked { hold, reason, .. } => Some((hold.path, reason)),
        _ => None,
    };
    shard.core.take_effects().into_iter().filter_map(revoked).collect()
}

fn request_of(shard: &Shard, name: &str) -> Option<ReleaseRequest> {
    shard.get(name).write_lock_holder.and_then(|holder| holder.release_requested).map(|request| *request)
}

#[test]
fn a_polite_request_asks_whoever_is_in_the_way_and_ends_nothing() {
    let mut shard = shard();
    shard.open_session("se_1");
    for (owner, claim) in [("p1", read("a")), ("p2", read("a/b/c")), ("p3", write("x"))] {
        shard.granted(try_request(owner, &[claim]));
    }
    let token = shard.granted(session_wait_request("se_1", "r", &[read("a/b")]));
    shard.core.take_effects();
    assert_eq!(run_ask(&mut shard, AskRelease { within_ms: Some(5_000), ..polite("a/b", 1) }), (3, false));
    let request = ReleaseRequest {
        by: "key".into(),
        reason: "why".into(),
        within_ms: Some(5_000),
        asked_at_ms: WALL_AHEAD_MS + 1_000,
        until_ms: Some(6_000),
        force: false,
    };
    let holds = vec![AskedHold { path: at("a/b"), fencing_token: token, request_id: None }];
    let expected = AskedHolds { kind: Kind::Lock, request: request.clone(), holds };
    assert_eq!(sessions_told(&mut shard), [("se_1".to_owned(), expected)]);
    let shown = |shard: &Shard, path: &[&str]| {
        let lock = shard.list(path, None, 1).0.remove(0);
        lock.read_lock_holders[0].release_requested.as_deref().cloned()
    };
    assert_eq!(shown(&shard, &["a", "b", "c"]), Some(request));
    assert_eq!(request_of(&shard, "x"), None);
    shard.advance_by(5_000);
    assert_eq!((shard.holders("a"), shard.holders("a/b")), (vec!["p1".to_owned()], vec!["se_1".to_owned()]));
    shard.core.verify();
}

/// An answer shows 16 readers.
#[test]
fn a_late_reader_learns_from_its_extension_that_it_was_asked() {
    let mut shard = shard();
    for number in 1..=20 {
        shard.granted(try_request(&format!("p{number:02}"), &[read("l")]));
    }
    run_ask(&mut shard, polite("l", 1));
    let readers = shard.acquire(try_request("p20", &[read("l")])).lock.read_lock_holders;
    let names: Vec<String> = readers.iter().map(|reader| reader.process_id.clone()).collect();
    let first = (1..=15).chain([20]).map(|number| format!("p{number:02}"));
    assert_eq!(names, first.collect::<Vec<_>>());
    assert!(readers.last().is_some_and(|reader| reader.release_requested.is_some()));
    let of_early = shard.acquire(try_request("p16", &[read("l")])).lock.read_lock_holders;
    assert_eq!((of_early.len(), of_early.last().map(|reader| reader.process_id.clone())), (16, Some("p16".into())));
}

#[test]
fn a_hold_keeps_the_latest_request_through_extensions_and_its_end_forgets_it() {
    let mut shard = shard();
    let token = shard.granted(try_request("p1", &[write("l")]));
    run_ask(&mut shard, polite("l", 1));
    run_ask(&mut shard, AskRelease { reason: "later".into(), ..polite("l", 2) });
    let extend = Acquire { fencing_token: Some(token), ..try_request("p1", &[write("l")]) };
    let extended = shard.acquire(extend).lock.write_lock_holder.unwrap();
    assert_eq!(extended.release_requested.unwrap().reason, "later");
    shard.release_paths("p1", &["l"]);
    assert!(shard.granted(try_request("p1", &[write("l")])) > token);
    assert_eq!(request_of(&shard, "l"), None);
    shard.release_paths("p1", &["l"]);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_repeat_of_a_request_tells_nobody_twice_and_writes_no_event() {
    let mut shard = shard();
    shard.open_session("se_1");
    shard.granted(session_wait_request("se_1", "r", &[write("l")]));
    shard.core.take_effects();
    assert_eq!(run_ask(&mut shard, polite("l", 1)), (1, false));
    assert_eq!(sessions_told(&mut shard).len(), 1);
    let revision = shard.core.revision();
    assert_eq!(run_ask(&mut shard, polite("l", 1)), (1, false));
    assert_eq!(shard.core.revision(), revision);
    assert_eq!(sessions_told(&mut shard), []);
    let kinds = [Kind::Request].into_iter().collect::<Kinds>();
    let (namespace, prefix) = (orders(), Path::default());
    let events = Query::Events { namespace, from_revision: Some(1), prefix, kinds, limit: 100 };
    let Ok(Response::Events { events, .. }) = shard.query(&events) else { panic!("it is open") };
    let asks = events.iter().filter(|event| matches!(event.kind, EventKind::ReleaseRequested { of: Kind::Lock }));
    assert_eq!(asks.count(), 1);
}

#[test]
fn force_ends_the_hold_at_its_deadline_and_the_next_moves_up() {
    let mut shard = shard();
    shard.open_session("se_1");
    shard.granted(session_wait_request("se_1", "r", &[write("l")]));
    shard.granted(try_request("p2", &[write("m")]));
    shard.queued(wait_request("p1", &[write("l")]), Reason::Held);
    assert_eq!(run_ask(&mut shard, force("l", 1, 3_000)), (1, false));
    assert_eq!(run_ask(&mut shard, force("n", 2, 3_000)), (0, false), "only holds of that very path");
    shard.core.take_effects();
    shard.advance_by(2_999);
    assert_eq!(shard.holders("l"), ["se_1"]);
    shard.advance_by(1);
    let effects = shard.core.take_effects();
    let is_revoked = |effect: &Effect| matches!(effect, Effect::Revoked { reason: RevokedReason::Deleted, .. });
    assert!(effects.iter().any(is_revoked), "{effects:?}");
    assert_eq!((shard.holders("l"), shard.holders("m")), (vec!["p1".to_owned()], vec!["p2".to_owned()]));
    shard.core.verify();
}

#[test]
fn nothing_puts_off_what_force_ends() {
    let mut shard = shard();
    let token = shard.granted(try_request("p1", &[write("l")]));
    run_ask(&mut shard, force("l", 1, 3_000));
    run_ask(&mut shard, AskRelease { within_ms: Some(600_000), ..polite("l", 2) });
    run_ask(&mut shard, force("l", 3, 9_000));
    shard.granted(Acquire { fencing_token: Some(token), ..try_request("p1", &[write("l")]) });
    let shown = request_of(&shard, "l").unwrap();
    assert_eq!((shown.until_ms, shown.force), (Some(4_000), true));
    run_ask(&mut shard, force("l", 4, 2_000));
    let mut restored = shard.restored();
    for shard in [&mut shard, &mut restored] {
        shard.advance_by(1_999);
        assert_eq!(shard.holders("l"), ["p1"]);
        shard.advance_by(1);
        assert_nothing_is_left(&shard.core);
    }
}

#[test]
fn force_without_a_time_ends_the_hold_with_the_next_entry() {
    let mut shard = shard();
    shard.granted(try_request("p1", &[write("l")]));
    assert_eq!(run_ask(&mut shard, AskRelease { within_ms: None, ..force("l", 1, 0) }), (1, false));
    shard.advance_by(0);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn a_resumed_session_learns_which_of_its_holds_are_asked_for() {
    let mut shard = shard();
    shard.open_session("se_1");
    let tokens = ["a", "b"].map(|path| shard.granted(session_wait_request("se_1", path, &[write(path)])));
    run_ask(&mut shard, polite("b", 1));
    shard.open_session_as("se_1", true, 2).unwrap();
    let held = ["a", "b"].iter().zip(tokens);
    let held: Vec<ReportedHold> =
        held.map(|(path, fencing_token)| ReportedHold { path: at(path), mode: Mode::Write, fencing_token }).collect();
    let query = Query::ReconcileHolds { namespace: orders(), session_id: "se_1".into(), held: held.clone() };
    let answer = shard.query(&query).unwrap();
    let (namespace, session_id) = (orders(), "se_1".to_owned());
    let info = LockInfo { namespace, session_id, message: None, held, pending: vec![] };
    assert_eq!(shard.run(LocksCommand::LockInfo(info)).unwrap(), answer);
    let Response::ReconciledAsked { lost, asked, .. } = answer else { panic!("{answer:?}") };
    let paths: Vec<&Path> = asked.iter().flat_map(|asked| &asked.holds).map(|hold| &hold.path).collect();
    assert_eq!((lost, paths), (vec![], vec![&at("b")]));
}

#[test]
fn a_session_is_told_once_of_all_its_holds_and_a_request_concerns_so_many() {
    let mut shard = shard();
    shard.open_session("se_1");
    for number in 0..=MAX_ASKED {
        let path = format!("a/{number}");
        shard.granted(session_wait_request("se_1", &path, &[read(&path)]));
    }
    shard.core.take_effects();
    let (count, is_truncated) = run_ask(&mut shard, polite("a", 1));
    assert!(is_truncated && count <= MAX_ASKED as u64 && count > 0, "{count}");
    let told = sessions_told(&mut shard);
    assert_eq!((told.len(), told[0].1.holds.len() as u64), (1, count));
    assert_eq!(run_ask(&mut shard, force("a", 2, 0)), (0, false));
    assert_eq!(run_ask(&mut shard, polite("a/7", 3)), (1, false));
}

#[test]
fn force_needs_no_memory_and_a_polite_request_does() {
    let mut shard = shard();
    shard.granted(try_request("p1", &[write("l")]));
    let used = match shard.query(&Query::AccountState { account: crate::support::ACCOUNT }) {
        Ok(Response::AccountState(namespaces)) => namespaces[0].1.total(),
        other => panic!("no state: {other:?}"),
    };
    let limits = Limits { max_state_bytes: used, ..Limits::default() };
    shard.apply(&crate::support::open(2, orders(), limits));
    let refused = shard.run(LocksCommand::AskRelease(polite("l", 1)));
    assert!(matches!(refused, Err(CommandError::QuotaExceeded { .. })), "{refused:?}");
    assert_eq!(run_ask(&mut shard, force("l", 2, 1_000)), (1, false));
    let shown = request_of(&shard, "l").unwrap();
    assert_eq!((shown.by.as_str(), shown.reason.as_str(), shown.force), ("", "", true));
    shard.advance_by(1_000);
    assert_nothing_is_left(&shard.core);
}

#[test]
fn holders_of_a_semaphore_are_asked_and_forced() {
    let mut shard = shard();
    shard.open_session("se_1");
    let outcome = acquire(&mut shard, permits(session_owner("se_1"), "r", 1)).unwrap();
    let AcquireOutcome::Granted { fencing_token } = outcome else { panic!("{outcome:?}") };
    let asks_for = |ask: AskRelease, path: &str| AskRelease { kind: Kind::Semaphore, path: Path::flat(path), ..ask };
    let unknown = shard.run(LocksCommand::AskRelease(asks_for(polite("", 1), "t")));
    assert!(matches!(unknown, Err(CommandError::PrimitiveNotFound { .. })), "{unknown:?}");
    let extension = || permits(session_owner("se_1"), "r", 1);
    assert_eq!(asked_of_extension(&mut shard, extension()), None);
    shard.core.take_effects();
    assert_eq!(run_ask(&mut shard, asks_for(polite("", 1), "s")), (1, false));
    let told = sessions_told(&mut shard);
    assert_eq!(asked_of_extension(&mut shard, extension()), Some(told[0].1.request.clone()));
    let hold = AskedHold { path: Path::flat("s"), fencing_token, request_id: Some("r".into()) };
    assert_eq!((told.len(), &told[0].1.holds), (1, &vec![hold]));
    assert_eq!(run_ask(&mut shard, asks_for(force("", 2, 500), "s")), (1, false));
    let mut restored = shard.restored();
    for shard in [&mut shard, &mut restored] {
        shard.core.take_effects();
        shard.advance_by(500);
        assert_eq!(revoked(shard), [(Path::flat("s"), RevokedReason::Deleted)]);
        shard.core.verify();
    }
}

#[test]
fn a_request_is_a_command_of_rules_2_also_within_a_batch() {
    let command = || LocksCommand::AskRelease(polite("l", 1));
    assert_eq!(command().min_rules(), Rules::TWO);
    assert_eq!(LocksCommand::Batch(vec![command()]).min_rules(), Rules::TWO);
    let at_least = LocksCommand::acquire(try_request("p1", &[write("l")]), vec![], 1);
    assert_eq!(LocksCommand::Batch(vec![at_least]).min_rules(), Rules::TWO);
    let ordinary = LocksCommand::acquire(try_request("p1", &[write("l")]), vec![], 0);
    assert_eq!(ordinary.min_rules(), Rules::ONE);
}

#[test]
fn a_released_hold_that_is_kept_is_not_asked_for_but_forced() {
    let mut shard = shard();
    let acquire = LocksCommand::acquire(try_request("p1", &[write("l")]), vec![], 50_000);
    assert!(shard.run(acquire).is_ok());
    let release = ReleaseTarget::Paths { paths: vec![at("l")], fencing_token: None::<FencingToken> };
    assert!(shard.try_release(process("p1"), release));
    assert_eq!(run_ask(&mut shard, polite("l", 1)), (0, false));
    assert_eq!(run_ask(&mut shard, force("l", 2, 1_000)), (0, false));
    shard.advance_by(1_000);
    assert_nothing_is_left(&shard.core);
}
