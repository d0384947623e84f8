//! Latches from the shell.

use holdfast_testkit::eventually_blocking;

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value, values};

#[test]
fn jobs_are_counted_once_and_a_wait_says_how_it_ended_by_its_status() {
    let name = unique_name("nightly");
    let made = value(&["latch", "create", &name, "--total", "2", "--description", "all reports"]);
    assert_eq!(
        (&made["status"], &made["total"], &made["description"]),
        (&"ACTIVE".into(), &2.into(), &"all reports".into())
    );
    assert_eq!(value(&["latch", "create", &name, "--total", "2", "--description", "all reports"])["id"], made["id"]);
    assert_eq!(value(&["latch", "done", &name, "--id", "orders", "orders"])["counted"], 1);
    assert_eq!(call(&["latch", "wait", &name, "--wait", "100ms"]).code, 75);
    let shown = call(&["latch", "get", &name]).stdout;
    assert!(shown.contains(&format!("{name} is ACTIVE: 1 of 2 done, ")), "{shown}");
    assert!(call(&["latch", "ls"]).stdout.lines().any(|line| line.starts_with(&name) && line.contains("1 of 2")));
    let mut waiting = RunningCall::start(holdfast_at(server(), &["latch", "wait", &name]));
    eventually_blocking("somebody waits", || value(&["latch", "get", &name])["waiters"] == 1);
    let shown = call(&["latch", "get", &name]).stdout;
    assert!(shown.ends_with(", 1 waiting\n"), "{shown}");
    value(&["latch", "done", &name, "--id", "invoices"]);
    assert_eq!(waiting.read_line(), "COMPLETED");
    let waited = call(&["latch", "wait", &name]);
    assert_eq!((waited.code, waited.stdout.as_str()), (0, "COMPLETED\n"));
    assert_eq!(value(&["latch", "get", &name])["waiters"], 0);
    assert!(values(&["latch", "ls", &name]).iter().all(|latch| latch["status"] == "COMPLETED"));
    value(&["latch", "rm", &name]);
    let gone = call(&["--output", "json", "latch", "wait", &name]);
    assert_eq!(gone.code, 1);
    let error: serde_json::Value = serde_json::from_str(&gone.stderr).unwrap();
    assert_eq!(error["error"]["code"], "PRIMITIVE_NOT_FOUND");
}

#[test]
fn a_latch_of_indexes_that_expires_is_told_by_status_3() {
    let name = unique_name("shards");
    value(&["latch", "create", &name, "--total", "3", "--indexed", "--expires-in", "1s"]);
    assert_eq!(value(&["latch", "done", &name, "--index", "0", "2"])["counted"], 2);
    let waited = call(&["latch", "wait", &name]);
    assert_eq!((waited.code, waited.stdout.as_str()), (3, "EXPIRED\n"));
    let misused = call(&["latch", "done", &name]);
    assert_eq!(misused.code, 2, "{misused:?}");
}
