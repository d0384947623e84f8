//! Asking holders to release, and what a command that runs under a lock notices of it.

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value};

#[test]
fn a_command_is_signalled_when_somebody_asks_for_its_lock() {
    let name = unique_name("asked");
    let script = "trap 'echo finishing; exit 4' USR1; echo ready; while :; do sleep 0.02; done";
    let mut command = holdfast_at(server(), &["lock", &name, "--", "sh", "-c", script]);
    command.env("HOLDFAST_RELEASE_SIGNAL", "SIGUSR1");
    let mut running = RunningCall::start(command);
    assert_eq!(running.read_line(), "ready");
    let asked = value(&["ask", &name, "--reason", "a correction", "--within", "1m"]);
    assert_eq!((&asked["asked"], &asked["truncated"]), (&1.into(), &false.into()), "{asked}");
    let request = &asked["lock"]["write_lock_holder"]["release_requested"];
    assert_eq!((&request["reason"], &request["within_ms"]), (&"a correction".into(), &60_000.into()), "{asked}");
    assert_eq!(running.read_line(), "finishing");
    let (status, said) = running.wait_for_end();
    assert_eq!(status.code(), Some(4), "{said}");
    assert!(said.contains("asks for the lock: a correction"), "{said}");
    assert_eq!(value(&["ask", &name])["asked"], 0, "nobody holds it any more");
}

#[test]
fn force_stops_the_command_when_the_time_is_over() {
    let name = unique_name("forced");
    let script = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = RunningCall::start(holdfast_at(server(), &["lock", &name, "--", "sh", "-c", script]));
    assert_eq!(running.read_line(), "ready");
    assert_eq!(value(&["ask", &name, "--within", "200ms", "--force"])["asked"], 1);
    let (status, said) = running.wait_for_end();
    assert_eq!(status.code(), Some(4), "{said}");
}

#[test]
fn what_holders_were_asked_is_shown_with_them() {
    let name = unique_name("shown");
    value(&["lock", &name, "--owner", "me"]);
    let done = call(&["ask", &name, "--reason", "a correction"]);
    assert_eq!((done.code, done.stdout.as_str()), (0, format!("1 holder of {name} is asked\n").as_str()), "{done:?}");
    let shown = call(&["get", &name]);
    assert!(shown.stdout.contains(": a correction"), "{shown:?}");
    assert_eq!(call(&["ask", &name, "--member", "db-1"]).code, 2, "only pools have members");
    assert_eq!(call(&["ask", &unique_name("none"), "--kind", "pool"]).code, 1);
}

#[test]
fn a_lock_is_kept_from_others_for_its_least_time() {
    let name = unique_name("least");
    value(&["lock", &name, "--owner", "me", "--at-least", "1m"]);
    assert_eq!(value(&["unlock", &name, "--owner", "me"])["released"], true);
    assert_eq!(call(&["lock", &name, "--owner", "other", "--wait", "0s"]).code, 75);
    let again = value(&["lock", &name, "--owner", "me"]);
    assert_eq!(again["lock"]["write_lock_holder"]["phase"], "HELD");
}
