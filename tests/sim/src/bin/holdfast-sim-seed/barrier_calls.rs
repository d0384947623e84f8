//! What clients ask about barriers, and what they are answered.

use holdfast_api::{BarrierAnswerInfo, BarrierInfo};
use holdfast_core::{BarrierAnswer, BarrierOutcome, BarrierView, GenerationEnd, OnLoss, Owner, Path};

/// A call about a barrier.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum BarrierOp {
    Configure { path: Path, parties: u32, is_double: bool, withdraws: bool },
    Arrive(ArriveOp),
    Wait { path: Path, generation: u64, wait_ms: u64 },
    Leave { path: Path, owner: Owner, generation: u64, wait_ms: u64 },
    Get { path: Path },
    Delete { path: Path },
}

/// An arrival as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ArriveOp {
    pub(crate) path: Path,
    pub(crate) owner: Owner,
    pub(crate) generation: Option<u64>,
    /// Of the barrier if nobody configured it.
    pub(crate) parties: u32,
    /// Absent for sessions.
    pub(crate) ttl_ms: Option<u64>,
    pub(crate) wait_ms: u64,
}

/// A barrier as a client saw it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedBarrier {
    pub(crate) path: Path,
    pub(crate) is_configured: bool,
    pub(crate) parties: u32,
    pub(crate) is_double: bool,
    pub(crate) withdraws: bool,
    pub(crate) generation: u64,
    pub(crate) arrived: u32,
    pub(crate) inside: u32,
    pub(crate) inside_generation: Option<u64>,
    pub(crate) revision: u64,
}

/// What a client was told of a generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ObservedMeeting {
    pub(crate) outcome: BarrierOutcome,
    pub(crate) generation: u64,
    pub(crate) next_generation: u64,
    pub(crate) index: Option<u32>,
    pub(crate) lost: Option<u32>,
    pub(crate) ended: Option<GenerationEnd>,
    pub(crate) barrier: ObservedBarrier,
}

impl BarrierOp {
    /// Returns the path.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Self::Configure { path, .. } | Self::Wait { path, .. } | Self::Leave { path, .. } => path,
            Self::Arrive(arrive) => &arrive.path,
            Self::Get { path } | Self::Delete { path } => path,
        }
    }

    /// Returns the owner that it is about.
    pub(crate) fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Arrive(ArriveOp { owner, .. }) | Self::Leave { owner, .. } => Some(owner),
            Self::Configure { .. } | Self::Wait { .. } | Self::Get { .. } | Self::Delete { .. } => None,
        }
    }

    /// Returns how long it may take to be answered.
    pub(crate) fn wait_ms(&self) -> u64 {
        match self {
            Self::Arrive(ArriveOp { wait_ms, .. }) | Self::Wait { wait_ms, .. } | Self::Leave { wait_ms, .. } => {
                *wait_ms
            }
            Self::Configure { .. } | Self::Get { .. } | Self::Delete { .. } => 0,
        }
    }
}

impl ObservedMeeting {
    /// Returns how the generation ended, if that was told.
    pub(crate) fn end(&self) -> Option<GenerationEnd> {
        match self.outcome {
            BarrierOutcome::Tripped | BarrierOutcome::Left => Some(GenerationEnd::Tripped),
            BarrierOutcome::Broken => Some(GenerationEnd::Broken),
            BarrierOutcome::Past => self.ended,
            BarrierOutcome::Waiting | BarrierOutcome::Withdrawn | BarrierOutcome::Full => None,
        }
    }
}

impl From<BarrierInfo> for ObservedBarrier {
    fn from(barrier: BarrierInfo) -> Self {
        Self {
            path: Path(barrier.path),
            is_configured: barrier.configured,
            parties: barrier.parties,
            is_double: barrier.double,
            withdraws: barrier.on_loss == OnLoss::Withdraw,
            generation: barrier.generation,
            arrived: barrier.arrived,
            inside: barrier.inside,
            inside_generation: barrier.inside_generation,
            revision: barrier.revision,
        }
    }
}

impl From<&BarrierView> for ObservedBarrier {
    fn from(barrier: &BarrierView) -> Self {
        Self {
            path: barrier.path.clone(),
            is_configured: barrier.configured,
            parties: barrier.parties,
            is_double: barrier.double,
            withdraws: barrier.on_loss == OnLoss::Withdraw,
            generation: barrier.generation,
            arrived: barrier.arrived,
            inside: barrier.inside,
            inside_generation: barrier.inside_generation,
            revision: barrier.revision,
        }
    }
}

impl From<BarrierAnswerInfo> for ObservedMeeting {
    fn from(answer: BarrierAnswerInfo) -> Self {
        let BarrierAnswerInfo { outcome, generation, next_generation, index, lost, ended, barrier } = answer;
        Self { outcome, generation, next_generation, index, lost, ended: ended.flatten(), barrier: barrier.into() }
    }
}

impl From<(&BarrierAnswer, &BarrierView)> for ObservedMeeting {
    fn from((answer, barrier): (&BarrierAnswer, &BarrierView)) -> Self {
        let BarrierAnswer { outcome, generation, next_generation, index, lost, ended } = *answer;
        Self { outcome, generation, next_generation, index, lost, ended, barrier: barrier.into() }
    }
}
