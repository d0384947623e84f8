//! What is searched: all rules within bounds, and each omission in bounds in which it is found.

use super::invariants::Invariant;
use super::rules::{Bounds, Omission, SessionDurable};
use super::state::Budget;

/// A configuration and what it must come to.
#[derive(Clone, Copy, Debug)]
pub struct Configuration {
    /// How it is called.
    pub name: &'static str,
    /// What it is about.
    pub about: &'static str,
    /// The model.
    pub model: SessionDurable,
}

/// Two honest sessions, one lock, two epochs and two requests, of which nothing is broken.
const CALM: Bounds = Bounds {
    sessions: 2,
    has_liar: false,
    epochs: 2,
    locks: 1,
    is_tree: false,
    cancels: false,
    takes_at_once: true,
    budget: Budget { requests: 2, moves: 0, crashes: 0, ends: 0, forfeits: 0, lies: 0 },
    ticks: None,
};

/// Two honest sessions and a liar, two gateways, two locks and three epochs.
const FULL: Bounds = Bounds { sessions: 3, has_liar: true, epochs: 3, locks: 2, ..CALM };

/// A session lives for two ticks without a keep-alive, and its transition takes one.
const TIMED: Bounds = Bounds { ticks: Some((2, 1)), ..CALM };

const fn within(name: &'static str, about: &'static str, bounds: Bounds) -> Configuration {
    Configuration { name, about, model: SessionDurable { bounds, without: None, only: None } }
}

/// All rules within small bounds.
pub const SHORT: [Configuration; 6] = [
    within(
        "short-two-sessions",
        "Two sessions, one lock, two epochs: a move, a crash, an end, requests that are given up.",
        Bounds { cancels: true, budget: Budget { moves: 1, crashes: 1, ends: 1, ..CALM.budget }, ..CALM },
    ),
    within(
        "short-forfeits",
        "Two sessions, one lock, three epochs: a move, and a lock that is opened by force.",
        Bounds { epochs: 3, budget: Budget { moves: 1, forfeits: 1, ..CALM.budget }, ..CALM },
    ),
    within(
        "short-liar",
        "Two sessions and a liar, one lock, two epochs: a move with an old receipt.",
        Bounds { epochs: 2, locks: 1, budget: Budget { moves: 1, lies: 1, ..CALM.budget }, ..FULL },
    ),
    within("short-calm", "Three sessions, two locks and three epochs; only leaders change.", FULL),
    within(
        "short-tree",
        "The same with one lock below the other, and a session that ends.",
        Bounds { epochs: 2, is_tree: true, budget: Budget { ends: 1, ..CALM.budget }, ..FULL },
    ),
    within(
        "short-timed",
        "Two sessions that send keep-alives, one lock, two epochs: a move.",
        Bounds { budget: Budget { requests: 1, moves: 1, ..CALM.budget }, ..TIMED },
    ),
];

/// All rules within large bounds.
pub const LONG: [Configuration; 6] = [
    within(
        "timed",
        "Two sessions that send keep-alives, one lock, two epochs: two moves.",
        Bounds { budget: Budget { requests: 1, moves: 2, ..CALM.budget }, ..TIMED },
    ),
    within(
        "late-clients",
        "Two sessions, one lock, two epochs: a client takes an answer long after its gateway wrote it.",
        Bounds {
            cancels: true,
            takes_at_once: false,
            budget: Budget { moves: 1, crashes: 1, ends: 1, ..CALM.budget },
            ..CALM
        },
    ),
    within(
        "tree",
        "Two sessions and a liar, one lock below the other, three epochs: a session ends.",
        Bounds { is_tree: true, budget: Budget { ends: 1, ..CALM.budget }, ..FULL },
    ),
    within(
        "moves-and-lies",
        "Two sessions and a liar, one lock, three epochs: a move with an old receipt.",
        Bounds { locks: 1, budget: Budget { moves: 1, lies: 1, ..CALM.budget }, ..FULL },
    ),
    within(
        "ends-and-forfeits",
        "Two sessions and a liar, two locks, three epochs: a session ends, a lock is opened by force.",
        Bounds { budget: Budget { ends: 1, forfeits: 1, ..CALM.budget }, ..FULL },
    ),
    within(
        "crash",
        "Three sessions, one lock, three epochs: a gateway ends.",
        Bounds { locks: 1, budget: Budget { crashes: 1, ..CALM.budget }, ..FULL },
    ),
];

/// The budget in which most omissions are found.
const MOVE: Budget = Budget { moves: 1, ..CALM.budget };
/// The liar takes the place of one of two sessions.
const LIAR: Bounds =
    Bounds { has_liar: true, budget: Budget { requests: 3, moves: 1, lies: 1, ..CALM.budget }, ..CALM };
/// No locks are needed to see how long a rebuild takes.
const IDLE: Bounds = Bounds { budget: Budget { requests: 0, ..CALM.budget }, ..TIMED };

const fn falls(
    name: &'static str,
    about: &'static str,
    without: Omission,
    only: Invariant,
    bounds: Bounds,
) -> Configuration {
    Configuration { name, about, model: SessionDurable { bounds, without: Some(without), only: Some(only) } }
}

