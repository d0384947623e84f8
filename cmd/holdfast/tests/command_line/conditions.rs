//! Conditions of a lock from the shell.

use std::time::{Duration, Instant};

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value};

/// Signals until somebody was woken.
fn wait_until_woken(arguments: &[&str]) -> u64 {
    let began = Instant::now();
    loop {
        let signalled = value(arguments)["signalled"].as_u64().unwrap();
        if signalled > 0 {
            return signalled;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nobody awaits it");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_command_runs_with_the_lock_after_a_signal() {
    let name = unique_name("signalled");
    let script = "echo $HOLDFAST_FENCING_TOKEN; cat; exit 7";
    let arguments = ["wait-for", &name, "--condition", "news", "--wait", "1m", "--", "sh", "-c", script];
    let mut running = RunningCall::start(holdfast_at(server(), &arguments));
    assert_eq!(wait_until_woken(&["signal", &name, "--condition", "news"]), 1);
    let token: u64 = running.read_line().parse().unwrap();
    let lock = value(&["get", &name]);
    assert_eq!((&lock["state"], &lock["write_lock_holder"]["fencing_token"]), (&"WRITE_LOCKED".into(), &token.into()));
    let refused = call(&["signal", &name, "--condition", "news", "--wait", "0s"]);
    assert_eq!((refused.code, refused.stdout.as_str()), (75, ""), "{refused:?}");
    assert!(refused.stderr.contains("not locked: "), "{refused:?}");
    running.close_input();
    let (status, said) = running.wait_for_end();
    assert_eq!(status.code(), Some(7));
    assert!(said.contains(&format!("awaiting a signal at {name}")), "{said}");
    assert_eq!(value(&["get", &name])["state"], "UNLOCKED");
}

#[test]
fn all_that_await_run_one_after_the_other() {
    let name = unique_name("all");
    let start = || RunningCall::start(holdfast_at(server(), &["wait-for", &name, "--", "echo", "ran"]));
    let running = [start(), start()];
    let mut woken = 0;
    while woken < 2 {
        woken += wait_until_woken(&["signal", &name, "--all"]);
    }
    for mut call in running {
        assert_eq!(call.read_line(), "ran");
        assert!(call.wait_for_end().0.success());
    }
    assert_eq!(call(&["signal", &name]).stdout, "nobody awaits it\n");
}

#[test]
fn what_is_not_signalled_in_time_is_exit_status_75_and_leaves_nothing() {
    let name = unique_name("silent");
    let done = call(&["wait-for", &name, "--wait", "300ms", "--", "echo", "ran"]);
    assert_eq!((done.code, done.stdout.as_str()), (75, ""), "{done:?}");
    assert!(done.stderr.contains("not signalled: "), "{done:?}");
    assert_eq!(value(&["signal", &name])["signalled"], 0);
    assert_eq!(call(&["wait-for", &name, "--wait", "0s", "--", "true"]).code, 2);
}
