//! Checks that tests of this program fail with their mutation. Each runs in a process of its own, with the mutation and
//! without it. Only in a build with mutations: `make mutations`.

use std::process::Command;

use holdfast_mutations::{Mutation, enable};

/// Names the mutation that a process of this program enables.
const MUTATION_ENV: &str = "HOLDFAST_TEST_MUTATIONS";

/// Enables the mutation that this process was started with.
pub(crate) fn enable_mutation_from_env() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let Ok(name) = std::env::var(MUTATION_ENV) else { return };
        let fault = Mutation::from_name(&name).unwrap_or_else(|| panic!("there is no mutation named {name:?}"));
        assert!(enable(fault), "mutations are off in this build: `make mutations` makes one with them");
    });
}

/// Returns the output of the test if it fails, with this mutation.
fn failure(test: &str, fault: Option<Mutation>) -> Option<String> {
    let this = std::env::current_exe().expect("it has a path");
    let mut command = Command::new(this);
    command.args(["--exact", test, "--nocapture"]).env_remove(MUTATION_ENV);
    // Enough for each of them.
    command.env("HOLDFAST_MODEL_STEPS", "30000");
    let run = command.envs(fault.map(|fault| (MUTATION_ENV, fault.name()))).output().expect("it runs");
    let text = [run.stdout, run.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
    assert!(text.contains("running 1 test"), "there is no test {test}");
    assert!(!text.contains("mutations are off"), "{text}");
    (!run.status.success()).then_some(text)
}

#[test]
#[ignore = "only in a build with mutations: make mutations"]
fn every_mutation_breaks_its_test() {
    println!("| mutation | fails | with |\n|---|---|---|");
    for fault in Mutation::ALL.iter().copied() {
        let Some(test) = fault.model_test() else { continue };
        assert_eq!(failure(test, None), None, "{test} fails without a mutation too");
        let text = failure(test, Some(fault)).unwrap_or_else(|| panic!("{test} does not fail with {}", fault.name()));
        let what = if text.contains(": robbed") { "robbed" } else { "left" };
        println!("| {} | {test} | {what} |", fault.name());
    }
}
