//! Views of sessions and waiting requests.

use serde::{Deserialize, Serialize};

use super::{CancelAwait, Claim, CommandError, FencingToken, HolderView, Metadata, NamespaceRef, Owner, Path, Refused};

/// Identifies a session within its shard permanently: the revision of its first opening.
pub type SessionNumber = u64;

/// Identifies a waiting request within its shard permanently: the revision at which it began to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaitId(pub u64);

/// A view of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Begins with `se_`.
    pub session_id: String,
    /// Its number in the shard.
    pub number: SessionNumber,
    /// The revision of its last opening: messages of lower epochs are rejected.
    pub epoch: u64,
    /// As given by the caller.
    pub process_id: String,
    /// How long it lives after the last keep-alive.
    pub ttl_ms: u64,
    /// The remainder of that time in milliseconds. Only the leader knows it; the shard itself reports the full time.
    pub remaining_ms: u64,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The leader's wall clock at the first opening, milliseconds since 1970.
    pub opened_at_ms: u64,
    /// The number of its holds of locks, semaphores and pools.
    pub holds: u64,
    /// The number of its waiting requests for these.
    pub waiting: u64,
}

/// Maximum number of keep-alives in one query.
pub const MAX_KEEP_ALIVES: usize = 4_096;

/// A keep-alive that a connection sends for its session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionKeepAlive {
    /// A key of the locks shard that has the session.
    pub key: u32,
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The session.
    pub session_id: String,
    /// The epoch of the connection.
    pub epoch: u64,
}

/// The outcome of a [`SessionKeepAlive`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KeepAliveOutcome {
    /// The leader recorded it.
    Recorded {
        /// The remaining time to live in milliseconds.
        remaining_ms: u64,
    },
    /// As `Query::KeepAlive` is rejected: `SessionNotFound`, `Superseded`, `NamespaceNotFound`.
    Rejected(CommandError),
    /// Nothing was recorded: it is not known yet whether the session expires, or its shard does not answer.
    /// `Query::KeepAlive` waits for the former, and is retried for the latter.
    Undecided,
}

/// A view of a waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// The wait.
    pub wait: WaitId,
    /// The owner.
    pub owner: Owner,
    /// The request id, if there is one.
    pub request_id: Option<String>,
    /// The claims: each path once, in the order of the request.
    pub claims: Vec<Claim>,
    /// Whether it waits at the head of the queue to change the mode of a hold.
    pub upgrade: bool,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// Shard clock at which it times out; absent without a limit.
    pub ends_at_ms: Option<u64>,
}

/// A view of a waiting request with its blockers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedRequestView {
    /// The request.
    pub wait: WaitView,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// The leader's wall clock when it began to wait, milliseconds since 1970.
    pub since_ms: u64,
    /// Why it waits: the reason, its blockers and its queue position.
    pub not_granted: Refused,
}

/// What a leader needs to track the keep-alives of a session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The session.
    pub session_id: String,
    /// Its number in the shard.
    pub number: SessionNumber,
    /// Its current epoch.
    pub epoch: u64,
    /// How long it lives after the last keep-alive.
    pub ttl_ms: u64,
}

/// What a leader needs to cancel a waiting request if no call reattaches to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRecord {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The wait, with all that a cancel needs.
    pub wait: WaitView,
    /// The attempts that rely on it and may leave, in ascending order; by rules 1 only the highest.
    pub attempts: Vec<u64>,
}

/// A wait that may have callers, of which a new leader knows only the attempts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedWait {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The wait.
    pub wait: WaitId,
    /// The attempts that rely on it and may leave, in ascending order; by rules 1 only the highest.
    pub attempts: Vec<u64>,
    /// What cancels a wait for a condition, or then for its lock.
    pub cancel: Option<CancelAwait>,
}

/// A hold that a client reported and its session does not have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostHold {
    /// The path.
    pub path: Path,
    /// The token that the client reported.
    pub fencing_token: FencingToken,
    /// The current holder of the path: the writer, or the first reader.
    pub current_owner: Option<HolderView>,
}

/// Why a session lost a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RevokedReason {
    /// The session expired.
    Expired,
    /// The lock was deleted.
    Deleted,
    /// A reset ended it.
    Reset,
    /// The client reported a hold that its session does not have; another owner may have it.
    Duplicate,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was without keep-alives for longer than its time to live.
    Expired,
    /// A reset ended it.
    Reset,
    /// Its namespace was deleted.
    NamespaceDeleted,
}

impl RevokedReason {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Expired => "EXPIRED",
            Self::Deleted => "DELETED",
            Self::Reset => "RESET",
            Self::Duplicate => "DUPLICATE",
        }
    }
}

impl SessionEnd {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Expired => "EXPIRED",
            Self::Reset => "RESET",
            Self::NamespaceDeleted => "NAMESPACE_DELETED",
        }
    }
}
