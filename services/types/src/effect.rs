//! Effects of an entry on owners other than the callers of its commands.

use serde::{Deserialize, Serialize};

use super::{
    AcquireOutcome, AskedHolds, BarrierAnswer, Claim, FencingToken, HolderView, LockView, NamespaceRef, Owner, Path,
    PermitsView, Refused, ReportedPermits, Revision, RevokedReason, SessionEnd, SessionNumber, WaitId, Woken,
};

/// An effect that the leader of a locks shard publishes after an entry. Not part of the state: followers drop it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A waiting request was granted, or ended without a grant.
    WaitResolved {
        /// The namespace of the request.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
        /// The attempt that owned it.
        attempt: u64,
        /// The owner that waited.
        owner: Owner,
        /// The request id, if there is one.
        request_id: Option<String>,
        /// The claims: each path once, in the order of the request.
        claims: Vec<Claim>,
        /// `Granted`, or `Refused` with `TIMED_OUT`, `ENDED` or `UPGRADE`.
        outcome: AcquireOutcome,
        /// The claimed locks at the time the effect is taken, in path order.
        locks: Vec<LockView>,
    },
    /// A session lost a hold that it did not release.
    Revoked {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The path of the hold.
        path: Path,
        /// The token of the hold that ended.
        fencing_token: FencingToken,
        /// Why the hold ended.
        reason: RevokedReason,
        /// The holder of the path at the time the effect is taken: the writer, or the first reader.
        current_owner: Option<HolderView>,
    },
    /// A request that waited for permits was granted, or ended without a grant.
    PermitsResolved {
        /// The namespace of the request.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
        /// The attempt that owned it.
        attempt: u64,
        /// The owner that waited.
        owner: Owner,
        /// The request id.
        request_id: String,
        /// `Granted`, or `Refused` with `TIMED_OUT`, `ENDED`, `TOO_LARGE` or `NO_MEMBER`.
        outcome: AcquireOutcome,
        /// The members that were granted, in order of name; of a semaphore, none.
        members: Vec<String>,
        /// The semaphore or the pool at the time the effect is taken.
        view: PermitsView,
    },
    /// A session lost a hold of a semaphore or a pool that it did not release.
    PermitsRevoked {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The hold.
        hold: ReportedPermits,
        /// Why it ended.
        reason: RevokedReason,
    },
    /// A session is asked to release holds. There is one for each session and request.
    ReleaseRequested {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The holds.
        asked: AskedHolds,
    },
    /// The status of a latch became final, or the latch is gone: replies that were held back can be given.
    LatchSettled {
        /// The namespace of the latch.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// A session was opened or resumed: connections of lower epochs are superseded, and this counts as a keep-alive of
    /// the session.
    SessionOpened {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// Its number in the shard.
        number: SessionNumber,
        /// The session.
        session_id: String,
        /// Its epoch from now on.
        epoch: u64,
        /// How long it lives after the last keep-alive.
        ttl_ms: u64,
    },
    /// A session ended.
    SessionEnded {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// Its number in the shard.
        number: SessionNumber,
        /// The session.
        session_id: String,
        /// Why it ended.
        reason: SessionEnd,
    },
    /// The namespace has new events, to be read from its history. There is one per namespace each time effects are
    /// taken, so that events without readers are not copied.
    Events {
        /// The namespace.
        namespace: NamespaceRef,
        /// The first new revision.
        from_revision: Revision,
    },
    /// The namespace and its history are gone.
    NamespaceClosed {
        /// The namespace.
        namespace: NamespaceRef,
    },
    /// A generation of a barrier ended, all have left it, an arrival was withdrawn, or the barrier is gone: replies
    /// that were held back can be given.
    BarrierSettled {
        /// The namespace of the barrier.
        namespace: NamespaceRef,
        /// The path.
        path: Path,
    },
    /// A request of a session that arrived at a barrier, or that is leaving it, has an outcome.
    MetAtBarrier {
        /// The namespace of the session.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The id of the request.
        request_id: String,
        /// What the session is told.
        answer: BarrierAnswer,
        /// Whether its owner is inside a double barrier now, so that the request goes on.
        inside: bool,
    },
    /// An owner that awaited a condition waits for its lock from now on, by another wait. Its callers go along. What
    /// becomes of that wait follows, if it is known already.
    AwaitWoken {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait that it had.
        from: WaitId,
        /// The wait that it has.
        wait: WaitId,
        /// The attempt that owns it.
        attempt: u64,
        /// The owner.
        owner: Owner,
        /// The request id, if there is one.
        request_id: Option<String>,
        /// Why.
        woken: Woken,
        /// Its place and its blockers at the time the effect is taken. Only for a request of a connected session, which
        /// is notified of them, and only while it waits: it may have its lock already.
        not_granted: Option<Box<Refused>>,
    },
    /// A wait for a condition, or then for its lock, ended.
    AwaitResolved {
        /// The namespace.
        namespace: NamespaceRef,
        /// The wait.
        wait: WaitId,
        /// The attempt that owned it.
        attempt: u64,
        /// The owner that waited.
        owner: Owner,
        /// The request id, if there is one.
        request_id: Option<String>,
        /// The token of the hold that it gave up.
        fencing_token: FencingToken,
        /// `Granted`, or `Refused` with `TIMED_OUT`, `ENDED`, `UPGRADE` or `DEADLOCK`.
        outcome: AcquireOutcome,
        /// Why it waited for the lock; absent if it did not yet.
        woken: Option<Woken>,
        /// The lock at the time the effect is taken.
        lock: Box<LockView>,
    },
}
