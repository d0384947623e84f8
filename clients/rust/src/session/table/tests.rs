use super::*;
use crate::view::{Blocker, ReleaseRequest};
use holdfast_proto::v1;
use holdfast_proto::v1::client_message as client;
use holdfast_proto::v1::server_message as server;

pub(super) fn request(owner: &str, path: &str, mode: Mode) -> LockRequest {
    LockRequest::new(Some(owner.into()), [Claim { path: path.into(), mode }], 0).unwrap()
}

/// The same, from somebody who may have it already.
pub(super) fn again(owner: &str, path: &str, mode: Mode) -> LockRequest {
    LockRequest { reentrant: true, ..request(owner, path, mode) }
}

pub(super) fn state(request_id: &str, state: server::state::Value, token: Option<u64>) -> server::State {
    let request_id = Some(request_id.to_owned());
    server::State { request_id, state: state.into(), fencing_token: token, ..Default::default() }
}

pub(super) fn acquired(request_id: &str, token: u64) -> server::State {
    state(request_id, server::state::Value::Acquired, Some(token))
}

pub(super) fn refused(request_id: &str, code: v1::refusal::Code) -> server::Refused {
    let reason = v1::Refusal { code: code.into(), ..Default::default() };
    server::Refused { request_id: request_id.to_owned(), why: Some(server::refused::Why::Reason(reason)) }
}

pub(super) fn sent(table: &mut RequestTable) -> Vec<String> {
    let mut said = Vec::new();
    while let Some(message) = table.next_message() {
        said.push(match message {
            Said::Lock(lock) => format!("lock {}", lock.request_id),
            Said::AcquirePermits(acquire) => format!("acquire {}", acquire.request_id),
            Said::Await(awaits) => format!("await {} of {:?}", awaits.request_id, awaits.fencing_token),
            Said::Signal(signal) => format!("signal {}", signal.request_id),
            Said::Release(release) => format!("release {}", release.request_id),
            other => panic!("{other:?}"),
        });
    }
    said
}

pub(super) fn granted(effects: &[Effect]) -> Vec<(WaiterId, u64)> {
    let granted = |effect: &Effect| match effect {
        Effect::Granted(waiter, granted) => Some((*waiter, granted.token)),
        _ => None,
    };
    effects.iter().filter_map(granted).collect()
}

#[test]
fn an_owner_that_asks_again_shares_its_hold_and_the_last_one_releases() {
    let mut table = RequestTable::default();
    let (no, _) = table.request(request("a", "x", Mode::Write), 1).unwrap();
    table.request(again("a", "x", Mode::Read), 2).unwrap();
    assert_eq!(sent(&mut table), ["lock r1"]);
    let effects = table.on_state(acquired("r1", 7));
    assert_eq!(granted(&effects), [(1, 7), (2, 7)]);
    let (third, effects) = table.request(again("a", "x", Mode::Write), 3).unwrap();
    assert_eq!((third, granted(&effects)), (no, vec![(3, 7)]));
    table.release(no, None);
    table.release(no, None);
    assert!(sent(&mut table).is_empty());
    table.release(no, None);
    assert_eq!(sent(&mut table), ["release r1"]);
    table.on_state(state("r1", server::state::Value::Ready, None));
    assert_eq!((table.len(), table.bytes), (0, 0));
}

#[test]
fn an_owner_that_does_not_ask_for_it_again_is_refused_while_it_waits_or_holds() {
    let mut table = RequestTable::default();
    let both = ["y", "x"].map(|path| Claim { path: path.into(), mode: Mode::Read });
    let both = LockRequest::new(Some("a".into()), both, 0).unwrap();
    let is_refused = |table: &mut RequestTable, request: &LockRequest, path: &str| {
        let tried = LockRequest { only_try: true, ..request.clone() };
        let errors = [request.clone(), tried].map(|request| table.request(request, 9).unwrap_err());
        assert_eq!(errors, [Error::AlreadyHeld(path.into()), Error::AlreadyHeld(path.into())]);
    };
    table.request(request("a", "x", Mode::Write), 1).unwrap();
    is_refused(&mut table, &request("a", "x", Mode::Read), "x");
    is_refused(&mut table, &both, "x");
    assert_eq!(sent(&mut table), ["lock r1"], "the first was asked for, and nothing else");
    table.on_state(acquired("r1", 5));
    is_refused(&mut table, &both, "x");
    // Others, the session itself, and paths above and below are not the same.
    table.request(request("b", "x", Mode::Write), 2).unwrap();
    table.request(LockRequest { owner: None, ..request("a", "x", Mode::Write) }, 3).unwrap();
    let below = Claim { path: Path::of(["x", "below"]), mode: Mode::Write };
    table.request(LockRequest::new(Some("a".into()), [below], 0).unwrap(), 4).unwrap();
    table.release(1, None);
    let (no, _) = table.request(both, 5).unwrap();
    is_refused(&mut table, &request("a", "y", Mode::Read), "y");
    table.cancel(no, 5);
    table.request(request("a", "y", Mode::Read), 6).unwrap();
}

