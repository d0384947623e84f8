//! Bytes of barriers: what they are charged, an upper bound of the memory that they take, and what they count against
//! the limit of their namespace's tables.

use super::Barriers;
use super::barrier::{Arrival, Barrier, BarrierFacts};
use super::party::{ArrivalKey, Party};
use crate::item_bytes::ItemBytes;
use crate::metadata::EncodedMetadata;
use crate::permits::Requester;
use crate::{ArriveAtBarrier, BarrierCommand, ConfigureBarrier, Path};

/// A barrier without texts, with the outcomes of as many generations as are remembered.
const BARRIER: ItemBytes = ItemBytes { charged: 3_072, counted: 256 };
/// An arrival without texts. It is as much as an arrival inside and a member of a roster, so that no trip fails.
const ARRIVAL: ItemBytes = ItemBytes { charged: 1_024, counted: 160 };
/// A party of a generation that ended, without texts. While it is inside, it counts as such.
const MEMBER: ItemBytes = ItemBytes { charged: 256, counted: 160 };
/// A request that has left and waits for the others. Its texts are those of its party.
pub(super) const LEAVING: ItemBytes = ItemBytes { charged: 96, counted: 0 };

impl Barrier {
    pub(super) fn bytes(&self, path: &Path) -> ItemBytes {
        let inside = self.inside.as_ref().map_or(ItemBytes::default(), |inside| inside.bytes + inside.roster.bytes);
        let last = self.last.as_ref().filter(|last| {
            let inside = self.inside.as_ref().map(|inside| &inside.roster);
            inside.is_none_or(|inside| inside.generation != last.generation)
        });
        let last = last.map_or(ItemBytes::default(), |last| last.bytes);
        of_facts(path, &self.facts) + self.gathered_bytes + inside + last
    }
}

/// Returns the bytes of an arrival in the generation that gathers.
pub(super) fn gathered(arrival: &Arrival) -> ItemBytes {
    of_arrival(&arrival.key.party, &arrival.process_id, arrival.request_id.as_deref(), arrival.metadata.len())
}

/// Returns the bytes of an arrival inside. Those of its party are counted with the generation.
pub(super) fn inside(arrival: &Arrival) -> ItemBytes {
    gathered(arrival) - of_member(&arrival.key.party, arrival.request_id.as_deref())
}

/// Returns the bytes of a party of a generation that ended.
pub(super) fn of_member(party: &Party, request_id: Option<&str>) -> ItemBytes {
    MEMBER + of_texts(party, request_id)
}

fn of_texts(party: &Party, request_id: Option<&str>) -> ItemBytes {
    let counted = party.text_bytes();
    ItemBytes { charged: counted + request_id.map_or(0, str::len) as u64, counted }
}

fn of_arrival(party: &Party, process_id: &str, request_id: Option<&str>, metadata: usize) -> ItemBytes {
    let process_id = ItemBytes { charged: process_id.len() as u64, counted: 0 };
    ARRIVAL + of_texts(party, request_id) + process_id + ItemBytes::of_metadata(metadata)
}

/// Returns the bytes of a new arrival.
pub(super) fn of_new(key: &ArrivalKey, requester: &Requester, arrive: &ArriveAtBarrier) -> ItemBytes {
    let metadata = EncodedMetadata::encoded_len(&arrive.metadata);
    of_arrival(&key.party, &requester.process_id, arrive.request_id.as_deref(), metadata)
}

/// Returns the bytes of a barrier that an arrival makes.
pub(super) fn of_ephemeral(path: &Path) -> ItemBytes {
    of_barrier(path, 0, 0)
}

/// Returns the bytes of a barrier without those in it.
pub(super) fn of_facts(path: &Path, facts: &BarrierFacts) -> ItemBytes {
    of_barrier(path, facts.description.len(), facts.metadata.len())
}

/// Returns the bytes of a barrier as configured.
pub(super) fn of_configured(configure: &ConfigureBarrier) -> ItemBytes {
    let metadata = EncodedMetadata::encoded_len(&configure.metadata);
    of_barrier(&configure.path, configure.description.len(), metadata)
}

fn of_barrier(path: &Path, description: usize, metadata: usize) -> ItemBytes {
    BARRIER + ItemBytes::of_texts(path, description, metadata)
}

impl Barriers {
    /// Returns the most that a command can add.
    pub fn most_added(&self, command: &BarrierCommand) -> ItemBytes {
        match command {
            BarrierCommand::Configure(configure) => {
                let present = self.by_path.get(&configure.path);
                let present = present.map_or(ItemBytes::default(), |barrier| of_facts(&configure.path, &barrier.facts));
                of_configured(configure).saturating_sub(present)
            }
            BarrierCommand::Arrive(arrive) => {
                // A session id, a holder, a request id and a process id have at most as many bytes.
                const NAMES: u64 = 4 * crate::MAX_NAME_BYTES as u64;
                let metadata = ItemBytes::of_metadata(EncodedMetadata::encoded_len(&arrive.metadata));
                of_ephemeral(&arrive.path) + ARRIVAL + ItemBytes::from(NAMES) + metadata
            }
            BarrierCommand::Leave(_) | BarrierCommand::Delete { .. } => ItemBytes::default(),
        }
    }
}
