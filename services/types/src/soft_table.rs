//! Lock tables that are in the memory of their shard's leader: what the log has of them.

use serde::{Deserialize, Serialize};

use super::{
    AccountId, Claim, FencingToken, Metadata, NamespaceRef, OpenSession, Path, ReportedHold, Revision, SessionNumber,
    WaitId,
};

/// Revisions in a block.
pub const BLOCK_REVISIONS: u64 = 1 << 20;
/// Shortest and longest time to live of a session whose holds are in such a table, in milliseconds. It bounds how long
/// the next leader waits for it.
pub const TABLE_SESSION_TTL_MS: (u64, u64) = (2_000, 60_000);
/// Longest transition of the holds of such a session, in milliseconds.
pub const MAX_TABLE_TRANSITION_MS: u64 = 600_000;
/// Maximum number of claims that were ended by force in one namespace and are kept.
pub const MAX_FORFEITS: u64 = 4_096;
/// Maximum number of requests of a session that are not released, in a namespace with such a table.
pub const MAX_TABLE_REQUESTS: u64 = 10_000;

/// Commands for namespaces whose lock tables are in the memory of their shard's leader. Known from rules 2 on; before,
/// they are rejected with `Malformed`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TableCommand {
    /// Begins the time of a leader for all such tables of the shard. Returns `TableEpoch`; the same one for a repeat of
    /// the last attempt. Errors: `Superseded` for an earlier attempt.
    BeginEpoch {
        /// An attempt of the leader: these rise, also across leaders.
        attempt: u64,
    },
    /// Takes another block of revisions for these tables. Returns `TableEpoch`. Errors: `Superseded` for an earlier
    /// epoch.
    ReserveBlock {
        /// The epoch.
        epoch: Revision,
        /// The last revision of the block that the leader has: a repeat takes no further one.
        after: Revision,
    },
    /// Returns `TableSessionOpened`, or as [`LocksCommand::OpenSession`](crate::LocksCommand::OpenSession) if the lock
    /// table is in the log. Errors: those of that, and `InvalidArgument`.
    OpenSession(OpenTableSession),
    /// Returns `Done`. Errors: `QuotaExceeded`, and `InvalidArgument` if the lock table is in the log.
    Forfeit(Forfeit),
    /// What a gateway knows of a session of before the epoch. It is for the leader's table, and never in the log. Returns
    /// `Done`, or `Ignored` for a copy and for what the leader knows already. Errors: `SessionNotFound`, `Superseded`,
    /// `Busy` while the leader can't take it, `Unreported` if its epoch is another one, `InvalidArgument` for a part out
    /// of order.
    Report(TableReport),
}

impl TableCommand {
    /// Returns the namespace, if the command is for one.
    pub fn namespace(&self) -> Option<&NamespaceRef> {
        match self {
            Self::BeginEpoch { .. } | Self::ReserveBlock { .. } => None,
            Self::OpenSession(OpenTableSession { open, .. }) => Some(&open.namespace),
            Self::Forfeit(forfeit) => Some(&forfeit.namespace),
            Self::Report(report) => Some(&report.namespace),
        }
    }

    /// Returns the account whose state may grow by it, if any. Force is never rejected for want of memory.
    pub(super) fn growing_account(&self) -> Option<AccountId> {
        match self {
            Self::OpenSession(OpenTableSession { open, .. }) if !open.resume => Some(open.namespace.account),
            _ => None,
        }
    }

    /// Returns whether the command keeps holds of its owner.
    pub(super) fn is_urgent(&self) -> bool {
        match self {
            Self::OpenSession(OpenTableSession { open, .. }) => open.resume,
            Self::Report(_) => true,
            Self::BeginEpoch { .. } | Self::ReserveBlock { .. } | Self::Forfeit(_) => false,
        }
    }

    /// Returns the cost of its parts, in units.
    pub(super) fn units(&self) -> u64 {
        match self {
            Self::Forfeit(forfeit) => (forfeit.path.0.len() + forfeit.holds.len()) as u64 + 1,
            Self::Report(report) => report.units(),
            Self::BeginEpoch { .. } | Self::ReserveBlock { .. } | Self::OpenSession(_) => 0,
        }
    }
}

/// Revisions that a leader gives out without the log: fencing tokens, waits and events of the tables in its memory. No
/// others of the shard lie between them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RevisionBlock {
    /// The first one.
    pub first: Revision,
    /// The last one.
    pub last: Revision,
}

