//! Commands under a lock.

use rustix::process::Signal;

use crate::support::{RunningCall, call, hold_lock, holdfast_at, server, unique_name, value, wait_for_waiting};

#[test]
fn a_command_runs_under_the_lock_with_its_token_and_its_status_is_passed_on() {
    let name = unique_name("run");
    let mut running = RunningCall::start(holdfast_at(
        server(),
        &["lock", &name, "--", "sh", "-c", "echo $HOLDFAST_FENCING_TOKEN; cat; exit 7"],
    ));
    let token: u64 = running.read_line().parse().unwrap();
    let lock = value(&["get", &name]);
    assert_eq!(lock["state"], "WRITE_LOCKED");
    assert_eq!(lock["write_lock_holder"]["fencing_token"], token);
    assert_eq!(lock["write_lock_holder"]["holder"], "sh");
    assert!(lock["write_lock_holder"]["process_id"].as_str().unwrap().starts_with("ann@"));
    running.close_input();
    let (status, said) = running.wait_for_end();
    assert_eq!((status.code(), said.as_str()), (Some(7), ""));
    assert_eq!(value(&["get", &name])["state"], "UNLOCKED", "it is free when the program has ended");
}

#[test]
fn a_lock_that_is_not_got_is_exit_status_75_and_says_who_has_it() {
    let name = unique_name("taken");
    let _holder = hold_lock(&name);
    for wait in ["0s", "300ms"] {
        let done = call(&["lock", &name, "--wait", wait, "--", "echo", "ran"]);
        assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
        assert!(done.stderr.contains("not locked: the ") && done.stderr.contains("was not granted"), "{done:?}");
        assert!(done.stderr.contains("ann@"), "{done:?}");
    }
    assert_eq!(value(&["get", &name])["waiting"], 0);
}

#[test]
fn whoever_waits_is_told_who_holds_the_lock_and_gets_it_next() {
    let name = unique_name("queue");
    let mut holder = hold_lock(&name);
    let mut next = RunningCall::start(holdfast_at(server(), &["lock", &name, "--wait", "1m", "--", "echo", "mine"]));
    wait_for_waiting(&name, 1);
    holder.close_input();
    assert_eq!(next.read_line(), "mine");
    let (status, said) = next.wait_for_end();
    assert!(status.success());
    assert!(said.contains(&format!("waiting for {name}: ann@")), "{said}");
    assert!(said.contains("(sh) holds it since 20") && said.contains("next in the queue"), "{said}");
}

#[test]
fn an_interrupt_while_waiting_leaves_the_queue() {
    let name = unique_name("interrupted");
    let _holder = hold_lock(&name);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let waiting = RunningCall::start(holdfast_at(server(), &["lock", &name, "--", "echo", "ran"]));
        wait_for_waiting(&name, 1);
        waiting.signal(signal);
        assert_eq!(waiting.wait_for_end().0.code(), Some(code));
        assert_eq!(value(&["get", &name])["waiting"], 0, "the place is free when the program has ended");
    }
}

#[test]
fn signals_are_passed_on_and_the_status_is_that_of_the_command() {
    for (signal, code) in [(Signal::USR1, 9), (Signal::INT, 8)] {
        let script = "trap 'exit 9' USR1; trap 'exit 8' INT; echo ready; while :; do sleep 0.02; done";
        let mut running =
            RunningCall::start(holdfast_at(server(), &["lock", &unique_name("signal"), "--", "sh", "-c", script]));
        assert_eq!(running.read_line(), "ready");
        running.signal(signal);
        assert_eq!(running.wait_for_end().0.code(), Some(code));
    }
    let mut running = RunningCall::start(holdfast_at(
        server(),
        &["lock", &unique_name("signal"), "--", "sh", "-c", "echo ready; cat"],
    ));
    assert_eq!(running.read_line(), "ready");
    running.signal(Signal::TERM);
    assert_eq!(running.wait_for_end().0.code(), Some(143), "as a shell says of what a signal ended");
}

#[test]
fn readers_run_together_and_a_writer_does_not() {
    let name = unique_name("readers");
    let start = || {
        let arguments = ["lock", &name, "--read", "--", "sh", "-c", "echo locked; cat"];
        let mut running = RunningCall::start(holdfast_at(server(), &arguments));
        assert_eq!(running.read_line(), "locked");
        running
    };
    let (_one, _other) = (start(), start());
    assert_eq!(value(&["get", &name])["holders_total"], 2);
    assert_eq!(call(&["lock", &name, "--wait", "0s", "--", "true"]).code, 75);
}

#[test]
fn a_command_that_cannot_be_run_frees_the_lock() {
    let name = unique_name("missing");
    assert_eq!(call(&["lock", &name, "--", "no-such-program-anywhere"]).code, 127);
    assert_eq!(call(&["lock", &name, "--", "/"]).code, 126);
    assert_eq!(value(&["get", &name])["state"], "UNLOCKED");
}

#[test]
fn an_owner_is_for_locks_without_a_command_and_does_no_harm_as_a_variable() {
    let name = unique_name("owner");
    let done = call(&["lock", &name, "--owner", "me", "--", "true"]);
    assert_eq!(done.code, 2, "{done:?}");
    assert!(done.stderr.contains("--owner goes without a command"), "{done:?}");
    let mut command = holdfast_at(server(), &["lock", &name, "--", "true"]);
    command.env("HOLDFAST_OWNER", "me");
    assert_eq!(crate::support::run_to_end(command).code, 0);
}
