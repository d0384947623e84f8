//! Charges of semaphores in bytes: an upper bound of the memory that they take.

use super::item::{PermitHold, PermitWait};
use super::key::{Key, Scope};
use super::{Semaphore, Semaphores};
use crate::kit::path_charge;
use crate::locks::{EncodedMetadata, metadata_charge};
use crate::{AcquirePermits, ConfigureSemaphore, Metadata, Path, SemaphoreCommand};

/// A semaphore without texts.
const SEMAPHORE: u64 = 640;
/// A hold without texts.
const HOLD: u64 = 704;
/// A waiting request without texts. It is never less than the hold that it becomes, so that no grant fails for a limit.
const WAIT: u64 = 864;

impl Semaphore {
    pub(super) fn charge(&self, path: &Path) -> u64 {
        of_semaphore(path, self.description.len(), self.metadata.len())
    }
}

impl PermitHold {
    pub(super) fn charge(&self) -> u64 {
        HOLD + of_key(&self.key, &self.process_id) + metadata_charge(self.metadata.len())
    }
}

impl PermitWait {
    pub(super) fn charge(&self) -> u64 {
        WAIT + of_key(&self.key, &self.process_id) + metadata_charge(self.terms.metadata.len())
    }
}

fn of_semaphore(path: &Path, description: usize, metadata: usize) -> u64 {
    SEMAPHORE + 2 * path_charge(path) + description as u64 + metadata_charge(metadata)
}

fn of_key(key: &Key, process_id: &str) -> u64 {
    let scope = match &key.scope {
        Scope::Process(process_id) => process_id.len(),
        Scope::Session { session_id, .. } => session_id.len(),
    };
    let holder = key.holder.as_deref().map_or(0, str::len);
    (scope + key.request_id.len() + holder + process_id.len()) as u64
}

/// Returns the charge of a semaphore that a request creates.
pub(super) fn of_ephemeral(path: &Path) -> u64 {
    of_semaphore(path, 0, 0)
}

/// Returns the charge of a semaphore as configured.
pub(super) fn of_configured(configure: &ConfigureSemaphore) -> u64 {
    of_semaphore(&configure.path, configure.description.len(), encoded_len(&configure.metadata))
}

/// Returns the charge of a new hold.
pub(super) fn of_new_hold(key: &Key, process_id: &str, metadata: &Metadata) -> u64 {
    HOLD + of_key(key, process_id) + metadata_charge(encoded_len(metadata))
}

/// Returns the charge of a new waiting request.
pub(super) fn of_new_wait(key: &Key, process_id: &str, metadata: &Metadata) -> u64 {
    WAIT + of_key(key, process_id) + metadata_charge(encoded_len(metadata))
}

impl Semaphores {
    /// Returns the most that a command can add.
    pub(crate) fn most_added(&self, command: &SemaphoreCommand) -> u64 {
        match command {
            SemaphoreCommand::Configure(configure) => {
                let present = self.by_path.get(&configure.path).map_or(0, |there| there.charge(&configure.path));
                of_configured(configure).saturating_sub(present)
            }
            SemaphoreCommand::Acquire(acquire) => max_of_acquire(acquire),
            SemaphoreCommand::Release(_) | SemaphoreCommand::Delete { .. } | SemaphoreCommand::Cancel(_) => 0,
        }
    }
}

fn max_of_acquire(acquire: &AcquirePermits) -> u64 {
    // A session id, a holder and a process id have at most as many bytes.
    const NAMES: u64 = 4 * crate::MAX_NAME_BYTES as u64;
    of_ephemeral(&acquire.path) + WAIT + NAMES + metadata_charge(encoded_len(&acquire.metadata))
}

fn encoded_len(metadata: &Metadata) -> usize {
    EncodedMetadata::encoded_len(metadata)
}
