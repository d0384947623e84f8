use holdfast_api::Resource;
use holdfast_types::{
    AccountId, Incarnation, LockState, MAX_SESSION_TABLE_BYTES, Metadata, NamespaceRef, Phase, TableReport,
};

use super::*;
use crate::admission::{DeferredCalls, Share, Sharer};
use crate::session::ledger::{MAX_IN_FLIGHT_BYTES, MAX_PART_BYTES};
use crate::session::test_lock;

fn lock(request_id: &str, paths: &[&str], mode: Mode) -> Arc<Lock> {
    Arc::new(test_lock::lock(request_id, paths, mode))
}

fn held_by(session_id: &str, mode: Mode, token: FencingToken) -> HolderView {
    HolderView {
        owner: Owner::Session { session_id: session_id.to_owned(), holder: None },
        process_id: "p".to_owned(),
        mode,
        fencing_token: token,
        locked_at_ms: 0,
        deadline_ms: None,
        requested_expires_at_ns: None,
        phase: Phase::Held,
        metadata: Metadata::new(),
        release_requested: None,
    }
}

/// A lock with these holders; `total` may exceed the number of holders shown.
fn view(path: &str, holders: Vec<HolderView>, total: u64) -> LockView {
    let (write, read) = holders.into_iter().partition::<Vec<_>, _>(|hold| hold.mode == Mode::Write);
    LockView {
        path: Path::flat(path),
        state: if total == 0 { LockState::Unlocked } else { LockState::ReadLocked },
        locked_at_ms: None,
        write_lock_holder: write.into_iter().next(),
        read_lock_holders: read,
        holders_total: total,
        waiting: 0,
        revision: 1,
    }
}

fn client_view(ledger: &RequestTable) -> Vec<(String, Mode, FencingToken)> {
    let holds = ledger.client_view().into_iter();
    holds.map(|hold| (hold.path.0.join("/"), hold.mode, hold.fencing_token)).collect()
}

#[test]
fn claims_that_were_held_before_keep_their_token() {
    let mut ledger = RequestTable::new("se_1");
    let mine = |token| vec![held_by("se_1", Mode::Write, token)];
    ledger.granted(&lock("a", &["x"], Mode::Write), 5, &[view("x", mine(5), 1)]);
    ledger.granted(&lock("b", &["x", "y"], Mode::Write), 9, &[view("x", mine(5), 1), view("y", mine(9), 1)]);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 5), ("y".into(), Mode::Write, 9)]);
}

#[test]
fn a_new_token_and_a_complete_release_need_no_views() {
    let mut ledger = RequestTable::new("se_1");
    let twice = Arc::new(Lock {
        resources: [Mode::Write, Mode::Read].map(|mode| Resource { path: vec!["x".to_owned()], mode }).into(),
        ..Lock::clone(&lock("a", &[], Mode::Read))
    });
    ledger.granted_anew(&twice, 5);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 5)]);
    ledger.granted_anew(&lock("b", &["x", "y"], Mode::Write), 9);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 9), ("y".into(), Mode::Write, 9)]);
    ledger.add_reported(ReportedHold { path: Path::flat("y"), mode: Mode::Read, fencing_token: 3 });
    ledger.released_completely("unknown");
    assert_eq!(client_view(&ledger).len(), 3);
    ledger.released_completely("b");
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 9)], "the other request claims it");
    assert_eq!((ledger.state("a"), ledger.state("b")), (Some(RequestState::Granted), None));
    ledger.released_completely("a");
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn an_upgrade_takes_the_place_of_the_hold_that_it_changed() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted(&lock("a", &["x"], Mode::Read), 5, &[view("x", vec![held_by("se_1", Mode::Read, 5)], 1)]);
    ledger.granted(&lock("b", &["x"], Mode::Write), 7, &[view("x", vec![held_by("se_1", Mode::Write, 7)], 1)]);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 7)]);
}

#[test]
fn a_release_ends_what_the_shard_does_not_show_any_more() {
    let mut ledger = RequestTable::new("se_1");
    let mine = || vec![held_by("se_1", Mode::Write, 5)];
    ledger.granted(&lock("a", &["x"], Mode::Write), 5, &[view("x", mine(), 1)]);
    ledger.granted(&lock("b", &["x"], Mode::Write), 5, &[view("x", mine(), 1)]);
    ledger.released("a", &[view("x", mine(), 1)]);
    assert_eq!(client_view(&ledger).len(), 1, "another request claims it");
    ledger.released("b", &[view("x", vec![held_by("se_2", Mode::Write, 6)], 1)]);
    assert!(client_view(&ledger).is_empty());
    assert_eq!(ledger.state("b"), None);
}

