//! Semaphores: at most so many permits in use at a time. A hold has some of them, all that it requested or none.

use serde::{Deserialize, Serialize};

use super::{
    FencingToken, MessageSeq, Metadata, NamespaceRef, Owner, Path, Phase, Revision, RevokedReason, Wait, WaitId,
};

/// The highest number of permits of a semaphore.
pub const MAX_PERMITS: u64 = 1_000_000_000;
/// The highest priority of a request; 0 is the lowest.
pub const MAX_PRIORITY: u8 = 9;
/// Maximum number of holders in the response to an acquire: those with most permits.
pub const MAX_HOLDERS_IN_REFUSAL: usize = 16;

/// Commands for semaphores. All are rejected with `NamespaceNotFound` for any but the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SemaphoreCommand {
    /// Creates a semaphore or changes it, an ephemeral one too. Nobody loses permits. Returns `Semaphore`. Errors:
    /// `QuotaExceeded`, `InvalidArgument`.
    Configure(ConfigureSemaphore),
    /// Returns `PermitsAcquired`, or `Ignored` for an old message of a session. Errors: `PrimitiveNotFound` without
    /// `permits` for a semaphore that does not exist, `InvalidArgument`, `QuotaExceeded`, `SessionNotFound`,
    /// `Superseded`, `RequestIdTaken`.
    Acquire(AcquirePermits),
    /// Ends one hold, or the wait for it. Returns `PermitsReleased`, also if there is none, or `Ignored`. Errors:
    /// `SessionNotFound`, `Superseded` if it has a message sequence number.
    Release(ReleasePermits),
    /// Ends all holds and waits, and deletes the semaphore. Returns `Done`, also if there is none.
    Delete {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// Callers left. Returns `Cancelled`.
    Cancel(CancelPermits),
}

/// Creates or changes a semaphore. All values are absolute, so a repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureSemaphore {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The number of permits, at most [`MAX_PERMITS`]; with 0 nothing is granted.
    pub permits: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
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
    /// The number of permits; at least 1.
    pub weight: u64,
    /// The permits of the semaphore that the request creates if there is none. A configured semaphore ignores them.
    pub permits: Option<u64>,
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
    /// If given, only extends the hold with this token. Such a request never waits and never changes the weight.
    pub fencing_token: Option<FencingToken>,
    /// The call that attaches to the wait, or to the hold once granted. As in [`Acquire`](super::Acquire).
    pub attempt: u64,
    /// The attempts whose callers left for good, or whose retry this call may be.
    pub abandoned: Vec<u64>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Releases one hold, or ends the wait for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleasePermits {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The request id of the hold, if it is not found by its token.
    pub request_id: Option<String>,
    /// The token of the hold. With a request id, both must fit.
    pub fencing_token: Option<FencingToken>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Callers of one request left. If no other caller relies on it, ends its wait or, if it was granted, its hold. As
/// [`Cancel`](super::Cancel) by rules 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelPermits {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The owner that waited.
    pub owner: Owner,
    /// As in the request.
    pub request_id: String,
    /// The attempts of these callers; at least one.
    pub attempts: Vec<u64>,
}

impl SemaphoreCommand {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Configure(configure) => &configure.namespace,
            Self::Acquire(acquire) => &acquire.namespace,
            Self::Release(release) => &release.namespace,
            Self::Delete { namespace, .. } => namespace,
            Self::Cancel(cancel) => &cancel.namespace,
        }
    }
}

/// Queries about semaphores. Errors: `NamespaceNotFound`, and `PrimitiveNotFound` for `Get`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum SemaphoreQuery {
    /// Returns `SemaphoreHolders`, in order of token.
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
    /// Returns `Semaphores`, in order of path.
    List {
        /// The namespace.
        namespace: NamespaceRef,
        /// Only semaphores at or below this path; the empty path matches all.
        prefix: Path,
        /// Start after this one.
        after: Option<Path>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `SemaphoreChecked`, also for a semaphore that does not exist.
    Check {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
        /// The check is true exactly while the hold with this token is held.
        fencing_token: FencingToken,
    },
    /// Returns `PermitWaits`: the waiting requests of all semaphores, in order of arrival.
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
}

impl SemaphoreQuery {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Get { namespace, .. }
            | Self::List { namespace, .. }
            | Self::Check { namespace, .. }
            | Self::Waits { namespace, .. }
            | Self::WaitStatus { namespace, .. } => namespace,
        }
    }
}

/// A view of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SemaphoreView {
    /// The path.
    pub path: Path,
    /// Whether it was configured. If not, it is gone with its last hold and wait.
    pub configured: bool,
    /// The number of permits.
    pub permits: u64,
    /// The permits in use, those of holds in transition included. More than `permits` if these were lowered since.
    pub in_use: u64,
    /// The number of holds.
    pub holders_total: u64,
    /// The number of waiting requests.
    pub waiting: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The revision of its last change; of a semaphore that does not exist, the shard's current revision.
    pub revision: Revision,
}

impl SemaphoreView {
    /// Returns the view of a semaphore that does not exist.
    pub fn absent(path: &Path, revision: Revision) -> Self {
        Self {
            path: path.clone(),
            configured: false,
            permits: 0,
            in_use: 0,
            holders_total: 0,
            waiting: 0,
            description: String::new(),
            metadata: Metadata::new(),
            revision,
        }
    }

    /// Returns the permits that are free.
    pub fn available(&self) -> u64 {
        self.permits.saturating_sub(self.in_use)
    }
}

/// A view of one hold of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitHolderView {
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id of the hold.
    pub request_id: String,
    /// The number of permits.
    pub weight: u64,
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
}

/// A view of a request that waits for permits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PermitWaitView {
    /// The wait.
    pub wait: WaitId,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id.
    pub request_id: String,
    /// The number of permits.
    pub weight: u64,
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

/// The state of a semaphore's hold that a client reports after a resume, or of one that its session lost.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ReportedPermits {
    /// The path.
    pub path: Path,
    /// The request id of the hold.
    pub request_id: String,
    /// The token of the hold.
    pub fencing_token: FencingToken,
}

/// A part of the report of a client after a resume, with holds of semaphores. It comes before the last part, which is a
/// [`LockInfo`](super::LockInfo); what no part lists ends with it.
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
    /// The semaphore was deleted.
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
