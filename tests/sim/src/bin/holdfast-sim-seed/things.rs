//! What clients ask about semaphores and latches, and what they are answered.

use holdfast_api::{LatchInfo, SemaphoreInfo};
use holdfast_core::{LatchStatus, LatchView, Owner, Path, Reason, SemaphoreView};

/// A request for permits as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct PermitsOp {
    pub(crate) path: Path,
    pub(crate) owner: Owner,
    pub(crate) request_id: String,
    pub(crate) weight: u64,
    /// How many permits the semaphore has if nobody configured it.
    pub(crate) permits: u64,
    pub(crate) priority: u32,
    /// Absent for sessions.
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) transition_ms: u64,
    pub(crate) wait_ms: u64,
}

/// A call about a semaphore or a latch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ThingOp {
    Acquire(PermitsOp),
    Release { path: Path, owner: Owner, request_id: String },
    Configure { path: Path, permits: u64 },
    GetSemaphore { path: Path },
    CreateLatch { path: Path, total: u64, expires_in_ms: u64 },
    CountDown { path: Path, id: Option<u64>, jobs: Vec<String> },
    WaitForLatch { path: Path, id: Option<u64>, wait_ms: u64 },
    DeleteLatch { path: Path, id: Option<u64> },
}

/// An answer to such a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ThingAnswer {
    Acquired(Result<u64, Reason>),
    Released { released: bool, semaphore: ObservedSemaphore },
    Semaphore(ObservedSemaphore),
    LatchCreated { is_new: bool, latch: ObservedLatch },
    CountedDown { counted: u64, latch: ObservedLatch },
    Latch(ObservedLatch),
    LatchDeleted,
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
            | Self::Release { owner: Owner::Session { session_id, .. }, .. } => Some(session_id),
            _ => None,
        }
    }
}

impl ThingAnswer {
    /// Returns the latch that it shows.
    pub(crate) fn latch(&self) -> Option<&ObservedLatch> {
        match self {
            Self::LatchCreated { latch, .. } | Self::CountedDown { latch, .. } | Self::Latch(latch) => Some(latch),
            Self::Acquired(_) | Self::Released { .. } | Self::Semaphore(_) | Self::LatchDeleted => None,
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