#[test]
fn among_more_readers_than_are_shown_the_requests_of_this_connection_decide() {
    let mut ledger = RequestTable::new("se_1");
    let crowd = || view("x", vec![held_by("se_2", Mode::Read, 1)], 40);
    ledger.granted(&lock("a", &["x"], Mode::Read), 5, &[crowd()]);
    ledger.granted(&lock("b", &["x"], Mode::Read), 5, &[crowd()]);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Read, 5)]);
    ledger.released("a", &[crowd()]);
    assert_eq!(client_view(&ledger).len(), 1);
    let of_another_thread = Lock { holder: Some("t2".to_owned()), ..Lock::clone(&lock("c", &["x"], Mode::Read)) };
    ledger.granted(&Arc::new(of_another_thread), 6, &[crowd()]);
    ledger.released("b", &[crowd()]);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Read, 6)], "that of the other thread stays");
    ledger.released("c", &[crowd()]);
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn a_release_whose_answer_was_lost_ends_what_no_other_request_of_the_same_thread_claims() {
    let mut ledger = RequestTable::new("se_1");
    let of = |request_id: &str, holder: &str, paths: &[&str]| {
        let lock = Lock::clone(&lock(request_id, paths, Mode::Read));
        Arc::new(Lock { holder: Some(holder.to_owned()), ..lock })
    };
    let held = |holder: &str, token| {
        let owner = Owner::Session { session_id: "se_1".to_owned(), holder: Some(holder.to_owned()) };
        HolderView { owner, ..held_by("se_1", Mode::Read, token) }
    };
    let both = || vec![held("t1", 5), held("t2", 6)];
    ledger.granted(&of("a", "t1", &["x"]), 5, &[view("x", vec![held("t1", 5)], 1)]);
    ledger.granted(&of("b", "t2", &["x"]), 6, &[view("x", both(), 2)]);
    ledger.granted(&of("c", "t1", &["x", "y"]), 7, &[view("x", both(), 2), view("y", vec![held("t1", 7)], 1)]);
    ledger.released_without_views("a");
    assert_eq!(client_view(&ledger).len(), 3, "another request of the thread claims it");
    ledger.released_without_views("c");
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Read, 6)]);
    ledger.released_without_views("b");
    assert!(client_view(&ledger).is_empty() && ledger.state("b").is_none());
}