#[test]
fn what_an_owner_shares_is_its_own_until_the_last_of_it_is_over() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Write), 1).unwrap();
    let more = ["x", "y"].map(|path| Claim { path: path.into(), mode: Mode::Write });
    let more = LockRequest::new(Some("a".into()), more, 0).unwrap();
    table.request(LockRequest { reentrant: true, ..more }, 2).unwrap();
    sent(&mut table);
    table.on_refused(refused("r1", v1::refusal::Code::Deadlock));
    assert!(table.request(request("a", "x", Mode::Write), 3).is_err(), "it waits for it with the other");
    table.on_state(acquired("r2", 5));
    assert!(table.request(request("a", "x", Mode::Write), 3).is_err());
    table.release(2, None);
    table.request(request("a", "x", Mode::Write), 3).unwrap();
    table.end(&EndReason::Expired);
    assert!(table.awaited.0.is_empty());
}

#[test]
fn a_reader_does_not_become_a_writer() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Read), 1).unwrap();
    let error = table.request(again("a", "x", Mode::Write), 2).unwrap_err();
    assert!(matches!(error, Error::Refused(Refusal { reason: Reason::Upgrade, .. })));
}

#[test]
fn what_was_given_up_before_it_was_said_is_never_said() {
    let mut table = RequestTable::default();
    let (no, _) = table.request(request("a", "x", Mode::Write), 1).unwrap();
    table.cancel(no, 1);
    assert!(sent(&mut table).is_empty());
    assert_eq!(table.len(), 0);
}

#[test]
fn a_late_grant_goes_to_nobody_and_is_released() {
    let mut table = RequestTable::default();
    let (no, _) = table.request(request("a", "x", Mode::Write), 1).unwrap();
    sent(&mut table);
    table.cancel(no, 1);
    // Another caller makes a request meanwhile, under its own id.
    table.request(request("a", "x", Mode::Write), 2).unwrap();
    let effects = table.on_state(acquired("r1", 5));
    assert!(matches!(&effects[..], [Effect::Notify(Event::UnexpectedLock { fencing_token: 5, .. })]), "{effects:?}");
    assert_eq!(sent(&mut table), ["release r1", "lock r2"]);
    assert_eq!(granted(&table.on_state(acquired("r2", 6))), [(2, 6)]);
}

#[test]
fn one_of_two_who_wait_gives_up_and_the_other_gets_it() {
    let mut table = RequestTable::default();
    let (no, _) = table.request(request("a", "x", Mode::Write), 1).unwrap();
    table.request(again("a", "x", Mode::Write), 2).unwrap();
    sent(&mut table);
    table.cancel(no, 1);
    assert!(sent(&mut table).is_empty());
    assert_eq!(granted(&table.on_state(acquired("r1", 5))), [(2, 5)]);
}

#[test]
fn a_try_that_is_refused_takes_nobody_with_it() {
    let mut table = RequestTable::default();
    let tried = LockRequest { only_try: true, ..again("a", "x", Mode::Write) };
    table.request(tried.clone(), 1).unwrap();
    table.request(again("a", "x", Mode::Write), 2).unwrap();
    assert!(table.request(tried, 3).is_err(), "the owner waits already");
    let effects = table.on_refused(refused("r1", v1::refusal::Code::Held));
    assert!(matches!(&effects[..], [Effect::Failed(1, Error::Refused(_))]), "{effects:?}");
    assert_eq!(granted(&table.on_state(acquired("r2", 5))), [(2, 5)]);
}

