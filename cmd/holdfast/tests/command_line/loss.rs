//! Commands whose lock is lost, or may be.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::support::{RunningCall, call, holdfast_at, run_to_end, server, start, unique_name};

const TTL: Duration = Duration::from_secs(9);

/// Runs a script under a lock, kills the only gateway, and says how long the script lived and how it ended.
fn run_without_gateway(script: &str) -> (Duration, Option<i32>, String) {
    let server = start();
    let mut running = RunningCall::start(holdfast_at(&server, &["lock", "x", "--ttl", "9s", "--", "sh", "-c", script]));
    assert_eq!(running.read_line(), "ready");
    let began = Instant::now();
    drop(server);
    // It says that it stops, or its output ends with it.
    let last = running.read_line();
    assert!(last.is_empty() || last == "stopping", "{last}");
    let lived = began.elapsed();
    let (status, said) = running.wait_for_end();
    (lived, status.code(), said)
}

#[test]
fn a_command_is_told_to_stop_before_the_lock_can_be_lost() {
    let (lived, code, said) =
        run_without_gateway("trap 'echo stopping; exit 4' TERM; echo ready; while :; do sleep 0.02; done");
    assert_eq!(code, Some(4), "{said}");
    // The lock is certain for two thirds of its time at least, of which the last third is for stopping.
    assert!(lived >= TTL / 4 && lived < TTL - TTL / 6, "{lived:?}");
    assert!(said.contains("the lock may be lost in"), "{said}");
}

#[test]
fn a_command_that_ignores_the_signal_is_killed_when_the_lock_may_be_lost() {
    let (lived, code, said) = run_without_gateway("trap '' TERM; echo ready; while :; do sleep 0.02; done");
    assert_eq!(code, Some(137), "{said}");
    assert!(lived >= TTL / 2 && lived < TTL + TTL / 6, "{lived:?}");
    assert!(said.contains("killing it"), "{said}");
}

#[test]
fn a_command_dies_with_the_program_that_holds_its_lock() {
    let mut running = RunningCall::start(holdfast_at(
        server(),
        &["lock", &unique_name("killed"), "--", "sh", "-c", "echo ready; exec cat"],
    ));
    assert_eq!(running.read_line(), "ready");
    running.signal(Signal::KILL);
    // Its output closes when the last of both is gone; its input is still open.
    assert_eq!(running.read_line(), "");
}

#[test]
fn a_command_whose_lock_is_forced_open_is_stopped() {
    let name = unique_name("forced");
    let script = "trap 'exit 4' TERM; echo ready; while :; do sleep 0.02; done";
    let mut running = RunningCall::start(holdfast_at(server(), &["lock", &name, "--", "sh", "-c", script]));
    assert_eq!(running.read_line(), "ready");
    assert_eq!(call(&["unlock", &name, "--force"]).code, 0);
    let (status, said) = running.wait_for_end();
    assert_eq!(status.code(), Some(4));
    assert!(said.contains("the lock is lost: the lock was forced open"), "{said}");
}

/// With a command and without.
#[test]
fn without_a_gateway_a_bounded_wait_ends_with_75() {
    for (wait, command) in [("200ms", &["--", "echo", "ran"][..]), ("200ms", &[]), ("0s", &[])] {
        let mut command = holdfast_at(server(), &[&["lock", "x", "--wait", wait], command].concat());
        command.env("HOLDFAST_URL", "http://127.0.0.1:1");
        let began = Instant::now();
        let done = run_to_end(command);
        assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
        assert!(done.stderr.contains("no gateway can be reached"), "{done:?}");
        assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());
    }
}
