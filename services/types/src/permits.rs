//! Permits: units of a semaphore, or members of a pool. A hold has some of them, all that it requested or none.

use serde::{Deserialize, Serialize};

use super::{
    ChangePool, ConfigurePool, ConfigureSemaphore, FencingToken, Kind, MAX_MEMBERS_PER_TAKE, MessageSeq, Metadata,
    NamespaceRef, Owner, Path, Phase, PoolView, ReleaseRequest, Revision, RevokedReason, SemaphoreView, Wait, WaitId,
};

/// The highest priority of a request; 0 is the lowest.
pub const MAX_PRIORITY: u8 = 9;
/// Maximum number of holders in the response to an acquire: that of the member that is wanted, and those with most
/// permits.
pub const MAX_HOLDERS_IN_REFUSAL: usize = 16;

/// Commands for semaphores and pools. All are rejected with `NamespaceNotFound` for any but the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermitCommand {
    /// Creates a semaphore or changes it, an ephemeral one too. Nobody loses permits. Returns `Semaphore`. Errors:
    /// `QuotaExceeded`, `InvalidArgument`.
    Configure(ConfigureSemaphore),
    /// Returns `PermitsAcquired`, or `Ignored` for an old message of a session. Errors: `PrimitiveNotFound` without
    /// `permits` for a semaphore that does not exist, and for a pool that does not, `InvalidArgument`, `QuotaExceeded`,
    /// `SessionNotFound`, `Superseded`, `RequestIdTaken`.
    Acquire(AcquirePermits),
    /// Ends one hold, or the wait for it, or returns some members. Returns `PermitsReleased`, also if there is none, or
    /// `Ignored`. Errors: `SessionNotFound`, `Superseded` if it has a message sequence number.
    Release(ReleasePermits),
    /// Ends all holds and waits, and deletes the semaphore or pool. Returns `Done`, also if there is none.
    Delete {
        /// The namespace.
        namespace: NamespaceRef,
        /// Whether it is a semaphore or a pool.
        kind: Kind,
        /// The path.
        path: Path,
    },
    /// Callers left. Returns `Cancelled`.
    Cancel(CancelPermits),
    /// Creates a pool or changes it. Nobody loses a member. Returns `Pool`. Errors: `QuotaExceeded`, `InvalidArgument`.
    ConfigurePool(ConfigurePool),
    /// Changes some members of a pool. Returns `Pool`. Errors: `PrimitiveNotFound`, `QuotaExceeded`, `InvalidArgument`.
    ChangePool(ChangePool),
}

/// A request for permits. An owner and a request id identify the hold: a repeat extends it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AcquirePermits {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// Identifies the hold; not empty.
    pub request_id: String,
    /// What it requests, and of which kind of thing.
    pub wanted: Wanted,
    /// From 0 to [`MAX_PRIORITY`].
    pub priority: u8,
    /// How long the hold lasts from its grant; absent for a hold that lives as long as a session.
    pub ttl_ms: Option<u64>,
    /// How long the hold then stays in transition, at most 49 days; higher values count as 49 days.
    pub transition_ms: u64,
    /// Whether it waits if it can't be granted immediately.
    pub wait: Wait,
    /// Stored with the hold; a repeat replaces it.
    pub metadata: Metadata,
    /// If given, only extends the hold with this token. Such a request never waits and never changes what is held.
    pub fencing_token: Option<FencingToken>,
    /// The call that attaches to the wait, or to the hold once granted. As in [`Acquire`](super::Acquire).
    pub attempt: u64,
    /// The attempts whose callers left for good, or whose retry this call may be.
    pub abandoned: Vec<u64>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// What a request for permits wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wanted {
    /// Permits of a semaphore.
    Permits {
        /// How many; at least 1.
        weight: u64,
        /// The permits of the semaphore that the request creates if there is none. A configured one ignores them.
        permits: Option<u64>,
    },
    /// So many members of a pool, whichever are free.
    Members {
        /// How many; at least 1.
        count: u64,
        /// The one that is taken first if it is free.
        prefer: Option<String>,
    },
    /// This member of a pool.
    Member(String),
}

