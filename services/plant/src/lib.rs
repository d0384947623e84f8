//! Faults that are planted in Holdfast on purpose, to see that the tests find them: a check that has never failed is
//! not yet a check.
//!
//! Purpose: name the faults, and tell the code at whose place one belongs whether it is planted.
//!
//! Invariant: without the feature `armed`, which only the simulation of `tests/sim` can switch on and which is off
//! by default there too, [`is_planted`] is the constant `false` and the compiler leaves every fault out. With it one
//! fault can be planted in a process, once, and never taken back.
//!
//! Deliberately unknown here: how a fault is made. That stands where it does its harm.

/// A fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Plant {
    /// Leases are counted by the wall clock.
    WallClock,
    /// An append is reported as durable before it is.
    AnswerBeforeSync,
    /// A vote is given before it is durable.
    VoteNotSynced,
    /// A replica votes right after its restart, without waiting for the lease that it granted before to end.
    EarlyVote,
    /// A leader that is restarted leads on without an election.
    RestoredLeadership,
    /// A leader reads without asking whether its lease still runs.
    StaleReads,
    /// A leader acknowledges signs of life without asking whether its lease still runs.
    KeepAliveByDeposed,
    /// A leader acknowledges a sign of life while the entry that ends the session is under way.
    KeepAliveWhileJudged,
    /// Questions are answered as of the running clock instead of the last applied entry.
    RunningClock,
    /// A caller that goes away takes the place in the queue with it, also when another one has taken it over.
    LateCancel,
    /// A snapshot has no waiting requests.
    QueueLost,
    /// A restarted replica begins without its snapshot, and with it without its revision.
    TokensReset,
    /// Now and then an entry is applied twice where nobody waits for its reply.
    DuplicateApply,
    /// The locks of a namespace outlive its deletion.
    PurgeMissed,
}

impl Plant {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::WallClock,
        Self::AnswerBeforeSync,
        Self::VoteNotSynced,
        Self::EarlyVote,
        Self::RestoredLeadership,
        Self::StaleReads,
        Self::KeepAliveByDeposed,
        Self::KeepAliveWhileJudged,
        Self::RunningClock,
        Self::LateCancel,
        Self::QueueLost,
        Self::TokensReset,
        Self::DuplicateApply,
        Self::PurgeMissed,
    ];

    /// What it is called on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::WallClock => "wall-clock",
            Self::AnswerBeforeSync => "answer-before-sync",
            Self::VoteNotSynced => "vote-not-synced",
            Self::EarlyVote => "early-vote",
            Self::RestoredLeadership => "restored-leadership",
            Self::StaleReads => "stale-reads",
            Self::KeepAliveByDeposed => "keep-alive-by-deposed",
            Self::KeepAliveWhileJudged => "keep-alive-while-judged",
            Self::RunningClock => "running-clock",
            Self::LateCancel => "late-cancel",
            Self::QueueLost => "queue-lost",
            Self::TokensReset => "tokens-reset",
            Self::DuplicateApply => "duplicate-apply",
            Self::PurgeMissed => "purge-missed",
        }
    }

    /// The one of that name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|plant| plant.name() == name)
    }
}

#[cfg(feature = "armed")]
static PLANTED: std::sync::OnceLock<Plant> = std::sync::OnceLock::new();

/// Plants a fault in this process, for good. False when there is one already, or when this build cannot.
pub fn plant(plant: Plant) -> bool {
    #[cfg(feature = "armed")]
    return PLANTED.set(plant).is_ok();
    #[cfg(not(feature = "armed"))]
    {
        let _ = plant;
        false
    }
}

/// Whether that fault is planted.
#[inline]
pub fn is_planted(plant: Plant) -> bool {
    #[cfg(feature = "armed")]
    return PLANTED.get() == Some(&plant);
    #[cfg(not(feature = "armed"))]
    {
        let _ = plant;
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fault_is_found_by_its_name() {
        for plant in Plant::ALL {
            assert_eq!(Plant::from_name(plant.name()), Some(plant));
        }
        assert_eq!(Plant::from_name("none"), None);
    }

    #[cfg(not(feature = "armed"))]
    #[test]
    fn a_build_that_is_not_armed_has_no_faults() {
        for fault in Plant::ALL {
            assert!(!plant(fault) && !is_planted(fault));
        }
    }
}
