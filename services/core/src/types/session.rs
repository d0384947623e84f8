//! Sessions and waiting requests, as shown.

use serde::{Deserialize, Serialize};

use super::{Claim, FencingToken, HolderView, Metadata, NamespaceRef, Owner, Path, Refused};

/// Names a session within its shard for good: the revision of its first opening.
pub type SessionNumber = u64;

/// Names a waiting request within its shard for good: the revision at which it began to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct WaitId(pub u64);

/// A session, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionView {
    /// Begins with `se_`.
    pub session_id: String,
    /// Its number in the shard.
    pub number: SessionNumber,
    /// The revision of its last opening: messages of lower epochs are refused.
    pub epoch: u64,
    /// As given.
    pub process_id: String,
    /// How long it lives after the last sign of life.
    pub ttl_ms: u64,
    /// How much of that is left, in milliseconds. Only the leader knows it; a shard by itself says all of it.
    pub remaining_ms: u64,
    /// As given.
    pub metadata: Metadata,
    /// The leader's wall clock at the first opening, milliseconds since 1970.
    pub opened_at_ms: u64,
    /// How many holds it has.
    pub holds: u64,
    /// How many of its requests wait.
    pub waiting: u64,
}

/// Asks a leader for what it has to tell of a session from now on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SubscribeSession {
    /// Where.
    pub namespace: NamespaceRef,
    /// Which session.
    pub session_id: String,
    /// The epoch of the connection that asks: one of a lower epoch than the session's is superseded.
    pub epoch: u64,
}

/// A waiting request, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitView {
    /// Which.
    pub wait: WaitId,
    /// Who.
    pub owner: Owner,
    /// Its name, if it was given one.
    pub request_id: Option<String>,
    /// What it claims: each path once, in the order of the request.
    pub claims: Vec<Claim>,
    /// Whether it waits at the head of the queue to change the mode of a hold.
    pub upgrade: bool,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// Shard clock at which it is given up; absent for one without a limit.
    pub ends_at_ms: Option<u64>,
}

/// A waiting request with what it waits for, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueuedRequestView {
    /// The request.
    pub wait: WaitView,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// The leader's wall clock when it began to wait, milliseconds since 1970.
    pub since_ms: u64,
    /// Why it waits: the reason, who is in the way, and its place in the queue.
    pub not_granted: Refused,
}

/// What a leader needs to know of a session to keep it alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRecord {
    /// Where.
    pub namespace: NamespaceRef,
    /// Which.
    pub session_id: String,
    /// Its number in the shard.
    pub number: SessionNumber,
    /// Its present epoch.
    pub epoch: u64,
    /// How long it lives after the last sign of life.
    pub ttl_ms: u64,
}

/// What a leader needs to know of a waiting request to give its place up when nobody attaches again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitRecord {
    /// Where.
    pub namespace: NamespaceRef,
    /// The wait, with all that a cancel needs.
    pub wait: WaitView,
    /// The calls that count on it and may go away, rising: by rules 1 only the highest.
    pub attempts: Vec<u64>,
}

/// A hold that a client believed it had.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostHold {
    /// What.
    pub path: Path,
    /// The token it believed in.
    pub fencing_token: FencingToken,
    /// Who holds the path now: the writer, or the first reader.
    pub current_owner: Option<HolderView>,
}

/// Why a session lost a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RevokedReason {
    /// The session expired.
    Expired,
    /// The lock was deleted.
    Deleted,
    /// A reset removed it.
    Reset,
    /// The client believed in a hold that it does not have; somebody else may.
    Duplicate,
}

/// Why a session ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum SessionEnd {
    /// Its client closed it.
    Closed,
    /// It was silent for longer than its time to live.
    Expired,
    /// A reset removed it.
    Reset,
    /// Its namespace was deleted.
    NamespaceDeleted,
}

impl RevokedReason {
    /// The public name.
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
    /// The public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Closed => "CLOSED",
            Self::Expired => "EXPIRED",
            Self::Reset => "RESET",
            Self::NamespaceDeleted => "NAMESPACE_DELETED",
        }
    }
}