#[test]
fn a_request_whose_hold_was_lost_has_no_part_in_what_its_thread_holds_there_later() {
    let mut ledger = RequestTable::new("se_1");
    let mine = |token| vec![held_by("se_1", Mode::Write, token)];
    ledger.granted(&lock("a", &["x", "y"], Mode::Write), 5, &[view("x", mine(5), 1), view("y", mine(5), 1)]);
    assert!(ledger.remove_hold(&Path::flat("x"), 5).is_some());
    ledger.granted(&lock("b", &["x"], Mode::Write), 9, &[view("x", mine(9), 1)]);
    ledger.released_without_views("b");
    assert_eq!(client_view(&ledger), [("y".into(), Mode::Write, 5)]);
    ledger.released_without_views("a");
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn what_was_listed_after_a_resume_outlasts_a_later_request_for_it_whose_release_was_not_seen() {
    let mut ledger = RequestTable::new("se_1");
    ledger.add_reported(ReportedHold { path: Path::flat("x"), mode: Mode::Write, fencing_token: 3 });
    let request = lock("a", &["x"], Mode::Write);
    ledger.granted(&request, 3, &[view("x", vec![held_by("se_1", Mode::Write, 3)], 1)]);
    ledger.released_without_views("a");
    assert_eq!(
        client_view(&ledger),
        [("x".into(), Mode::Write, 3)],
        "a request of the earlier connection has it still"
    );
    ledger.released("old", &[view("x", Vec::new(), 0)]);
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn a_release_does_not_end_what_another_thread_lost() {
    let mut ledger = RequestTable::new("se_1");
    let of_another_thread = Lock { holder: Some("t2".to_owned()), ..Lock::clone(&lock("b", &["x"], Mode::Write)) };
    ledger.granted(&lock("a", &["x"], Mode::Write), 5, &[view("x", vec![held_by("se_1", Mode::Write, 5)], 1)]);
    ledger.granted(&Arc::new(of_another_thread), 9, &[]);
    ledger.released("b", &[view("x", Vec::new(), 0)]);
    assert_eq!(client_view(&ledger), [("x".into(), Mode::Write, 5)], "the next leader is asked about it");
}

#[test]
fn what_was_listed_after_a_resume_is_believed_until_it_is_lost_or_released() {
    let mut ledger = RequestTable::new("se_1");
    for (path, token) in [("x", 3), ("y", 4)] {
        ledger.add_reported(ReportedHold { path: Path::flat(path), mode: Mode::Write, fencing_token: token });
    }
    assert!(ledger.remove_hold(&Path::flat("x"), 3).is_some() && ledger.remove_hold(&Path::flat("x"), 3).is_none());
    // A request of an earlier connection, whose name is unknown here.
    ledger.released("old", &[view("y", Vec::new(), 0)]);
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn a_release_that_shows_some_of_its_locks_ends_the_other_holds_too() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted_anew(&lock("a", &["x", "y", "z"], Mode::Write), 5);
    ledger.granted(&lock("b", &["z"], Mode::Write), 5, &[view("z", vec![held_by("se_1", Mode::Write, 5)], 1)]);
    ledger.released("a", &[view("x", Vec::new(), 0)]);
    assert_eq!(client_view(&ledger), [("z".into(), Mode::Write, 5)], "the other request claims it");
}

#[test]
fn a_request_that_waits_is_asked_about_again_until_it_is_granted() {
    let mut ledger = RequestTable::new("se_1");
    let request = lock("a", &["x"], Mode::Write);
    ledger.enqueued(&request, WaitId(4), None);
    assert_eq!(
        (ledger.state("a"), ledger.waiting_request_ids()),
        (Some(RequestState::Waiting(WaitId(4))), vec!["a".to_owned()])
    );
    ledger.granted(&request, 5, &[view("x", vec![held_by("se_1", Mode::Write, 5)], 1)]);
    assert_eq!((ledger.waiting("a"), ledger.state("a")), (None, Some(RequestState::Granted)));
    assert_eq!(ledger.clear(), ["a"]);
    assert!(client_view(&ledger).is_empty());
}

#[test]
fn requests_without_a_place_are_sent_again_in_order_until_they_have_one() {
    let mut ledger = RequestTable::new("se_1");
    let (first, second) = (lock("z", &["x"], Mode::Write), lock("a", &["y"], Mode::Write));
    ledger.unqueued(&first, None, None);
    ledger.unqueued(&second, None, None);
    assert_eq!((ledger.first_unqueued(9), ledger.first_unqueued(1)), (vec!["z".into(), "a".into()], vec!["z".into()]));
    assert!(ledger.is_unqueued("z") && ledger.waiting("z").is_some() && ledger.has_or_awaits("z"));
    ledger.enqueued(&first, WaitId(4), None);
    assert!(!ledger.is_unqueued("z") && ledger.first_unqueued(9) == ["a"]);
    ledger.released_without_views("a");
    assert!(ledger.first_unqueued(9).is_empty() && !ledger.is_unqueued("a"));
    ledger.unqueued(&second, None, None);
    ledger.unqueued(&second, None, None);
    assert_eq!((ledger.first_unqueued(9), ledger.len()), (vec!["a".into()], 2), "each is in it once");
    ledger.granted_anew(&second, 5);
    assert!(ledger.first_unqueued(9).is_empty());
    ledger.unqueued(&lock("b", &["y"], Mode::Write), None, None);
    ledger.clear();
    assert!(ledger.first_unqueued(9).is_empty() && ledger.len() == 0);
}

#[test]
fn a_request_has_something_until_it_has_lost_all_of_it() {
    let mut ledger = RequestTable::new("se_1");
    ledger.enqueued(&lock("w", &["z"], Mode::Write), WaitId(3), None);
    ledger.granted_anew(&lock("a", &["x", "y"], Mode::Write), 5);
    assert!(ledger.has_or_awaits("w") && ledger.has_or_awaits("a") && !ledger.has_or_awaits("b"));
    assert!(ledger.remove_hold(&Path::flat("x"), 5).is_some() && ledger.has_or_awaits("a"));
    assert!(ledger.remove_hold(&Path::flat("y"), 5).is_some() && !ledger.has_or_awaits("a"));
}

fn empty_report() -> TableReport {
    TableReport {
        namespace: NamespaceRef { account: AccountId(7), name: "soft".to_owned(), incarnation: Incarnation(1) },
        session: 300,
        connection_epoch: 301,
        seq: 5,
        table_epoch: 400,
        part: 1,
        parts: 1,
        granted: Vec::new(),
        pending: Vec::new(),
    }
}

/// What a report says is held: request, path and token.
type ReportedClaims = Vec<(String, String, FencingToken)>;

/// What the only part of a report says is held, and what waits, with its ticket.
fn reported(ledger: &RequestTable) -> (ReportedClaims, Vec<(String, Option<WaitId>)>) {
    let mut parts = ledger.report(empty_report()).expect("it is small");
    let part = parts.pop().filter(|_| parts.is_empty()).expect("it has one part");
    let claims = part.granted.into_iter().flat_map(|request| {
        let id = request.request_id;
        request.claims.into_iter().map(move |hold| (id.clone(), hold.path.0.join("/"), hold.fencing_token))
    });
    let mut claims: Vec<_> = claims.collect();
    claims.sort();
    (claims, part.pending.into_iter().map(|wait| (wait.request_id, wait.ticket)).collect())
}

#[test]
fn a_report_has_what_is_held_by_each_request_and_no_release_that_is_under_way() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted_anew(&lock("a", &["x", "y"], Mode::Write), 5);
    ledger.granted(&lock("b", &["x"], Mode::Write), 5, &[view("x", vec![held_by("se_1", Mode::Write, 5)], 1)]);
    let claim = |id: &str, path: &str, token| (id.to_owned(), path.to_owned(), token);
    assert_eq!(reported(&ledger).0, [claim("a", "x", 5), claim("a", "y", 5), claim("b", "x", 5)]);
    ledger.mark_released("a");
    assert_eq!(reported(&ledger).0, [claim("b", "x", 5)], "the hold of another request stays");
    ledger.remove_hold(&Path::flat("x"), 5);
    assert_eq!(reported(&ledger), (Vec::new(), Vec::new()), "what was lost is not reported");
    ledger.granted_anew(&lock("a", &["x", "y"], Mode::Write), 9);
    assert_eq!(reported(&ledger).0, [claim("a", "x", 9), claim("a", "y", 9)], "it was asked for again");
    ledger.mark_all_released();
    assert_eq!(reported(&ledger), (Vec::new(), Vec::new()));
}

#[test]
fn requests_that_wait_are_reported_in_order_with_their_places() {
    let mut ledger = RequestTable::new("se_1");
    assert!(!ledger.displace());
    ledger.unqueued(&lock("last", &["x"], Mode::Write), None, None);
    ledger.enqueued(&lock("second", &["x"], Mode::Write), WaitId(20), None);
    ledger.enqueued(&lock("first", &["x"], Mode::Write), WaitId(10), None);
    ledger.enqueued(&lock("gone", &["x"], Mode::Write), WaitId(15), None);
    ledger.mark_released("gone");
    assert!(ledger.displace());
    let waits = |id: &str, ticket: Option<u64>| (id.to_owned(), ticket.map(WaitId));
    let expected = [waits("first", Some(10)), waits("second", Some(20)), waits("last", None)];
    assert_eq!(reported(&ledger).1, expected);
    assert!(ledger.displace() && reported(&ledger).1 == expected, "also by the next leader");
    ledger.enqueued(&lock("last", &["x"], Mode::Write), WaitId(35), None);
    ledger.displace();
    assert_eq!(reported(&ledger).1[2], waits("last", Some(35)));
}

#[test]
fn the_first_place_of_a_request_counts_whether_or_not_it_heard_of_later_ones() {
    let mut ledger = RequestTable::new("se_1");
    let (first, second) = (lock("first", &["x"], Mode::Write), lock("second", &["x"], Mode::Write));
    ledger.enqueued(&first, WaitId(10), None);
    ledger.enqueued(&second, WaitId(20), None);
    assert_eq!(ledger.first_position("first"), Some(WaitId(10)));
    ledger.displace();
    // The first one does not hear where it is in the next epoch.
    ledger.enqueued(&second, WaitId(120), None);
    assert_eq!((ledger.first_position("first"), ledger.first_position("second")), (None, Some(WaitId(20))));
    assert_eq!(ledger.state("second"), Some(RequestState::Waiting(WaitId(120))));
    ledger.displace();
    let waits = |id: &str, ticket: u64| (id.to_owned(), Some(WaitId(ticket)));
    assert_eq!(reported(&ledger).1, [waits("first", 10), waits("second", 20)]);
    assert_eq!(ledger.first_unqueued(9), ["first", "second"]);
    ledger.mark_released("second");
    ledger.enqueued(&second, WaitId(210), None);
    assert_eq!(ledger.first_position("second"), Some(WaitId(210)), "it was given up, and asks anew");
    ledger.clear();
    ledger.enqueued(&first, WaitId(310), Some(WaitId(10)));
    ledger.enqueued(&second, WaitId(320), Some(WaitId(330)));
    assert_eq!(
        (ledger.first_position("first"), ledger.first_position("second")),
        (Some(WaitId(10)), Some(WaitId(320)))
    );
}

#[test]
fn what_is_kept_after_its_connection_is_not_charged_as_waiting() {
    let (held, share) = (DeferredCalls::default(), Share::of(Sharer::Account(AccountId(7))));
    let mut ledger = RequestTable::new("se_1");
    let counted = held.acquire(share, 100).unwrap();
    ledger.unqueued(&lock("a", &["x"], Mode::Write), None, Some(counted));
    assert_eq!(held.used(share.sharer)[0].1, 1);
    ledger.clear_counts();
    assert_eq!(held.used(share.sharer)[0].1, 0);
    assert!(ledger.is_unqueued("a"));
}

#[test]
fn holds_that_a_resumed_client_listed_have_no_known_requests() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted_anew(&lock("a", &["x"], Mode::Write), 5);
    assert!(ledger.knows_requests());
    ledger.add_reported(ReportedHold { path: Path::flat("y"), mode: Mode::Write, fencing_token: 3 });
    assert!(!ledger.knows_requests());
    ledger.remove_hold(&Path::flat("y"), 3);
    assert!(ledger.knows_requests());
}

