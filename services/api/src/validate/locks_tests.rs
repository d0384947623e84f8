use holdfast_types::{MAX_NAME_BYTES, Mode};

use super::*;
use crate::validate::tests::{NOW, assert_invalid};

fn fields(process_id: Option<&str>, session_id: Option<&str>, holder: Option<&str>) -> OwnerFields {
    let text = |given: Option<&str>| given.map(str::to_owned);
    OwnerFields { process_id: text(process_id), session_id: text(session_id), holder: text(holder) }
}

fn segments(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|&text| text.to_owned()).collect()
}

fn session() -> Owner {
    Owner::Session { session_id: "se_1".into(), holder: None }
}

#[test]
fn an_owner_is_a_process_or_a_session_with_an_optional_holder() {
    assert_eq!(owner(&fields(Some("p"), None, None)).unwrap(), Owner::Process("p".into()));
    assert_eq!(owner(&fields(None, Some("se_1"), None)).unwrap(), session());
    let thread = Owner::Session { session_id: "se_1".into(), holder: Some("h".into()) };
    assert_eq!(owner(&fields(None, Some("se_1"), Some("h"))).unwrap(), thread);
}

#[test]
fn owners_that_are_none_are_refused_by_the_field_that_is_wrong() {
    let long = "x".repeat(MAX_NAME_BYTES + 1);
    for (given, field) in [
        (fields(None, None, None), "process_id"),
        (fields(Some(""), None, None), "process_id"),
        (fields(Some("se_1"), None, None), "process_id"),
        (fields(Some("p"), Some("se_1"), None), "session_id"),
        (fields(None, Some("p"), None), "session_id"),
        (fields(None, Some(""), None), "session_id"),
        (fields(Some("p"), None, Some("h")), "holder"),
        (fields(None, None, Some("h")), "holder"),
        (fields(None, Some("se_1"), Some("")), "holder"),
        (fields(None, Some("se_1"), Some(&long)), "holder"),
        (fields(None, Some("se_1"), Some("a\0b")), "holder"),
    ] {
        assert_invalid(owner(&given), field);
    }
}

#[test]
fn a_path_is_as_deep_as_the_limit_and_may_be_empty() {
    assert_eq!(path("path", &[], 2).unwrap(), Path::default());
    assert_eq!(path("path", &segments(&["a", ".."]), 2).unwrap(), Path(segments(&["a", ".."])));
    for bad in [["a", "b", "c"].as_slice(), &["a", ""], &["a\0"]] {
        assert_invalid(path("path", &segments(bad), 2), "path");
    }
}

#[test]
fn a_lowered_limit_keeps_nobody_from_what_was_taken_before() {
    let limits = Limits { max_path_depth: 1, max_claims_per_request: 1, ..Limits::default() };
    let deep = LockName::Path(segments(&["a", "b"]));
    assert_invalid(new_lock(&deep, &limits), "path");
    existing_lock(&deep, &limits).unwrap();
    paths_to_release(&[segments(&["a", "b"]), segments(&["c"])], &limits).unwrap();
    assert_invalid(existing_lock(&LockName::Path(vec!["s".to_owned(); 17]), &limits), "path");
    assert_invalid(new_lock(&LockName::from(""), &limits), "name");
}

#[test]
fn a_set_has_as_many_resources_as_the_limit_allows_and_at_least_one() {
    let limits = Limits { max_claims_per_request: 2, max_path_depth: 2, ..Limits::default() };
    let resource = |path: &[&str]| Resource { path: segments(path), mode: Mode::Read };
    let two = claims(&[resource(&["a"]), resource(&[])], &limits).unwrap();
    assert_eq!(two[1], Claim { path: Path::default(), mode: Mode::Read });
    assert_invalid(claims(&[], &limits), "resources");
    assert_invalid(claims(&[resource(&["a"]), resource(&["b"]), resource(&["c"])], &limits), "resources");
    assert_invalid(claims(&[resource(&["a"]), resource(&["a", "b", "c"])], &limits), "resources[1].path");
    assert_invalid(claims(&[resource(&[""])], &limits), "resources[0].path");
    assert_invalid(paths_to_release(&[], &limits), "resources");
    assert_invalid(paths_to_release(&[segments(&["a"]), segments(&[""])], &limits), "resources[1].path");
}

