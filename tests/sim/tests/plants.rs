//! What is planted on purpose is found. Only in a build that is armed (`make plants` goes through all faults).
#![cfg(feature = "plant")]

use holdfast_plant::Mutation;
use holdfast_sim_tests::Run;

/// Seeds within which a fault must be found.
const MAX_SEEDS: u64 = 100;

/// By which checkers, and after how many seeds.
fn detect(plant: Mutation) -> Option<(Vec<String>, u64)> {
    (1..=MAX_SEEDS).find_map(|seed| {
        let run = Run { mutation: Some(plant.name().to_owned()), ..Run::from_seed(seed) };
        let found = run.execute().expect("the program runs");
        assert!(found.is_complete(), "{}{}", found.text, found.errors);
        (!found.is_clean).then(|| (found.checkers(), seed))
    })
}

#[test]
fn every_planted_fault_is_found() {
    let simulated = Mutation::ALL.iter().copied().filter(|plant| plant.unit_test().or(plant.model_test()).is_none());
    let missed: Vec<&str> = simulated.filter(|plant| detect(*plant).is_none()).map(Mutation::name).collect();
    assert!(missed.is_empty(), "not found within {MAX_SEEDS} seeds: {missed:?}");
}
