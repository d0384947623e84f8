//! Checks that tests of this program fail with their mutation. Each runs in a process of its own, with the mutation and
//! without it. Only in a build with mutations: `make mutations`.

use holdfast_mutations::{Mutation, failure_of_test};

/// Enables the mutations that this process was started with. Called by every test that has a cluster.
pub(crate) fn enable_from_env() {
    holdfast_mutations::enable_from_env().expect("this build has them");
}

/// Whether the test succeeds with these mutations.
fn succeeds(test: &str, mutations: &[Mutation]) -> bool {
    failure_of_test(test, mutations, &[]).expect("it runs to its end").is_none()
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
