//! What clients ask about conditions of locks, and what they are answered.

use holdfast_api::{AwaitAnswer, SignalAnswer};
use holdfast_core::{Owner, Path, Reason, Woken};

use crate::history::ObservedLock;

/// A call about a condition.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ConditionOp {
    Await(AwaitOp),
    Signal(SignalOp),
}

/// An await as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AwaitOp {
    pub(crate) path: Path,
    pub(crate) owner: Owner,
    /// Of the hold that is given up.
    pub(crate) token: u64,
    pub(crate) condition: String,
    pub(crate) wait_ms: u64,
    pub(crate) relock_ms: u64,
    /// Absent for sessions.
    pub(crate) ttl_ms: Option<u64>,
}

/// A signal as it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SignalOp {
    pub(crate) path: Path,
    pub(crate) owner: Owner,
    pub(crate) condition: String,
    pub(crate) all: bool,
    pub(crate) token: Option<u64>,
    pub(crate) signal_id: Option<String>,
}

/// An answer to such a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ConditionAnswer {
    /// The token of the new hold with why its owner was woken, or the reason of a refusal.
    Awaited { outcome: Result<(u64, Option<Woken>), Reason>, lock: ObservedLock },
    /// How many were woken and how many still await the condition; neither if the owner does not hold the lock.
    Signalled { counts: Option<(u64, u64)>, lock: ObservedLock },
}

impl ConditionOp {
    pub(crate) fn owner(&self) -> &Owner {
        match self {
            Self::Await(awaits) => &awaits.owner,
            Self::Signal(signal) => &signal.owner,
        }
    }

    /// Returns how long it may take to be answered.
    pub(crate) fn wait_ms(&self) -> u64 {
        match self {
            Self::Await(awaits) => awaits.wait_ms + awaits.relock_ms,
            Self::Signal(_) => 0,
        }
    }
}

impl From<AwaitAnswer> for ConditionAnswer {
    fn from(answer: AwaitAnswer) -> Self {
        let outcome = match (answer.fencing_token, answer.reason.map(|reason| reason.code)) {
            (Some(token), None) => Ok((token, answer.woken)),
            (None, Some(reason)) => Err(reason),
            both => unreachable!("an await answers with a token or a reason, not {both:?}"),
        };
        Self::Awaited { outcome, lock: answer.lock.into() }
    }
}

impl From<SignalAnswer> for ConditionAnswer {
    fn from(answer: SignalAnswer) -> Self {
        Self::Signalled { counts: answer.signalled.zip(answer.awaiting), lock: answer.lock.into() }
    }
}
