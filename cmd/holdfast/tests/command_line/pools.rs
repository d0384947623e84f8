//! Pools from the shell.

use holdfast_testkit::RestClient;
use serde_json::json;

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value, values};

#[test]
fn a_pool_that_is_set_again_keeps_what_its_members_are() {
    let name = unique_name("databases");
    value(&["pool", "set", &name, "db-1", "db-2"]);
    value(&["pool", "disable", &name, "db-2"]);
    let set = value(&["pool", "set", &name, "db-1", "db-2", "db-3", "--cooldown", "1s"]);
    assert_eq!((&set["members_total"], &set["free"], &set["cooldown_ms"]), (&3.into(), &2.into(), &1_000.into()));
    assert_eq!(value(&["pool", "get", &name])["members"][1]["disabled"], true, "it was not enabled");
    let set = value(&["pool", "set", &name, "db-2"]);
    assert_eq!((&set["members_total"], &set["free"]), (&1.into(), &0.into()));
}

#[tokio::test]
async fn a_member_with_a_line_break_in_its_name_is_not_taken_for_two() {
    let name = unique_name("databases");
    assert_eq!(call(&["pool", "set", &name, "db-1\ndb-2"]).code, 2, "nobody could tell the lines apart");
    value(&["pool", "set", &name, "db-1"]);
    // By other means there may be one.
    let rest = RestClient::new(server().address(), &server().secret("demo.key"));
    let configure = json!({"name": name, "members": [{"name": "db-1\ndb-2"}]});
    rest.json("POST /v1/namespaces/demo/pools/configure", configure).await.ok();
    let refused = call(&["pool", "run", &name, "--", "echo", "ran"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (1, ""), "{refused:?}");
    assert!(refused.stderr.contains("line break"), "{refused:?}");
    assert_eq!(value(&["pool", "get", &name])["pool"]["in_use"], 0, "it was returned");
}

#[test]
fn a_command_runs_with_members_and_is_told_which() {
    let name = unique_name("databases");
    let configured = value(&["pool", "set", &name, "db-1", "db-2", "db-3"]);
    assert_eq!((&configured["members_total"], &configured["free"]), (&3.into(), &3.into()));
    let script = "echo $HOLDFAST_MEMBERS; cat; exit 7";
    let arguments = ["pool", "run", &name, "--count", "2", "--", "sh", "-c", script];
    let mut running = RunningCall::start(holdfast_at(server(), &arguments));
    assert_eq!(running.read_line(), "db-1 db-2");
    let shown = value(&["pool", "get", &name]);
    assert_eq!((&shown["pool"]["in_use"], &shown["members"][0]["holder"]["holder"]), (&2.into(), &"sh".into()));
    let text = call(&["pool", "get", &name]).stdout;
    assert!(text.starts_with(&format!("{name}: 2 of 3 members in use, 1 free\n  db-1: held by ann@")), "{text}");
    assert!(call(&["pool", "ls"]).stdout.lines().any(|line| line.starts_with(&name) && line.contains("2 of 3")));
    let refused = call(&["pool", "run", &name, "--member", "db-1", "--wait", "0s", "--", "echo", "ran"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (75, ""), "{refused:?}");
    assert!(refused.stderr.contains("no members: "), "{refused:?}");
    assert_eq!(value(&["pool", "disable", &name, "db-3"])["free"], 0);
    assert_eq!(value(&["pool", "enable", &name, "db-3"])["free"], 1);
    running.close_input();
    let (status, said) = running.wait_for_end();
    assert_eq!((status.code(), said.as_str()), (Some(7), ""));
    assert!(values(&["pool", "ls", &name]).iter().all(|pool| pool["name"] == name.as_str() && pool["free"] == 3));
    value(&["pool", "rm", &name]);
    assert_eq!(call(&["pool", "get", &name]).code, 1);
}
