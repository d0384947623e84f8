//! Everything but locking.

use std::fs;

use holdfast_testkit::scratch;

use crate::support::{RunningCall, call, hold_lock, holdfast_at, run_to_end, server, unique_name, value, values};

#[test]
fn whoever_says_nothing_sees_what_can_be_said() {
    let told = call(&[]);
    assert_eq!((told.code, told.stdout.as_str()), (2, ""));
    assert!(told.stderr.contains("watch") && told.stderr.contains("--output"), "{told:?}");
    assert!(!told.stderr.contains("leash"), "{told:?}");
}

#[test]
fn held_locks_are_listed_and_shown() {
    let name = unique_name("shown");
    let mut holder = hold_lock(&name);
    assert!(values(&["ls"]).iter().any(|lock| lock["name"] == name.as_str()));
    assert!(values(&["ls", &name]).iter().all(|lock| lock["name"] == name.as_str()));
    let told = call(&["ls"]).stdout;
    assert!(told.starts_with("LOCK") && told.contains(&name), "{told}");
    let told = call(&["get", &name]).stdout;
    assert!(told.contains("WRITE_LOCKED") && told.contains("as long as session se_"), "{told}");
    // Sessions of other tests come and go.
    let lock = value(&["get", &name]);
    let id = lock["write_lock_holder"]["session_id"].as_str().unwrap();
    let sessions = values(&["sessions"]);
    let session = sessions.iter().find(|session| session["session_id"] == id).expect("it has a session");
    assert_eq!(session["metadata"]["command"], "sh");
    assert_eq!(value(&["sessions", id])["session_id"], id);
    holder.close_input();
}

#[test]
fn the_use_of_limits_is_shown() {
    let mut holder = hold_lock(&unique_name("used"));
    let limits = values(&["usage"]);
    let holds = limits.iter().find(|limit| limit["limit"] == "max_holds_per_namespace").expect("it is a limit");
    assert!(holds["used"].as_u64() > Some(0) && holds["max"] == 1_000_000, "{holds}");
    let told = call(&["usage"]).stdout;
    assert!(told.starts_with("LIMIT") && told.contains("max_holds_per_namespace"), "{told}");
    assert!(!told.contains("max_tangle"), "nothing is used of it: {told}");
    holder.close_input();
}

#[test]
fn a_session_that_is_ended_takes_its_command_along() {
    let name = unique_name("ended");
    let holder = hold_lock(&name);
    let lock = value(&["get", &name]);
    let id = lock["write_lock_holder"]["session_id"].as_str().unwrap();
    value(&["sessions", id, "--end"]);
    let (status, said) = holder.wait_for_end();
    assert_eq!(status.code(), Some(143), "{said}");
}

#[test]
fn a_tree_of_locks_is_named_by_paths() {
    let top = unique_name("user");
    let path = format!("{top}/ann");
    value(&["lock", &path, "--path", "--owner", "me"]);
    assert_eq!(value(&["get", &path, "--path"])["path"], serde_json::json!([top, "ann"]));
    assert_eq!(value(&["get", &path])["state"], "UNLOCKED", "a name is one segment");
    let done = call(&["lock", &top, "--wait", "0s"]);
    assert_eq!(done.code, 75);
    assert!(done.stderr.contains("below it"), "{done:?}");
    value(&["unlock", &path, "--path", "--owner", "me"]);
}

#[test]
fn namespaces_are_made_shown_changed_and_deleted() {
    let name = unique_name("namespace");
    let made = value(&["namespace", "create", &name, "--description", "first"]);
    assert_eq!(value(&["namespace", "get", &name]), made);
    assert_eq!(value(&["namespace", "update", &name, "--description", "second"])["description"], "second");
    assert!(values(&["namespace", "ls"]).iter().any(|namespace| namespace["name"] == name.as_str()));
    let done = call(&["--output", "json", "namespace", "create", &name]);
    assert_eq!(done.code, 1);
    let error: serde_json::Value = serde_json::from_str(&done.stderr).unwrap();
    assert_eq!(error["error"]["code"], "ALREADY_EXISTS");
    value(&["namespace", "delete", &name]);
    assert_eq!(call(&["namespace", "get", &name]).code, 1);
}

