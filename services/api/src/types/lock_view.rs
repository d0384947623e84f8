//! Responses of operations on locks. Each view serializes as its JSON form in the contract.

use holdfast_types::{LockState, Metadata, Mode, Phase, Reason};
use serde::{Serialize, Serializer};
use utoipa::ToSchema;

use super::{ModeName, PermitHolderInfo, PhaseName, ReasonName, ReleaseRequestInfo, StateName};
use crate::Timestamp;

/// The current state of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Lock {
    /// The namespace's name.
    pub namespace: String,
    /// The flat name; absent unless the path has exactly one segment.
    pub name: Option<String>,
    /// Segments from the root.
    pub path: Vec<String>,
    /// A hold in transition counts.
    #[serde(serialize_with = "state_as_name")]
    #[schema(value_type = StateName)]
    pub state: LockState,
    /// The first grant among the present holds.
    pub locked_at: Option<Timestamp>,
    /// The writer, if there is one.
    pub write_lock_holder: Option<Holder>,
    /// Readers in order of their grants.
    pub read_lock_holders: Vec<Holder>,
    /// The number of holds, shown or not.
    pub holders_total: u64,
    /// Waiting requests with a claim on exactly this path.
    pub waiting: u64,
    /// The revision of the lock's last change; of an unlocked lock, the shard's current revision.
    pub revision: u64,
}

/// One hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct Holder {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when a session holds it.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// The mode.
    #[serde(serialize_with = "mode_as_name")]
    #[schema(value_type = ModeName)]
    pub mode: Mode,
    /// The revision of its grant.
    pub fencing_token: u64,
    /// Wall clock at the grant.
    pub locked_at: Timestamp,
    /// Computed from `remaining_ms`; absent for holds that live as long as a session.
    pub expires_at: Option<Timestamp>,
    /// The remaining time of the present phase: the value to rely on.
    pub remaining_ms: Option<u64>,
    /// Held or in transition.
    #[serde(serialize_with = "phase_as_name")]
    #[schema(value_type = PhaseName)]
    pub phase: Phase,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// The latest request to release it. JSON omits it if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub release_requested: Option<ReleaseRequestInfo>,
    /// The instant that a dlocks client requested (Unix nanoseconds), so that it reads back what it wrote.
    #[serde(skip)]
    pub requested_expires_at_ns: Option<i64>,
}

/// A hold or request that blocks another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Blocker)]
pub struct BlockerInfo {
    /// The path that it holds or claims.
    pub path: Vec<String>,
    /// Whether it waits itself.
    pub waiting: bool,
    /// The blocking owner.
    #[serde(flatten)]
    pub holder: Holder,
}

/// Why a lock was not granted: part of a response, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Reason)]
pub struct ReasonInfo {
    /// The code; shown by [`Reason::name`].
    #[serde(serialize_with = "reason_as_name")]
    #[schema(value_type = ReasonName)]
    pub code: Reason,
    /// The blockers, at most 16.
    pub blockers: Vec<BlockerInfo>,
    /// The position in the queue, from 0.
    pub queue_position: Option<u64>,
    /// The cycle of a deadlock. JSON omits it otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub cycle: Vec<CycleStepInfo>,
    /// Of a request for permits: holders, at most 16, those with most permits first. JSON omits them otherwise.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub holders: Vec<PermitHolderInfo>,
}

/// One step of a deadlock. The refused request waits for the owner of the first step, that owner waits for the owner of
/// the second, and so on; the last step is the refused owner's own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = CycleStep)]
pub struct CycleStepInfo {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when it is a session.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// The blocking path that it holds or claims.
    pub path: Vec<String>,
    /// Whether it blocks by waiting there earlier, not by holding.
    pub waiting: bool,
}

/// The response of an acquire. JSON omits `fencing_token` of a refused request and `reason` of a granted one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AcquireAnswer {
    /// Whether it was granted.
    pub success: bool,
    /// The token, when granted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The reason, when refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// A JWT that proves the grant to other services, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed_grant: Option<String>,
    /// The current state of the lock.
    pub lock: Lock,
}

/// The response of an acquire of a set. JSON omits inapplicable fields, as for one lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AcquireLocksAnswer {
    /// Whether all claims were granted; otherwise none was.
    pub success: bool,
    /// The token of the new holds, when granted; earlier holds keep theirs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fencing_token: Option<u64>,
    /// The reason, when refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<ReasonInfo>,
    /// A JWT for each of `locks`, in their order, if requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signed_grants: Option<Vec<String>>,
    /// The current state of the locks, in order of path, each once.
    pub locks: Vec<Lock>,
}

/// The response of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReleaseAnswer {
    /// Whether a hold ended.
    pub released: bool,
    /// The current state of the lock.
    pub lock: Lock,
}

/// The response of a release of a set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ReleaseLocksAnswer {
    /// Whether a hold or a wait ended.
    pub released: bool,
    /// The current state of the locks, in order of path; at most 64 after a release of everything.
    pub locks: Vec<Lock>,
}

/// The response of a reset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ResetAnswer {
    /// Ended holds, in any state.
    pub removed_holds: u64,
    /// Ended waiting requests.
    pub removed_waiters: u64,
}

/// The response of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CheckAnswer {
    /// True exactly while the hold of that token is held.
    pub current: bool,
    /// The current state of the lock.
    pub lock: Lock,
}

/// Returns the public name of a mode.
pub fn mode_name(mode: Mode) -> &'static str {
    match mode {
        Mode::Read => "READ",
        Mode::Write => "WRITE",
    }
}

/// Returns the mode of a public name.
pub fn parse_mode(name: &str) -> Option<Mode> {
    match name {
        "READ" => Some(Mode::Read),
        "WRITE" => Some(Mode::Write),
        _ => None,
    }
}

/// Returns the public name of a lock's state.
pub fn state_name(state: LockState) -> &'static str {
    match state {
        LockState::Unlocked => "UNLOCKED",
        LockState::ReadLocked => "READ_LOCKED",
        LockState::WriteLocked => "WRITE_LOCKED",
    }
}

/// Returns the public name of a hold's phase.
pub fn phase_name(phase: Phase) -> &'static str {
    match phase {
        Phase::Held => "HELD",
        Phase::Transition => "TRANSITION",
    }
}

pub(super) fn mode_as_name<S: Serializer>(mode: &Mode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(mode_name(*mode))
}

fn state_as_name<S: Serializer>(state: &LockState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state_name(*state))
}

fn phase_as_name<S: Serializer>(phase: &Phase, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(phase_name(*phase))
}

fn reason_as_name<S: Serializer>(reason: &Reason, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(reason.name())
}
