//! Which rules count, and what may happen: the configurations of the model.

use super::invariants::Invariant;
use super::state::Budget;

/// A rule that is taken away, or a naive version in its place. `docs/models/session-durable.md` has the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Omission {
    /// R1: a leader executes what a connection says in any order.
    Unordered,
    /// R1, R4: a report may arrive a second time later, and counts again.
    RepeatedReport,
    /// R1: a leader answers on a connection before it has taken that connection's first message.
    AnswerTooSoon,
    /// R2: the gateway tells the client first and enters the grant afterwards.
    LedgerLate,
    /// R2: some requests don't go through the connection, and no ledger has them.
    SingleCalls,
    /// R2: the ledger of a resumed session counts as complete before its `lock_info` came.
    EmptyReport,
    /// R2: a grant of a request that was released meanwhile is entered all the same.
    GrantAfterRelease,
    /// R3: a gateway takes grants of leaders older than the one it reported to.
    NoPromise,
    /// R4: a report of a superseded connection counts.
    AnyConnection,
    /// R4: a session counts as reported once the first part of its report is there.
    FirstPart,
    /// R4: a request that a resumed client lists as pending is not told that it is granted already.
    PendingUntold,
    /// R4: a report counts as a keep-alive while the end of its session is in flight.
    ReportWhileExpiring,
    /// R5: a leader grants before all have reported.
    Incomplete,
    /// R5: a new leader does not wait for the transition of sessions that expired before.
    TransitionSkipped,
    /// R5: requests of a session that has reported a claim are granted at once, with a new token.
    CoveredEarly,
    /// R6: keep-alives count before the report.
    LifeUnreported,
    /// R6: a resume counts as a keep-alive before the report.
    ResumeUnreported,
    /// R7: the claims that came first win.
    FirstClaim,
    /// R9: a lock that was opened by force is only forgotten in memory.
    ForfeitLost,
    /// R9: forfeits are forgotten once a table is complete.
    ForfeitDropped,
    /// R10: a client still takes what an earlier connection brings.
    AnyInbox,
    /// R11: claims need no receipt.
    NoReceipt,
    /// 9.2: each leader counts its tokens from the beginning.
    TokenRestart,
}

/// What may happen in a configuration.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Sessions that are used.
    pub sessions: usize,
    /// Whether the last session lies.
    pub has_liar: bool,
    /// Leaders that follow one another.
    pub epochs: u8,
    /// Locks that are used: 1 or 2.
    pub locks: usize,
    /// The second lock lies below the first one, so that claims for them conflict.
    pub is_tree: bool,
    /// Whether a client may give up a request before it is granted.
    pub cancels: bool,
    /// Whether a client takes what its gateway writes in the same step, or its connection breaks then.
    pub takes_at_once: bool,
    /// How often things may happen.
    pub budget: Budget,
    /// Time to live and transition in ticks; without it ends may come at any time.
    pub ticks: Option<(u8, u8)>,
}

/// The model of session-durable namespaces in one configuration.
#[derive(Clone, Copy, Debug)]
pub struct SessionDurable {
    /// What may happen.
    pub bounds: Bounds,
    /// The rule that does not count.
    pub without: Option<Omission>,
    /// The only invariant that is looked at; without it all are.
    pub only: Option<Invariant>,
}

impl SessionDurable {
    /// Whether a rule does not count.
    pub fn omits(&self, omission: Omission) -> bool {
        self.without == Some(omission)
    }

    /// Whether two sessions can't claim these locks at one time.
    pub fn conflict(&self, lock: usize, other: usize) -> bool {
        lock == other || self.bounds.is_tree
    }

    /// Whether a session shows receipts of what it gave up.
    pub fn is_liar(&self, session: usize) -> bool {
        self.bounds.has_liar && session + 1 == self.bounds.sessions
    }
}
