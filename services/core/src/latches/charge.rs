//! Charges of latches in bytes: an upper bound of the memory that they take.

use super::{Latch, LatchFacts, Latches, check_creation, check_jobs};
use crate::kit::path_charge;
use crate::locks::metadata_charge;
use crate::{CreateLatch, LatchCommand, LatchIds, LatchRef, Limits, Metadata, Path};

/// A latch without texts.
const LATCH: u64 = 512;
/// A named job without its id.
const NAMED_JOB: u64 = 64;

impl Latch {
    pub(super) fn charge(&self, path: &Path) -> u64 {
        self.facts.charge(path) + self.done.charge()
    }

    /// Returns what another total costs more than the present one.
    pub(super) fn charge_of_total(&self, total: u64) -> u64 {
        of_total(self.facts.ids, total).saturating_sub(of_total(self.facts.ids, self.facts.total))
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
fn of_total(ids: LatchIds, total: u64) -> u64 {
    if ids == LatchIds::Indexed { total / 8 } else { 0 }
}

/// Returns the charge of a named job.
pub(super) fn of_id(id: &str) -> u64 {
    NAMED_JOB + id.len() as u64
}

impl Latches {
    /// Returns the most that a command can add, or 0 if it is refused whatever room there is.
    pub(crate) fn most_added(&self, command: &LatchCommand, limits: &Limits) -> u64 {
        match command {
            LatchCommand::Create(create) => {
                let is_full = self.by_path.len() as u64 >= limits.max_latches_per_namespace;
                let is_new = !is_full && !self.by_path.contains_key(&create.path);
                if is_new && check_creation(limits, create).is_ok() { of_creation(create) } else { 0 }
            }
            LatchCommand::CountDown(count) => {
                let latch = self.active(&count.latch).filter(|latch| latch.check_ids(&count.jobs).is_ok());
                let latch = latch.filter(|_| check_jobs(&count.jobs).is_ok());
                latch.map_or(0, |latch| latch.done.charge_of_new(&count.jobs))
            }
            LatchCommand::SetTotal { latch, total, if_total } => {
                let latch = self.active(latch).filter(|latch| latch.changes_total(*total, *if_total));
                let latch = latch.filter(|latch| latch.check_total(limits, *total).is_ok());
                latch.map_or(0, |latch| latch.charge_of_total(*total))
            }
            LatchCommand::Delete(_) => 0,
        }
    }

    fn active(&self, wanted: &LatchRef) -> Option<&Latch> {
        self.get(wanted).ok().filter(|latch| !latch.facts.status.is_final())
    }
}

fn of_metadata(metadata: &Metadata) -> u64 {
    metadata_charge(crate::locks::EncodedMetadata::encoded_len(metadata))
}
