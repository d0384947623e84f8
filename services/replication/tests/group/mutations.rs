//! Checks that tests of this program fail with their mutation. Each runs in a process of its own, with the mutation and
//! without it. Only in a build with mutations: `make mutations`.

use std::process::Command;

use holdfast_mutations::{Mutation, enable};

/// Names the mutations that a process of this program enables.
const MUTATIONS_ENV: &str = "HOLDFAST_TEST_MUTATIONS";

/// Enables the mutations that this process was started with. Called by every test that has a cluster.
pub(crate) fn enable_from_env() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let named = std::env::var(MUTATIONS_ENV).unwrap_or_default();
        for name in named.split_whitespace() {
            let fault = Mutation::from_name(name).unwrap_or_else(|| panic!("there is no mutation named {name:?}"));
            assert!(enable(fault), "mutations are off in this build: `make mutations` makes one with them");
        }
    });
}

/// Whether the test succeeds with these mutations.
fn succeeds(test: &str, mutations: &[Mutation]) -> bool {
    let names: Vec<&str> = mutations.iter().map(|mutation| mutation.name()).collect();
    let this = std::env::current_exe().expect("it has a path");
    let run = Command::new(this).args(["--exact", test, "--nocapture"]).env(MUTATIONS_ENV, names.join(" ")).output();
    let run = run.expect("it runs");
    let text = String::from_utf8_lossy(&run.stdout);
    assert!(text.contains("running 1 test"), "there is no test {test}");
    assert!(run.status.success() || text.contains("panicked") || text.contains("FAILED"), "{text}");
    run.status.success()
}

/// The mutation that this one needs beside it.
fn prerequisite(fault: Mutation) -> Option<Mutation> {
    (fault == Mutation::LeadershipWithdrawnLate).then_some(Mutation::VoteUntied)
}

#[test]
#[ignore = "only in a build with mutations: make mutations"]
fn every_mutation_breaks_its_test() {
    println!("| mutation | fails |\n|---|---|");
    let mut missed = Vec::new();
    for fault in Mutation::ALL.iter().copied() {
        let Some(test) = fault.unit_test() else { continue };
        assert!(succeeds(test, &[]), "{test} fails without a mutation too");
        let with = prerequisite(fault);
        if with.is_some() {
            // A mutation that only makes another one visible is harmless alone.
            assert!(succeeds(test, &[fault]), "{test} fails with {} alone", fault.name());
        }
        let mutations: Vec<Mutation> = [fault].into_iter().chain(with).collect();
        let names: Vec<&str> = mutations.iter().map(|mutation| mutation.name()).collect();
        let is_found = !succeeds(test, &mutations);
        println!("| {} | {} |", names.join(" with "), if is_found { test } else { "nothing" });
        missed.extend((!is_found).then_some(names));
    }
    assert!(missed.is_empty(), "these faults break no test: {missed:?}");
}
