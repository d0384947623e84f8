//! Barriers: parties that meet and go on together, in one generation after the other.

use serde::{Deserialize, Serialize};

use super::{MessageSeq, Metadata, NamespaceRef, Owner, Path, PermitsEnd, Revision};

/// The highest number of parties of a barrier, whatever the limits of the account.
pub const MAX_PARTIES: u32 = 1_000;
/// Shortest and longest time in milliseconds that a barrier with nobody in it is retained; 0 is for ever.
pub const BARRIER_RETAIN_MS: std::ops::RangeInclusive<u64> = 60 * 1_000..=30 * 24 * 60 * 60 * 1_000;
/// That time if the caller does not specify it.
pub const DEFAULT_BARRIER_RETAIN_MS: u64 = 60 * 60 * 1_000;
/// How long the outcomes of a deleted barrier are retained for those who were in it, in milliseconds.
pub const DELETED_BARRIER_RETAIN_MS: u64 = 10 * 60 * 1_000;
/// How many generations of a barrier are remembered after their end.
pub const MAX_GENERATIONS: usize = 64;
/// Maximum number of arrivals in the response to a query.
pub const MAX_ARRIVALS_IN_REPLY: u32 = 1_000;
/// So many arrivals begin or end for a unit when a generation ends.
const ARRIVALS_PER_UNIT: usize = 8;

/// What becomes of a generation when an arrival ends before all have come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OnLoss {
    /// It is broken for all of its arrivals.
    Break,
    /// Only that arrival is gone.
    Withdraw,
}

impl OnLoss {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Break => "BREAK",
            Self::Withdraw => "WITHDRAW",
        }
    }
}

/// How a generation ended. It never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum GenerationEnd {
    /// All came.
    Tripped,
    /// An arrival ended before all had come.
    Broken,
}

impl GenerationEnd {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tripped => "TRIPPED",
            Self::Broken => "BROKEN",
        }
    }
}

/// What a party learns of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BarrierOutcome {
    /// All came.
    Tripped,
    /// An arrival ended before all had come.
    Broken,
    /// Nothing is decided yet; the arrival stays.
    Waiting,
    /// All have left a double barrier.
    Left,
    /// The party is not in the generation any more, which goes on without it.
    Withdrawn,
    /// All parties of the next generation have come, while those of an earlier one are inside: it has not arrived.
    Full,
    /// The generation ended, and the party is not known to have been in it.
    Past,
}

impl BarrierOutcome {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Tripped => "TRIPPED",
            Self::Broken => "BROKEN",
            Self::Waiting => "WAITING",
            Self::Left => "LEFT",
            Self::Withdrawn => "WITHDRAWN",
            Self::Full => "FULL",
            Self::Past => "PAST",
        }
    }

    /// Returns whether it never changes for that party and generation.
    pub fn is_final(self) -> bool {
        self != Self::Waiting
    }
}

impl From<GenerationEnd> for BarrierOutcome {
    fn from(end: GenerationEnd) -> Self {
        match end {
            GenerationEnd::Tripped => Self::Tripped,
            GenerationEnd::Broken => Self::Broken,
        }
    }
}

/// Commands for barriers. All are rejected with `NamespaceNotFound` for any but the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierCommand {
    /// Creates a barrier or changes it, an ephemeral one too. Returns `Barrier`. Errors: `QuotaExceeded`,
    /// `InvalidArgument`.
    Configure(ConfigureBarrier),
    /// Returns `AtBarrier`, or `Ignored` for an old message of a session. Errors: `PrimitiveNotFound` without
    /// `parties`, or with a generation, for a barrier that does not exist; `InvalidArgument`, `QuotaExceeded`,
    /// `SessionNotFound`, `Superseded`, `RequestIdTaken`, `Busy`.
    Arrive(ArriveAtBarrier),
    /// Ends an arrival, or leaves a double barrier. Returns `AtBarrier`, also if there is nothing to end. Errors:
    /// `PrimitiveNotFound`, `InvalidArgument`, `SessionNotFound`, `Superseded`.
    Leave(LeaveBarrier),
    /// Ends all arrivals, and deletes the barrier. Returns `Done`, also if there is none.
    Delete {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
}

/// Creates or changes a barrier. All values are absolute, so a repeat changes nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigureBarrier {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// How many meet: 1 to [`MAX_PARTIES`].
    pub parties: u32,
    /// Whether they also leave together.
    pub double: bool,
    /// What becomes of a generation when an arrival ends before all have come.
    pub on_loss: OnLoss,
    /// How long it is retained with nobody in it, within [`BARRIER_RETAIN_MS`]; 0 is for ever.
    pub retain_ms: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// An arrival. An owner arrives once in a generation; a repeat extends its arrival, or learns the outcome.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArriveAtBarrier {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The generation; absent for the present one. A repeat without it may arrive in the next one.
    pub generation: Option<Revision>,
    /// The parties of the barrier that the arrival creates if there is none. A configured one ignores them.
    pub parties: Option<u32>,
    /// Whether that barrier is a double one. A configured one ignores it.
    pub double: Option<bool>,
    /// How long the arrival counts; absent for one that lives as long as a session.
    pub ttl_ms: Option<u64>,
    /// Stored with the arrival; a repeat replaces it.
    pub metadata: Metadata,
    /// Identifies the arrival in its session, if it has an id. With an id, a repeat finds its generation.
    pub request_id: Option<String>,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

