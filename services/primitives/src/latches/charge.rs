//! Bytes of latches: what they are charged, an upper bound of the memory that they take, and what they count against the
//! limit of their namespace's tables.

use super::{Latch, LatchFacts, Latches, check_creation, check_jobs};
use crate::item_bytes::ItemBytes;
use crate::metadata::EncodedMetadata;
use crate::{CreateLatch, LatchCommand, LatchIds, LatchRef, Limits, Path};

/// A latch without texts.
const LATCH: ItemBytes = ItemBytes { charged: 512, counted: 256 };
/// A named job without its id.
const NAMED_JOB: u64 = 64;

impl Latch {
    pub(super) fn bytes(&self, path: &Path) -> ItemBytes {
        self.facts.bytes(path) + ItemBytes::from(self.done.bytes())
    }

    /// Returns what another total takes more than the present one.
    pub(super) fn bytes_of_total(&self, total: u64) -> u64 {
        of_total(self.facts.ids, total).saturating_sub(of_total(self.facts.ids, self.facts.total))
    }
}

impl LatchFacts {
    fn bytes(&self, path: &Path) -> ItemBytes {
        of_latch(path, self.description.len(), self.metadata.len()) + ItemBytes::from(of_total(self.ids, self.total))
    }
}

/// Returns the bytes of a new latch.
pub(super) fn of_creation(create: &CreateLatch) -> ItemBytes {
    let metadata = EncodedMetadata::encoded_len(&create.metadata);
    of_latch(&create.path, create.description.len(), metadata) + ItemBytes::from(of_total(create.ids, create.total))
}

fn of_latch(path: &Path, description: usize, metadata: usize) -> ItemBytes {
    LATCH + ItemBytes::of_texts(path, description, metadata)
}

/// Returns what a total takes: bits count before they are set, ids only when they are counted.
fn of_total(ids: LatchIds, total: u64) -> u64 {
    if ids == LatchIds::Indexed { total / 8 } else { 0 }
}

/// Returns the bytes of a named job.
pub(super) fn of_id(id: &str) -> u64 {
    NAMED_JOB + id.len() as u64
}

impl Latches {
    /// Returns the most that a command can add, or nothing if it is refused whatever room there is.
    pub fn most_added(&self, command: &LatchCommand, limits: &Limits) -> ItemBytes {
        match command {
            LatchCommand::Create(create) => {
                let is_full = self.by_path.len() as u64 >= limits.max_latches_per_namespace;
                let is_new = !is_full && !self.by_path.contains_key(&create.path);
                if is_new && check_creation(limits, create).is_ok() {
                    of_creation(create)
                } else {
                    ItemBytes::default()
                }
            }
            LatchCommand::CountDown(count) => {
                let latch = self.active(&count.latch).filter(|latch| latch.check_ids(&count.jobs).is_ok());
                let latch = latch.filter(|_| check_jobs(&count.jobs).is_ok());
                latch.map_or(0, |latch| latch.done.bytes_of_new(&count.jobs)).into()
            }
            LatchCommand::SetTotal { latch, total, if_total } => {
                let latch = self.active(latch).filter(|latch| latch.changes_total(*total, *if_total));
                let latch = latch.filter(|latch| latch.check_total(limits, *total).is_ok());
                latch.map_or(0, |latch| latch.bytes_of_total(*total)).into()
            }
            LatchCommand::Delete(_) => ItemBytes::default(),
        }
    }

    fn active(&self, wanted: &LatchRef) -> Option<&Latch> {
        self.get(wanted).ok().filter(|latch| !latch.facts.status.is_final())
    }
}
