//! Pools: holds of named members. A hold has some members of a pool, and each member has at most one hold.

use serde::{Deserialize, Serialize};

use super::{Metadata, NamespaceRef, Path, PermitHolderView, Revision};

/// The highest number of members in one hold, whatever the limits of the account.
pub const MAX_MEMBERS_PER_TAKE: u64 = 64;

/// The highest number of names in a change of a pool, in all its lists together: as many as a pool has by default, so
/// that a change fits in a slice.
pub const MAX_NAMES_PER_POOL_CHANGE: usize = 1_000;

/// The cost of a member that a configuration or a change names, in units: it is looked up, compared and put in order.
const UNITS_PER_MEMBER: u64 = 3;

/// Creates or changes a pool. All values are absolute, so a repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurePool {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// All members, each name once. A member that is missing here leaves once it is free.
    pub members: Vec<MemberSpec>,
    /// How long a member rests after its hold ended.
    pub cooldown_ms: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// A member as configured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberSpec {
    /// Its name; not empty.
    pub name: String,
    /// Whether it is not given out.
    pub disabled: bool,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// Changes some members of a pool. Names in several lists are added or removed first; a repeat changes nothing. Its lists
/// have at most [`MAX_NAMES_PER_POOL_CHANGE`] names together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangePool {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// Members to add. One that is there stays as it is, with other metadata; one that leaves stays.
    pub add: Vec<MemberSpec>,
    /// Members to remove; a held one leaves with the end of its hold.
    pub remove: Vec<String>,
    /// Members that are not given out from now on.
    pub disable: Vec<String>,
    /// Members that are given out again, at once also if they rest.
    pub enable: Vec<String>,
}

impl ConfigurePool {
    /// Returns the cost of a configuration, in units, besides that of the members that leave.
    pub fn units(&self) -> u64 {
        1 + UNITS_PER_MEMBER * self.members.len() as u64
    }
}

impl ChangePool {
    /// Returns the number of names in all lists.
    pub fn names(&self) -> usize {
        self.add.len() + self.remove.len() + self.disable.len() + self.enable.len()
    }

    /// Returns the cost of a change, in units.
    pub fn units(&self) -> u64 {
        1 + UNITS_PER_MEMBER * self.names() as u64
    }
}

/// A view of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolView {
    /// The path.
    pub path: Path,
    /// The number of members, those that leave included.
    pub members_total: u64,
    /// The members that can be taken now.
    pub free: u64,
    /// The members that are held, in any phase of their hold.
    pub in_use: u64,
    /// The members that leave once their hold ends.
    pub leaving: u64,
    /// How long a member rests after its hold ended.
    pub cooldown_ms: u64,
    /// The number of holds.
    pub holders_total: u64,
    /// The number of waiting requests.
    pub waiting: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The revision of its last change; of a pool that does not exist, the shard's current revision.
    pub revision: Revision,
}

impl PoolView {
    /// Returns the view of a pool that does not exist.
    pub fn absent(path: &Path, revision: Revision) -> Self {
        Self {
            path: path.clone(),
            members_total: 0,
            free: 0,
            in_use: 0,
            leaving: 0,
            cooldown_ms: 0,
            holders_total: 0,
            waiting: 0,
            description: String::new(),
            metadata: Metadata::new(),
            revision,
        }
    }
}

/// A view of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemberView {
    /// Its name.
    pub name: String,
    /// Whether it is not given out.
    pub disabled: bool,
    /// Whether it is gone once its hold ends.
    pub leaving: bool,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The latest of these revisions: of its addition, of the end of a hold of it, and of being enabled while it was
    /// disabled or rested.
    pub free_since: Revision,
    /// Shard clock at which its rest ends, if it rests.
    pub resting_until_ms: Option<u64>,
    /// Its hold, without the names of the members.
    pub holder: Option<PermitHolderView>,
}
