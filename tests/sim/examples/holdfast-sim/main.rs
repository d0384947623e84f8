//! Runs many seeds, each in a process of its own, and says which of them found something and how to repeat it. With
//! `--mutations` it plants each fault in turn instead, and says which checker found it after how many seeds.

mod cpu;
mod evidence;
mod mutations;
mod sweep;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::Result;
use clap::Parser;
use holdfast_sim_tests::Run;

use evidence::{Batch, Evidence};
use sweep::Sweep;

/// Seeds between two lines in the evidence, which is what an interruption can lose.
const SEEDS_PER_BATCH: u64 = 20;
/// Where evidence of a source begins.
const FIRST_EVIDENCE_SEED: u64 = 1;

#[derive(Parser)]
struct Args {
    /// How many seeds.
    #[arg(long, env = "SEEDS", default_value_t = 20)]
    seeds: u64,
    /// The first of them; drawn when absent, and shown.
    #[arg(long, env = "FIRST")]
    first: Option<u64>,
    /// Only this seed.
    #[arg(long, env = "SEED")]
    seed: Option<u64>,
    /// How many at a time; as many as there are processors when absent.
    #[arg(long)]
    jobs: Option<usize>,
    /// Where to write what happened in runs that found something.
    #[arg(long, default_value = "data/sim")]
    journals: PathBuf,
    /// Plant each fault, or only the named one, instead, and go through the seeds until it is found.
    #[arg(long, num_args = 0..=1, default_missing_value = "all")]
    mutations: Option<String>,
    /// Short runs with less of everything: several times as many in an hour.
    #[arg(long)]
    short: bool,
    /// Let tasks and the state machine panic in the midst of their work, in a build that is armed.
    #[arg(long)]
    panics: bool,
    /// Adds up in this file: goes on where the last run of the same source ended, until there are as many seeds.
    #[arg(long, requires = "source")]
    evidence: Option<PathBuf>,
    /// What the sources are that this program was built of; see `tools/sim-source`.
    #[arg(long)]
    source: Option<String>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(which) = &args.mutations {
        return mutations::run_mutations(which, args.first.unwrap_or(1), args.seeds);
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
    Sweep::new(run, &args.journals, reproduce_command(args)).run(first, count, jobs(args))
}

/// How many at a time.
fn jobs(args: &Args) -> usize {
    args.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1)
}

/// What repeats a seed.
fn reproduce_command(args: &Args) -> &'static str {
    match (args.panics, args.short) {
        (false, false) => "make sim",
        (false, true) => "make sim ARGS=--short",
        (true, false) => "make panics",
        (true, true) => "make panics ARGS=--short",
    }
}

/// What kind of runs they are.
fn profile(args: &Args) -> &'static str {
    match (args.panics, args.short) {
        (false, false) => "full",
        (false, true) => "short",
        (true, false) => "panics",
        (true, true) => "short panics",
    }
}

/// A first seed that is hardly ever the same twice.
fn random_first_seed() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000_000
}

/// Goes on with the seeds that this source has not gone through yet, until there are so many.
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