/// Ends an arrival before the trip, or leaves a double barrier after it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeaveBarrier {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The owner.
    pub owner: Owner,
    /// The generation that it arrived in.
    pub generation: Revision,
    /// The sequence number of this message in its session; absent for a call that is not part of a connection.
    pub message: Option<MessageSeq>,
}

impl BarrierCommand {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Configure(configure) => &configure.namespace,
            Self::Arrive(arrive) => &arrive.namespace,
            Self::Leave(leave) => &leave.namespace,
            Self::Delete { namespace, .. } => namespace,
        }
    }
}

/// Queries about barriers. Errors: `NamespaceNotFound`, and `PrimitiveNotFound` for all but `List`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum BarrierQuery {
    /// Returns `BarrierArrivals`.
    Get {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// Returns `Barriers`, in order of path.
    List {
        /// The namespace.
        namespace: NamespaceRef,
        /// Only barriers at or below this path; the empty path matches all.
        prefix: Path,
        /// Start after this one.
        after: Option<Path>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `AtBarrier`. Its leader holds the reply back until the outcome is final or the time is over; the state
    /// itself replies at once. Errors: `InvalidArgument` for a generation that has not begun, `SessionNotFound`.
    Wait(WaitAtBarrier),
    /// Returns `Holds`: whether an owner has arrived, so that a repeat of the arrival only extends it.
    HasArrived {
        /// The namespace.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
        /// The owner.
        owner: Owner,
    },
}

/// What somebody wants to learn of a generation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WaitAtBarrier {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The generation.
    pub generation: Revision,
    /// The owner whose arrival it is about; absent for somebody who did not arrive.
    pub owner: Option<Owner>,
    /// Whether it waits until all have left, if the barrier is a double one.
    pub leaves: bool,
    /// How long the leader holds the reply back at most, in milliseconds.
    pub wait_ms: u64,
}

impl BarrierQuery {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Get { namespace, .. } | Self::List { namespace, .. } | Self::HasArrived { namespace, .. } => {
                namespace
            }
            Self::Wait(wait) => &wait.namespace,
        }
    }
}

/// What somebody is told of a generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierAnswer {
    /// The outcome.
    pub outcome: BarrierOutcome,
    /// The generation that it is about.
    pub generation: Revision,
    /// The generation that gathers now.
    pub next_generation: Revision,
    /// The rank among those who tripped, in order of arrival from 0.
    pub index: Option<u32>,
    /// Once all have left: how many of them did not leave by themselves.
    pub lost: Option<u32>,
    /// If the outcome is `Past`: how the generation ended, if that is still known.
    pub ended: Option<GenerationEnd>,
}

/// A view of a barrier.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BarrierView {
    /// The path.
    pub path: Path,
    /// Whether it was configured.
    pub configured: bool,
    /// How many meet.
    pub parties: u32,
    /// Whether they also leave together.
    pub double: bool,
    /// What becomes of a generation when an arrival ends before all have come.
    pub on_loss: OnLoss,
    /// How long it is retained with nobody in it, in milliseconds; 0 is for ever.
    pub retain_ms: u64,
    /// The generation that gathers now.
    pub generation: Revision,
    /// How many have arrived in it.
    pub arrived: u32,
    /// How many are inside a double barrier.
    pub inside: u32,
    /// The generation of those inside.
    pub inside_generation: Option<Revision>,
    /// Shard clock at which it is gone if nobody comes; absent while somebody is in it, and for one that stays.
    pub gone_at_ms: Option<u64>,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The revision of its last change; of a barrier that does not exist, the shard's current revision.
    pub revision: Revision,
}

impl BarrierView {
    /// Returns the view of a barrier that does not exist.
    pub fn absent(path: &Path, revision: Revision) -> Self {
        Self {
            path: path.clone(),
            configured: false,
            parties: 0,
            double: false,
            on_loss: OnLoss::Break,
            retain_ms: 0,
            generation: 0,
            arrived: 0,
            inside: 0,
            inside_generation: None,
            gone_at_ms: None,
            description: String::new(),
            metadata: Metadata::new(),
            revision,
        }
    }
}

/// A view of one arrival.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ArrivalView {
    /// The owner.
    pub owner: Owner,
    /// The displayed process id: the owner's, or that of its session.
    pub process_id: String,
    /// The request id, if it has one.
    pub request_id: Option<String>,
    /// Whether it is inside a double barrier, and not in the generation that gathers.
    pub inside: bool,
    /// The leader's wall clock at the arrival, milliseconds since 1970.
    pub arrived_at_ms: u64,
    /// Shard clock at which the arrival ends; absent for one that lives as long as a session.
    pub deadline_ms: Option<u64>,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// A generation that ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EndedGeneration {
    /// Its number.
    pub generation: Revision,
    /// How it ended.
    pub end: GenerationEnd,
    /// How many were in it.
    pub parties: u32,
    /// The leader's wall clock at its end, milliseconds since 1970.
    pub at_ms: u64,
    /// Once all have left a double barrier: how many of them did not leave by themselves.
    pub lost: Option<u32>,
}

/// Why a generation was broken, or how the last one left a double barrier.
pub type ArrivalEnd = PermitsEnd;

/// Returns the cost of ending so many arrivals at once, in units.
pub fn arrival_units(arrivals: usize) -> usize {
    1 + arrivals / ARRIVALS_PER_UNIT
}
