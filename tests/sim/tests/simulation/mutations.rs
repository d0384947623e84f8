//! Each mutation is found. Only in a build with mutations; `make mutations` runs them all.

use holdfast_mutations::Mutation;
use holdfast_sim_tests::Run;

/// Seeds within which a mutation must be found.
const MAX_SEEDS: u64 = 100;

/// Returns which checks find it, and after how many seeds.
fn detect(mutation: Mutation) -> Option<(Vec<String>, u64)> {
    (1..=MAX_SEEDS).find_map(|seed| {
        let run = Run { mutation: Some(mutation.name().to_owned()), ..Run::from_seed(seed) };
        let found = crate::execute(&run);
        assert!(found.is_complete(), "{}{}", found.text, found.errors);
        (!found.is_clean).then(|| (found.checkers(), seed))
    })
}

#[test]
fn every_mutation_is_found() {
    let simulated = Mutation::ALL.iter().copied().filter(|mutation| mutation.test().is_none());
    let missed: Vec<&str> = simulated.filter(|mutation| detect(*mutation).is_none()).map(Mutation::name).collect();
    assert!(missed.is_empty(), "not found within {MAX_SEEDS} seeds: {missed:?}");
}
