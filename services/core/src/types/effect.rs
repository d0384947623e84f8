//! Effects: what an entry did to others than those who asked.

use serde::{Deserialize, Serialize};

use super::{
    AcquireOutcome, Claim, FencingToken, HolderView, LockView, NamespaceRef, Owner, Path, Revision, RevokedReason,
    SessionEnd, SessionNumber, WaitId,
};

/// What the leader of a locks shard tells to others after commands of an entry. Not part of the state: followers drop it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Effect {
    /// A waiting request was granted, or ended without a grant.
    WaitResolved {
        /// Where.
        namespace: NamespaceRef,
        /// Which wait.
        wait: WaitId,
        /// The attempt that owned it.
        attempt: u64,
        /// Who waited.
        owner: Owner,
        /// The request's name, if it was given one.
        request_id: Option<String>,
        /// What it claimed: each path once, in the order of the request.
        claims: Vec<Claim>,
        /// `Granted`, or `Refused` with `TIMEOUT_EXIT_CODE`, `ENDED` or `UPGRADE`.
        outcome: AcquireOutcome,
        /// The locks claimed, as they are when the effect is taken, in order of path.
        locks: Vec<LockView>,
    },
    /// A session lost a hold by no doing of its own.
    Revoked {
        /// Where.
        namespace: NamespaceRef,
        /// Whose.
        session_id: String,
        /// What.
        path: Path,
        /// The token of the hold that ended.
        fencing_token: FencingToken,
        /// Why.
        reason: RevokedReason,
        /// Who holds the path when the effect is taken: the writer, or the first reader.
        current_owner: Option<HolderView>,
    },
    /// A session was opened or resumed: connections of lower epochs are superseded, and the session is as good as
    /// heard of now.
    SessionOpened {
        /// Where.
        namespace: NamespaceRef,
        /// Its number in the shard.
        number: SessionNumber,
        /// Which.
        session_id: String,
        /// Its epoch from now on.
        epoch: u64,
        /// How long it lives after the last sign of life.
        ttl_ms: u64,
    },
    /// A session ended.
    SessionEnded {
        /// Where.
        namespace: NamespaceRef,
        /// Its number in the shard.
        number: SessionNumber,
        /// Which.
        session_id: String,
        /// Why.
        reason: SessionEnd,
    },
    /// The namespace has new events, to be read from its history. One for each namespace whenever effects are
    /// taken, so that nothing is copied for nobody.
    Events {
        /// Where.
        namespace: NamespaceRef,
        /// The first new one.
        from_revision: Revision,
    },
    /// The namespace is gone, and its history with it.
    NamespaceClosed {
        /// Which.
        namespace: NamespaceRef,
    },
}
