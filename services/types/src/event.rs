//! Events of a namespace, in order.

use serde::{Deserialize, Serialize};

use super::{ArrivalEnd, Claim, FencingToken, Kind, Kinds, Owner, Path, PermitsEnd, Revision, Woken};

/// An event of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The position in the shard's order. No two events share one.
    pub revision: Revision,
    /// The leader's wall clock, milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub kind: EventKind,
    /// The owner of the hold, or the session. An event that has no owner has a process without a name.
    pub owner: Owner,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// The token of the hold that was granted or ended.
    pub fencing_token: Option<FencingToken>,
    /// All claims of the grant, or the one hold that ended; empty for sessions. An event of another kind than locks has
    /// a claim, to write, with the path of the thing. Members follow it, each as a claim whose path is their name; and
    /// the name of a condition, likewise.
    pub claims: Vec<Claim>,
}

impl Event {
    /// Returns whether the event is about one of these kinds, and a claim is at, below or above the prefix; only locks
    /// above the prefix matter. The empty prefix matches every path.
    pub fn concerns(&self, prefix: &Path, kinds: Kinds) -> bool {
        let kind = self.kind.of();
        let paths = if kind == Kind::Lock { self.claims.len() } else { 1 };
        let is_above = |claim: &Claim| kind == Kind::Lock && claim.path.is_prefix_of(prefix);
        let is_on = |claim: &Claim| prefix.is_prefix_of(&claim.path) || is_above(claim);
        kinds.contains(kind) && (prefix.0.is_empty() || self.claims.iter().take(paths).any(is_on))
    }
}

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum EventKind {
    /// Claims were granted, or a hold changed its mode (a downgrade keeps its token).
    Acquired,
    /// The owner released its hold, or its session was closed.
    Released,
    /// A hold or its session expired.
    Expired,
    /// The lock was deleted.
    Deleted,
    /// A reset ended the hold.
    Reset,
    /// A session was opened (not: resumed).
    SessionOpened,
    /// A session ended.
    SessionEnded,
    /// A latch was created.
    LatchCreated,
    /// A latch is complete.
    LatchCompleted,
    /// A latch was not complete in time.
    LatchExpired,
    /// A latch was deleted. None tells that its time after its end is over.
    LatchDeleted,
    /// Permits were granted, or the weight of a hold rose.
    PermitsAcquired {
        /// The permits of the hold.
        weight: u64,
    },
    /// Permits were released.
    PermitsReleased {
        /// How many.
        weight: u64,
        /// Why.
        cause: PermitsEnd,
    },
    /// A semaphore was configured.
    SemaphoreConfigured,
    /// A semaphore was deleted.
    SemaphoreDeleted,
    /// Members of a pool were granted.
    MembersTaken,
    /// Members of a pool were returned.
    MembersReturned {
        /// Why.
        cause: PermitsEnd,
    },
    /// A pool was configured, or some of its members were changed.
    PoolConfigured,
    /// A pool was deleted.
    PoolDeleted,
    /// Owners were asked to release what they hold of a thing.
    ReleaseRequested {
        /// The kind of the thing.
        of: Kind,
    },
    /// All parties of a generation of a barrier came.
    BarrierTripped {
        /// The generation.
        generation: Revision,
        /// How many they were.
        parties: u32,
    },
    /// A generation of a barrier was broken.
    BarrierBroken {
        /// The generation.
        generation: Revision,
        /// How many had come.
        parties: u32,
        /// Why.
        cause: ArrivalEnd,
    },
    /// All of a generation have left a double barrier.
    BarrierLeft {
        /// The generation.
        generation: Revision,
        /// How many they were.
        parties: u32,
        /// How the last one left.
        cause: ArrivalEnd,
    },
    /// An owner gave a lock up and awaits a condition of it.
    Awaiting,
    /// An owner that awaited a condition waits for its lock again.
    Signalled {
        /// Why.
        woken: Woken,
    },
}

impl EventKind {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Acquired => "ACQUIRED",
            Self::Released => "RELEASED",
            Self::Expired => "EXPIRED",
            Self::Deleted => "DELETED",
            Self::Reset => "RESET",
            Self::SessionOpened => "SESSION_OPENED",
            Self::SessionEnded => "SESSION_ENDED",
            Self::LatchCreated => "LATCH_CREATED",
            Self::LatchCompleted => "LATCH_COMPLETED",
            Self::LatchExpired => "LATCH_EXPIRED",
            Self::LatchDeleted => "LATCH_DELETED",
            Self::PermitsAcquired { .. } => "PERMITS_ACQUIRED",
            Self::PermitsReleased { .. } => "PERMITS_RELEASED",
            Self::SemaphoreConfigured => "SEMAPHORE_CONFIGURED",
            Self::SemaphoreDeleted => "SEMAPHORE_DELETED",
            Self::MembersTaken => "MEMBERS_TAKEN",
            Self::MembersReturned { .. } => "MEMBERS_RETURNED",
            Self::PoolConfigured => "POOL_CONFIGURED",
            Self::PoolDeleted => "POOL_DELETED",
            Self::ReleaseRequested { .. } => "RELEASE_REQUESTED",
            Self::BarrierTripped { .. } => "BARRIER_TRIPPED",
            Self::BarrierBroken { .. } => "BARRIER_BROKEN",
            Self::BarrierLeft { .. } => "BARRIER_LEFT",
            Self::Awaiting => "AWAITING",
            Self::Signalled { .. } => "SIGNALLED",
        }
    }

    /// Returns the kind of the thing that has the path of the event. Sessions count with locks.
    pub fn thing(self) -> Kind {
        if let Self::ReleaseRequested { of } = self { of } else { self.of() }
    }

    /// Returns the kind that watchers name to get the event. Sessions count with locks.
    pub fn of(self) -> Kind {
        match self {
            Self::Acquired
            | Self::Released
            | Self::Expired
            | Self::Deleted
            | Self::Reset
            | Self::SessionOpened
            | Self::SessionEnded => Kind::Lock,
            Self::LatchCreated | Self::LatchCompleted | Self::LatchExpired | Self::LatchDeleted => Kind::Latch,
            Self::PermitsAcquired { .. }
            | Self::PermitsReleased { .. }
            | Self::SemaphoreConfigured
            | Self::SemaphoreDeleted => Kind::Semaphore,
            Self::MembersTaken | Self::MembersReturned { .. } | Self::PoolConfigured | Self::PoolDeleted => Kind::Pool,
            Self::ReleaseRequested { .. } => Kind::Request,
            Self::BarrierTripped { .. } | Self::BarrierBroken { .. } | Self::BarrierLeft { .. } => Kind::Barrier,
            Self::Awaiting | Self::Signalled { .. } => Kind::Condition,
        }
    }
}
