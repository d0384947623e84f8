//! Notes in the data directory by which a node finds the command that ends its process.
//!
//! A panic is caught. An exhausted stack or a lack of memory ends the process, and would do so at every start, when the
//! entry is applied again. A node notes that it runs, and removes the note when it stops. Where two runs ended without
//! that, and the second soon after its start, the next one applies one section at a time until it is ready, and notes
//! each step before it. A step that is still noted at a start is suspected, and the run that starts notes its steps
//! too. If that one ends at the same step, the step ends the process: its shard does not try it again. A process killed
//! from outside ends at another step each time.
//!
//! The notes outlast the process, not the machine: they are not synced. Losing them costs further starts.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_replication::{ApplyStep, Poison};
use parking_lot::{Mutex, MutexGuard};

/// The starts of runs that did not stop: of the one before, if it did not, and of this one.
const RUNS_FILE: &str = "runs";
/// The step that is being applied.
const STEP_FILE: &str = "applying";
/// The step at which the run before ended.
const SUSPECT_FILE: &str = "suspect";
/// A run that ends so soon may have ended at what it applied from its log.
const SHORT_RUN_MS: u64 = 60_000;
/// The step that ends due holds and waits, in its note.
const EXPIRY: &str = "due";

/// A step of a section that ends the process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FatalStep {
    /// The id of the shard.
    pub(crate) shard: String,
    /// The term of the entry.
    pub(crate) term: u64,
    /// Its index.
    pub(crate) index: u64,
    pub(crate) step: ApplyStep,
    /// How much of the section was left out by then, by the decisions of operators.
    pub(crate) left_out: u32,
}

impl FatalStep {
    /// Returns the step that a stored record of a shard is about, if the process ended at it.
    pub(crate) fn of_record(shard: &str, poison: &Poison) -> Option<Self> {
        let (left_out, failed) = (poison.ended_process?, &poison.failed_entry);
        let (term, index, step) = (failed.term, failed.index, failed.failure.step);
        Some(Self { shard: shard.to_owned(), term, index, step, left_out })
    }

    /// Returns a line; the shard is last, since its id may have spaces.
    fn encode(&self) -> String {
        let Self { shard, term, index, step, left_out } = self;
        let step = match step {
            ApplyStep::Expiry => EXPIRY.to_owned(),
            ApplyStep::Command(number) => number.to_string(),
        };
        format!("{term} {index} {step} {left_out} {shard}\n")
    }

    /// Reads a note; `None` if it is missing or unreadable.
    fn read(path: &Path) -> Option<Self> {
        Self::decode(&fs::read_to_string(path).ok()?)
    }

    /// Decodes the first line; `None` if it is no step.
    fn decode(text: &str) -> Option<Self> {
        let mut fields = text.split_once('\n')?.0.splitn(5, ' ');
        let (term, index) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let step = match fields.next()? {
            EXPIRY => ApplyStep::Expiry,
            number => ApplyStep::Command(number.parse().ok()?),
        };
        let (left_out, shard) = (fields.next()?.parse().ok()?, fields.next()?.to_owned());
        Some(Self { shard, term, index, step, left_out })
    }
}

/// The notes of a node that runs. They are removed when it is dropped.
pub(crate) struct RunMarkers {
    data_dir: PathBuf,
    ended_at: Option<FatalStep>,
    steps: Option<Arc<StepMarkers>>,
}

impl RunMarkers {
    /// Notes that the node runs. The data directory is locked by this process; `now_ms` is the wall clock.
    ///
    /// # Errors
    /// When the notes can't be written.
    pub(crate) fn begin(data_dir: &Path, now_ms: u64) -> io::Result<Self> {
        let (runs_path, step_path) = (data_dir.join(RUNS_FILE), data_dir.join(STEP_FILE));
        let before = fs::read_to_string(&runs_path).unwrap_or_default();
        let starts: Vec<u64> = before.lines().filter_map(|line| line.parse().ok()).collect();
        let is_short = matches!(starts.as_slice(), [_, last] if now_ms.saturating_sub(*last) < SHORT_RUN_MS);
        let noted = FatalStep::read(&step_path);
        let is_careful = is_short || noted.is_some();
        let ended_at = suspect(data_dir, noted)?;
        let last = starts.last().map(|start| format!("{start}\n")).unwrap_or_default();
        fs::write(&runs_path, format!("{last}{now_ms}\n"))?;
        let steps = if is_careful { Some(Arc::new(StepMarkers::open(&step_path)?)) } else { None };
        Ok(Self { data_dir: data_dir.to_owned(), ended_at, steps })
    }

