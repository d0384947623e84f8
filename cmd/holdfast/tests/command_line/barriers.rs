//! Barriers from the shell.

use holdfast_testkit::eventually_blocking;
use rustix::process::Signal;
use serde_json::Value;

use crate::support::{RunningCall, call, holdfast_at, server, unique_name, value, values};

fn waiting(name: &str, party: &str) -> RunningCall {
    let arguments = ["barrier", "wait", name, "--parties", "2", "--as", party];
    RunningCall::start(holdfast_at(server(), &arguments))
}

/// Waits until so many have arrived at the barrier.
fn eventually_arrived(name: &str, count: u64) {
    let is_shown = |barrier: &Value| barrier["name"] == name && barrier["arrived"] == count;
    eventually_blocking("they have arrived", || values(&["barrier", "ls"]).iter().any(is_shown));
}

#[test]
fn two_meet_again_and_again_and_both_exit_with_0() {
    let name = unique_name("rounds");
    let mut generations = Vec::new();
    for _ in 0..2 {
        let mut first = waiting(&name, "one");
        eventually_arrived(&name, 1);
        let second = value(&["barrier", "wait", &name, "--parties", "2", "--as", "other"]);
        assert_eq!((&second["outcome"], &second["index"]), (&"TRIPPED".into(), &1.into()));
        assert_eq!(first.read_line(), format!("TRIPPED in generation {}, at index 0", second["generation"]));
        assert_eq!(first.wait_for_end().0.code(), Some(0));
        generations.push(second["generation"].clone());
    }
    assert_ne!(generations[0], generations[1]);
    let shown = call(&["barrier", "get", &name]).stdout;
    assert!(shown.contains(&format!("{name}: 0 of 2 have arrived")), "{shown}");
    assert!(shown.contains(&format!("generation {} is TRIPPED with 2", generations[1])), "{shown}");
    value(&["barrier", "rm", &name]);
    assert_eq!(call(&["barrier", "get", &name]).code, 1);
}

#[test]
fn whoever_gives_up_exits_with_75_and_the_others_with_4() {
    let name = unique_name("rounds");
    let set = value(&["barrier", "set", &name, "--parties", "3", "--description", "solvers"]);
    assert_eq!((&set["parties"], &set["on_loss"], &set["configured"]), (&3.into(), &"BREAK".into(), &true.into()));
    let other = waiting(&name, "other");
    eventually_arrived(&name, 1);
    let gave_up = call(&["barrier", "wait", &name, "--as", "one", "--wait", "100ms"]);
    assert_eq!(gave_up.code, 75, "{gave_up:?}");
    assert_eq!(other.wait_for_end().0.code(), Some(4));
    let signalled = waiting(&name, "one");
    eventually_arrived(&name, 1);
    signalled.signal(Signal::TERM);
    assert_eq!(signalled.wait_for_end().0.code(), Some(143));
    eventually_arrived(&name, 0);
}
