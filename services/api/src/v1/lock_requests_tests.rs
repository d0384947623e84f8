use super::*;

fn parse_name(name: Option<&str>, path: &[&str], whole: bool) -> Result<LockName, String> {
    let path = path.iter().map(|&segment| segment.to_owned()).collect();
    lock_name((name.map(str::to_owned), path, whole)).map_err(|error| error.ids[0].1.clone())
}

fn segments(path: &[&str]) -> LockName {
    LockName::Path(path.iter().map(|&segment| segment.to_owned()).collect())
}

#[test]
fn a_lock_is_named_in_exactly_one_way() {
    assert_eq!(parse_name(Some("a/b"), &[], false).unwrap(), LockName::from("a/b"));
    assert_eq!(parse_name(None, &["a", "b"], false).unwrap(), segments(&["a", "b"]));
    assert_eq!(parse_name(None, &[], true).unwrap(), segments(&[]));
    assert_eq!(parse_name(Some("a"), &["a"], false).unwrap_err(), "path");
    assert_eq!(parse_name(None, &[], false).unwrap_err(), "name");
    assert_eq!(parse_name(Some("a"), &[], true).unwrap_err(), "whole_namespace");
    assert_eq!(parse_name(None, &["a"], true).unwrap_err(), "whole_namespace");
}

#[test]
fn an_unknown_mode_is_refused_by_name() {
    let message = v1::AcquireLockRequest { name: Some("l".into()), mode: 9, ..Default::default() };
    assert_eq!(acquire(message).unwrap_err().ids, [("field", "mode".to_owned())]);
    let resources = vec![v1::Resource::default(), v1::Resource { mode: -1, ..Default::default() }];
    let message = v1::AcquireLocksRequest { resources, ..Default::default() };
    assert_eq!(acquire_set(message).unwrap_err().ids, [("field", "resources[1].mode".to_owned())]);
}

#[test]
fn an_acquire_keeps_everything_it_was_asked_and_is_for_writing_unless_it_says_otherwise() {
    let message = v1::AcquireLockRequest {
        name: Some("l".into()),
        session_id: Some("se_1".into()),
        holder: Some("h".into()),
        wait_ms: 7,
        poll_ms: Some(3),
        transition_ms: 5,
        allow_upgrade: true,
        ..Default::default()
    };
    let asked = acquire(message).unwrap();
    assert_eq!(asked.mode, Mode::Write);
    assert_eq!((asked.owner.session_id.as_deref(), asked.owner.holder.as_deref()), (Some("se_1"), Some("h")));
    let terms = asked.terms;
    assert_eq!((terms.wait_ms, terms.poll_ms, terms.transition_ms, terms.allow_upgrade), (7, Some(3), 5, true));
}

#[test]
fn a_set_keeps_its_resources_in_order_and_its_name() {
    let resource = |segment: &str, mode: v1::Mode| v1::Resource { path: vec![segment.into()], mode: mode.into() };
    let message = v1::AcquireLocksRequest {
        resources: vec![resource("b", v1::Mode::Read), resource("a", v1::Mode::Write)],
        process_id: Some("p".into()),
        request_id: Some("r".into()),
        ..Default::default()
    };
    let asked = acquire_set(message).unwrap();
    let paths: Vec<_> = asked.resources.iter().map(|resource| (resource.path[0].as_str(), resource.mode)).collect();
    assert_eq!(paths, [("b", Mode::Read), ("a", Mode::Write)]);
    assert_eq!((asked.owner, asked.request_id.as_deref()), (OwnerFields::process("p"), Some("r")));
}

#[test]
fn a_release_of_no_paths_names_none() {
    assert_eq!(release_set(v1::ReleaseLocksRequest { all: true, ..Default::default() }).paths, None);
    let resources = vec![v1::ToRelease { path: Vec::new() }];
    let one = release_set(v1::ReleaseLocksRequest { resources, ..Default::default() });
    assert_eq!(one.paths, Some(vec![Vec::<String>::new()]));
}

#[test]
fn a_reset_says_who_stays() {
    assert_eq!(reset(v1::ResetNamespaceRequest::default()).unwrap_err().ids, [("field", "live_owners".to_owned())]);
    let live_owners = Some(v1::Owners { ids: Vec::new() });
    let everything = reset(v1::ResetNamespaceRequest { live_owners, ..Default::default() }).unwrap();
    assert!(everything.live_owners.is_empty() && everything.before_revision.is_none());
}