    /// Returns the step at which the two runs before ended.
    pub(crate) fn ended_at(&self) -> Option<&FatalStep> {
        self.ended_at.as_ref()
    }

    /// Forgets that step: it is stored elsewhere.
    pub(crate) fn remove_end(&self) {
        remove_marker(&self.data_dir, SUSPECT_FILE);
        match &self.steps {
            Some(steps) => steps.clear(),
            None => remove_marker(&self.data_dir, STEP_FILE),
        }
    }

    /// Returns where steps are noted, if they are to be.
    pub(crate) fn steps(&self) -> Option<&Arc<StepMarkers>> {
        self.steps.as_ref()
    }

    /// Notes no further steps: the replicas have applied what was in their logs.
    pub(crate) fn finish_steps(&self) {
        if let Some(steps) = &self.steps {
            let _turn = steps.turn();
            steps.is_on.store(false, Ordering::Release);
        }
        remove_marker(&self.data_dir, STEP_FILE);
        remove_marker(&self.data_dir, SUSPECT_FILE);
    }

    /// Notes that the node has stopped.
    pub(crate) fn end(&self) {
        self.finish_steps();
        remove_marker(&self.data_dir, RUNS_FILE);
    }
}

impl Drop for RunMarkers {
    fn drop(&mut self) {
        self.end();
    }
}

/// Returns the step at which the last run ended if the run before it ended there too; otherwise it becomes the suspect.
fn suspect(data_dir: &Path, noted: Option<FatalStep>) -> io::Result<Option<FatalStep>> {
    let suspect_path = data_dir.join(SUSPECT_FILE);
    let suspected = FatalStep::read(&suspect_path);
    if noted.is_some() && noted == suspected {
        return Ok(noted);
    }
    match noted {
        Some(noted) => fs::write(suspect_path, noted.encode())?,
        None => remove_marker(data_dir, SUSPECT_FILE),
    }
    // Or a run that ends before its first step would count as one that ended at this.
    remove_marker(data_dir, STEP_FILE);
    Ok(None)
}

fn remove_marker(data_dir: &Path, name: &str) {
    match fs::remove_file(data_dir.join(name)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => tracing::warn!(%error, name, "run note not removed"),
        _ => {}
    }
}

/// Where a node notes each step before it, one section at a time.
pub(crate) struct StepMarkers {
    file: File,
    turn: Mutex<()>,
    is_on: AtomicBool,
}

