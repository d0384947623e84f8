//! Checks that tests of this crate fail with their mutation. Each runs in a process of its own, with the mutation and
//! without it. Only in a build with mutations: `make mutations`.

use holdfast_mutations::{Mutation, assert_each_breaks_its_test};

/// Enables the mutation that this process was started with. Called by every test that has to find one.
pub(super) fn enable_from_env() {
    holdfast_mutations::enable_from_env().expect("this build has it");
}

#[test]
#[ignore = "only in a build with mutations: make mutations"]
fn every_mutation_breaks_its_test() {
    assert_each_breaks_its_test(Mutation::backend_test);
}