#[test]
fn a_grant_that_was_lost_before_it_was_heard_of_is_asked_for_under_another_name() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Write), 1).unwrap();
    sent(&mut table);
    let effects = table.on_refused(refused("r1", v1::refusal::Code::NotHeld));
    assert!(matches!(&effects[..], [Effect::Renamed(1, 2)]), "{effects:?}");
    assert!(table.request(request("a", "x", Mode::Write), 2).is_err(), "its owner waits all the same");
    assert_eq!(sent(&mut table), ["release r1", "lock r2"]);
    assert_eq!(granted(&table.on_state(acquired("r2", 5))), [(1, 5)]);
}

#[test]
fn a_loss_is_told_to_all_who_may_have_it_and_the_next_request_is_a_new_one() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Read), 1).unwrap();
    table.request(request("b", "x", Mode::Read), 2).unwrap();
    sent(&mut table);
    let mut effects = table.on_state(acquired("r1", 5));
    effects.extend(table.on_state(acquired("r2", 6)));
    let losses: Vec<_> = effects
        .iter()
        .filter_map(|effect| match effect {
            Effect::Granted(_, granted) => Some(granted.loss.clone()),
            _ => None,
        })
        .collect();
    table.on_revoked(&"x".into(), None, &LossReason::Deleted);
    assert!(losses.iter().all(|loss| *loss.borrow() == Some(LossReason::Deleted)));
    let (no, effects) = table.request(request("a", "x", Mode::Read), 3).unwrap();
    assert_eq!((no, effects.len()), (3, 0));
    let info = table.lock_info().remove(0);
    assert!(info.held.is_empty());
    assert_eq!(info.pending.len(), 1);
    table.release(1, None);
    assert_eq!(sent(&mut table), ["release r1"]);
}

#[test]
fn lock_info_lists_holds_once_and_whatever_has_no_answer_in_order() {
    let mut table = RequestTable::default();
    let both = [("x", Mode::Write), ("y", Mode::Read)];
    let both = both.map(|(path, mode)| Claim { path: path.into(), mode });
    table.request(LockRequest::new(Some("a".into()), both, 0).unwrap(), 1).unwrap();
    table.request(again("a", "x", Mode::Write), 2).unwrap();
    table.request(request("b", "x", Mode::Write), 3).unwrap();
    let (given_up, _) = table.request(request("c", "x", Mode::Write), 4).unwrap();
    sent(&mut table);
    table.on_state(acquired("r1", 5));
    table.on_state(acquired("r2", 5));
    table.cancel(given_up, 4);
    let info = table.lock_info().remove(0);
    let mut held: Vec<_> =
        info.held.iter().map(|held| (held.path[0].as_str(), held.mode(), held.fencing_token)).collect();
    held.sort_unstable_by_key(|held| held.0);
    assert_eq!(held, [("x", v1::Mode::Write, 5), ("y", v1::Mode::Read, 5)]);
    let pending: Vec<_> = info.pending.into_iter().map(|pending| pending.message.unwrap()).collect();
    use client::pending::Message as Unanswered;
    assert!(matches!(&pending[..], [Unanswered::Lock(lock), Unanswered::Release(release)]
        if lock.request_id == "r3" && release.request_id == "r4"));
    assert!(!table.has_outgoing(), "all of it was said");
}

#[test]
fn what_was_not_done_is_said_again_after_a_pause() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Write), 1).unwrap();
    sent(&mut table);
    let fault = v1::server_message::Fault { code: "UNAVAILABLE".into(), detail: "later".into() };
    let why = Some(server::refused::Why::Fault(fault));
    assert!(table.on_refused(server::Refused { request_id: "r1".into(), why }).is_empty());
    assert!(table.has_retries() && !table.has_outgoing());
    table.retry_all();
    assert_eq!(sent(&mut table), ["lock r1"]);
    table.on_error("r1", "UNAVAILABLE", "");
    table.retry_all();
    assert_eq!(sent(&mut table), ["lock r1"]);
}

#[test]
fn the_end_of_the_session_answers_everybody() {
    let mut table = RequestTable::default();
    table.request(request("a", "x", Mode::Write), 1).unwrap();
    table.request(request("b", "y", Mode::Write), 2).unwrap();
    table.request(request("c", "z", Mode::Write), 3).unwrap();
    sent(&mut table);
    let effects = table.on_state(acquired("r1", 5));
    let Effect::Granted(_, granted) = &effects[0] else { panic!("{effects:?}") };
    table.on_state(acquired("r3", 6));
    table.release(3, Some(9));
    let effects = table.end(&EndReason::Expired);
    let lost = LossReason::SessionEnded(EndReason::Expired);
    assert_eq!(*granted.loss.borrow(), Some(lost));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Failed(2, Error::SessionEnded(_)))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Released(9))));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Notify(Event::Lost { .. }))));
    assert!(table.request(request("a", "x", Mode::Write), 4).is_err());
}

