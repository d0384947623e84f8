//! Conditions of a lock: an owner that holds the lock gives it up and waits until another owner says that something has
//! changed, and then for the lock again.

use serde::{Deserialize, Serialize};

use super::{FencingToken, MessageSeq, Metadata, NamespaceRef, Owner, Path, Wait, WaitId};

/// Maximum length of the name of a condition in bytes. The empty name is that of a lock's only condition.
pub const MAX_CONDITION_BYTES: usize = 128;
/// Maximum length of the id of a signal in bytes.
pub const MAX_SIGNAL_ID_BYTES: usize = 128;
/// Shortest and longest time in milliseconds that a single call awaits a condition.
pub const AWAIT_MS: std::ops::RangeInclusive<u64> = 1..=600_000;
/// Shortest and longest time in milliseconds that such a call then waits for the lock.
pub const RELOCK_MS: std::ops::RangeInclusive<u64> = 1..=600_000;
/// That time if the caller does not specify it.
pub const DEFAULT_RELOCK_MS: u64 = 60_000;

/// Why an owner that awaited a condition waits for its lock again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Woken {
    /// It was signalled.
    Signalled,
    /// Its time to await the condition was over.
    Elapsed,
}

impl Woken {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Signalled => "SIGNALLED",
            Self::Elapsed => "ELAPSED",
        }
    }
}

/// Commands for conditions. All are rejected with `NamespaceNotFound` for any but the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionCommand {
    /// Gives a lock up and awaits a condition of it. Returns `Awaited`, or `Ignored` for an old message of a session.
    /// Errors: `InvalidArgument` for a hold that several requests claim, `QuotaExceeded`, `Busy`, `SessionNotFound`,
    /// `Superseded`.
    Await(AwaitCondition),
    /// Wakes those who await a condition. Returns `Signalled`, or `Ignored` for an old message of a session. Errors:
    /// `Busy`, `SessionNotFound`, `Superseded`; `QuotaExceeded` for one with an id that would wake nobody.
    Signal(SignalCondition),
    /// Callers left. Returns `Cancelled`.
    Cancel(CancelAwait),
}

/// Gives a lock up and awaits a condition of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitCondition {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path of the lock.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The token of the hold that it gives up: a WRITE hold of the path. A repeat is found by it.
    pub fencing_token: FencingToken,
    /// The name of the condition.
    pub condition: String,
    /// How long it awaits the condition; never [`Wait::No`].
    pub wait: Wait,
    /// How long it then waits for the lock, in milliseconds; absent without a limit, for sessions only.
    pub relock_ms: Option<u64>,
    /// How long the new hold lasts from its grant; absent for a hold that lives as long as a session.
    pub ttl_ms: Option<u64>,
    /// How long the new hold then stays in transition; absent for the time of the hold that it gives up.
    pub transition_ms: Option<u64>,
    /// Stored with the new hold; absent for that of the hold that it gives up.
    pub metadata: Option<Metadata>,
    /// The call that attaches to the wait, or to the hold once granted. As in [`Acquire`](super::Acquire).
    pub attempt: u64,
    /// The attempts whose callers left for good, or whose retry this call may be.
    pub abandoned: Vec<u64>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Wakes those who await a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SignalCondition {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path of the lock.
    pub path: Path,
    /// The owner, which has a WRITE hold of the path.
    pub owner: Owner,
    /// The name of the condition.
    pub condition: String,
    /// Whether all that await it are woken, and not only the first.
    pub all: bool,
    /// If given, the owner must hold the lock under this token.
    pub fencing_token: Option<FencingToken>,
    /// Identifies the signal under the hold: a repeat returns the first answer and wakes nobody.
    pub signal_id: Option<String>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Callers of one await left. If no other caller relies on it, ends its wait or, if it has the lock again, its hold. As
/// [`Cancel`](super::Cancel) by rules 2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CancelAwait {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path of the lock.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The token of the hold that it gave up.
    pub fencing_token: FencingToken,
    /// The attempts of these callers; at least one.
    pub attempts: Vec<u64>,
}

