//! Bytes of semaphores and pools: what they are charged, an upper bound of the memory that they take, and what they
//! count against the limit of their namespace's tables.

use std::collections::{BTreeMap, BTreeSet};

use super::item::{PermitHold, PermitWait};
use super::key::{Key, Name, Scope};
use super::members::of_member;
use super::source::Source;
use super::{PermitTable, members};
use crate::ask::asked_charge;
use crate::item_bytes::ItemBytes;
use crate::metadata::EncodedMetadata;
use crate::{
    AcquirePermits, ChangePool, ConfigurePool, ConfigureSemaphore, Kind, MAX_MEMBERS_PER_TAKE, MemberSpec, Metadata,
    Path, PermitCommand, Wanted,
};

/// A semaphore without texts, or a pool without members.
const SOURCE: ItemBytes = ItemBytes { charged: 896, counted: 256 };
/// The charge of a hold or a waiting request for each member.
const MEMBER_OF_HOLD: u64 = 24;
/// A hold without texts.
const HOLD: ItemBytes = ItemBytes { charged: 800, counted: 200 };
/// A waiting request without texts. It is never less than the hold that it becomes, so that no grant fails for a limit.
const WAIT: ItemBytes = ItemBytes { charged: 960, counted: 300 };

impl Source {
    pub(super) fn bytes(&self, path: &Path) -> ItemBytes {
        let members = self.members().map_or(ItemBytes::default(), members::Members::bytes);
        of_source(path, self.description.len(), self.metadata.len()) + members
    }
}

impl PermitHold {
    pub(super) fn bytes(&self) -> ItemBytes {
        let lease = self.lease.as_ref().map_or(ItemBytes::default(), |lease| of_wanted(&lease.wanted));
        let asked = asked_charge(Some(&self.asks).filter(|asks| !asks.is_empty()));
        let asked = ItemBytes { charged: asked, counted: 0 };
        HOLD + of_key(&self.key, &self.process_id) + ItemBytes::of_metadata(self.metadata.len()) + lease + asked
    }
}

impl PermitWait {
    pub(super) fn bytes(&self) -> ItemBytes {
        let rest = of_key(&self.key, &self.process_id) + ItemBytes::of_metadata(self.terms.metadata.len());
        WAIT + rest + of_wanted(&self.wanted)
    }
}

/// Returns the bytes of a member as configured.
fn of_spec(spec: &MemberSpec) -> ItemBytes {
    of_member(&spec.name, encoded_len(&spec.metadata))
}

/// Returns the bytes of what a hold or a waiting request says about members.
fn of_wanted(wanted: &Wanted) -> ItemBytes {
    let names = match wanted {
        Wanted::Permits { .. } => return ItemBytes::default(),
        Wanted::Members { prefer, .. } => prefer.as_ref().map_or(0, String::len),
        Wanted::Member(name) => 2 * name.len(),
    };
    // What takes more is refused.
    let charged = wanted.weight().min(MAX_MEMBERS_PER_TAKE) * MEMBER_OF_HOLD + names as u64;
    ItemBytes { charged, counted: 0 }
}

fn of_source(path: &Path, description: usize, metadata: usize) -> ItemBytes {
    SOURCE + ItemBytes::of_texts(path, description, metadata)
}

/// Returns the bytes of an owner and a request id.
fn of_key(key: &Key, process_id: &str) -> ItemBytes {
    let scope = match &key.scope {
        Scope::Process(process_id) => process_id.len(),
        Scope::Session { session_id, .. } => session_id.len(),
    };
    let holder = key.holder.as_deref().map_or(0, str::len);
    let counted = (scope + holder + key.request_id.len()) as u64;
    ItemBytes { charged: counted + process_id.len() as u64, counted }
}

/// Returns the bytes of a semaphore that a request creates.
pub(super) fn of_ephemeral(path: &Path) -> ItemBytes {
    of_source(path, 0, 0)
}

/// Returns the bytes of a semaphore as configured.
pub(super) fn of_configured(configure: &ConfigureSemaphore) -> ItemBytes {
    of_source(&configure.path, configure.description.len(), encoded_len(&configure.metadata))
}

