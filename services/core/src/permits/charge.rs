//! Charges of semaphores and pools in bytes: an upper bound of the memory that they take.

use std::collections::{BTreeMap, BTreeSet};

use super::item::{PermitHold, PermitWait};
use super::key::{Key, Name, Scope};
use super::source::Source;
use super::{PermitTable, members};
use crate::kit::path_charge;
use crate::locks::{EncodedMetadata, metadata_charge};
use crate::{
    AcquirePermits, ChangePool, ConfigurePool, ConfigureSemaphore, Kind, MAX_MEMBERS_PER_TAKE, MemberSpec, Metadata,
    Path, PermitCommand, Wanted,
};

/// A semaphore without texts, or a pool without members.
const SOURCE: u64 = 896;
/// A member without texts.
const MEMBER: u64 = 640;
/// What a hold or a waiting request takes for each member.
const MEMBER_OF_HOLD: u64 = 24;
/// A hold without texts.
const HOLD: u64 = 800;
/// A waiting request without texts. It is never less than the hold that it becomes, so that no grant fails for a limit.
const WAIT: u64 = 960;

impl Source {
    pub(super) fn charge(&self, path: &Path) -> u64 {
        let members = self.members().map_or(0, members::Members::bytes);
        of_source(path, self.description.len(), self.metadata.len()) + members
    }
}

impl PermitHold {
    pub(super) fn charge(&self) -> u64 {
        let lease = self.lease.as_ref().map_or(0, |lease| of_wanted(&lease.wanted));
        HOLD + of_key(&self.key, &self.process_id) + metadata_charge(self.metadata.len()) + lease
    }
}

impl PermitWait {
    pub(super) fn charge(&self) -> u64 {
        let rest = of_key(&self.key, &self.process_id) + metadata_charge(self.terms.metadata.len());
        WAIT + rest + of_wanted(&self.wanted)
    }
}

/// Returns the charge of a member.
pub(super) fn of_member(name: &str, metadata: usize) -> u64 {
    MEMBER + 2 * name.len() as u64 + metadata_charge(metadata)
}

/// Returns the charge of a member as configured.
pub(super) fn of_spec(spec: &MemberSpec) -> u64 {
    of_member(&spec.name, encoded_len(&spec.metadata))
}

/// Returns the charge of what a hold or a waiting request says about members.
fn of_wanted(wanted: &Wanted) -> u64 {
    let names = match wanted {
        Wanted::Permits { .. } => return 0,
        Wanted::Members { prefer, .. } => prefer.as_ref().map_or(0, String::len),
        Wanted::Member(name) => 2 * name.len(),
    };
    // What takes more is refused.
    wanted.weight().min(MAX_MEMBERS_PER_TAKE) * MEMBER_OF_HOLD + names as u64
}

fn of_source(path: &Path, description: usize, metadata: usize) -> u64 {
    SOURCE + 2 * path_charge(path) + description as u64 + metadata_charge(metadata)
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
    of_source(path, 0, 0)
}

/// Returns the charge of a semaphore as configured.
pub(super) fn of_configured(configure: &ConfigureSemaphore) -> u64 {
    of_source(&configure.path, configure.description.len(), encoded_len(&configure.metadata))
}

/// Returns the charge of a pool as configured.
pub(super) fn of_pool(configure: &ConfigurePool) -> u64 {
    let members: u64 = configure.members.iter().map(of_spec).sum();
    of_source(&configure.path, configure.description.len(), encoded_len(&configure.metadata)) + members
}

/// Returns the charge of a new hold, or of a new waiting request.
pub(super) fn of_new(key: &Key, process_id: &str, request: &AcquirePermits, waits: bool) -> u64 {
    let thing = if waits { WAIT } else { HOLD };
    let rest = of_key(key, process_id) + metadata_charge(encoded_len(&request.metadata));
    thing + rest + of_wanted(&request.wanted)
}

impl PermitTable {
    /// Returns the most that a command can add.
    pub(crate) fn most_added(&self, command: &PermitCommand) -> u64 {
        match command {
            PermitCommand::Configure(configure) => {
                of_configured(configure).saturating_sub(self.charge_of(Kind::Semaphore, &configure.path))
            }
            PermitCommand::ConfigurePool(configure) => {
                self.charge_configured(configure).saturating_sub(self.charge_of(Kind::Pool, &configure.path))
            }
            PermitCommand::ChangePool(change) => {
                self.charge_changed(change).saturating_sub(self.charge_of(Kind::Pool, &change.path))
            }
            PermitCommand::Acquire(acquire) => max_of_acquire(acquire),
            PermitCommand::Release(_) | PermitCommand::Delete { .. } | PermitCommand::Cancel(_) => 0,
        }
    }

    /// Returns the charge of a pool after a configuration: of what is not listed, the members that are held stay.
    pub(super) fn charge_configured(&self, configure: &ConfigurePool) -> u64 {
        let listed: BTreeSet<&str> = configure.members.iter().map(|member| member.name.as_str()).collect();
        let present = self.members_at(&configure.path).into_iter().flat_map(members::Members::iter);
        let stays = present.filter(|(name, member)| member.hold.is_some() && !listed.contains(&***name));
        let stays: u64 = stays.map(|(name, member)| of_member(name, member.metadata.len())).sum();
        of_pool(configure) + stays
    }

    /// Returns the charge of a pool after a change. Members are added first; of those removed, the held ones stay.
    pub(super) fn charge_changed(&self, change: &ChangePool) -> u64 {
        let members = self.members_at(&change.path);
        let present = |name: &str| members.map_or(0, |members| members.charge_of(name));
        let is_held = |name: &str| members.and_then(|members| members.get(name)).is_some_and(|it| it.hold.is_some());
        // The last one counts of those with a name.
        let added: BTreeMap<&str, u64> = change.add.iter().map(|spec| (spec.name.as_str(), of_spec(spec))).collect();
        let removed: BTreeSet<&str> = change.remove.iter().map(String::as_str).filter(|name| !is_held(name)).collect();
        let named: BTreeSet<&str> = added.keys().chain(&removed).copied().collect();
        let after = |name: &&str| if removed.contains(name) { 0 } else { added.get(name).copied().unwrap_or(0) };
        let before: u64 = named.iter().map(|name| present(name)).sum();
        let after: u64 = named.iter().map(after).sum();
        self.charge_of(Kind::Pool, &change.path) - before + after
    }

    fn members_at(&self, path: &Path) -> Option<&members::Members> {
        self.by_name.get(&Name::new(Kind::Pool, path))?.members()
    }

    fn charge_of(&self, kind: Kind, path: &Path) -> u64 {
        self.by_name.get(&Name::new(kind, path)).map_or(0, |there| there.charge(path))
    }
}

fn max_of_acquire(acquire: &AcquirePermits) -> u64 {
    // A session id, a holder and a process id have at most as many bytes.
    const NAMES: u64 = 4 * crate::MAX_NAME_BYTES as u64;
    of_ephemeral(&acquire.path)
        + WAIT
        + NAMES
        + metadata_charge(encoded_len(&acquire.metadata))
        + of_wanted(&acquire.wanted)
}

fn encoded_len(metadata: &Metadata) -> usize {
    EncodedMetadata::encoded_len(metadata)
}
