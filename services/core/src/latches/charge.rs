//! Charges of latches in bytes: an upper bound of the memory that they take.

use super::{Latch, LatchFacts};
use crate::kit::path_charge;
use crate::locks::metadata_charge;
use crate::{CreateLatch, Jobs, LatchCommand, LatchIds, Metadata, Path};

/// A latch without texts.
const LATCH: u64 = 512;
/// A named job without its id.
const NAMED_JOB: u64 = 64;

impl Latch {
    pub(super) fn charge(&self, path: &Path) -> u64 {
        self.facts.charge(path) + self.done.charge()
    }
}

impl LatchFacts {
    fn charge(&self, path: &Path) -> u64 {
        LATCH
            + 2 * path_charge(path)
            + self.description.len() as u64
            + metadata_charge(self.metadata.len())
            + of_total(self.ids, self.total)
    }
}

/// Returns the charge of a new latch.
pub(super) fn of_creation(create: &CreateLatch) -> u64 {
    LATCH
        + 2 * path_charge(&create.path)
        + create.description.len() as u64
        + of_metadata(&create.metadata)
        + of_total(create.ids, create.total)
}

/// Returns what a total costs: bits count before they are set, ids only when they are counted.
pub(super) fn of_total(ids: LatchIds, total: u64) -> u64 {
    if ids == LatchIds::Indexed { total / 8 } else { 0 }
}

/// Returns the charge of a named job.
pub(super) fn of_id(id: &str) -> u64 {
    NAMED_JOB + id.len() as u64
}

/// Returns the most that a command can add, whatever the state is.
pub(crate) fn max_of_command(command: &LatchCommand) -> u64 {
    match command {
        LatchCommand::Create(create) => of_creation(create),
        LatchCommand::CountDown(count) => match &count.jobs {
            Jobs::Named(ids) => ids.iter().map(|id| of_id(id)).sum(),
            Jobs::Indexed(_) => 0,
        },
        LatchCommand::SetTotal { total, .. } => of_total(LatchIds::Indexed, *total),
        LatchCommand::Delete(_) => 0,
    }
}

fn of_metadata(metadata: &Metadata) -> u64 {
    metadata_charge(crate::locks::EncodedMetadata::encoded_len(metadata))
}