#[test]
fn the_lock_service_view_keeps_what_it_asked_for_and_tells_of_each_change() {
    let mut table = RequestTable::default();
    let kept = |path: &str| {
        let request = LockRequest::new(None, [Claim { path: path.into(), mode: Mode::Write }], 0).unwrap();
        LockRequest { persistent: true, ..request }
    };
    let (no, _) = table.request(kept("x"), 1).unwrap();
    sent(&mut table);
    let waits =
        server::State { blockers: vec![v1::Blocker::default()], ..state("r1", server::state::Value::Enqueued, None) };
    let mut effects = table.on_state(waits);
    let blockers = vec![Blocker::from(v1::Blocker::default())];
    assert!(matches!(&effects[1], Effect::Queued(1, standing) if standing.blockers == blockers));
    assert_eq!(table.persistent_request(&"x".into()), Some((no, LockStatus::Waiting)));
    effects.extend(table.on_state(acquired("r1", 5)));
    effects.extend(table.release(no, Some(2)));
    effects.extend(table.on_state(state("r1", server::state::Value::Ready, None)));
    let told = effects.iter().filter_map(|effect| match effect {
        Effect::Notify(Event::Status { before, now, .. }) => Some((*before, *now)),
        _ => None,
    });
    use LockStatus::{Holding, None as Nothing, Waiting};
    assert_eq!(told.collect::<Vec<_>>(), [(Nothing, Waiting), (Waiting, Holding), (Holding, Nothing)]);
    assert!(matches!(effects.last(), Some(Effect::Released(2))));
    assert_eq!((table.persistent_request(&"x".into()), table.persistent_requests().len()), (None, 0));
}

#[test]
fn a_session_takes_no_more_than_it_can_list() {
    let mut table = RequestTable::default();
    let long = "x".repeat(128);
    let refused =
        (0..20_000).find(|number| table.request(request("a", &format!("{long}{number}"), Mode::Write), 1).is_err());
    let most = refused.expect("there is an end");
    assert!(most > 2_000, "{most}");
    let size: usize = table.lock_info().iter().map(prost::Message::encoded_len).sum();
    assert!(size <= MAX_BYTES, "{size}");
}

fn permits(owner: &str, weight: u64) -> LockRequest {
    let terms = PermitTerms { wanted: WantedPermits::Permits { weight, permits: Some(5) }, priority: 0 };
    LockRequest::of_permits(owner.into(), "x".into(), terms, 0)
}

#[test]
fn requests_for_permits_share_nothing_with_one_another_and_with_locks() {
    let mut table = RequestTable::default();
    let (first, _) = table.request(permits("a", 2), 1).unwrap();
    table.request(permits("a", 1), 2).unwrap();
    table.request(request("a", "x", Mode::Write), 3).unwrap();
    assert_eq!(sent(&mut table), ["acquire r1", "acquire r2", "lock r3"]);
    assert_eq!(granted(&table.on_state(acquired("r1", 7))), [(1, 7)]);
    assert_eq!(granted(&table.on_state(acquired("r2", 8))), [(2, 8)]);
    assert_eq!(granted(&table.on_state(acquired("r3", 9))), [(3, 9)]);
    table.release(first, None);
    assert_eq!(sent(&mut table), ["release r1"]);
    table.on_state(state("r1", server::state::Value::Ready, None));
    assert_eq!(table.len(), 2);
}

#[test]
fn a_refusal_says_what_was_not_granted_whatever_its_reason() {
    let mut table = RequestTable::default();
    table.request(permits("a", 1), 1).unwrap();
    table.request(request("b", "y", Mode::Write), 2).unwrap();
    sent(&mut table);
    let mut text_of = |request_id: &str| {
        let effects = table.on_refused(refused(request_id, v1::refusal::Code::Ended));
        let failed = effects.iter().find_map(|effect| match effect {
            Effect::Failed(_, error) => Some(error.to_string()),
            _ => None,
        });
        failed.expect("it is refused")
    };
    assert!(text_of("r1").starts_with("the permits were not granted"));
    assert!(text_of("r2").starts_with("the lock was not granted"));
}