impl StepMarkers {
    /// What was noted before stays until the first step.
    fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().write(true).create(true).truncate(false).open(path)?;
        Ok(Self { file, turn: Mutex::default(), is_on: AtomicBool::new(true) })
    }

    /// Returns true while steps are to be noted.
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::Acquire)
    }

    /// Waits until no other section of the node is being applied.
    pub(crate) fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock()
    }

    /// Notes the step that is applied next.
    pub(crate) fn record(&self, step: &FatalStep) {
        self.write(&step.encode());
    }

    /// Notes that none is being applied.
    pub(crate) fn clear(&self) {
        self.write("\n");
    }

    /// Replaces the first line. The rest is of earlier steps and has no meaning.
    fn write(&self, line: &str) {
        if let Err(error) = self.file.write_all_at(line.as_bytes(), 0) {
            tracing::warn!(%error, "step note not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::{TempDir, tempdir};

    use super::*;

    /// A run whose process ends without stopping.
    fn end_process(notes: RunMarkers) {
        std::mem::forget(notes);
    }

    fn begin(dir: &TempDir, now_ms: u64) -> RunMarkers {
        RunMarkers::begin(dir.path(), now_ms).expect("notes are written")
    }

    fn step(step: ApplyStep) -> FatalStep {
        FatalStep { shard: "locks 00".to_owned(), term: 3, index: 81_234, step, left_out: 1 }
    }

    #[test]
    fn steps_are_noted_after_two_ends_in_a_row_the_second_soon_after_its_start() {
        for (starts, is_careful) in [
            (&[0, 5_000][..], false),
            (&[0, 5_000, 6_000], true),
            (&[0, 500_000, 559_999], true),
            (&[0, 5_000, 65_000], false),
            (&[0, 5_000, 65_000, 65_001], true),
        ] {
            let dir = tempdir().expect("there is a disk");
            let (last, before) = starts.split_last().expect("one runs");
            before.iter().for_each(|start| end_process(begin(&dir, *start)));
            assert_eq!(begin(&dir, *last).steps().is_some(), is_careful, "{starts:?}");
        }
    }

    #[test]
    fn a_run_that_stops_is_not_counted() {
        let dir = tempdir().expect("there is a disk");
        end_process(begin(&dir, 0));
        drop(begin(&dir, 1_000));
        end_process(begin(&dir, 2_000));
        assert!(begin(&dir, 3_000).steps().is_none());
        assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0, "nothing is left behind");
    }

    /// A run that ends after it noted these steps, each in place of the one before.
    fn end_after(notes: RunMarkers, noted: &[Option<ApplyStep>]) {
        let steps = Arc::clone(notes.steps().expect("it notes its steps"));
        for noted in noted {
            noted.map_or_else(|| steps.clear(), |noted| steps.record(&step(noted)));
        }
        end_process(notes);
    }

    /// A directory in which two runs have ended.
    fn after_two_ends() -> TempDir {
        let dir = tempdir().expect("there is a disk");
        end_process(begin(&dir, 0));
        end_process(begin(&dir, 1));
        dir
    }

    #[test]
    fn a_step_at_which_two_runs_end_is_found() {
        let dir = after_two_ends();
        for last in [ApplyStep::Expiry, ApplyStep::Command(0), ApplyStep::Command(u32::MAX)] {
            end_after(begin(&dir, 2), &[Some(ApplyStep::Command(1_234)), Some(last)]);
            // However long the run took.
            let suspecting = begin(&dir, 2 + SHORT_RUN_MS);
            assert_eq!(suspecting.ended_at(), None, "somebody may have killed it");
            end_after(suspecting, &[None, Some(ApplyStep::Command(5)), Some(last)]);
            let next = begin(&dir, 2 + SHORT_RUN_MS);
            assert_eq!(next.ended_at(), Some(&step(last)));
            next.remove_end();
            end_process(next);
            let later = begin(&dir, 3);
            assert_eq!(later.ended_at(), None, "it is told once");
            end_process(later);
        }
    }

    #[test]
    fn runs_that_end_at_other_steps_or_become_ready_do_not_count() {
        let dir = after_two_ends();
        for number in [1, 2, 3, 4] {
            let notes = begin(&dir, 2);
            assert_eq!(notes.ended_at(), None, "command {number}");
            end_after(notes, &[Some(ApplyStep::Command(number))]);
        }
        end_after(begin(&dir, 2), &[Some(ApplyStep::Command(4)), None]);
        let next = begin(&dir, 2);
        assert_eq!(next.ended_at(), None, "it was done");
        end_after(next, &[Some(ApplyStep::Command(4))]);
        end_process(begin(&dir, 2));
        let next = begin(&dir, 2);
        assert_eq!(next.ended_at(), None, "the one before ended at no step");
        end_after(next, &[Some(ApplyStep::Command(4))]);
        let next = begin(&dir, 2);
        next.finish_steps();
        assert!(next.steps().is_some_and(|steps| !steps.is_on()));
        end_process(next);
        end_after(begin(&dir, 2), &[Some(ApplyStep::Command(4))]);
        assert_eq!(begin(&dir, 4).ended_at(), None, "a run in between became ready");
    }

    #[test]
    fn damaged_markers_are_none() {
        let dir = tempdir().expect("there is a disk");
        for text in ["", "\n", "1 2 3 4", "1 2 3 locks_00\n", "1 2 x 0 locks_00\n", "1 -2 due 0 locks_00\n"] {
            fs::write(dir.path().join(STEP_FILE), text).expect("it is written");
            fs::write(dir.path().join(RUNS_FILE), text).expect("it is written");
            let notes = begin(&dir, 5);
            assert_eq!((notes.ended_at(), notes.steps().is_some()), (None, false), "{text:?}");
        }
        fs::write(dir.path().join(STEP_FILE), [0xff, 0x0a]).expect("it is written");
        assert_eq!(begin(&dir, 5).ended_at(), None);
    }
}
