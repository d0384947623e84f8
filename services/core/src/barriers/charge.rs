//! Charges of barriers in bytes: an upper bound of the memory that they take.

use super::Barriers;
use super::barrier::{Arrival, Barrier, BarrierFacts};
use super::party::{ArrivalKey, Party};
use crate::kit::path_charge;
use crate::locks::{EncodedMetadata, metadata_charge};
use crate::permits::Requester;
use crate::{ArriveAtBarrier, BarrierCommand, ConfigureBarrier, Path};

/// A barrier without texts, with the outcomes of as many generations as are remembered.
const BARRIER: u64 = 3_072;
/// An arrival without texts. It is as much as an arrival inside and a member of a roster, so that no trip fails.
const ARRIVAL: u64 = 1_024;
/// A party of a generation that ended, without texts.
const MEMBER: u64 = 256;
/// A request that has left and waits for the others. Its texts are those of its party.
pub(super) const LEAVING: u64 = 96;

impl Barrier {
    pub(super) fn charge(&self, path: &Path) -> u64 {
        let inside = self.inside.as_ref().map_or(0, |inside| inside.bytes + inside.roster.bytes);
        let last = self.last.as_ref().filter(|last| {
            let inside = self.inside.as_ref().map(|inside| &inside.roster);
            inside.is_none_or(|inside| inside.generation != last.generation)
        });
        of_facts(path, &self.facts) + self.gathered_bytes + inside + last.map_or(0, |last| last.bytes)
    }
}

/// Returns the charge of an arrival in the generation that gathers.
pub(super) fn gathered(arrival: &Arrival) -> u64 {
    of_arrival(&arrival.key.party, &arrival.process_id, arrival.request_id.as_deref(), arrival.metadata.len())
}

/// Returns the charge of an arrival inside. That of its party is counted with the generation.
pub(super) fn inside(arrival: &Arrival) -> u64 {
    gathered(arrival) - of_member(&arrival.key.party, arrival.request_id.as_deref())
}

/// Returns the charge of a party of a generation that ended.
pub(super) fn of_member(party: &Party, request_id: Option<&str>) -> u64 {
    MEMBER + party.text_bytes() + request_id.map_or(0, str::len) as u64
}

fn of_arrival(party: &Party, process_id: &str, request_id: Option<&str>, metadata: usize) -> u64 {
    let texts = party.text_bytes() + (process_id.len() + request_id.map_or(0, str::len)) as u64;
    ARRIVAL + texts + metadata_charge(metadata)
}

/// Returns the charge of a new arrival.
pub(super) fn of_new(key: &ArrivalKey, requester: &Requester, arrive: &ArriveAtBarrier) -> u64 {
    let metadata = EncodedMetadata::encoded_len(&arrive.metadata);
    of_arrival(&key.party, &requester.process_id, arrive.request_id.as_deref(), metadata)
}

/// Returns the charge of a barrier that an arrival makes.
pub(super) fn of_ephemeral(path: &Path) -> u64 {
    of_barrier(path, 0, 0)
}

/// Returns the charge of a barrier without those in it.
pub(super) fn of_facts(path: &Path, facts: &BarrierFacts) -> u64 {
    of_barrier(path, facts.description.len(), facts.metadata.len())
}

/// Returns the charge of a barrier as configured.
pub(super) fn of_configured(configure: &ConfigureBarrier) -> u64 {
    let metadata = EncodedMetadata::encoded_len(&configure.metadata);
    of_barrier(&configure.path, configure.description.len(), metadata)
}

fn of_barrier(path: &Path, description: usize, metadata: usize) -> u64 {
    BARRIER + 2 * path_charge(path) + description as u64 + metadata_charge(metadata)
}

impl Barriers {
    /// Returns the most that a command can add.
    pub(crate) fn most_added(&self, command: &BarrierCommand) -> u64 {
        match command {
            BarrierCommand::Configure(configure) => {
                let present = self.by_path.get(&configure.path);
                let present = present.map_or(0, |barrier| of_facts(&configure.path, &barrier.facts));
                of_configured(configure).saturating_sub(present)
            }
            BarrierCommand::Arrive(arrive) => {
                // A session id, a holder, a request id and a process id have at most as many bytes.
                const NAMES: u64 = 4 * crate::MAX_NAME_BYTES as u64;
                let metadata = metadata_charge(EncodedMetadata::encoded_len(&arrive.metadata));
                of_ephemeral(&arrive.path) + ARRIVAL + NAMES + metadata
            }
            BarrierCommand::Leave(_) | BarrierCommand::Delete { .. } => 0,
        }
    }
}