/// Each omission, and the invariant that must fall.
pub const OMISSIONS: [Configuration; 23] = [
    falls(
        "unordered",
        "R1: a leader executes what a connection says in any order.",
        Omission::Unordered,
        Invariant::NothingLeft,
        CALM,
    ),
    falls(
        "repeated-report",
        "R1, R4: a report arrives a second time later, and counts again.",
        Omission::RepeatedReport,
        Invariant::OneHolder,
        Bounds { budget: MOVE, ..CALM },
    ),
    falls(
        "answer-too-soon",
        "R1: a leader answers on a connection before it has taken that connection's first message.",
        Omission::AnswerTooSoon,
        Invariant::NothingLeft,
        Bounds { budget: Budget { forfeits: 1, ..MOVE }, ..CALM },
    ),
    falls(
        "ledger-late",
        "R2: the client is told first, and the grant is entered afterwards.",
        Omission::LedgerLate,
        Invariant::OneHolder,
        CALM,
    ),
    falls(
        "single-calls",
        "R2: some requests don't go through the connection, and no ledger has them.",
        Omission::SingleCalls,
        Invariant::OneHolder,
        CALM,
    ),
    falls(
        "empty-report",
        "R2: the ledger of a resumed session is reported before its `lock_info` came.",
        Omission::EmptyReport,
        Invariant::OneHolder,
        Bounds { budget: MOVE, ..CALM },
    ),
    falls(
        "grant-after-release",
        "R2: a grant of a request that was given up meanwhile is entered all the same.",
        Omission::GrantAfterRelease,
        Invariant::NothingLeft,
        Bounds { cancels: true, ..CALM },
    ),
    falls(
        "no-promise",
        "R3: a gateway takes grants of leaders older than the one it reported to.",
        Omission::NoPromise,
        Invariant::OneHolder,
        CALM,
    ),
    falls(
        "any-connection",
        "R4: a report of a superseded connection counts.",
        Omission::AnyConnection,
        Invariant::OneHolder,
        Bounds { budget: MOVE, ..CALM },
    ),
    falls(
        "first-part",
        "R4: a session counts as reported once the first part of its report is there.",
        Omission::FirstPart,
        Invariant::OneHolder,
        Bounds { locks: 2, budget: Budget { requests: 3, ..CALM.budget }, ..CALM },
    ),
    falls(
        "pending-untold",
        "R4: a request that a resumed client lists as pending is not told that it is granted already.",
        Omission::PendingUntold,
        Invariant::NothingLeft,
        Bounds { budget: MOVE, ..CALM },
    ),
    falls(
        "report-while-expiring",
        "R4: a report counts as a keep-alive while the end of its session is in flight.",
        Omission::ReportWhileExpiring,
        Invariant::NoEarlyExpiry,
        IDLE,
    ),
    falls(
        "incomplete",
        "R5: a leader grants before all have reported.",
        Omission::Incomplete,
        Invariant::OneHolder,
        CALM,
    ),
    falls(
        "transition-skipped",
        "R5: a new leader does not wait for the transition of sessions that expired before.",
        Omission::TransitionSkipped,
        Invariant::OneHolder,
        Bounds { budget: Budget { ends: 1, ..CALM.budget }, ..CALM },
    ),
    falls(
        "covered-early",
        "R5: what a session has reported is granted to it again at once, with a new token.",
        Omission::CoveredEarly,
        Invariant::OneHolder,
        LIAR,
    ),
    falls(
        "life-unreported",
        "R6: keep-alives count before the report.",
        Omission::LifeUnreported,
        Invariant::RebuildEnds,
        IDLE,
    ),
    falls(
        "resume-unreported",
        "R6: a resume counts as a keep-alive before the report.",
        Omission::ResumeUnreported,
        Invariant::RebuildEnds,
        Bounds { budget: Budget { moves: 2, ..IDLE.budget }, ..IDLE },
    ),
    falls("first-claim", "R7: the claims that came first win.", Omission::FirstClaim, Invariant::OneHolder, LIAR),
    falls(
        "forfeit-lost",
        "R9: a lock that was opened by force is only forgotten in memory.",
        Omission::ForfeitLost,
        Invariant::OpenedStaysOpen,
        Bounds { budget: Budget { forfeits: 1, ..MOVE }, ..CALM },
    ),
    falls(
        "forfeit-dropped",
        "R9: forfeits are forgotten once a table is complete.",
        Omission::ForfeitDropped,
        Invariant::OpenedStaysOpen,
        Bounds { epochs: 3, budget: Budget { forfeits: 1, ..CALM.budget }, ..CALM },
    ),
    falls(
        "any-inbox",
        "R10: a client still takes what an earlier connection brings.",
        Omission::AnyInbox,
        Invariant::OneHolder,
        Bounds { takes_at_once: false, budget: MOVE, ..CALM },
    ),
    falls("no-receipt", "R11: claims need no receipt.", Omission::NoReceipt, Invariant::OneHolder, LIAR),
    falls(
        "token-restart",
        "Each leader counts its tokens from the beginning.",
        Omission::TokenRestart,
        Invariant::TokensRise,
        Bounds { budget: Budget { requests: 3, ..CALM.budget }, ..CALM },
    ),
];
