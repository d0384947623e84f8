//! What is planted on purpose is found. Only in a build that is armed (`make plants` goes through all faults).
#![cfg(feature = "plant")]

use holdfast_plant::Plant;
use holdfast_sim_tests::Run;

/// Seeds within which a fault must be found.
const SEEDS: u64 = 100;

/// By which checkers, and after how many seeds.
fn finds(plant: Plant) -> Option<(Vec<String>, u64)> {
    (1..=SEEDS).find_map(|seed| {
        let run = Run { plant: Some(plant.name().to_owned()), ..Run::of_seed(seed) };
        let found = run.carry_out().expect("the program runs");
        assert!(found.is_whole(), "{}{}", found.text, found.errors);
        (!found.is_nothing).then(|| (found.checkers(), seed))
    })
}

#[test]
fn every_planted_fault_is_found() {
    let simulated = Plant::ALL.iter().copied().filter(|plant| plant.unit_test().or(plant.model_test()).is_none());
    let missed: Vec<&str> = simulated.filter(|plant| finds(*plant).is_none()).map(Plant::name).collect();
    assert!(missed.is_empty(), "not found within {SEEDS} seeds: {missed:?}");
}
