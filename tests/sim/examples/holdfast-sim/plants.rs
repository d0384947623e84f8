//! Plants faults, one after the other, and goes through the seeds until each is found.

use std::process::ExitCode;

use anyhow::{Result, bail};
use holdfast_plant::Plant;
use holdfast_sim_tests::Run;

/// All of them, or the one of that name. Prints a table.
///
/// # Errors
/// When there is no such fault, or a run fails.
pub(crate) fn all(which: &str, first: u64, seeds: u64) -> Result<ExitCode> {
    let meant = Plant::ALL.iter().copied().filter(|plant| which == "all" || plant.name() == which);
    let meant: Vec<Plant> = meant.collect();
    if meant.is_empty() {
        bail!("there is no fault named {which:?} to plant");
    }
    println!("| planted fault | found by | after seeds |\n|---|---|---|");
    let mut missed = 0;
    for plant in meant {
        if let Some(test) = plant.unit_test().or(plant.model_test()) {
            println!("| {} | not by the simulation yet, but by the test {test} | |", plant.name());
            continue;
        }
        let mut row = format!("| {} | nobody | {seeds} |", plant.name());
        missed += 1;
        for tried in 0..seeds {
            let run = Run { plant: Some(plant.name().to_owned()), ..Run::of_seed(first + tried) };
            let found = run.carry_out()?;
            if !found.is_nothing && !found.is_whole() {
                bail!("a run with {} failed: {}", plant.name(), found.errors);
            }
            if !found.is_nothing {
                missed -= 1;
                row = format!("| {} | {} | {} |", plant.name(), found.checkers().join(", "), tried + 1);
                break;
            }
        }
        println!("{row}");
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