#[test]
fn a_large_report_has_parts() {
    let mut ledger = RequestTable::new("se_1");
    let long = "p".repeat(200_000);
    for number in 0..5 {
        let path = format!("{long}{number}");
        ledger.granted_anew(&lock(&format!("r{number}"), &[&path], Mode::Write), number);
    }
    ledger.unqueued(&lock("w", &["x"], Mode::Write), None, None);
    let parts = ledger.report(empty_report()).expect("they are not too many");
    let numbers: Vec<_> = parts.iter().map(|part| (part.part, part.parts, part.granted.len())).collect();
    assert_eq!(numbers, [(1, 3, 2), (2, 3, 2), (3, 3, 1)]);
    assert_eq!(parts.iter().map(|part| part.pending.len()).sum::<usize>(), 1);
    assert!(ledger.bytes() > 1_000_000);
    let huge = "p".repeat(600_000);
    for number in 0..64 {
        let path = format!("{huge}{number}");
        ledger.granted_anew(&lock(&format!("h{number}"), &[&path], Mode::Write), number);
    }
    assert!(ledger.report(empty_report()).is_none());
}

#[test]
fn a_session_is_refused_before_it_has_too_much_for_a_report_and_others_are_not() {
    let mut ledger = RequestTable::new("se_1");
    // Of requests of this size, the fewest bytes fit into a part.
    let half = "p".repeat(MAX_PART_BYTES / 2);
    let of_half = |number: u64| lock(&format!("r{number}"), &[&format!("{half}{number}")], Mode::Write);
    let mut number = 0;
    let refused = loop {
        let next = of_half(number);
        if let Err(refused) = ledger.check_bytes(&next) {
            break refused;
        }
        ledger.granted_anew(&next, number);
        number += 1;
    };
    assert_eq!(refused.limit().map(|limit| limit.name), Some("max_table_bytes_of_session"));
    assert!(number > 40, "{number}");
    assert_eq!(ledger.check_bytes(&of_half(0)), Ok(()), "it is a repeat");
    let before = ledger.bytes();
    ledger.granted_anew(&of_half(0), number);
    assert_eq!(ledger.bytes(), before, "it counts once");
    let under_way = (MAX_IN_FLIGHT_BYTES / MAX_PART_BYTES * 2) as u64;
    (number..number + under_way - 1).for_each(|more| ledger.granted_anew(&of_half(more), more));
    assert!(ledger.report(empty_report()).is_some(), "also with what is under way");

    assert_eq!(RequestTable::new("se_2").check_bytes(&of_half(number)), Ok(()), "that of another session");
    for more in number - 1..number + under_way {
        ledger.remove(&format!("r{more}"));
    }
    assert_eq!(ledger.check_bytes(&of_half(number)), Ok(()), "what is released makes room");
    ledger.clear();
    assert_eq!(ledger.bytes(), 0);
}

