//! Events of a namespace, in order.

use serde::{Deserialize, Serialize};

use super::{Claim, FencingToken, Owner, Path, Revision};

/// An event of a namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// The position in the shard's order. No two events share one.
    pub revision: Revision,
    /// The leader's wall clock, milliseconds since 1970.
    pub at_ms: u64,
    /// What happened.
    pub kind: EventKind,
    /// The owner of the hold, or the session.
    pub owner: Owner,
    /// The owner's process id, or that of its session.
    pub process_id: String,
    /// The token of the hold that was granted or ended.
    pub fencing_token: Option<FencingToken>,
    /// All claims of the grant, or the one hold that ended; empty for sessions.
    pub claims: Vec<Claim>,
}

impl Event {
    /// Returns whether a claim is at, below or above the prefix. The empty prefix matches every event.
    pub fn concerns(&self, prefix: &Path) -> bool {
        let is_on = |claim: &Claim| prefix.is_prefix_of(&claim.path) || claim.path.is_prefix_of(prefix);
        prefix.0.is_empty() || self.claims.iter().any(is_on)
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
        }
    }
}
