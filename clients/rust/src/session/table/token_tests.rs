//! The tokens of paths that several requests of one owner have.

use holdfast_proto::v1::server_message::state::Value;

use super::tests::{acquired, granted, sent, state};
use super::*;

/// The held paths that are listed on a new connection, with their tokens.
fn listed(table: &mut RequestTable) -> Vec<(String, u64)> {
    let held = table.lock_info().remove(0).held.into_iter();
    let mut held: Vec<_> = held.map(|held| (held.path.join("/"), held.fencing_token)).collect();
    held.sort_unstable();
    held
}

fn for_paths(owner: &str, paths: &[&str]) -> LockRequest {
    let claims = paths.iter().map(|path| Claim { path: (*path).into(), mode: Mode::Write });
    LockRequest { reentrant: true, ..LockRequest::new(Some(owner.into()), claims, 0).unwrap() }
}

#[test]
fn a_path_of_two_requests_is_listed_under_the_token_of_the_first_grant_whichever_is_heard_of_first() {
    let mut table = RequestTable::default();
    table.request(for_paths("a", &["x"]), 1).unwrap();
    table.request(for_paths("a", &["x", "y"]), 2).unwrap();
    sent(&mut table);
    table.on_state(acquired("r2", 9));
    assert_eq!(listed(&mut table), [("x".to_owned(), 9), ("y".to_owned(), 9)]);
    let effects = table.on_state(acquired("r1", 5));
    assert_eq!(granted(&effects), [(1, 5)]);
    assert_eq!(listed(&mut table), [("x".to_owned(), 5), ("y".to_owned(), 9)]);
}

#[test]
fn a_request_that_is_granted_nothing_new_changes_no_token() {
    let mut table = RequestTable::default();
    for (paths, waiter) in [(&["x"][..], 1), (&["y"], 2), (&["x", "y"], 3)] {
        table.request(for_paths("a", paths), waiter).unwrap();
    }
    sent(&mut table);
    // The last one names the token of its first path.
    for (id, token) in [("r1", 5), ("r2", 9), ("r3", 5)] {
        table.on_state(acquired(id, token));
    }
    assert_eq!(listed(&mut table), [("x".to_owned(), 5), ("y".to_owned(), 9)]);
}

#[test]
fn what_a_request_shares_with_one_that_is_given_up_after_it_keeps_its_token() {
    for is_immediate in [true, false] {
        let mut table = RequestTable::default();
        table.request(for_paths("a", &["x"]), 1).unwrap();
        sent(&mut table);
        table.on_state(acquired("r1", 5));
        table.request(for_paths("a", &["x", "y"]), 2).unwrap();
        table.release(1, None);
        assert_eq!(sent(&mut table), ["lock r2", "release r1"]);
        if !is_immediate {
            table.on_state(state("r2", Value::Enqueued, None));
            table.on_state(state("r1", Value::Ready, None));
        }
        table.on_state(acquired("r2", 9));
        let of_first = if is_immediate { 5 } else { 9 };
        assert_eq!(listed(&mut table), [("x".to_owned(), of_first), ("y".to_owned(), 9)]);
        table.on_state(state("r1", Value::Ready, None));
        assert!(table.given_up.is_empty());
    }
}

#[test]
fn the_token_of_a_request_for_one_path_is_that_of_the_path() {
    let mut table = RequestTable::default();
    table.request(for_paths("a", &["x"]), 1).unwrap();
    table.request(for_paths("a", &["a", "x"]), 2).unwrap();
    sent(&mut table);
    // It was granted nothing new, and names the token of its first path.
    table.on_state(acquired("r2", 5));
    table.on_state(acquired("r1", 9));
    assert_eq!(listed(&mut table), [("a".to_owned(), 5), ("x".to_owned(), 9)]);
    table.release(1, None);
    table.release(2, None);
    // Whether the service has ended them is not known.
    table.on_error("r2", "DEADLINE_EXCEEDED", "");
    assert!(table.given_up.is_empty());
    table.request(for_paths("a", &["a", "x"]), 3).unwrap();
    table.on_state(acquired("r3", 11));
    assert_eq!(listed(&mut table), [("a".to_owned(), 11), ("x".to_owned(), 11)]);
}
