//! Enables mutations one after the other, and runs seeds until a check finds each.

use std::path::Path;
use std::process::ExitCode;

use anyhow::{Result, bail};
use holdfast_mutations::Mutation;
use holdfast_sim_tests::Run;

/// Runs all of them, or the one of that name. Prints a table.
///
/// # Errors
/// If there is no such mutation, or a run fails.
pub(crate) fn run_mutations(program: &Path, which: &str, first: u64, seeds: u64) -> Result<ExitCode> {
    let meant = Mutation::ALL.iter().copied().filter(|mutation| which == "all" || mutation.name() == which);
    let meant: Vec<Mutation> = meant.collect();
    if meant.is_empty() {
        bail!("there is no mutation named {which:?}");
    }
    println!("| mutation | found by | after seeds |\n|---|---|---|");
    let mut missed = 0;
    for mutation in meant {
        if let Some(test) = mutation.test() {
            println!("| {} | not the simulation, but the test {test} | |", mutation.name());
            continue;
        }
        let mut row = format!("| {} | nobody | {seeds} |", mutation.name());
        missed += 1;
        for tried in 0..seeds {
            let run = Run { mutation: Some(mutation.name().to_owned()), ..Run::from_seed(first + tried) };
            let found = run.execute(program)?;
            if !found.is_clean && !found.is_complete() {
                bail!("a run with {} failed: {}", mutation.name(), found.errors);
            }
            if !found.is_clean {
                missed -= 1;
                row = format!("| {} | {} | {} |", mutation.name(), found.checkers().join(", "), tried + 1);
                break;
            }
        }
        println!("{row}");
    }
    Ok(if missed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
