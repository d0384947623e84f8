//! Runs seeds of the simulated cluster, each in a process of its own.
//!
//! Purpose: the way from a seed to what its run found, for tests and for the program that goes through many of them.
//! The simulation itself is the example program `holdfast-sim-seed`.
//!
//! Deliberately unknown here: what is simulated, and how it is checked.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use anyhow::{Context, Result};

/// The program that runs one seed.
const PROGRAM: &str = "holdfast-sim-seed";
/// In real time; a run takes seconds.
const RUN_TIMEOUT: Duration = Duration::from_secs(300);
/// What `timeout` answers when the time was over.
const TIMEOUT_EXIT_CODE: i32 = 124;

/// How a seed is run.
#[derive(Debug, Clone, Default)]
pub struct Run {
    /// Which.
    pub seed: u64,
    /// Without faults.
    pub calm: bool,
    /// With a digest over every packet.
    pub packets: bool,
    /// A short run with less of everything.
    pub short: bool,
    /// With panics in the midst of the work of tasks and state machines, in a build that is armed.
    pub panics: bool,
    /// With a planted fault, in a build that is armed.
    pub mutation: Option<String>,
    /// How long clients work and faults happen, instead of what the seed says.
    pub chaos: Option<Duration>,
    /// Where to write what happened.
    pub journal: Option<PathBuf>,
}

impl Run {
    /// The run of a seed as it is.
    pub fn from_seed(seed: u64) -> Self {
        Self { seed, ..Self::default() }
    }

    /// Runs it to its end.
    ///
    /// # Errors
    /// When the program can't be run.
    pub fn execute(&self) -> Result<RunResult> {
        let program = program()?;
        // Simulated time stands still while anything goes round without waiting, so the real one has to end such a run.
        let mut command = Command::new("timeout");
        command.arg(RUN_TIMEOUT.as_secs().to_string()).arg(&program);
        // Whoever runs this may have set a seed for something else.
        command.env_remove("SEED").arg("--seed").arg(self.seed.to_string());
        let flags =
            [("--calm", self.calm), ("--packets", self.packets), ("--short", self.short), ("--panics", self.panics)];
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
            errors +=
                &format!("seed {} did not end within {RUN_TIMEOUT:?}: something goes round for ever\n", self.seed);
        }
        Ok(RunResult { is_clean: status.success(), text, errors })
    }
}

/// What a run found.
#[derive(Debug, Clone)]
pub struct RunResult {
    /// Whether it found nothing wrong.
    pub is_clean: bool,
    /// What it said of itself: one line of figures, and one for each finding.
    pub text: String,
    /// What it said besides.
    pub errors: String,
}

impl RunResult {
    /// Whether the run came to its end, whatever it found.
    pub fn is_complete(&self) -> bool {
        self.text.starts_with("seed ")
    }

    /// For how long clients worked and faults happened.
    pub fn chaos(&self) -> Option<Duration> {
        self.value("chaos_ms").map(Duration::from_millis)
    }

    /// A figure that the run gave of itself.
    pub fn value(&self, name: &str) -> Option<u64> {
        let first = self.text.lines().next()?;
        first.split_whitespace().skip_while(|word| *word != name).nth(1)?.parse().ok()
    }

    /// The checkers that found something, in the order of their findings.
    pub fn checkers(&self) -> Vec<String> {
        let mut checkers: Vec<String> = Vec::new();
        for finding in self.text.lines().skip(1) {
            // What a finding quotes may go on over more lines, which bear no name.
            let name = finding.split_once('[').and_then(|(_, rest)| rest.split_once(']')).map(|(name, _)| name);
            if let Some(name) = name.filter(|name| !checkers.iter().any(|known| known == name)) {
                checkers.push(name.to_owned());
            }
        }
        checkers
    }
}

/// The program lies among the examples of the build that this process is of.
fn program() -> Result<PathBuf> {
    let here = std::env::current_exe().context("this program's own path is needed to find its neighbour")?;
    let folder = here.parent().context("a program lies in a folder")?;
    // Tests lie in `deps`, examples in `examples`.
    let examples = if folder.ends_with("examples") { folder.to_owned() } else { folder.join("../examples") };
    existing_program(&examples.join(PROGRAM))
}

fn existing_program(program: &Path) -> Result<PathBuf> {
    program.canonicalize().with_context(|| {
        format!("{} is not there; `cargo build --release --workspace --examples` builds it", program.display())
    })
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
