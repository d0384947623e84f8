//! Locks: paths, claims, owners, and views of locks.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FencingToken, ReleaseRequest, Revision, WaitId};

/// Segments from the root of a namespace. A flat lock name is the path with that one segment; the empty path is the
/// whole namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Path(pub Vec<String>);

impl Path {
    /// Returns the path of a flat lock name, whatever its characters.
    pub fn flat(name: impl Into<String>) -> Self {
        Self(vec![name.into()])
    }

    /// Returns whether this path is `other` or one of its ancestors.
    pub fn is_prefix_of(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

/// The mode of a claim or a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Exclusive.
    Write,
}

/// One path in one mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// The path.
    pub path: Path,
    /// The mode.
    pub mode: Mode,
}

/// An owner of holds and waits: one thread of control.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// A name chosen by the client; each of its holds has its own expiry.
    Process(String),
    /// A session created by the server, whose life bounds its holds; `holder` distinguishes threads that share it.
    Session {
        /// Begins with `se_`.
        session_id: String,
        /// Absent for the session as a whole.
        holder: Option<String>,
    },
}

/// String pairs stored with a hold, for its readers.
pub type Metadata = BTreeMap<String, String>;

/// The phase of a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Held.
    Held,
    /// Past its time to live: the owner must already have stopped, only the owner may renew, and no other owner is
    /// granted the lock.
    Transition,
}

/// A view of one hold of one path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderView {
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The mode.
    pub mode: Mode,
    /// The revision of its grant.
    pub fencing_token: FencingToken,
    /// The leader's wall clock at the grant, milliseconds since 1970.
    pub locked_at_ms: u64,
    /// Shard clock at which the current phase ends; absent for holds that live as long as a session.
    pub deadline_ms: Option<u64>,
    /// The expiry that a dlocks client requested, in nanoseconds since 1970, so that it reads back what it wrote.
    pub requested_expires_at_ns: Option<i64>,
    /// Held or in transition.
    pub phase: Phase,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The latest request to release it.
    pub release_requested: Option<Box<ReleaseRequest>>,
}

/// The state of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockState {
    /// It has no holds.
    Unlocked,
    /// One or more readers hold it.
    ReadLocked,
    /// One writer holds it.
    WriteLocked,
}

/// A view of a lock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// The path.
    pub path: Path,
    /// Its state. A hold in transition counts.
    pub state: LockState,
    /// Wall clock at the first grant among the current holds, milliseconds since 1970.
    pub locked_at_ms: Option<u64>,
    /// The writer, if one holds it.
    pub write_lock_holder: Option<HolderView>,
    /// Readers in order of grant; limited to [`super::Bounds::max_readers_in_reply`] where the call says so.
    pub read_lock_holders: Vec<HolderView>,
    /// The number of holders, including those not in the view.
    pub holders_total: u64,
    /// Requests that wait with a claim on exactly this path.
    pub waiting: u64,
    /// The revision of the lock's last change; of an unlocked lock, the shard's current revision.
    pub revision: Revision,
}

impl LockView {
    /// Returns the view of a lock without holds and waiters.
    pub fn unlocked(path: &Path, revision: Revision) -> Self {
        Self {
            path: path.clone(),
            state: LockState::Unlocked,
            locked_at_ms: None,
            write_lock_holder: None,
            read_lock_holders: Vec::new(),
            holders_total: 0,
            waiting: 0,
            revision,
        }
    }
}

/// Why a request was not granted. If several claims fail, the first in request order decides. Exception: a request that
/// would wait but can never be granted because of another claim (`Upgrade`) is refused for that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The same owner holds it in the other mode.
    Upgrade,
    /// Another owner holds the same path.
    Held,
    /// The blocker holds an ancestor.
    Ancestor,
    /// The blocker holds a descendant.
    Descendant,
    /// All blockers are in transition.
    Transition,
    /// Only waiting requests block it.
    Queued,
    /// Waiting would close a cycle.
    Deadlock,
    /// The wait timed out.
    TimedOut,
    /// The hold to extend is gone.
    NotHeld,
    /// A reset, the end of the session or the deletion of the namespace ended the wait.
    Ended,
    /// Too few permits or members are free.
    Exhausted,
    /// The request needs more permits or members than there are.
    TooLarge,
    /// The pool has no such member, or it leaves.
    NoMember,
}

impl Reason {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Upgrade => "UPGRADE",
            Self::Held => "HELD",
            Self::Ancestor => "ANCESTOR",
            Self::Descendant => "DESCENDANT",
            Self::Transition => "TRANSITION",
            Self::Queued => "QUEUED",
            Self::Deadlock => "DEADLOCK",
            Self::TimedOut => "TIMED_OUT",
            Self::NotHeld => "NOT_HELD",
            Self::Ended => "ENDED",
            Self::Exhausted => "EXHAUSTED",
            Self::TooLarge => "TOO_LARGE",
            Self::NoMember => "NO_MEMBER",
        }
    }
}

/// A hold or waiting request that blocks a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// The path that it holds or claims.
    pub path: Path,
    /// Whether it is a waiting request.
    pub waiting: bool,
    /// Its owner. For a waiting request, `fencing_token` is 0, `locked_at_ms` is when it began to wait and
    /// `deadline_ms` is when its wait ends.
    pub holder: HolderView,
}

/// One step of a cycle of waits. The refused request waits for the owner of the first step, which waits for the owner
/// of the second, and so on. The owner of the last step is that of the refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStep {
    /// The owner that is waited for.
    pub owner: Owner,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// The path that it holds or claims and that blocks.
    pub path: Path,
    /// Whether it blocks by an earlier waiting request, not by a hold.
    pub waiting: bool,
}

/// Why an acquire was refused: a response, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The reason.
    pub reason: Reason,
    /// The blockers, up to [`super::Bounds::max_blockers_in_reply`].
    pub blockers: Vec<Blocker>,
    /// For a waiting request: how many requests with a claim on the path of its first failing claim precede it, up to
    /// [`super::Bounds::max_queue_position`].
    pub queue_position: Option<u64>,
    /// For `Deadlock`: the cycle of waits, at most [`super::Bounds::max_cycle_in_reply`] steps.
    pub cycle: Vec<CycleStep>,
}

/// A request that now waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// Identifies the wait in effects.
    pub wait: WaitId,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// Why it waits: the reason, its blockers and its queue position.
    pub not_granted: Refused,
}

/// The outcome of an acquire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcquireOutcome {
    /// All claims are held.
    Granted {
        /// The token of the new holds; if there are none, that of the first hold found.
        fencing_token: FencingToken,
    },
    /// The request waits.
    Enqueued(Box<Enqueued>),
    /// The request neither holds nor waits. Exception: with `Queued`, in the response to a repeat that does not wait,
    /// the queued request stays.
    Refused(Box<Refused>),
}

impl AcquireOutcome {
    /// Returns the token, if the request was granted.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        match self {
            Self::Granted { fencing_token } => Some(*fencing_token),
            Self::Enqueued(_) | Self::Refused(_) => None,
        }
    }
}
