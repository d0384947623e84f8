//! What a table of latches or of another kind may use of its shard, and what it hands back.
//!
//! A table is pure and knows neither the tree of locks nor another table. It gets revisions, the clock and limits here,
//! and records here what events and effects its changes have. The namespace publishes them after each command.

use std::ops::Deref;
use std::sync::Arc;

use crate::item_bytes::ItemBytes;
use crate::locks::Budget;
use crate::permits::PermitItem;
use crate::shard_common::ShardCommon;
use crate::{
    AskedHolds, BarrierAnswer, CommandError, EventKind, FencingToken, Kind, Limits, Owner, Path, Reason,
    ReportedPermits, Revision, RevokedReason, SessionNumber, WaitId,
};

/// The units of an end that no event tells of: the thing, and where it is found. An event counts as much.
pub(crate) const END_UNITS: usize = 2;

/// The means of a table during one command or one slice.
pub(crate) struct Kit<'a> {
    common: &'a mut ShardCommon,
    /// The remaining budget of the slice.
    pub(crate) budget: &'a mut Budget,
    means: Means<'a>,
    free: FreeBytes,
    notices: Vec<Notice>,
    /// The units of work besides those of visits and of events.
    units: usize,
}

/// What does not change meanwhile.
#[derive(Clone, Copy)]
pub(crate) struct Means<'a> {
    /// The limits of the account.
    pub(crate) limits: &'a Limits,
    /// The wall clock of the entry, in milliseconds since 1970.
    pub(crate) wall_ms: u64,
    /// How what is not over yet looks.
    pub(crate) sight: Sight<'a>,
    /// Whether a caller receives the response.
    pub(crate) with_views: bool,
    /// Whether the namespace is being reset: nothing is granted.
    pub(crate) is_frozen: bool,
    /// The number of requests that wait for locks.
    pub(crate) waiting_elsewhere: u64,
}

/// What decides whether a hold or a wait counts as over before it ends. Commands and queries use the same.
#[derive(Clone, Copy)]
pub(crate) struct Sight<'a> {
    /// The clock by which deadlines count as past: that of the previous entry while an entry ends what is due.
    pub(crate) visible_ms: u64,
    /// The highest reported queue position; higher ones are reported as this.
    pub(crate) max_queue_position: usize,
    /// Whether sweeps are unfinished.
    pub(crate) has_sweeps: bool,
    /// Returns the unfinished sweep that will end a hold or a wait.
    pub(crate) sweep_of: &'a dyn Fn(&PermitItem<'_>) -> Option<SweepMark>,
}

/// A sweep that will end a hold or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SweepMark {
    /// The revision at which it began.
    pub(crate) began: Revision,
    /// The shard clock at which it began.
    pub(crate) since_ms: u64,
    /// Whether holds count as over from then on.
    pub(crate) at_once: bool,
}

/// A kit has all that its means have.
impl<'a> Deref for Kit<'a> {
    type Target = Means<'a>;

    fn deref(&self) -> &Means<'a> {
        &self.means
    }
}

/// How much a table may grow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FreeBytes {
    /// Bytes left to the account in this shard, as charged.
    pub(crate) of_account: u64,
    /// Bytes left to the tables of this namespace, as counted.
    pub(crate) of_tables: u64,
}

/// What a change of a table has to tell others, in order.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// An event for the history.
    Event(TableEvent),
    /// The status of the latch with this path became final, or the latch is gone.
    LatchSettled(Path),
    /// A wait for permits ended.
    PermitsResolved(Box<ResolvedPermits>),
    /// A session lost a hold of a semaphore or a pool.
    PermitsRevoked { number: SessionNumber, session_id: Arc<str>, hold: ReportedPermits, reason: RevokedReason },
    /// A session is asked to release holds of a semaphore or a pool.
    ReleaseRequested { number: SessionNumber, session_id: Arc<str>, asked: AskedHolds },
    /// The response has to wait for the work that began at this revision.
    Awaits(Revision),
    /// The work that began at this revision is finished.
    Finished(Revision),
    /// A request for permits waits.
    Queued,
    /// Replies about the barrier with this path can be given.
    BarrierSettled(Path),
    /// A request of a session that arrived at a barrier has an outcome.
    MetAtBarrier {
        number: SessionNumber,
        session_id: Arc<str>,
        request_id: Arc<str>,
        answer: BarrierAnswer,
        inside: bool,
    },
    /// An arrival ended that the sweep that began at this revision would have ended.
    SweptArrival(Revision),
    /// A wait ended that the sweep that began at this revision would have ended.
    SweptWait(Revision),
}