/// The time of one leader for all tables of a shard. A shard without one has the epoch 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableEpoch {
    /// The epoch: the first revision of its first block. Sessions with a lower number are of before.
    pub epoch: Revision,
    /// The attempt that began it.
    pub attempt: u64,
    /// The block that was taken last. Empty if it must not be used.
    pub block: RevisionBlock,
}

/// How far the lock table of a namespace is that is in the memory of its shard's leader.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableState {
    /// The epoch that was begun for it last; 0 before the first.
    pub epoch: Revision,
    /// Whether the leader has a table of this epoch.
    pub has_begun: bool,
    /// The wall clock at the beginning, in milliseconds since 1970, for display; 0 if the table has not begun.
    pub since_ms: u64,
    /// Open sessions.
    pub sessions: u64,
    /// The sessions of before that may still hold something, and once all have been reported those that are not entered
    /// completely. Nothing is granted until there are none.
    pub missing: u64,
    /// Some of those that may still hold something, in order of opening: at most [`MAX_WAITING_FOR`]. Those that have
    /// ended are not named.
    pub waiting_for: Vec<String>,
}

/// Maximum number of sessions that a [`TableState`] names.
pub const MAX_WAITING_FOR: usize = 16;

impl TableState {
    /// Returns whether the leader grants locks.
    pub fn is_ready(&self) -> bool {
        self.has_begun && self.missing == 0
    }
}

/// Opens or resumes a session of a client that keeps a table of its own holds. In a namespace whose lock table is in
/// the log it is as an [`OpenSession`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenTableSession {
    /// The session.
    pub open: OpenSession,
    /// How long each of its holds stays in transition if the session expires, in milliseconds. A resume leaves it as
    /// it is.
    pub transition_ms: u64,
}

/// A hold in a table that an administrator has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ForfeitedHold {
    /// The session.
    pub session: SessionNumber,
    /// The token of the hold.
    pub fencing_token: FencingToken,
}

/// Forces a lock open whose table is in the memory of the leader: ends these holds, and keeps that they ended until
/// their sessions have, so that no later leader takes them over.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forfeit {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The path of the lock.
    pub path: Path,
    /// Its holds.
    pub holds: Vec<ForfeitedHold>,
}

/// Maximum number of bytes of the requests of a session in such a table, as its gateway counts them: a report of them
/// has no more parts than [`MAX_REPORT_PARTS`].
pub const MAX_SESSION_TABLE_BYTES: u64 = 12 << 20;
/// Maximum number of parts of a [`TableReport`].
pub const MAX_REPORT_PARTS: u32 = 64;

/// A part of what a gateway knows of a session, for the leader of a new epoch: the requests that its client holds
/// something by, and those that wait. All parts are of one moment, after which the gateway takes nothing of earlier
/// epochs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TableReport {
    /// The namespace.
    pub namespace: NamespaceRef,
    /// The session.
    pub session: SessionNumber,
    /// The epoch of the connection.
    pub connection_epoch: u64,
    /// The number of the last message of the connection before the report: what was sent up to it counts no more,
    /// whenever it comes.
    pub seq: u64,
    /// The epoch of the leader that it is for.
    pub table_epoch: Revision,
    /// The number of this part, from 1.
    pub part: u32,
    /// How many parts there are, at most [`MAX_REPORT_PARTS`].
    pub parts: u32,
    /// What the client holds.
    pub granted: Vec<ReportedRequest>,
    /// What it waits for, in its order.
    pub pending: Vec<ReportedWait>,
}

impl TableReport {
    fn units(&self) -> u64 {
        let granted: u64 = self.granted.iter().map(|request| request.claims.len() as u64 + 1).sum();
        let pending: u64 = self.pending.iter().map(|wait| wait.claims.len() as u64 + 1).sum();
        granted.saturating_add(pending)
    }
}

/// A request by which a session holds something.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedRequest {
    /// Its id.
    pub request_id: String,
    /// The thread of the session, if it is not for the session as a whole.
    pub holder: Option<String>,
    /// Stored with its holds.
    pub metadata: Metadata,
    /// The number of paths that it was granted.
    pub claimed: u32,
    /// The claims that it holds. Those that it had and lost are not among them.
    pub claims: Vec<ReportedHold>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedWait {
    /// Its id.
    pub request_id: String,
    /// The thread of the session, if it is not for the session as a whole.
    pub holder: Option<String>,
    /// Stored with its holds.
    pub metadata: Metadata,
    /// The claims: at least one.
    pub claims: Vec<Claim>,
    /// Its place in the queue of an earlier leader, if it had one: the lowest comes first.
    pub ticket: Option<WaitId>,
}
