//! Runs many seeds, each in a process of its own, and prints which of them found something and how to repeat it. With
//! `--mutations` it enables each mutation in turn instead, and prints which check finds it after how many seeds.

mod cpu;
mod evidence;
mod mutations;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use clap::Parser;
use holdfast_sim_tests::{Run, SEED_PROGRAM};

use evidence::{Batch, Evidence};
use sweep::Sweep;

/// Seeds between two lines of the evidence; an interruption loses no more.
const SEEDS_PER_BATCH: u64 = 20;
/// The first seed of the evidence for a source.
const FIRST_EVIDENCE_SEED: u64 = 1;

/// Simulates whole clusters with faults, a seed each, and prints which seeds found something.
#[derive(Parser)]
#[command(name = "holdfast-sim")]
struct Args {
    /// How many seeds to run.
    #[arg(long, env = "SEEDS", default_value_t = 20)]
    seeds: u64,
    /// The first seed; drawn if absent, and printed.
    #[arg(long, env = "FIRST")]
    first: Option<u64>,
    /// Run only this seed.
    #[arg(long, env = "SEED")]
    seed: Option<u64>,
    /// How many seeds run at a time; as many as there are processors if absent.
    #[arg(long)]
    jobs: Option<usize>,
    /// The folder for the journals of runs that found something.
    #[arg(long, default_value = "data/sim")]
    journals: PathBuf,
    /// Enable each mutation, or only the named one, and run seeds until a check finds it; needs a build with mutations.
    #[arg(long, num_args = 0..=1, default_missing_value = "all")]
    mutations: Option<String>,
    /// Run shorter simulations with less of everything: several times as many an hour.
    #[arg(long)]
    short: bool,
    /// Inject panics into tasks and state machines while they work; needs a build with mutations.
    #[arg(long)]
    panics: bool,
    /// Add the runs to this file: continue after the last run of the same source, until it has so many seeds.
    #[arg(long, requires = "source")]
    evidence: Option<PathBuf>,
    /// The digest of the sources that this program was built of; see `tools/sim-source`.
    #[arg(long)]
    source: Option<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(which) = &args.mutations {
        return mutations::run_mutations(&seed_program()?, which, args.first.unwrap_or(1), args.seeds);
    }
    if let (Some(path), Some(source)) = (&args.evidence, &args.source) {
        return extend_evidence(&args, path, source);
    }
    let (first, count) = match args.seed {
        Some(seed) => (seed, 1),
        None => (args.first.unwrap_or_else(random_first_seed), args.seeds),
    };
    println!("seeds {first} to {}, {} at a time", first + count.saturating_sub(1), jobs(&args));
    let sweep = run_sweep(&args, first, count)?;
    println!("{}", sweep.summary());
    for seed in sweep.found().keys() {
        println!("repeat with: SEED={seed} {}", reproduce_command(&args));
    }
    Ok(if sweep.found().is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn run_sweep(args: &Args, first: u64, count: u64) -> Result<Sweep> {
    let run = Run { short: args.short, panics: args.panics, ..Run::default() };
    Sweep::new(seed_program()?, run, &args.journals, reproduce_command(args)).run(first, count, jobs(args))
}

/// The program that runs one seed, which is built with this one.
fn seed_program() -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program's own file is needed to find the other one")?;
    Ok(own.with_file_name(SEED_PROGRAM))
}

/// How many seeds run at a time.
fn jobs(args: &Args) -> usize {
    args.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

/// The command that repeats a seed.
fn reproduce_command(args: &Args) -> &'static str {
    match (args.panics, args.short) {
        (false, false) => "make sim",
        (false, true) => "make sim ARGS=--short",
        (true, false) => "make panics",
        (true, true) => "make panics ARGS=--short",
    }
}

/// The kind of the runs, as the evidence names it.
fn profile(args: &Args) -> &'static str {
    match (args.panics, args.short) {
        (false, false) => "full",
        (false, true) => "short",
        (true, false) => "panics",
        (true, true) => "short panics",
    }
}

/// Returns a first seed that is hardly ever the same twice.
fn random_first_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000_000
}

/// Runs the seeds that this source has not run yet, until it has so many.
fn extend_evidence(args: &Args, path: &Path, source: &str) -> Result<ExitCode> {
    let profile = profile(args);
    let mut evidence = Evidence::open(path)?;
    let mut is_clean = true;
    while evidence.seeds(source, profile) < args.seeds {
        let first = evidence.next_seed(source, profile, args.first.unwrap_or(FIRST_EVIDENCE_SEED));
        let seeds = SEEDS_PER_BATCH.min(args.seeds - evidence.seeds(source, profile));
        let before = cpu::children_time();
        let sweep = run_sweep(args, first, seeds)?;
        let cpu_ms = u64::try_from((cpu::children_time() - before).as_millis())?;
        is_clean &= sweep.found().is_empty();
        let (source, profile) = (source.to_owned(), profile.to_owned());
        let found = sweep.found().into_iter().collect();
        evidence.add(Batch { source, profile, first, seeds, cpu_ms, panics: sweep.panics(), found })?;
    }
    println!("{}", evidence.summary(source, profile));
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
