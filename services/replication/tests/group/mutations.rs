//! That tests of this program fail with the fault that they are for. Each runs in a process of its own, with the fault
//! and without it. Only in a build with mutations: `make mutations`.

use std::process::Command;

use holdfast_mutations::{Mutation, enable};

/// Which faults a process of this program is to enable, by their names.
const MUTATIONS_ENV: &str = "HOLDFAST_TEST_MUTATIONS";

/// Plants what this process was started with. Called by every test that has a cluster.
pub(crate) fn enable_from_env() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let named = std::env::var(MUTATIONS_ENV).unwrap_or_default();
        for name in named.split_whitespace() {
            let fault = Mutation::from_name(name).unwrap_or_else(|| panic!("there is no fault named {name:?}"));
            assert!(enable(fault), "mutations are off in this build: `make mutations` makes one with them");
        }
    });
}

/// Whether the test succeeds with these faults.
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

/// The fault that this one is planted with.
fn prerequisite(fault: Mutation) -> Option<Mutation> {
    (fault == Mutation::LeadershipWithdrawnLate).then_some(Mutation::VoteUntied)
}

#[test]
#[ignore = "only in a build with mutations: make mutations"]
fn every_mutation_breaks_its_test() {
    println!("| planted fault | fails |\n|---|---|");
    let mut missed = Vec::new();
    for fault in Mutation::ALL.iter().copied() {
        let Some(test) = fault.unit_test() else { continue };
        assert!(succeeds(test, &[]), "{test} fails without a fault too");
        let with = prerequisite(fault);
        if with.is_some() {
            // What makes another fault visible is none by itself.
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
