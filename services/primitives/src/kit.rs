//! What a table of latches or of another kind may use of its shard, and what it hands back.
//!
//! A table is pure and knows neither the tree of locks nor another table. It gets revisions, the clock and limits here,
//! and records here what events and effects its changes have. The namespace publishes them after each command.

use std::ops::Deref;
use std::sync::Arc;

use crate::budget::Budget;
use crate::item_bytes::ItemBytes;
use crate::permits::PermitItem;
use crate::{
    AskedHolds, BarrierAnswer, CommandError, EventKind, FencingToken, Kind, Limits, Owner, Path, Reason,
    ReportedPermits, Revision, RevokedReason, SessionNumber, WaitId,
};

/// Revisions below this are exact as JSON numbers. A shard with a million changes a second reaches it in 285 years.
pub const REVISION_LIMIT: Revision = 1 << 53;

/// The units of an end that no event tells of: the thing, its places in the indexes, its owner, and what is told of it.
/// An event counts as much.
pub(crate) const END_UNITS: usize = 4;

/// The means of a table during one command or one slice.
pub struct Kit<'a> {
    clock_ms: u64,
    revision: &'a mut Revision,
    /// The remaining budget of the slice.
    pub budget: &'a mut Budget,
    means: Means<'a>,
    free: FreeBytes,
    notices: Vec<Notice>,
    /// The units of work besides those of visits and of events.
    units: usize,
}

/// What does not change meanwhile.
#[derive(Clone, Copy)]
pub struct Means<'a> {
    /// The limits of the account.
    pub limits: &'a Limits,
    /// The wall clock of the entry, in milliseconds since 1970.
    pub wall_ms: u64,
    /// How what is not over yet looks.
    pub sight: Sight<'a>,
    /// Whether a caller receives the response.
    pub with_views: bool,
    /// Whether the namespace is being reset: nothing is granted.
    pub is_frozen: bool,
    /// The number of requests that wait for locks.
    pub waiting_elsewhere: u64,
}

/// What decides whether a hold or a wait counts as over before it ends. Commands and queries use the same.
#[derive(Clone, Copy)]
pub struct Sight<'a> {
    /// The clock by which deadlines count as past: that of the previous entry while an entry ends what is due.
    pub visible_ms: u64,
    /// The highest reported queue position; higher ones are reported as this.
    pub max_queue_position: usize,
    /// Whether sweeps are unfinished.
    pub has_sweeps: bool,
    /// Returns the unfinished sweep that will end a hold or a wait.
    pub sweep_of: &'a dyn Fn(&PermitItem<'_>) -> Option<SweepMark>,
}

/// A sweep that will end a hold or a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SweepMark {
    /// The revision at which it began.
    pub began: Revision,
    /// The shard clock at which it began.
    pub since_ms: u64,
    /// Whether holds count as over from then on.
    pub at_once: bool,
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
pub struct FreeBytes {
    /// Bytes left to the account in this shard, as charged.
    pub of_account: u64,
    /// Bytes left to the tables of this namespace, as counted.
    pub of_tables: u64,
}

/// What a change of a table has to tell others, in order.
#[derive(Clone, Debug)]
pub enum Notice {
    /// An event for the history.
    Event(TableEvent),
    /// The status of the latch with this path became final, or the latch is gone.
    LatchSettled(Path),
    /// A wait for permits ended.
    PermitsResolved(Box<ResolvedPermits>),
    /// A session lost a hold of a semaphore or a pool.
    PermitsRevoked {
        /// The number of the session.
        number: SessionNumber,
        /// Its id.
        session_id: Arc<str>,
        /// What it held.
        hold: ReportedPermits,
        /// Why it holds it no more.
        reason: RevokedReason,
    },
    /// A session is asked to release holds of a semaphore or a pool.
    ReleaseRequested {
        /// The number of the session.
        number: SessionNumber,
        /// Its id.
        session_id: Arc<str>,
        /// The request, and the holds that it is about.
        asked: AskedHolds,
    },
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
        /// The number of the session.
        number: SessionNumber,
        /// Its id.
        session_id: Arc<str>,
        /// The id of the request.
        request_id: Arc<str>,
        /// The outcome.
        answer: BarrierAnswer,
        /// Whether it is inside a double barrier.
        inside: bool,
    },
    /// An arrival ended that the sweep that began at this revision would have ended.
    SweptArrival(Revision),
    /// A wait ended that the sweep that began at this revision would have ended.
    SweptWait(Revision),
}

