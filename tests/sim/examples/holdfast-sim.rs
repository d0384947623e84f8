//! Runs many seeds, each in a process of its own, and says which of them found something and how to repeat it. With
//! `--plants` it plants each fault in turn instead, and says which checker found it after how many seeds.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail};
use clap::Parser;
use holdfast_plant::Plant;
use holdfast_sim_tests::{Found, Run};

/// Seeds between two lines about how far it has come.
const TELL_EVERY: usize = 20;
/// Attempts to find a shorter run that still finds something.
const SHORTENINGS: usize = 8;
/// Lines of a history that are shown; all of it is in the journal.
const LINES_SHOWN: usize = 30;

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
    plants: Option<String>,
}

struct Sweep {
    journals: PathBuf,
    left: Mutex<VecDeque<u64>>,
    done: Mutex<Done>,
    began: Instant,
}

#[derive(Default)]
struct Done {
    seeds: usize,
    found: Vec<u64>,
}

fn main() -> Result<ExitCode> {
    let args = Args::parse();
    if let Some(which) = &args.plants {
        return plants(which, args.first.unwrap_or(1), args.seeds);
    }
    let (first, count) = match args.seed {
        Some(seed) => (seed, 1),
        None => (args.first.unwrap_or_else(drawn), args.seeds),
    };
    let jobs = args.jobs.or_else(|| std::thread::available_parallelism().ok().map(usize::from)).unwrap_or(1);
    println!("seeds {first} to {}, {jobs} at a time", first + count.saturating_sub(1));
    let sweep = Sweep {
        journals: args.journals,
        left: Mutex::new((first..first + count).collect()),
        done: Mutex::default(),
        began: Instant::now(),
    };
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| sweep.work())).collect();
        workers.into_iter().try_for_each(|worker| match worker.join() {
            Ok(result) => result,
            Err(_) => bail!("a worker of this program panicked"),
        })
    })?;
    let done = sweep.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    println!(
        "{} seeds in {:.0} s, {} found something",
        done.seeds,
        sweep.began.elapsed().as_secs_f64(),
        done.found.len()
    );
    for seed in &done.found {
        println!("repeat with: SEED={seed} make sim");
    }
    Ok(if done.found.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A first seed that is hardly ever the same twice.
fn drawn() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_micros() as u64 % 1_000_000_000
}

impl Sweep {
    fn work(&self) -> Result<()> {
        loop {
            let next = self.left.lock().unwrap_or_else(std::sync::PoisonError::into_inner).pop_front();
            let Some(seed) = next else { return Ok(()) };
            let journal = self.journals.join(format!("seed-{seed}.txt"));
            std::fs::create_dir_all(&self.journals).context("no folder for journals can be made")?;
            let run = Run { journal: Some(journal.clone()), ..Run::of_seed(seed) };
            let mut found = run.carry_out()?;
            if !found.is_nothing {
                found = self.shortest(seed, &journal, found)?;
            }
            self.tell(seed, &found, &journal)?;
        }
    }

    /// Looks for a shorter run of the seed that still finds something: up to its end it is the same run.
    fn shortest(&self, seed: u64, journal: &Path, found: Found) -> Result<Found> {
        let (mut shortest, mut too_short) = (found, Duration::ZERO);
        let shorter = journal.with_extension("shorter.txt");
        for _ in 0..SHORTENINGS {
            let Some(long) = shortest.chaos() else { break };
            let between = too_short + (long - too_short) / 2;
            let run = Run { journal: Some(shorter.clone()), chaos: Some(between), ..Run::of_seed(seed) };
            let tried = run.carry_out()?;
            if tried.is_nothing {
                too_short = between;
            } else {
                std::fs::rename(&shorter, journal).context("a journal can't be kept")?;
                shortest = tried;
            }
        }
        // The last one tried may have found nothing; its journal is of no use.
        let _ = std::fs::remove_file(&shorter);
        Ok(shortest)
    }

    fn tell(&self, seed: u64, found: &Found, journal: &Path) -> Result<()> {
        let mut done = self.done.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        done.seeds += 1;
        if found.is_nothing {
            std::fs::remove_file(journal).context("a journal can't be removed")?;
        } else {
            done.found.push(seed);
            print!("{}{}", found.text, found.errors);
            println!("the shortest run of seed {seed} that finds something ended with");
            // A run that did not end has written none.
            let history = std::fs::read_to_string(journal).unwrap_or_default();
            history_of(&history).for_each(|line| println!("  {line}"));
            println!("all of it is in {}; repeat with: SEED={seed} make sim", journal.display());
        }
        if done.seeds.is_multiple_of(TELL_EVERY) {
            println!("{} seeds, {} found something", done.seeds, done.found.len());
        }
        Ok(())
    }
}

/// The last of what happened before the finding: calls and faults, by simulated time. What was applied follows it in a
/// journal, and is left out here.
fn history_of(journal: &str) -> impl Iterator<Item = &str> {
    let happened: Vec<&str> = journal.lines().take_while(|line| !line.contains(" VIOLATION ")).collect();
    let from = happened.len().saturating_sub(LINES_SHOWN);
    happened.into_iter().skip(from)
}

/// Plants faults, one after the other, and goes through the seeds until each is found.
fn plants(which: &str, first: u64, seeds: u64) -> Result<ExitCode> {
    let meant = Plant::ALL.iter().copied().filter(|plant| which == "all" || plant.name() == which);
    let meant: Vec<Plant> = meant.collect();
    if meant.is_empty() {
        bail!("there is no fault named {which:?} to plant");
    }
    println!("| planted fault | found by | after seeds |\n|---|---|---|");
    let mut missed = 0;
    for plant in meant {
        if let Some(test) = plant.unit_test() {
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
