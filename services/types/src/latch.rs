//! Latches: counts of jobs that are done, each counted once, and waits until all are.
//!
//! A latch has no owner, so nothing of it ends with a session.

use serde::{Deserialize, Serialize};

use super::{Metadata, NamespaceRef, Path, Revision};

/// How a latch names the jobs that it counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LatchIds {
    /// By ids of up to [`MAX_NAME_BYTES`](super::MAX_NAME_BYTES) bytes that its callers choose.
    Named,
    /// By numbers from 0 to `total - 1`.
    Indexed,
}

impl LatchIds {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Named => "NAMED",
            Self::Indexed => "INDEXED",
        }
    }
}

/// The status of a latch. All but `Active` are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LatchStatus {
    /// Jobs are missing.
    Active,
    /// All jobs are done.
    Completed,
    /// It was not complete in time.
    Expired,
}

impl LatchStatus {
    /// Returns the public name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Active => "ACTIVE",
            Self::Completed => "COMPLETED",
            Self::Expired => "EXPIRED",
        }
    }

    /// Returns whether the status never changes again.
    pub fn is_final(self) -> bool {
        self != Self::Active
    }
}

/// Shortest and longest time in milliseconds in which a latch must complete.
pub const LATCH_EXPIRES_IN_MS: std::ops::RangeInclusive<u64> = 1_000..=30 * 24 * 60 * 60 * 1_000;
/// That time if the caller does not specify it.
pub const DEFAULT_LATCH_EXPIRES_IN_MS: u64 = 24 * 60 * 60 * 1_000;
/// Shortest and longest time in milliseconds that a latch is retained once its status is final.
pub const LATCH_RETAIN_MS: std::ops::RangeInclusive<u64> = 60 * 1_000..=30 * 24 * 60 * 60 * 1_000;
/// That time if the caller does not specify it.
pub const DEFAULT_LATCH_RETAIN_MS: u64 = 60 * 60 * 1_000;
/// Maximum number of ids, or of ranges, in one count-down.
pub const MAX_IDS_PER_COUNT_DOWN: usize = 100;

/// Commands for latches. All are rejected with `NamespaceNotFound` for any but the open incarnation.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LatchCommand {
    /// Creates a latch. Returns `LatchCreated`, also for a repeat with the same parameters. Errors: `PrimitiveTaken`,
    /// `QuotaExceeded`, `InvalidArgument`.
    Create(CreateLatch),
    /// Counts jobs as done. Returns `CountedDown`. Once the status is final, counts none. Errors: `PrimitiveNotFound`,
    /// `InvalidArgument`, `QuotaExceeded`.
    CountDown(CountDown),
    /// Changes the total of an active latch. Returns `LatchTotalSet`, without success for a final latch with another
    /// total. Errors: `PrimitiveNotFound`, `InvalidArgument` for a total below what is done and for a lower one of an
    /// indexed latch, `QuotaExceeded`.
    SetTotal {
        /// The latch.
        latch: LatchRef,
        /// The new total.
        total: u64,
        /// Change it only if this is the present total. If the present total already is `total`, that succeeds too.
        if_total: Option<u64>,
    },
    /// Deletes a latch in any status. Returns `Done`, also if there is none, or one with another id.
    Delete(LatchRef),
}

/// A latch in a command or query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatchRef {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// If given, only the latch with this id: one that was created anew under the path is another.
    pub id: Option<Revision>,
}

/// Creates a latch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CreateLatch {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path.
    pub path: Path,
    /// The number of jobs. With 0 it is complete at once.
    pub total: u64,
    /// How it names them.
    pub ids: LatchIds,
    /// How long it may stay active, within [`LATCH_EXPIRES_IN_MS`].
    pub expires_in_ms: u64,
    /// How long it is retained with a final status, within [`LATCH_RETAIN_MS`].
    pub retain_ms: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
}

/// Counts jobs as done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountDown {
    /// The latch.
    pub latch: LatchRef,
    /// The jobs, in the way in which the latch names them.
    pub jobs: Jobs,
}

/// Jobs of a latch: at most [`MAX_IDS_PER_COUNT_DOWN`] ids or ranges in a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Jobs {
    /// Ids.
    Named(Vec<String>),
    /// Ranges of numbers; both ends are part of a range.
    Indexed(Vec<(u64, u64)>),
}

/// Where a page of done jobs begins: after this one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum JobCursor {
    /// After this id.
    Named(String),
    /// After this number.
    Indexed(u64),
}

/// Queries about latches. Errors: `NamespaceNotFound`, and `PrimitiveNotFound` for all but `List`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum LatchQuery {
    /// Returns `LatchJobs`.
    Get {
        /// The latch.
        latch: LatchRef,
        /// Jobs after this one.
        after: Option<JobCursor>,
        /// Maximum number of ids or ranges.
        limit: u32,
    },
    /// Returns `Latches`, in order of path.
    List {
        /// The namespace.
        namespace: NamespaceRef,
        /// Only latches at or below this path; the empty path matches all.
        prefix: Path,
        /// Start after this one.
        after: Option<Path>,
        /// Maximum number of rows.
        limit: u32,
    },
    /// Returns `Latch`. Its leader holds the reply back until the status is final or the time is over; the state itself
    /// replies at once.
    Wait {
        /// The latch.
        latch: LatchRef,
        /// How long the leader holds the reply back at most, in milliseconds.
        wait_ms: u64,
    },
}

impl LatchQuery {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Get { latch, .. } | Self::Wait { latch, .. } => &latch.namespace,
            Self::List { namespace, .. } => namespace,
        }
    }
}

impl LatchCommand {
    /// Returns the namespace.
    pub fn namespace(&self) -> &NamespaceRef {
        match self {
            Self::Create(create) => &create.namespace,
            Self::CountDown(count) => &count.latch.namespace,
            Self::SetTotal { latch, .. } | Self::Delete(latch) => &latch.namespace,
        }
    }
}

/// A view of a latch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatchView {
    /// The path.
    pub path: Path,
    /// The revision of its creation.
    pub id: Revision,
    /// Its status.
    pub status: LatchStatus,
    /// The number of jobs.
    pub total: u64,
    /// The number of jobs that are done, at most `total`.
    pub done: u64,
    /// How it names them.
    pub ids: LatchIds,
    /// Shard clock at which it expires or, with a final status, at which it is gone.
    pub deadline_ms: u64,
    /// The leader's wall clock when its status became final, milliseconds since 1970.
    pub finished_at_ms: Option<u64>,
    /// How long it is retained with a final status, in milliseconds.
    pub retain_ms: u64,
    /// As given by the caller.
    pub description: String,
    /// As given by the caller.
    pub metadata: Metadata,
    /// The revision of its last change.
    pub revision: Revision,
    /// How many replies about it its leader holds back now: of those who wait for it. Only a leader that answers a query
    /// knows that.
    pub waiters: Option<u64>,
}