#[test]
fn a_lost_lock_is_told_from_others_of_its_path_by_its_token() {
    let mut table = RequestTable::default();
    for (waiter, owner) in [(1, "a"), (2, "b"), (3, "c")] {
        table.request(request(owner, "x", Mode::Read), waiter).unwrap();
    }
    sent(&mut table);
    for (request, token) in [("r1", 5), ("r2", 6), ("r3", 9)] {
        table.on_state(acquired(request, token));
    }
    let path = Path::from("x");
    let left = |table: &mut RequestTable| {
        let mut tokens: Vec<u64> = table.lock_info()[0].held.iter().map(|held| held.fencing_token).collect();
        tokens.sort_unstable();
        tokens
    };
    table.on_revoked(&path, Some(6), &LossReason::Deleted);
    assert_eq!(left(&mut table), [5, 9]);
    table.on_revoked(&path, Some(4), &LossReason::Deleted);
    assert_eq!(left(&mut table), [5, 9], "what was granted later is another hold");
    table.on_revoked(&path, Some(8), &LossReason::Deleted);
    assert_eq!(left(&mut table), [9], "the service knew a token that the client did not hear of");
    table.on_revoked(&path, None, &LossReason::Deleted);
    assert!(table.lock_info().iter().all(|info| info.held.is_empty()));
}

#[test]
fn the_loss_of_a_listed_hold_that_was_released_since_concerns_no_other_hold_of_its_path() {
    let mut table = RequestTable::default();
    for (waiter, owner) in [(1, "a"), (2, "b")] {
        table.request(request(owner, "x", Mode::Read), waiter).unwrap();
    }
    sent(&mut table);
    table.on_state(acquired("r1", 5));
    table.on_state(acquired("r2", 7));
    assert_eq!(table.lock_info()[0].held.len(), 2);
    table.release(2, None);
    table.on_state(state("r2", server::state::Value::Ready, None));
    let path = Path::from("x");
    assert!(table.on_revoked(&path, Some(7), &LossReason::Duplicate(None)).is_empty());
    assert_eq!(table.lock_info()[0].held.len(), 1, "the first reader has its hold");
    assert!(!table.on_revoked(&path, Some(7), &LossReason::Duplicate(None)).is_empty(), "the next list is another");
}

#[test]
fn permits_are_listed_on_a_new_connection_and_lost_by_their_token() {
    let mut table = RequestTable::default();
    for (waiter, weight) in [(1, 2), (2, 1), (3, 4)] {
        table.request(permits("a", weight), waiter).unwrap();
    }
    sent(&mut table);
    table.on_state(acquired("r1", 7));
    let effects = table.on_state(acquired("r2", 8));
    let loss = effects.iter().find_map(|effect| match effect {
        Effect::Granted(_, granted) => Some(granted.loss.clone()),
        _ => None,
    });
    let path = Path::from("x");
    assert!(table.on_revoked(&path, Some(6), &LossReason::Deleted).is_empty(), "nobody has it");
    assert_eq!(table.on_revoked(&path, Some(8), &LossReason::Deleted).len(), 2);
    assert_eq!(*loss.unwrap().borrow(), Some(LossReason::Deleted));
    let listed = table.lock_info();
    let things = listed[0].things.iter().map(|thing| (thing.request_id.as_str(), thing.weight, thing.fencing_token));
    assert_eq!(things.collect::<Vec<_>>(), [("r1", Some(2), 7)]);
    assert_eq!((listed[0].held.len(), listed[0].pending.len()), (0, 1));
}

fn ask_for(path: &str, token: u64, reason: &str) -> ReleaseRequest {
    let (kind, by, reason) = ("lock".to_owned(), "key".to_owned(), reason.to_owned());
    ReleaseRequest { kind, path: path.into(), fencing_token: token, by, reason, within: None, force: false }
}

fn reported_reasons(effects: &[Effect]) -> Vec<&str> {
    let asked = |effect| match effect {
        &Effect::Notify(Event::ReleaseRequested(ref request)) => Some(request.reason.as_str()),
        _ => None,
    };
    effects.iter().filter_map(asked).collect()
}