/// A request with metadata of so many bytes.
fn with_metadata(request_id: &str, bytes: usize) -> Arc<Lock> {
    let metadata = Metadata::from([("k".to_owned(), "m".repeat(bytes))]);
    Arc::new(Lock { metadata, ..Lock::clone(&lock(request_id, &["x", "y"], Mode::Write)) })
}

#[test]
fn a_repeat_with_larger_metadata_adds_nothing_to_what_is_granted() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted_anew(&with_metadata("a", 10), 5);
    let before = ledger.bytes();
    let larger = with_metadata("a", 10_000);
    ledger.granted_anew(&larger, 5);
    ledger.granted(&larger, 5, &[]);
    assert_eq!(ledger.bytes(), before, "its leader keeps what it had, too");
    ledger.mark_released("a");
    ledger.granted_anew(&larger, 9);
    assert!(ledger.bytes() > before + 10_000, "it is another request");
    ledger.granted_anew(&with_metadata("b", 10), 10);
    let with_other = ledger.bytes();
    for path in ["x", "y"] {
        assert!(ledger.remove_hold(&Path::flat(path), 10).is_some());
    }
    ledger.granted_anew(&with_metadata("b", 10_000), 12);
    assert!(ledger.bytes() > with_other + 10_000, "what it had was lost");
}

