//! Locks: paths, claims, owners, and how a lock is shown.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::{FencingToken, Revision, WaitId};

/// Segments from the root of a namespace. A flat lock name is the path of that one segment; the empty path is the
/// whole namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Path(pub Vec<String>);

impl Path {
    /// The path of a flat lock name, whatever characters it has.
    pub fn flat(name: impl Into<String>) -> Self {
        Self(vec![name.into()])
    }

    /// Whether this path is `other` or one of its ancestors.
    pub fn is_prefix_of(&self, other: &Self) -> bool {
        other.0.starts_with(&self.0)
    }
}

/// How a path is claimed or held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

/// One path in one mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// What.
    pub path: Path,
    /// How.
    pub mode: Mode,
}

/// Who holds or waits: one thread of control.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Owner {
    /// A name chosen by the client; each of its holds has an expiry of its own.
    Process(String),
    /// A session made by the server, whose life bounds its holds; `holder` tells apart threads that share it.
    Session {
        /// Begins with `se_`.
        session_id: String,
        /// Absent for the session as a whole.
        holder: Option<String>,
    },
}

/// String pairs kept with a hold, for whoever looks at it.
pub type Metadata = BTreeMap<String, String>;

/// Whether a hold is held or on its way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Phase {
    /// Held.
    Held,
    /// Past its time to live: the owner must already have stopped, only the owner may renew, nobody else is let in.
    Transition,
}

/// One hold of one path, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderView {
    /// Who.
    pub owner: Owner,
    /// The process id that is shown: the owner's, or that of its session.
    pub process_id: String,
    /// How.
    pub mode: Mode,
    /// The revision of its grant.
    pub fencing_token: FencingToken,
    /// The leader's wall clock at the grant, milliseconds since 1970.
    pub locked_at_ms: u64,
    /// Shard clock at which the present phase ends; absent for holds that live as long as a session.
    pub deadline_ms: Option<u64>,
    /// The instant that a dlocks client asked for, in nanoseconds since 1970, so that it reads back what it wrote.
    pub requested_expires_at_ns: Option<i64>,
    /// Held or in transition.
    pub phase: Phase,
    /// As given.
    pub metadata: Metadata,
}

/// State of a lock as shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LockState {
    /// Nobody holds it.
    Unlocked,
    /// One or more readers hold it.
    ReadLocked,
    /// One writer holds it.
    WriteLocked,
}

/// A lock as it is, as shown.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockView {
    /// Which.
    pub path: Path,
    /// Its state. A hold in transition counts.
    pub state: LockState,
    /// Wall clock at the first grant among the present holds, milliseconds since 1970.
    pub locked_at_ms: Option<u64>,
    /// The writer, if one holds it.
    pub write_lock_holder: Option<HolderView>,
    /// Readers in order of arrival; cut to [`super::Bounds::max_readers_in_reply`] where the call says so.
    pub read_lock_holders: Vec<HolderView>,
    /// How many hold it, shown or not.
    pub holders_total: u64,
    /// Requests that wait with a claim on exactly this path.
    pub waiting: u64,
    /// Revision of the lock's last change; for a lock that nobody holds the shard's revision now.
    pub revision: Revision,
}

/// Why a request was not granted. Of several, that of the first failing claim in request order; except that a request
/// that would wait, and can never be granted because of another claim (`Upgrade`), is refused for that one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// The same owner holds it in the other mode.
    Upgrade,
    /// The same path is held by another owner.
    Held,
    /// The blocker holds an ancestor.
    Ancestor,
    /// The blocker holds a descendant.
    Descendant,
    /// All blockers are in transition.
    Transition,
    /// Only waiting requests are in the way.
    Queued,
    /// Waiting would close a cycle.
    Deadlock,
    /// The wait ended first.
    TimedOut,
    /// The hold that was to be extended is gone.
    NotHeld,
    /// A reset, the end of the session or the deletion of the namespace cut the wait short.
    Ended,
}

impl Reason {
    /// The public name.
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
        }
    }
}

/// Somebody in the way of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Blocker {
    /// What it holds or claims.
    pub path: Path,
    /// Whether it waits itself.
    pub waiting: bool,
    /// Who it is. Of one that waits `fencing_token` is 0, `locked_at_ms` says when it began to wait and `deadline_ms`
    /// when its wait ends.
    pub holder: HolderView,
}

/// One step of a cycle of waits. The refused request waits for the owner of the first step, that one for the owner of
/// the second, and so on; the owner of the last step is that of the refused request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CycleStep {
    /// Who is waited for.
    pub owner: Owner,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// What it holds or claims that is in the way.
    pub path: Path,
    /// Whether it is in the way by waiting there earlier, not by holding.
    pub waiting: bool,
}

/// A refusal of an acquire: an answer, not an error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// Why.
    pub reason: Reason,
    /// By whom, up to [`super::Bounds::max_blockers_in_reply`].
    pub blockers: Vec<Blocker>,
    /// For a request that waits: how many requests with a claim on the path of its first failing claim wait before it,
    /// up to [`super::Bounds::max_queue_position`].
    pub queue_position: Option<u64>,
    /// For `Deadlock`: who waits for whom, at most [`super::Bounds::max_cycle_in_reply`] steps.
    pub cycle: Vec<CycleStep>,
}

/// A request that waits now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Enqueued {
    /// Names the wait in effects.
    pub wait: WaitId,
    /// The highest attempt that attached to it.
    pub attempt: u64,
    /// Why it waits: the reason, its blockers and its place in the queue.
    pub not_granted: Refused,
}

/// What an acquire came to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum AcquireOutcome {
    /// It holds all its claims.
    Granted {
        /// The token of the new holds; when there are none, that of the first hold found.
        fencing_token: FencingToken,
    },
    /// It waits.
    Enqueued(Box<Enqueued>),
    /// It has nothing and does not wait; except `Queued` in the answer to a repeat that does not wait, whose place in
    /// the queue is kept.
    Refused(Box<Refused>),
}

impl AcquireOutcome {
    /// The token, if it was granted.
    pub fn fencing_token(&self) -> Option<FencingToken> {
        match self {
            Self::Granted { fencing_token } => Some(*fencing_token),
            Self::Enqueued(_) | Self::Refused(_) => None,
        }
    }
}
