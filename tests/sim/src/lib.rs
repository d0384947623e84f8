//! Runs seeds of the simulated cluster, each in a process of its own.
//!
//! Purpose: from a seed to the findings of its run, for tests and for the program that runs many seeds. The simulation
//! itself is the program `holdfast-sim-seed`.
//!
//! Deliberately unknown here: what is simulated, and how it is checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};

/// The name of the program that runs one seed.
pub const SEED_PROGRAM: &str = "holdfast-sim-seed";
/// In real time; a run takes seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// The exit status of `timeout` if the time was over.
const TIMEOUT_EXIT_CODE: i32 = 124;

/// How a seed is run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// Without faults.
    pub calm: bool,
    /// With a digest over every packet.
    pub packets: bool,
    /// A short run with less of everything.
    pub short: bool,
    /// With panics of tasks and state machines while they work; needs a build with mutations.
    pub panics: bool,
    /// Instead of everything else, with each message of some calls lost in turn, and the calls made again.
    pub lost_answers: bool,
    /// With that mutation enabled; needs a build with mutations.
    pub mutation: Option<String>,
    /// How long clients work and faults happen, instead of the time that the seed draws.
    pub chaos: Option<Duration>,
    /// The file for the journal.
    pub journal: Option<PathBuf>,
}

impl Run {
    /// A run of the seed, without options.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Runs it to its end, by the program [`SEED_PROGRAM`].
    ///
    /// # Errors
    /// If the program can't be run.
    pub fn execute(&self, program: &Path) -> Result<RunResult> {
        // Simulated time stands still while a task loops without waiting, so real time has to end such a run.
        let mut command = Command::new("timeout");
        command.arg(RUN_TIMEOUT.as_secs().to_string()).arg(program);
        // The variable may be set for the program that runs many seeds.
        command.env_remove("SEED").arg("--seed").arg(self.seed.to_string());
        let flags = [
            ("--calm", self.calm),
            ("--packets", self.packets),
            ("--short", self.short),
            ("--panics", self.panics),
            ("--lost-answers", self.lost_answers),
        ];
        for (flag, is_set) in flags {
            command.args(is_set.then_some(flag));
        }
        if let Some(mutation) = &self.mutation {
            command.arg("--mutation").arg(mutation);
        }
        if let Some(chaos) = self.chaos {
            command.arg("--chaos-ms").arg(chaos.as_millis().to_string());
        }
        if let Some(journal) = &self.journal {
            command.arg("--journal").arg(journal);
        }
        let Output { status, stdout, stderr } =
            command.output().with_context(|| format!("{} can't be run", program.display()))?;
        let text = String::from_utf8_lossy(&stdout).into_owned();
        let mut errors = String::from_utf8_lossy(&stderr).into_owned();
        if status.code() == Some(TIMEOUT_EXIT_CODE) {
            errors += &format!("seed {} did not end within {RUN_TIMEOUT:?}: a task loops without waiting\n", self.seed);
        }
        Ok(RunResult { is_clean: status.success(), text, errors })
    }
}

/// The findings of a run.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// Whether there are none.
    pub is_clean: bool,
    /// Its report: a line of figures, and a line for each finding.
    pub text: String,
    /// Its standard error.
    pub errors: String,
}

impl RunResult {
    /// Whether the run has ended by itself, whatever it found.
    pub fn is_complete(&self) -> bool {
        self.text.starts_with("seed ")
    }

    /// How long clients worked and faults happened.
    pub fn chaos(&self) -> Option<Duration> {
        self.value("chaos_ms").map(Duration::from_millis)
    }

    /// Returns a figure of the report.
    pub fn value(&self, name: &str) -> Option<u64> {
        let first = self.text.lines().next()?;
        first.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
    }

    /// Returns the checks that found something, in the order of their findings.
    pub fn checkers(&self) -> Vec<String> {
        let mut checkers: Vec<String> = Vec::new();
        for finding in self.text.lines().skip(1) {
            // The text of a finding may have further lines, which name no check.
            let name = finding.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
            if let Some(name) = name.filter(|name| !checkers.iter().any(|known| known == name)) {
                checkers.push(name.to_owned());
            }
        }
        checkers
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_run_found_is_read_from_its_text() {
        let text = "seed 7 violations 3 chaos_ms 1500 calls 9\n  locks_00: [history] a\n  [events] b\n  [history] c\n";
        let found = RunResult { is_clean: false, text: text.to_owned(), errors: String::new() };
        assert!(found.is_complete());
        assert_eq!(found.chaos(), Some(Duration::from_millis(1_500)));
        assert_eq!((found.value("calls"), found.value("panics")), (Some(9), None));
        assert_eq!(found.checkers(), ["history", "events"]);
    }
}