#[test]
fn a_repeat_of_what_waits_has_its_own_metadata_as_long_as_there_is_room() {
    let mut ledger = RequestTable::new("se_1");
    ledger.enqueued(&with_metadata("a", 10), WaitId(1), None);
    ledger.enqueued(&with_metadata("a", 1_000), WaitId(1), None);
    ledger.granted_anew(&with_metadata("b", MAX_SESSION_TABLE_BYTES as usize), 5);
    let before = ledger.bytes();
    ledger.enqueued(&with_metadata("a", 1_001), WaitId(2), None);
    assert_eq!((ledger.bytes(), ledger.state("a")), (before, Some(RequestState::Waiting(WaitId(2)))));
    let metadata = |ledger: &RequestTable| ledger.lock("a").map(|lock| lock.metadata["k"].len());
    assert_eq!(metadata(&ledger), Some(1_000));
    ledger.enqueued(&with_metadata("a", 900), WaitId(2), None);
    assert_eq!(metadata(&ledger), Some(900), "it takes less");
    assert_eq!(ledger.check_bytes(&with_metadata("a", 2_000)), Ok(()), "a repeat is not refused");
    ledger.mark_released("a");
    assert!(ledger.check_bytes(&with_metadata("a", 2_000)).is_err(), "it is another request");
}

#[test]
fn a_release_that_is_heard_of_late_takes_nothing_of_what_its_thread_was_granted_since() {
    let mut ledger = RequestTable::new("se_1");
    for is_complete in [true, false] {
        ledger.granted_anew(&lock("first", &["x"], Mode::Write), 5);
        // It was granted after the release, and is heard of before.
        ledger.granted_anew(&lock("second", &["x", "y"], Mode::Write), 9);
        if is_complete {
            ledger.released_completely("first");
        } else {
            ledger.released("first", &[view("x", Vec::new(), 0)]);
        }
        assert!(ledger.holds(&Path::flat("x"), 9), "the next leader has to hear of it");
        ledger.released_completely("second");
        assert_eq!(client_view(&ledger), []);
    }
}

#[test]
fn the_index_has_the_claims_of_granted_requests_that_are_not_lost() {
    let mut ledger = RequestTable::new("se_1");
    ledger.granted(&lock("a", &["x", "y"], Mode::Write), 5, &[]);
    ledger.granted(&lock("b", &["x"], Mode::Write), 7, &[]);
    ledger.granted(&lock("a", &["x", "y"], Mode::Write), 5, &[]);
    ledger.enqueued(&lock("c", &["x"], Mode::Write), WaitId(9), None);
    assert_eq!(ledger.claims.len(), 3, "a repeat counts once, and what waits claims nothing");
    assert!(ledger.remove_hold(&Path::flat("x"), 5).is_some());
    assert_eq!(ledger.claims.len(), 1, "both requests of the thread lost it");
    assert!(!ledger.has_or_awaits("b") && ledger.has_or_awaits("a"));
    ledger.granted(&lock("b", &["x"], Mode::Write), 11, &[]);
    ledger.released_completely("a");
    assert_eq!((ledger.claims.len(), client_view(&ledger)), (1, vec![("x".into(), Mode::Write, 11)]));
    assert_eq!(ledger.clear(), ["b", "c"]);
    assert_eq!(ledger.claims.len(), 0);
}