/// An event of a table.
#[derive(Clone, Debug)]
pub struct TableEvent {
    /// The revision of the change.
    pub revision: Revision,
    /// What happened.
    pub kind: EventKind,
    /// The path of the thing.
    pub path: Path,
    /// The owner of a hold.
    pub owner: Option<TableOwner>,
    /// The fencing token of a hold.
    pub token: Option<FencingToken>,
    /// The members of a pool that it is about.
    pub members: Vec<Arc<str>>,
}

/// An owner and its displayed process id.
#[derive(Clone, Debug)]
pub struct TableOwner {
    /// The owner.
    pub owner: Owner,
    /// The displayed process id.
    pub process_id: Arc<str>,
}

/// A wait for permits that ended.
#[derive(Clone, Debug)]
pub struct ResolvedPermits {
    /// The wait.
    pub wait: WaitId,
    /// The highest attempt of the calls that wait.
    pub attempt: u64,
    /// Who waited.
    pub owner: Owner,
    /// The id of the request.
    pub request_id: String,
    /// Whether it is about a semaphore or a pool.
    pub kind: Kind,
    /// The path of the thing.
    pub path: Path,
    /// The fencing token, or why the request was not granted.
    pub outcome: Result<FencingToken, Reason>,
    /// The members that were granted.
    pub members: Vec<Arc<str>>,
}

impl<'a> Kit<'a> {
    /// Creates the kit of one command or slice at this shard clock, of a shard with this revision.
    pub fn new(
        clock_ms: u64,
        revision: &'a mut Revision,
        budget: &'a mut Budget,
        means: Means<'a>,
        free: FreeBytes,
    ) -> Self {
        Self { clock_ms, revision, budget, means, free, notices: Vec::new(), units: 0 }
    }

    /// Returns what has to be published, and the units of work.
    pub fn finish(self) -> (Vec<Notice>, usize) {
        (self.notices, self.units)
    }

    /// Counts units of work of which no event tells.
    pub fn spend(&mut self, units: usize) {
        self.units += units;
    }

    /// Returns the shard clock in milliseconds.
    pub fn clock_ms(&self) -> u64 {
        self.clock_ms
    }

    /// Returns the shard's current revision.
    pub fn revision(&self) -> Revision {
        *self.revision
    }

    /// Returns a new revision.
    pub fn next_revision(&mut self) -> Revision {
        next_revision(self.revision)
    }

    /// Records an event of a thing without an owner. Returns its revision.
    pub fn record(&mut self, kind: EventKind, path: &Path) -> Revision {
        let revision = self.next_revision();
        let path = path.clone();
        let event = TableEvent { revision, kind, path, owner: None, token: None, members: Vec::new() };
        self.notices.push(Notice::Event(event));
        revision
    }

    /// Records what a change has to tell others.
    pub fn notify(&mut self, notice: Notice) {
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

/// Raises the revision of a shard by one, and returns it.
///
/// # Panics
/// Never: a shard makes far fewer than 2^64 changes.
pub fn next_revision(revision: &mut Revision) -> Revision {
    *revision = revision.checked_add(1).expect("a shard makes far fewer than 2^64 changes");
    *revision
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

/// Returns the error of a limit.
pub fn quota_exceeded(what: &str, max: u64, hint: &str) -> CommandError {
    CommandError::QuotaExceeded { what: what.into(), max, hint: hint.into() }
}