#[test]
fn a_request_to_release_reaches_the_hold_with_its_token_and_is_reported_once() {
    let mut table = RequestTable::default();
    for (owner, path) in [("a", "x"), ("b", "y")] {
        table.request(request(owner, path, Mode::Write), 1).unwrap();
    }
    let effects = table.on_state(acquired("r1", 7));
    table.on_state(acquired("r2", 8));
    let Effect::Granted(_, hold) = &effects[0] else { panic!("{effects:?}") };
    assert_eq!(reported_reasons(&table.on_release_requested(None, ask_for("x", 6, "of an older hold"))), [""; 0]);
    assert_eq!(reported_reasons(&table.on_release_requested(None, ask_for("x", 7, "a correction"))), ["a correction"]);
    assert_eq!(reported_reasons(&table.on_release_requested(None, ask_for("x", 7, "a correction"))), [""; 0]);
    assert_eq!(hold.asked.borrow().as_ref().map(|request| request.reason.as_str()), Some("a correction"));
    assert_eq!(reported_reasons(&table.on_release_requested(None, ask_for("x", 7, "now please"))), ["now please"]);
    // Whoever joins the hold learns of it too.
    let (_, effects) = table.request(again("a", "x", Mode::Write), 3).unwrap();
    let Effect::Granted(_, joined) = &effects[0] else { panic!("{effects:?}") };
    assert!(joined.asked.borrow().is_some());
}

#[test]
fn a_request_to_release_permits_names_their_request_and_token() {
    let mut table = RequestTable::default();
    let wanted = WantedPermits::Permits { weight: 1, permits: Some(2) };
    let terms = PermitTerms { wanted, priority: 0 };
    table.request(LockRequest::of_permits("a".into(), "x".into(), terms, 0), 1).unwrap();
    table.on_state(acquired("r1", 7));
    assert_eq!(reported_reasons(&table.on_release_requested(Some("r2"), ask_for("x", 7, "another request"))), [""; 0]);
    assert_eq!(reported_reasons(&table.on_release_requested(Some("r1"), ask_for("x", 6, "another hold"))), [""; 0]);
    assert_eq!(reported_reasons(&table.on_release_requested(Some("r1"), ask_for("x", 7, "permits"))), ["permits"]);
}

#[test]
fn the_least_time_of_a_hold_is_sent_with_each_repeat_of_its_request() {
    let mut table = RequestTable::default();
    table.request(LockRequest { at_least_ms: 600, ..request("a", "x", Mode::Write) }, 1).unwrap();
    let Some(Said::Lock(first)) = table.next_message() else { panic!("it is sent") };
    assert_eq!(first.at_least_ms, 600);
    let pending = table.lock_info().remove(0).pending.remove(0).message;
    assert_eq!(pending, Some(client::pending::Message::Lock(first)));
}

#[test]
fn receipts_of_what_is_held_and_of_places_are_shown() {
    let mut table = RequestTable::default();
    for (path, waiter) in [("a", 1), ("b", 2), ("c", 3), ("d", 4)] {
        table.request(request("t", path, Mode::Write), waiter).unwrap();
    }
    sent(&mut table);
    let proven = |id: &str, token, receipt| server::State { receipt: vec![receipt; 20], ..acquired(id, token) };
    table.on_state(proven("r1", 7, 1));
    table.on_state(proven("r2", 8, 2));
    let place = |ticket: Option<u64>| {
        let receipt = if ticket.is_some() { vec![3; 20] } else { Vec::new() };
        server::State { ticket, receipt, ..state("r3", server::state::Value::Enqueued, None) }
    };
    table.on_state(place(Some(9)));
    // The next leader has given it no place yet.
    table.on_state(place(None));
    table.release(2, None);
    let info = table.lock_info().remove(0);
    let [shown] = info.granted.as_slice() else { panic!("not one: {:?}", info.granted) };
    assert_eq!((shown.request_id.as_str(), shown.holder.as_deref()), ("r1", Some("t")));
    assert_eq!((shown.resources[0].fencing_token, &shown.receipt), (7, &vec![1; 20]));
    let places: Vec<_> = info.pending.iter().map(|pending| (pending.ticket, pending.receipt.len())).collect();
    assert_eq!(places, [(None, 0), (Some(9), 20), (None, 0)], "of the release, the wait and the request");
    table.on_revoked(&"a".into(), Some(7), &LossReason::Duplicate(None));
    let info = table.lock_info().remove(0);
    assert!(info.held.is_empty(), "what its receipt is about counts no more");
}