#[test]
fn a_namespace_whose_locks_are_in_memory_is_shown_with_its_table() {
    let name = unique_name("soft");
    let made = value(&["namespace", "create", &name, "--durability", "session"]);
    assert_eq!((&made["durability"], &made["table"]), (&"SESSION".into(), &serde_json::Value::Null));
    let table = value(&["namespace", "get", &name])["table"].clone();
    assert_eq!((&table["missing"], &table["waiting_for"]), (&0.into(), &serde_json::json!([])), "{table}");
    let told = call(&["namespace", "get", &name]).stdout;
    assert!(told.contains(", SESSION, created") && told.contains("\nlock table "), "{told}");
    value(&["namespace", "delete", &name]);
}

#[test]
fn keys_are_made_used_and_revoked() {
    let made = value(&["key", "create", "--scope", "locks:read", "--expires-in", "1h", "--description", "reader"]);
    let (id, key) = (made["key_id"].as_str().unwrap(), made["api_key"].as_str().unwrap());
    let with = |arguments: &[&str]| {
        let mut command = holdfast_at(server(), arguments);
        command.env("HOLDFAST_API_KEY", key);
        run_to_end(command)
    };
    assert_eq!(with(&["ls"]).code, 0);
    assert_eq!(with(&["lock", "x", "--", "true"]).code, 1);
    let listed = values(&["key", "ls"]);
    let listed = listed.iter().find(|listed| listed["key_id"] == id).expect("it is listed");
    assert!(listed.get("api_key").is_none() && listed["expires_at"].is_string());
    value(&["key", "delete", id]);
    assert_eq!(with(&["ls"]).code, 1);
}

#[test]
fn events_are_printed_as_they_happen() {
    let name = unique_name("watched");
    let first = value(&["lock", &name, "--owner", "me"])["fencing_token"].as_u64().unwrap();
    let from = first.to_string();
    let mut watching =
        RunningCall::start(holdfast_at(server(), &["watch", &name, "--from", &from, "--output", "json"]));
    let mut next = || serde_json::from_str::<serde_json::Value>(&watching.read_line()).unwrap();
    let event = next();
    assert_eq!((&event["type"], &event["revision"]), (&"ACQUIRED".into(), &first.into()));
    value(&["unlock", &name, "--owner", "me"]);
    let event = next();
    assert_eq!((&event["type"], &event["process_id"]), (&"RELEASED".into(), &"me".into()));
}

#[test]
fn status_says_which_gateways_serve() {
    let serving = format!("http://{}", server().address());
    let mut command = holdfast_at(server(), &["status", "--output", "json"]);
    command.env("HOLDFAST_URL", format!("http://127.0.0.1:1, {serving}"));
    let told = run_to_end(command);
    let lines: Vec<serde_json::Value> = told.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!((told.code, &lines[0]["serves"], &lines[1]["serves"]), (0, &false.into(), &true.into()));
    let mut command = holdfast_at(server(), &["status"]);
    command.env("HOLDFAST_API_KEY", "hf_nobody_nothing");
    let told = run_to_end(command);
    assert_eq!(told.code, 1);
    assert!(told.stdout.contains("UNAUTHENTICATED"), "{told:?}");
}

#[test]
fn a_profile_says_what_flags_and_variables_do_not() {
    let config = scratch().with_extension("toml");
    fs::create_dir_all(config.parent().unwrap()).unwrap();
    let (url, key) = (format!("http://{}", server().address()), server().secret("demo.key"));
    let text = format!(
        "default_profile = 'here'\n[profiles.here]\nurl = '{url}'\napi_key = '{key}'\nnamespace = 'demo'\n\
         [profiles.nowhere]\nurl = 'http://127.0.0.1:1'\n"
    );
    fs::write(&config, text).unwrap();
    let with = |arguments: &[&str]| {
        let mut command = holdfast_at(server(), arguments);
        command.env_clear().env("HOLDFAST_CONFIG", &config);
        run_to_end(command)
    };
    assert_eq!(with(&["get", "x"]).code, 0);
    let told = with(&["get", "x", "--profile", "nowhere"]);
    assert!(told.stderr.contains("no API key"), "{told:?}");
    let told = with(&["get", "x", "--profile", "other"]);
    assert!(told.stderr.contains("there are: here, nowhere"), "{told:?}");
    let told = with(&["get", "x", "--namespace", "unknown"]);
    assert!(told.stderr.contains("namespace not found"), "{told:?}");
}
