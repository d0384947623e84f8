//! How many seeds of which source have run, and their findings: a line for each batch, in a file, so that runs add up.
//! Only runs of the same source say something about it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// Consecutive seeds that have run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Batch {
    /// The digest of the sources of the simulation.
    pub(crate) source: String,
    /// The kind of the runs.
    pub(crate) profile: String,
    pub(crate) first: u64,
    pub(crate) seeds: u64,
    /// CPU time, in ms.
    pub(crate) cpu_ms: u64,
    /// How many panics were injected.
    pub(crate) panics: u64,
    /// The seeds with findings, and the checks that found them.
    pub(crate) found: Vec<(u64, Vec<String>)>,
}

impl Batch {
    fn is_continued_by(&self, next: &Self) -> bool {
        self.source == next.source && self.profile == next.profile && self.first + self.seeds == next.first
    }
}

/// The file and its content.
pub(crate) struct Evidence {
    path: PathBuf,
    batches: Vec<Batch>,
}

impl Evidence {
    /// Reads the file, if there is one.
    ///
    /// # Errors
    /// If it can't be read.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let text = match std::fs::read_to_string(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            read => read.with_context(|| format!("{} can't be read", path.display()))?,
        };
        let read = |line| serde_json::from_str(line).with_context(|| format!("{} is damaged", path.display()));
        let batches = text.lines().map(read).collect::<Result<_>>()?;
        Ok(Self { path: path.to_owned(), batches })
    }

    /// Adds a batch, to the last one if it continues that.
    ///
    /// # Errors
    /// If the file can't be written.
    pub(crate) fn add(&mut self, batch: Batch) -> Result<()> {
        match self.batches.last_mut().filter(|last| last.is_continued_by(&batch)) {
            Some(last) => {
                last.seeds += batch.seeds;
                last.cpu_ms += batch.cpu_ms;
                last.panics += batch.panics;
                last.found.extend(batch.found);
            }
            None => self.batches.push(batch),
        }
        let mut text = String::new();
        for batch in &self.batches {
            text += &serde_json::to_string(batch)?;
            text.push('\n');
        }
        // A reader sees the old file or the new one, even if this process ends meanwhile.
        let new = self.path.with_extension("new");
        if let Some(folder) = self.path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        std::fs::write(&new, text).and_then(|()| std::fs::rename(&new, &self.path)).context("evidence can't be kept")
    }

    /// The batches of a source and profile.
    fn matching<'a>(&'a self, source: &'a str, profile: &'a str) -> impl Iterator<Item = &'a Batch> {
        self.batches.iter().filter(move |batch| batch.source == source && batch.profile == profile)
    }

    /// Returns the first seed that has not run.
    pub(crate) fn next_seed(&self, source: &str, profile: &str, otherwise: u64) -> u64 {
        self.matching(source, profile).map(|batch| batch.first + batch.seeds).max().unwrap_or(otherwise)
    }

    /// Returns how many seeds of a source and profile have run.
    pub(crate) fn seeds(&self, source: &str, profile: &str) -> u64 {
        self.matching(source, profile).map(|batch| batch.seeds).sum()
    }

    /// Summarises a source and profile in one line.
    pub(crate) fn summary(&self, source: &str, profile: &str) -> String {
        let seeds = self.seeds(source, profile);
        let cpu_s = self.matching(source, profile).map(|batch| batch.cpu_ms).sum::<u64>() as f64 / 1_000.0;
        let panics: u64 = self.matching(source, profile).map(|batch| batch.panics).sum();
        let found: usize = self.matching(source, profile).map(|batch| batch.found.len()).sum();
        let hourly = seeds as f64 * 3_600.0 / cpu_s.max(0.001);
        // An event with a probability of 3 in n occurs in n runs with a probability of 95 %.
        let bound = 3.0 / seeds.max(1) as f64;
        format!(
            "{seeds} seeds ({profile}) of source {source}: {found} with findings; {panics} panics injected; {cpu_s:.0} s of \
             CPU time, {hourly:.0} seeds an hour; an event that none of them shows occurs in fewer than {bound:.4} of \
             such runs (95 %)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(source: &str, first: u64, seeds: u64) -> Batch {
        let (source, profile) = (source.to_owned(), "panics".to_owned());
        Batch {
            source,
            profile,
            first,
            seeds,
            cpu_ms: 1_000,
            panics: 2,
            found: vec![(first, vec!["model".to_owned()])],
        }
    }

    #[test]
    fn runs_of_the_same_source_add_up_and_others_do_not() {
        let path = std::env::temp_dir().join(format!("holdfast-evidence-{}.jsonl", std::process::id()));
        let mut evidence = Evidence::open(&path).expect("there is none yet");
        assert_eq!(evidence.next_seed("a", "panics", 7), 7);
        for batch in [batch("a", 7, 20), batch("a", 27, 20), batch("b", 7, 5), batch("a", 47, 3)] {
            evidence.add(batch).expect("it can be written");
        }
        let read = Evidence::open(&path).expect("it was just written");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(read.batches.len(), 3, "the first two are one");
        assert_eq!((read.next_seed("a", "panics", 7), read.seeds("a", "panics")), (50, 43));
        assert_eq!((read.next_seed("b", "panics", 7), read.seeds("b", "calm")), (12, 0));
        assert!(
            read.summary("a", "panics")
                .starts_with("43 seeds (panics) of source a: 3 with findings; 6 panics injected")
        );
    }
}