impl Wanted {
    /// Returns the kind of the thing.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Permits { .. } => Kind::Semaphore,
            Self::Members { .. } | Self::Member(_) => Kind::Pool,
        }
    }

    /// Returns how many permits or members it is.
    pub fn weight(&self) -> u64 {
        match self {
            Self::Permits { weight, .. } => *weight,
            Self::Members { count, .. } => *count,
            Self::Member(_) => 1,
        }
    }

    /// Returns the cost of granting it or of ending its hold, in units: one for each member, of which no hold has more
    /// than [`MAX_MEMBERS_PER_TAKE`]. Permits of a semaphore are one number.
    pub fn units(&self) -> u64 {
        match self {
            Self::Permits { .. } => 1,
            Self::Members { .. } | Self::Member(_) => self.weight().clamp(1, MAX_MEMBERS_PER_TAKE),
        }
    }
}

/// Releases one hold, or ends the wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasePermits {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// Whether it is of a semaphore or of a pool.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The request id of the hold, if it is not found by its token.
    pub request_id: Option<String>,
    /// The token of the hold. With a request id, both must fit.
    pub fencing_token: Option<FencingToken>,
    /// The members to return; empty for the whole hold. A hold without members ends. Others than its are ignored.
    pub members: Vec<String>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Callers of one request left. If no other caller relies on it, ends its wait or, if it was granted, its hold. As
/// [`Cancel`](super::Cancel) by rules 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelPermits {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// Whether it is of a semaphore or of a pool.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// The owner that waited.
    pub owner: Owner,
    /// As in the request.
    pub request_id: String,
    /// The attempts of these callers; at least one.
    pub attempts: Vec<u64>,
}

impl PermitCommand {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Configure(configure) => &configure.namespace,
            Self::Acquire(acquire) => &acquire.namespace,
            Self::Release(release) => &release.namespace,
            Self::Delete { namespace, .. } => namespace,
            Self::Cancel(cancel) => &cancel.namespace,
            Self::ConfigurePool(configure) => &configure.namespace,
            Self::ChangePool(change) => &change.namespace,
        }
    }

    /// Returns its cost as far as the command alone tells, in units, besides that of what it grants and ends.
    pub fn units(&self) -> u64 {
        match self {
            Self::ConfigurePool(configure) => configure.units(),
            Self::ChangePool(change) => change.units(),
            Self::Release(release) => 1 + release.members.len() as u64,
            Self::Configure(_) | Self::Acquire(_) | Self::Delete { .. } | Self::Cancel(_) => 1,
        }
    }
}

/// Queries about semaphores and pools. Errors: `NamespaceNotFound`, and `PrimitiveNotFound` for `Get` and `Members`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermitQuery {
    /// About a semaphore. Returns `SemaphoreHolders`, in order of token.
    Get {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
        /// Holders after the one with this token.
        after: Option<FencingToken>,
        /// Maximum number of holders.
        limit: u32,
    },
    /// Returns `Semaphores` or `Pools`, in order of path.
    List {
        /// The namespace.
        namespace: NamespaceRef,
        /// Whether semaphores or pools.
        kind: Kind,
        /// Only those at or below this path; the empty path matches all.
        prefix: Path,
        /// Start after this one.
        after: Option<Path>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `PermitsChecked`, also for a semaphore or pool that does not exist.
    Check {
        /// The namespace.
        namespace: NamespaceRef,
        /// Whether it is a semaphore or a pool.
        kind: Kind,
        /// The path.
        path: Path,
        /// The check is true exactly while the hold with this token is held.
        fencing_token: FencingToken,
        /// And has this member, if given.
        member: Option<String>,
    },
    /// Returns `PermitWaits`: the waiting requests of all semaphores and pools, in order of arrival.
    Waits {
        /// The namespace.
        namespace: NamespaceRef,
        /// Start after this one.
        after: Option<WaitId>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// The current status of a waiting request. Returns `PermitsAcquired` with `Enqueued`. Errors: `NotWaiting`.
    WaitStatus {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
    },
    /// Returns `PoolMembers`, in order of name.
    Members {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path of the pool.
        path: Path,
        /// Members after this one.
        after: Option<String>,
        /// Maximum number of members.
        limit: u32,
    },
    /// Returns `Holds`: whether an owner has a hold of a request, so that a repeat of the request only extends it.
    HasHold {
        /// The namespace.
        namespace: NamespaceRef,
        /// Whether it is a semaphore or a pool.
        kind: Kind,
        /// The path.
        path: Path,
        /// The owner.
        owner: Owner,
        /// The id of the request.
        request_id: String,
    },
}

impl PermitQuery {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Get { namespace, .. }
            | Self::List { namespace, .. }
            | Self::Check { namespace, .. }
            | Self::Waits { namespace, .. }
            | Self::WaitStatus { namespace, .. }
            | Self::Members { namespace, .. }
            | Self::HasHold { namespace, .. } => namespace,
        }
    }
}