/// Gives up the lock of a granted request of a connected session. A request that has the lock again has the same id.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionAwait {
    /// The request, which has one claim, in WRITE mode.
    pub request_id: String,
    /// The name of the condition.
    pub condition: String,
    /// The token of the hold that it gives up, if it is known.
    pub fencing_token: Option<FencingToken>,
    /// How long it awaits the condition; never [`Wait::No`].
    pub wait: Wait,
    /// Whether an earlier copy of it may have been applied. One without a token then finds a hold that came from an
    /// await, rather than give it up.
    pub is_repeat: bool,
}

/// Signals a condition of the lock of a granted request of a connected session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionSignal {
    /// The request, which has one claim, in WRITE mode.
    pub request_id: String,
    /// The name of the condition.
    pub condition: String,
    /// Whether all that await it are woken, and not only the first.
    pub all: bool,
    /// As in [`SignalCondition`].
    pub signal_id: Option<String>,
}

impl ConditionCommand {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Await(awaits) => &awaits.namespace,
            Self::Signal(signal) => &signal.namespace,
            Self::Cancel(cancel) => &cancel.namespace,
        }
    }

    /// Returns the path of the lock.
    pub fn path(&self) -> &Path {
        match self {
            Self::Await(awaits) => &awaits.path,
            Self::Signal(signal) => &signal.path,
            Self::Cancel(cancel) => &cancel.path,
        }
    }
}

/// Queries about conditions. Errors: `NamespaceNotFound`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ConditionQuery {
    /// Returns `Conditions`: those that somebody awaits, in order of path and name.
    List {
        /// The namespace.
        namespace: NamespaceRef,
        /// Only those of locks at or below this path; the empty path matches all.
        prefix: Path,
        /// Start after this one: a path, and the name of a condition.
        after: Option<(Path, String)>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Awaits`: who awaits conditions, in order of arrival.
    Waits {
        /// The namespace.
        namespace: NamespaceRef,
        /// Only those of the lock with this path.
        path: Option<Path>,
        /// Start after this one.
        after: Option<WaitId>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// The current status of a wait, for a condition or then for its lock. Returns `Awaited` with `Enqueued`. Errors:
    /// `NotWaiting`.
    WaitStatus {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
    },
    /// Returns `AwaitCaller`. Errors: `NotWaiting`.
    Caller {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
    },
}

impl ConditionQuery {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::List { namespace, .. }
            | Self::Waits { namespace, .. }
            | Self::WaitStatus { namespace, .. }
            | Self::Caller { namespace, .. } => namespace,
        }
    }
}

/// A view of a condition that somebody awaits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConditionView {
    /// The path of the lock.
    pub path: Path,
    /// The name.
    pub condition: String,
    /// How many await it.
    pub awaiting: u64,
    /// The leader's wall clock when the first of them began to await it, milliseconds since 1970.
    pub oldest_since_ms: u64,
}

/// A view of an owner that awaits a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitView {
    /// The wait.
    pub wait: WaitId,
    /// The path of the lock.
    pub path: Path,
    /// The name of the condition.
    pub condition: String,
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id, if there is one.
    pub request_id: Option<String>,
    /// The token of the hold that it gave up.
    pub fencing_token: FencingToken,
    /// How many await the condition longer.
    pub queue_position: u64,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// The leader's wall clock when it began to await the condition, milliseconds since 1970.
    pub since_ms: u64,
    /// Shard clock at which its time to await the condition is over; absent without a limit.
    pub ends_at_ms: Option<u64>,
}

/// What a leader needs to cancel a wait for a condition, or then for its lock, if no call reattaches to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AwaitRecord {
    /// The wait.
    pub wait: WaitId,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// The command that cancels it, with the attempts that rely on it and may leave, in ascending order.
    pub cancel: CancelAwait,
}
