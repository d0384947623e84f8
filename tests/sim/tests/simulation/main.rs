//! Whole clusters, simulated: a few seeds in every build, and each mutation in a build with mutations.

#[cfg(feature = "mutations")]
mod mutations;
mod seeds;

use holdfast_sim_tests::{Run, RunResult};

/// Runs a seed by the program that cargo has built for these tests.
fn execute(run: &Run) -> RunResult {
    run.execute(env!("CARGO_BIN_EXE_holdfast-sim-seed").as_ref()).expect("the program runs")
}
