//! What clients ask about semaphores, pools, latches, barriers and conditions, and what they are answered.

use holdfast_api::{LatchInfo, PoolInfo, SemaphoreInfo};
use holdfast_core::{LatchStatus, LatchView, Owner, Path, PoolView, Reason, SemaphoreView};

use crate::ask_calls::{AskAnswer, AskOp};
use crate::barrier_calls::{BarrierOp, ObservedBarrier, ObservedMeeting};
use crate::condition_calls::{ConditionAnswer, ConditionOp};

/// A request for permits or members as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PermitsOp {
    pub(crate) path: Path,
    pub(crate) owner: Owner,
    pub(crate) request_id: String,
    pub(crate) wanted: WantedOp,
    pub(crate) priority: u32,
    /// Absent for sessions.
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) transition_ms: u64,
    pub(crate) wait_ms: u64,
}

/// What a request wants.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WantedOp {
    /// Of a semaphore that has `permits` if nobody configured it.
    Permits { weight: u64, permits: u64 },
    /// Of a pool, whichever are free.
    Members { count: u64, prefer: Option<String> },
    /// That one of a pool.
    Member(String),
}

/// A call about a pool, except a take.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PoolOp {
    Configure {
        path: Path,
        members: Vec<String>,
        cooldown_ms: u64,
    },
    Change {
        path: Path,
        member: String,
        change: MemberChange,
    },
    /// Of these members, or of all of the hold if none is named.
    Return {
        path: Path,
        owner: Owner,
        request_id: String,
        members: Vec<String>,
    },
    Get {
        path: Path,
    },
}

/// A change of one member, which is added first if it is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum MemberChange {
    Remove,
    Disable,
    Enable,
}

/// A call about a semaphore, a pool, a latch, a barrier or a condition, or one that asks for a hold of anything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThingOp {
    Acquire(PermitsOp),
    Release { path: Path, owner: Owner, request_id: String },
    Configure { path: Path, permits: u64 },
    GetSemaphore { path: Path },
    Pool(PoolOp),
    CreateLatch { path: Path, total: u64, expires_in_ms: u64 },
    CountDown { path: Path, id: Option<u64>, jobs: Vec<String> },
    WaitForLatch { path: Path, id: Option<u64>, wait_ms: u64 },
    DeleteLatch { path: Path, id: Option<u64> },
    Barrier(BarrierOp),
    Condition(ConditionOp),
    Ask(AskOp),
}

/// An answer to such a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ThingAnswer {
    /// The token with the members, of which a semaphore has none, or the reason of a refusal.
    Acquired {
        outcome: Result<u64, Reason>,
        members: Vec<String>,
    },
    Released {
        released: bool,
        semaphore: ObservedSemaphore,
    },
    Semaphore(ObservedSemaphore),
    Returned {
        released: bool,
        pool: ObservedPool,
    },
    Pool(ObservedPool),
    LatchCreated {
        is_new: bool,
        latch: ObservedLatch,
    },
    CountedDown {
        counted: u64,
        latch: ObservedLatch,
    },
    Latch(ObservedLatch),
    LatchDeleted,
    Barrier(ObservedBarrier),
    AtBarrier(ObservedMeeting),
    BarrierDeleted,
    Condition(ConditionAnswer),
    Asked(AskAnswer),
}

/// A semaphore as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedSemaphore {
    pub(crate) path: Path,
    pub(crate) is_configured: bool,
    pub(crate) permits: u64,
    pub(crate) in_use: u64,
    pub(crate) holders: u64,
    pub(crate) waiting: u64,
    pub(crate) revision: u64,
}

/// A pool as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedPool {
    pub(crate) path: Path,
    pub(crate) members: u64,
    pub(crate) free: u64,
    pub(crate) in_use: u64,
    pub(crate) leaving: u64,
    pub(crate) holders: u64,
    pub(crate) waiting: u64,
    pub(crate) revision: u64,
}

/// A latch as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedLatch {
    pub(crate) path: Path,
    pub(crate) id: u64,
    pub(crate) status: LatchStatus,
    pub(crate) total: u64,
    pub(crate) done: u64,
    pub(crate) revision: u64,
}

impl ThingOp {
    /// Returns the session that it is for.
    pub(crate) fn session_id(&self) -> Option<&str> {
        match self {
            Self::Acquire(PermitsOp { owner: Owner::Session { session_id, .. }, .. })
            | Self::Release { owner: Owner::Session { session_id, .. }, .. }
            | Self::Pool(PoolOp::Return { owner: Owner::Session { session_id, .. }, .. }) => Some(session_id),
            Self::Barrier(op) => session_id_of(op.owner()?),
            Self::Condition(op) => session_id_of(op.owner()),
            _ => None,
        }
    }
}

fn session_id_of(owner: &Owner) -> Option<&str> {
    if let Owner::Session { session_id, .. } = owner { Some(session_id) } else { None }
}

impl ThingAnswer {
    /// Returns the latch that it shows.
    pub(crate) fn latch(&self) -> Option<&ObservedLatch> {
        match self {
            Self::LatchCreated { latch, .. } | Self::CountedDown { latch, .. } | Self::Latch(latch) => Some(latch),
            Self::Acquired { .. } | Self::Released { .. } | Self::Semaphore(_) => None,
            Self::Returned { .. } | Self::Pool(_) | Self::LatchDeleted => None,
            Self::Barrier(_) | Self::AtBarrier(_) | Self::BarrierDeleted => None,
            Self::Condition(_) | Self::Asked(_) => None,
        }
    }
}

impl From<SemaphoreInfo> for ObservedSemaphore {
    fn from(semaphore: SemaphoreInfo) -> Self {
        Self {
            path: Path(semaphore.path),
            is_configured: semaphore.configured,
            permits: semaphore.permits,
            in_use: semaphore.in_use,
            holders: semaphore.holders_total,
            waiting: semaphore.waiting,
            revision: semaphore.revision,
        }
    }
}

impl From<&SemaphoreView> for ObservedSemaphore {
    fn from(semaphore: &SemaphoreView) -> Self {
        Self {
            path: semaphore.path.clone(),
            is_configured: semaphore.configured,
            permits: semaphore.permits,
            in_use: semaphore.in_use,
            holders: semaphore.holders_total,
            waiting: semaphore.waiting,
            revision: semaphore.revision,
        }
    }
}

impl From<PoolInfo> for ObservedPool {
    fn from(pool: PoolInfo) -> Self {
        Self {
            path: Path(pool.path),
            members: pool.members_total,
            free: pool.free,
            in_use: pool.in_use,
            leaving: pool.leaving,
            holders: pool.holders_total,
            waiting: pool.waiting,
            revision: pool.revision,
        }
    }
}

impl From<&PoolView> for ObservedPool {
    fn from(pool: &PoolView) -> Self {
        Self {
            path: pool.path.clone(),
            members: pool.members_total,
            free: pool.free,
            in_use: pool.in_use,
            leaving: pool.leaving,
            holders: pool.holders_total,
            waiting: pool.waiting,
            revision: pool.revision,
        }
    }
}

impl From<LatchInfo> for ObservedLatch {
    fn from(latch: LatchInfo) -> Self {
        Self {
            path: Path(latch.path),
            id: latch.id,
            status: latch.status,
            total: latch.total,
            done: latch.done,
            revision: latch.revision,
        }
    }
}

impl From<&LatchView> for ObservedLatch {
    fn from(latch: &LatchView) -> Self {
        Self {
            path: latch.path.clone(),
            id: latch.id,
            status: latch.status,
            total: latch.total,
            done: latch.done,
            revision: latch.revision,
        }
    }
}