/// Returns the bytes of a pool with the members that are listed.
fn of_pool(configure: &ConfigurePool) -> ItemBytes {
    let members: ItemBytes = configure.members.iter().map(of_spec).sum();
    of_source(&configure.path, configure.description.len(), encoded_len(&configure.metadata)) + members
}

/// Returns the bytes of a new hold, or of a new waiting request.
pub(super) fn of_new(key: &Key, process_id: &str, request: &AcquirePermits, waits: bool) -> ItemBytes {
    let thing = if waits { WAIT } else { HOLD };
    let rest = of_key(key, process_id) + ItemBytes::of_metadata(encoded_len(&request.metadata));
    thing + rest + of_wanted(&request.wanted)
}

impl PermitTable {
    /// Returns the most that a command can add.
    pub fn most_added(&self, command: &PermitCommand) -> ItemBytes {
        match command {
            PermitCommand::Configure(configure) => {
                of_configured(configure).saturating_sub(self.bytes_at(Kind::Semaphore, &configure.path))
            }
            PermitCommand::ConfigurePool(configure) => {
                self.bytes_configured(configure).saturating_sub(self.bytes_at(Kind::Pool, &configure.path))
            }
            PermitCommand::ChangePool(change) => {
                self.bytes_changed(change).saturating_sub(self.bytes_at(Kind::Pool, &change.path))
            }
            PermitCommand::Acquire(acquire) => max_of_acquire(acquire),
            PermitCommand::Release(_) | PermitCommand::Delete { .. } | PermitCommand::Cancel(_) => ItemBytes::default(),
        }
    }

    /// Returns the bytes of a pool after a configuration: of what is not listed, the members that are held stay.
    pub(super) fn bytes_configured(&self, configure: &ConfigurePool) -> ItemBytes {
        let listed: BTreeSet<&str> = configure.members.iter().map(|member| member.name.as_str()).collect();
        let present = self.members_at(&configure.path).into_iter().flat_map(members::Members::iter);
        let stays = present.filter(|(name, member)| member.hold.is_some() && !listed.contains(&***name));
        let stays: ItemBytes = stays.map(|(name, member)| of_member(name, member.metadata.len())).sum();
        of_pool(configure) + stays
    }

    /// Returns the bytes of a pool after a change. Members are added first; of those removed, the held ones stay.
    pub(super) fn bytes_changed(&self, change: &ChangePool) -> ItemBytes {
        let members = self.members_at(&change.path);
        let present = |name: &str| members.map_or(ItemBytes::default(), |members| members.bytes_of(name));
        let is_held = |name: &str| members.and_then(|members| members.get(name)).is_some_and(|it| it.hold.is_some());
        // The last one counts of those with a name.
        let added: BTreeMap<&str, ItemBytes> =
            change.add.iter().map(|spec| (spec.name.as_str(), of_spec(spec))).collect();
        let removed: BTreeSet<&str> = change.remove.iter().map(String::as_str).filter(|name| !is_held(name)).collect();
        let named: BTreeSet<&str> = added.keys().chain(&removed).copied().collect();
        let stays = named.iter().filter(|name| !removed.contains(*name));
        let before: ItemBytes = named.iter().map(|name| present(name)).sum();
        let after: ItemBytes = stays.filter_map(|name| added.get(name)).copied().sum();
        self.bytes_at(Kind::Pool, &change.path) - before + after
    }

    fn members_at(&self, path: &Path) -> Option<&members::Members> {
        self.by_name.get(&Name::new(Kind::Pool, path))?.members()
    }

    fn bytes_at(&self, kind: Kind, path: &Path) -> ItemBytes {
        self.by_name.get(&Name::new(kind, path)).map_or(ItemBytes::default(), |there| there.bytes(path))
    }
}

fn max_of_acquire(acquire: &AcquirePermits) -> ItemBytes {
    // A session id, a holder and a process id have at most as many bytes.
    const NAMES: u64 = 4 * crate::MAX_NAME_BYTES as u64;
    of_ephemeral(&acquire.path)
        + WAIT
        + ItemBytes::from(NAMES)
        + ItemBytes::of_metadata(encoded_len(&acquire.metadata))
        + of_wanted(&acquire.wanted)
}

fn encoded_len(metadata: &Metadata) -> usize {
    EncodedMetadata::encoded_len(metadata)
}