/// A view of a semaphore or of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum PermitsView {
    /// Of a semaphore.
    Semaphore(SemaphoreView),
    /// Of a pool.
    Pool(PoolView),
}

impl PermitsView {
    /// Returns the view of what does not exist. Only semaphores and pools have permits.
    pub fn absent(kind: Kind, path: &Path, revision: Revision) -> Self {
        match kind {
            Kind::Pool => Self::Pool(PoolView::absent(path, revision)),
            Kind::Lock | Kind::Semaphore | Kind::Latch | Kind::Barrier | Kind::Condition | Kind::Request => {
                Self::Semaphore(SemaphoreView::absent(path, revision))
            }
        }
    }

    /// Returns whether it is of a semaphore or of a pool.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Semaphore(_) => Kind::Semaphore,
            Self::Pool(_) => Kind::Pool,
        }
    }

    /// Returns the path.
    pub fn path(&self) -> &Path {
        match self {
            Self::Semaphore(semaphore) => &semaphore.path,
            Self::Pool(pool) => &pool.path,
        }
    }
}

/// A view of one hold of a semaphore or of a pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitHolderView {
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id of the hold.
    pub request_id: String,
    /// The number of permits, or of members.
    pub weight: u64,
    /// The members, in order of name; of a semaphore, none.
    pub members: Vec<String>,
    /// The revision of its grant.
    pub fencing_token: FencingToken,
    /// The leader's wall clock at the grant, milliseconds since 1970.
    pub locked_at_ms: u64,
    /// Shard clock at which the current phase ends; absent for holds that live as long as a session.
    pub deadline_ms: Option<u64>,
    /// Held or in transition.
    pub phase: Phase,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The latest request to release it.
    pub release_requested: Option<Box<ReleaseRequest>>,
}

/// A view of a request that waits for permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitWaitView {
    /// The wait.
    pub wait: WaitId,
    /// Whether it is for a semaphore or for a pool.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id.
    pub request_id: String,
    /// The number of permits, or of members.
    pub weight: u64,
    /// The member, if it waits for one by its name.
    pub member: Option<String>,
    /// Its priority.
    pub priority: u8,
    /// How many requests precede it, up to [`Bounds::max_queue_position`](super::Bounds::max_queue_position).
    pub queue_position: u64,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// The leader's wall clock when it began to wait, milliseconds since 1970.
    pub since_ms: u64,
    /// Shard clock at which it times out; absent without a limit.
    pub ends_at_ms: Option<u64>,
}

/// What a leader needs to cancel a waiting request if no call reattaches to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PermitWaitRecord {
    /// The wait.
    pub wait: WaitId,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// The command that cancels it, with the attempts that rely on it and may leave, in ascending order.
    pub cancel: CancelPermits,
}

/// The state of a hold of a semaphore or of a pool, or of an arrival at a barrier, that a client reports after a
/// resume, or of one that its session lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportedPermits {
    /// Whether it is of a semaphore, of a pool or of a barrier.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// The request id of the hold or arrival.
    pub request_id: String,
    /// The token of the hold; of an arrival, the generation.
    pub fencing_token: FencingToken,
}

/// A part of the report of a client after a resume, with holds of semaphores and pools. It comes before the last part, which
/// is a [`LockInfo`](super::LockInfo); what no part lists ends with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitsReport {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The session.
    pub session_id: String,
    /// The sequence number of this message in its session.
    pub message: Option<MessageSeq>,
    /// The holds that the client reports.
    pub held: Vec<ReportedPermits>,
}

/// Why permits were released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum PermitsEnd {
    /// The owner released them, or its session was closed.
    Released,
    /// The hold or its session expired.
    Expired,
    /// The semaphore or the pool was deleted.
    Deleted,
    /// A reset ended the hold.
    Reset,
    /// The owner returned some of them, and keeps the hold.
    Shrunk,
}

impl PermitsEnd {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
            Self::Deleted => "DELETED",
            Self::Reset => "RESET",
            Self::Shrunk => "SHRUNK",
        }
    }

    /// Returns why a session lost the hold, if it did not end the hold itself.
    pub fn revoked(self) -> Option<RevokedReason> {
        match self {
            Self::Released | Self::Shrunk => None,
            Self::Expired => Some(RevokedReason::Expired),
            Self::Deleted => Some(RevokedReason::Deleted),
            Self::Reset => Some(RevokedReason::Reset),
        }
    }
}
