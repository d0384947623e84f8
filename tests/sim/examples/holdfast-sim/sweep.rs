//! Goes through seeds, several at a time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use holdfast_sim_tests::{Found, Run};
use parking_lot::Mutex;

use crate::cpu;

/// Seeds between two lines about how far it has come.
const TELL_EVERY: usize = 20;
/// Attempts to find a shorter run that still finds something.
const SHORTENINGS: usize = 8;
/// Lines of a history that are shown; all of it is in the journal.
const LINES_SHOWN: usize = 30;

/// Seeds that are gone through, and what they have found so far.
pub(crate) struct Sweep {
    /// What every seed is run like.
    run: Run,
    journals: PathBuf,
    /// What repeats a seed.
    command: &'static str,
    left: Mutex<VecDeque<u64>>,
    done: Mutex<Done>,
    began: Instant,
    cpu_before: Duration,
}

#[derive(Default)]
struct Done {
    seeds: usize,
    panics: u64,
    /// The checks that found something, by seed.
    found: BTreeMap<u64, Vec<String>>,
}

impl Sweep {
    pub(crate) fn new(run: Run, journals: &Path, command: &'static str) -> Self {
        let (left, done) = (Mutex::default(), Mutex::default());
        let (began, cpu_before) = (Instant::now(), cpu::of_runs());
        Self { run, journals: journals.to_owned(), command, left, done, began, cpu_before }
    }

    /// Goes through so many seeds, so many at a time.
    ///
    /// # Errors
    /// When a seed can't be run, or its journal can't be kept.
    pub(crate) fn go_through(self, first: u64, count: u64, jobs: usize) -> Result<Self> {
        self.left.lock().extend(first..first + count);
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..jobs).map(|_| scope.spawn(|| self.work())).collect();
            workers.into_iter().try_for_each(|worker| match worker.join() {
                Ok(result) => result,
                Err(_) => bail!("a worker of this program panicked"),
            })
        })?;
        Ok(self)
    }

    /// Seeds that found something, with the checks that did.
    pub(crate) fn found(&self) -> BTreeMap<u64, Vec<String>> {
        self.done.lock().found.clone()
    }

    /// Panics that were injected and struck.
    pub(crate) fn panics(&self) -> u64 {
        self.done.lock().panics
    }

    /// One line about all of it.
    pub(crate) fn told(&self) -> String {
        let done = self.done.lock();
        let cpu = cpu::of_runs().saturating_sub(self.cpu_before).as_secs_f64();
        format!(
            "{} seeds in {:.0} s, {cpu:.1} s of a core, {:.0} an hour of a core; {} found something",
            done.seeds,
            self.began.elapsed().as_secs_f64(),
            done.seeds as f64 * 3_600.0 / cpu.max(0.001),
            done.found.len()
        )
    }

    fn work(&self) -> Result<()> {
        loop {
            let next = self.left.lock().pop_front();
            let Some(seed) = next else { return Ok(()) };
            let journal = self.journals.join(format!("seed-{seed}.txt"));
            std::fs::create_dir_all(&self.journals).context("no folder for journals can be made")?;
            let run = Run { seed, journal: Some(journal.clone()), ..self.run.clone() };
            let first = run.carry_out()?;
            let panics = first.figure("panics").unwrap_or_default();
            let found = if first.is_nothing { first } else { self.shortest(&run, &journal, first)? };
            self.tell(seed, panics, &found, &journal)?;
        }
    }

    /// Looks for a shorter run of the seed that still finds something: up to its end it is the same run.
    fn shortest(&self, run: &Run, journal: &Path, found: Found) -> Result<Found> {
        let (mut shortest, mut too_short) = (found, Duration::ZERO);
        let shorter = journal.with_extension("shorter.txt");
        for _ in 0..SHORTENINGS {
            let Some(long) = shortest.chaos() else { break };
            let between = too_short + (long - too_short) / 2;
            let tried = Run { journal: Some(shorter.clone()), chaos: Some(between), ..run.clone() }.carry_out()?;
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

    fn tell(&self, seed: u64, panics: u64, found: &Found, journal: &Path) -> Result<()> {
        let mut done = self.done.lock();
        done.seeds += 1;
        done.panics += panics;
        if found.is_nothing {
            std::fs::remove_file(journal).context("a journal can't be removed")?;
        } else {
            done.found.insert(seed, found.checkers());
            print!("{}{}", found.text, found.errors);
            println!("the shortest run of seed {seed} that finds something ended with");
            // A run that did not end has written none.
            let history = std::fs::read_to_string(journal).unwrap_or_default();
            history_of(&history).for_each(|line| println!("  {line}"));
            println!("all of it is in {}; repeat with: SEED={seed} {}", journal.display(), self.command);
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