#[test]
fn a_process_says_how_long_it_holds_and_a_session_does_not() {
    let limits = Limits::default();
    let process = Owner::Process("p".into());
    let ttl = Terms { ttl_ms: Some(1_000), ..Terms::default() };
    let instant = Terms { expires_at: Some(NOW + time::Duration::seconds(1)), ..Terms::default() };
    assert_eq!(hold_ms(&process, &ttl, &limits, NOW).unwrap(), Some(1_000));
    assert_eq!(hold_ms(&process, &instant, &limits, NOW).unwrap(), Some(1_000));
    assert_eq!(hold_ms(&session(), &Terms::default(), &limits, NOW).unwrap(), None);
    assert_invalid(hold_ms(&process, &Terms::default(), &limits, NOW), "ttl_ms");
    assert_invalid(hold_ms(&session(), &ttl, &limits, NOW), "ttl_ms");
    assert_invalid(hold_ms(&session(), &instant, &limits, NOW), "expires_at");
}

#[test]
fn a_wait_is_bounded_by_the_limit_and_needs_a_duration_to_hold() {
    let limits = Limits { max_wait_ms: 100, ..Limits::default() };
    let waits = |wait_ms, poll_ms| Terms { wait_ms, poll_ms, ..Terms::default() };
    assert_eq!(wait_options(&waits(0, None), &limits).unwrap(), None);
    assert_eq!(wait_options(&waits(0, Some(5)), &limits).unwrap(), None);
    let expected = WaitOptions { wait_ms: 100, poll: Some(Duration::from_millis(5)) };
    assert_eq!(wait_options(&waits(100, Some(5)), &limits).unwrap(), Some(expected));
    assert_invalid(wait_options(&waits(101, None), &limits), "wait_ms");
    assert_invalid(wait_options(&waits(u64::MAX, None), &limits), "wait_ms");
    assert_invalid(wait_options(&waits(1, Some(0)), &limits), "poll_ms");
    assert_invalid(wait_options(&waits(0, Some(0)), &limits), "poll_ms");
    let until = Terms { expires_at: Some(NOW + time::Duration::seconds(1)), ..waits(1, None) };
    assert_invalid(wait_options(&until, &limits), "expires_at");
}

#[test]
fn an_extension_and_a_change_of_mode_are_about_one_claim() {
    let extends = Terms { fencing_token: Some(7), ..Terms::default() };
    let upgrades = Terms { allow_upgrade: true, ..Terms::default() };
    combination(&extends, 1).unwrap();
    combination(&upgrades, 1).unwrap();
    combination(&Terms { wait_ms: 5, ..upgrades.clone() }, 1).unwrap();
    assert_invalid(combination(&upgrades, 2), "allow_upgrade");
    assert_invalid(combination(&extends, 2), "fencing_token");
    assert_invalid(combination(&Terms { wait_ms: 5, ..extends.clone() }, 1), "fencing_token");
    assert_invalid(combination(&Terms { allow_upgrade: true, ..extends }, 1), "fencing_token");
}

#[test]
fn the_owners_that_a_reset_spares_are_names() {
    live_owners(&segments(&["se_1", "p", ".."])).unwrap();
    live_owners(&[]).unwrap();
    assert_invalid(live_owners(&segments(&["p", ""])), "live_owners[1]");
    assert_invalid(request_id(""), "request_id");
}

#[test]
fn a_least_time_is_within_the_longest_time_to_live_unless_it_may_have_been_granted() {
    let limits = Limits { max_ttl_ms: 1_000, ..Limits::default() };
    assert!(at_least_ms(1_000, &limits).is_ok());
    assert_invalid(at_least_ms(1_001, &limits), "at_least_ms");
    assert_eq!(repeated_at_least_ms(1_001, &limits), 1_001);
    assert_eq!(repeated_at_least_ms(u64::MAX, &limits), Limits::default().max_ttl_ms);
}
