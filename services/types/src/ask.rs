//! Requests to release what somebody holds.

use serde::{Deserialize, Serialize};

use super::{FencingToken, Kind, LockView, NamespaceRef, Path, PermitsView, RequestId};

/// Maximum number of holds that one request concerns.
pub const MAX_ASKED: usize = 1_000;
/// Maximum bytes of the reason of a request.
pub const MAX_ASK_REASON_BYTES: usize = 256;
/// The longest time that a request gives, in milliseconds.
pub const MAX_ASK_WITHIN_MS: u64 = 600_000;

/// Asks the owners of some holds to release them. With `force`, a hold that is still there when the time is over ends
/// as by a deletion.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskRelease {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// Whether it is about a lock, a semaphore or a pool.
    pub kind: Kind,
    /// The path.
    pub path: Path,
    /// Only the hold that has this member of the pool.
    pub member: Option<String>,
    /// Identifies the request: a repeat changes nothing where it is known.
    pub request_id: RequestId,
    /// Who asks: the id of an API key.
    pub by: String,
    /// Why, for people; at most [`MAX_ASK_REASON_BYTES`].
    pub reason: String,
    /// How long the owner has, at most [`MAX_ASK_WITHIN_MS`]. Absent if the request names no time; with `force` that is
    /// no time at all.
    pub within_ms: Option<u64>,
    /// Whether a hold ends that is still there then.
    pub force: bool,
}

/// The latest request to release a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReleaseRequest {
    /// Who asked: the id of an API key.
    pub by: String,
    /// Why.
    pub reason: String,
    /// How long the owner was given.
    pub within_ms: Option<u64>,
    /// The leader's wall clock at the request, milliseconds since 1970.
    pub asked_at_ms: u64,
    /// Shard clock at which that time is over. If the hold ends by force: when it does.
    pub until_ms: Option<u64>,
    /// Whether the hold ends then, by this request or by an earlier one.
    pub force: bool,
}

/// Holds of one session, of one kind, that one request asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedHolds {
    /// Whether they are of a lock, a semaphore or a pool.
    pub kind: Kind,
    /// The request.
    pub request: ReleaseRequest,
    /// The holds.
    pub holds: Vec<AskedHold>,
}

/// A hold whose release was requested.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AskedHold {
    /// The path.
    pub path: Path,
    /// Its token.
    pub fencing_token: FencingToken,
    /// The request that has it. Absent for a hold of a lock: several requests may claim that.
    pub request_id: Option<String>,
}

/// What a request to release was about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AskedView {
    /// A lock.
    Lock(LockView),
    /// A semaphore or a pool.
    Permits(PermitsView),
}
