//! Checks that tests of this program fail with their mutation. Each runs in a process of its own, with the mutation and
//! without it. Only in a build with mutations: `make mutations`.

use holdfast_mutations::{Mutation, failure_of_test};

/// Enables the mutation that this process was started with.
pub(crate) fn enable_mutation_from_env() {
    holdfast_mutations::enable_from_env().expect("this build has it");
}

/// Returns the output of the test if it fails, with these mutations.
fn failure(test: &str, mutations: &[Mutation]) -> Option<String> {
    // Enough for each of them.
    failure_of_test(test, mutations, &[("HOLDFAST_MODEL_STEPS", "30000")]).expect("it runs to its end")
}

#[test]
#[ignore = "only in a build with mutations: make mutations"]
fn every_mutation_breaks_its_test() {
    println!("| mutation | fails | with |\n|---|---|---|");
    for fault in Mutation::ALL.iter().copied() {
        let Some(test) = fault.model_test() else { continue };
        assert_eq!(failure(test, &[]), None, "{test} fails without a mutation too");
        let text = failure(test, &[fault]).unwrap_or_else(|| panic!("{test} does not fail with {}", fault.name()));
        let what = if text.contains(": robbed") { "robbed" } else { "left" };
        println!("| {} | {test} | {what} |", fault.name());
    }
}
