//! Runs seeds, several at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_sim_tests::{Run, RunResult};
use parking_lot::Mutex;

use crate::cpu;

/// Seeds between two lines of progress.
const PROGRESS_INTERVAL_SEEDS: usize = 20;
/// Attempts to find a shorter run that still finds something.
const MAX_SHRINK_STEPS: usize = 8;
/// Lines of a journal that are printed.
const MAX_JOURNAL_LINES: usize = 30;

/// Seeds that are run, and their findings so far.
pub(crate) struct Sweep {
    /// Runs one seed.
    program: PathBuf,
    /// How every seed is run.
    run: Run,
    journals: PathBuf,
    /// Repeats a seed.
    command: &'static str,
    remaining: Mutex<VecDeque<u64>>,
    progress: Mutex<SweepProgress>,
    started: Instant,
    cpu_before: Duration,
}

#[derive(Default)]
struct SweepProgress {
    seeds: usize,
    panics: u64,
    /// The checks with findings, by seed.
    found: BTreeMap<u64, Vec<String>>,
}

impl Sweep {
    pub(crate) fn new(program: PathBuf, run: Run, journals: &Path, command: &'static str) -> Self {
        let (remaining, progress) = (Mutex::default(), Mutex::default());
        let (started, cpu_before) = (Instant::now(), cpu::children_time());
        Self { program, run, journals: journals.to_owned(), command, remaining, progress, started, cpu_before }
    }

    /// Runs so many seeds, so many at a time.
    ///
    /// # Errors
    /// If a seed can't be run, or its journal can't be kept.
    pub(crate) fn run(self, first: u64, count: u64, jobs: usize) -> Result<Self> {
        self.remaining.lock().extend(first..first + count);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.run_worker())).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => bail!("a worker of this program panicked"),
            })
        })?;
        Ok(self)
    }

    /// Returns the seeds with findings, and the checks that found them.
    pub(crate) fn found(&self) -> BTreeMap<u64, Vec<String>> {
        self.progress.lock().found.clone()
    }

    /// Returns how many panics were injected.
    pub(crate) fn panics(&self) -> u64 {
        self.progress.lock().panics
    }

    /// Returns a line about all runs.
    pub(crate) fn summary(&self) -> String {
        let done = self.progress.lock();
        let cpu = cpu::children_time().saturating_sub(self.cpu_before).as_secs_f64();
        format!(
            "{} seeds in {:.0} s, {cpu:.1} s of a core, {:.0} an hour of a core; {} found something",
            done.seeds,
            self.started.elapsed().as_secs_f64(),
            done.seeds as f64 * 3_600.0 / cpu.max(0.001),
            done.found.len()
        )
    }

    fn run_worker(&self) -> Result<()> {
        loop {
            let next = self.remaining.lock().pop_front();
            let Some(seed) = next else { return Ok(()) };
            let journal = self.journals.join(format!("seed-{seed}.txt"));
            std::fs::create_dir_all(&self.journals).context("no folder for journals can be made")?;
            let run = Run { seed, journal: Some(journal.clone()), ..self.run.clone() };
            let first = run.execute(&self.program)?;
            let panics = first.value("panics").unwrap_or_default();
            let found = if first.is_clean { first } else { self.shrink(&run, &journal, first)? };
            self.report(seed, panics, &found, &journal)?;
        }
    }

    /// Searches for a shorter run of the seed that still finds something: up to its end it is the same run.
    fn shrink(&self, run: &Run, journal: &Path, found: RunResult) -> Result<RunResult> {
        let (mut shortest, mut too_short) = (found, Duration::ZERO);
        let shorter = journal.with_extension("shorter.txt");
        for _ in 0..MAX_SHRINK_STEPS {
            let Some(long) = shortest.chaos() else { break };
            let between = too_short + (long - too_short) / 2;
            let tried =
                Run { journal: Some(shorter.clone()), chaos: Some(between), ..run.clone() }.execute(&self.program)?;
            if tried.is_clean {
                too_short = between;
            } else {
                std::fs::rename(&shorter, journal).context("a journal can't be kept")?;
                shortest = tried;
            }
        }
        // The last attempt may have found nothing; its journal is of no use then.
        let _ = std::fs::remove_file(&shorter);
        Ok(shortest)
    }

    fn report(&self, seed: u64, panics: u64, found: &RunResult, journal: &Path) -> Result<()> {
        let mut done = self.progress.lock();
        done.seeds += 1;
        done.panics += panics;
        if found.is_clean {
            std::fs::remove_file(journal).context("a journal can't be removed")?;
        } else {
            done.found.insert(seed, found.checkers());
            print!("{}{}", found.text, found.errors);
            println!("the shortest run of seed {seed} with a finding ends with");
            // A run that did not end by itself has written none.
            let history = std::fs::read_to_string(journal).unwrap_or_default();
            journal_tail(&history).for_each(|line| println!("  {line}"));
            println!("the whole journal is {}; repeat with: SEED={seed} {}", journal.display(), self.command);
        }
        if done.seeds.is_multiple_of(PROGRESS_INTERVAL_SEEDS) {
            println!("{} seeds, {} found something", done.seeds, done.found.len());
        }
        Ok(())
    }
}

/// Returns the last calls and faults before the finding, by simulated time. The applied commands, which follow in the
/// journal, are left out.
fn journal_tail(journal: &str) -> impl Iterator<Item = &str> {
    let happened: Vec<&str> = journal.lines().take_while(|line| !line.contains(" VIOLATION ")).collect();
    let from = happened.len().saturating_sub(MAX_JOURNAL_LINES);
    happened.into_iter().skip(from)
}