/// An event of a table.
#[derive(Clone, Debug)]
pub(crate) struct TableEvent {
    pub(crate) revision: Revision,
    pub(crate) kind: EventKind,
    pub(crate) path: Path,
    /// The owner of a hold.
    pub(crate) owner: Option<TableOwner>,
    pub(crate) token: Option<FencingToken>,
    /// The members of a pool that it is about.
    pub(crate) members: Vec<Arc<str>>,
}

/// An owner and its displayed process id.
#[derive(Clone, Debug)]
pub(crate) struct TableOwner {
    pub(crate) owner: Owner,
    pub(crate) process_id: Arc<str>,
}

/// A wait for permits that ended.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedPermits {
    pub(crate) wait: WaitId,
    pub(crate) attempt: u64,
    pub(crate) owner: Owner,
    pub(crate) request_id: String,
    pub(crate) kind: Kind,
    pub(crate) path: Path,
    /// The fencing token, or why the request was not granted.
    pub(crate) outcome: Result<FencingToken, Reason>,
    /// The members that were granted.
    pub(crate) members: Vec<Arc<str>>,
}

impl<'a> Kit<'a> {
    pub(crate) fn new(common: &'a mut ShardCommon, budget: &'a mut Budget, means: Means<'a>, free: FreeBytes) -> Self {
        Self { common, budget, means, free, notices: Vec::new(), units: 0 }
    }

    /// Returns what has to be published, and the units of work.
    pub(crate) fn finish(self) -> (Vec<Notice>, usize) {
        (self.notices, self.units)
    }

    /// Counts units of work of which no event tells.
    pub(crate) fn spend(&mut self, units: usize) {
        self.units += units;
    }

    /// Returns the shard clock in milliseconds.
    pub(crate) fn clock_ms(&self) -> u64 {
        self.common.clock_ms
    }

    /// Returns the shard's current revision.
    pub(crate) fn revision(&self) -> Revision {
        self.common.revision
    }

    pub(crate) fn next_revision(&mut self) -> Revision {
        self.common.next_revision()
    }

    /// Records an event of a thing without an owner. Returns its revision.
    pub(crate) fn record(&mut self, kind: EventKind, path: &Path) -> Revision {
        let revision = self.next_revision();
        let path = path.clone();
        let event = TableEvent { revision, kind, path, owner: None, token: None, members: Vec::new() };
        self.notices.push(Notice::Event(event));
        revision
    }

    pub(crate) fn notify(&mut self, notice: Notice) {
        self.notices.push(notice);
    }

    /// Checks whether so many more bytes are within the limits.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(crate) fn check_bytes(&self, more: impl Into<ItemBytes>) -> Result<(), CommandError> {
        let more: ItemBytes = more.into();
        if more.charged > self.free.of_account {
            return Err(quota_exceeded(
                "the state of the account in this shard, in bytes,",
                self.limits.max_state_bytes,
                "release locks, close sessions, send less metadata or have the limit raised",
            ));
        }
        if more.counted > self.free.of_tables {
            return Err(quota_exceeded(
                "the state of latches, semaphores, pools, barriers and conditions of a namespace, in bytes,",
                self.limits.max_primitive_bytes,
                "delete what is done with, send less metadata or have the limit raised",
            ));
        }
        Ok(())
    }
}

/// Checks the path of a new thing.
///
/// # Errors
/// When it has no segments, or too many.
pub(crate) fn check_path(limits: &Limits, path: &Path) -> Result<(), CommandError> {
    let max = limits.max_path_depth.min(Limits::PATH_DEPTH);
    if path.0.is_empty() {
        return Err(CommandError::InvalidArgument("a path has at least one segment".to_owned()));
    }
    if path.0.len() as u64 > u64::from(max) {
        return Err(quota_exceeded("the number of segments in a path", max.into(), "use a shorter path"));
    }
    Ok(())
}

pub(crate) fn quota_exceeded(what: &str, max: u64, hint: &str) -> CommandError {
    CommandError::QuotaExceeded { what: what.into(), max, hint: hint.into() }
}
