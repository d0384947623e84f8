//! Sessions: how one is asked for, and how it looks.

use holdfast_core::{Metadata, SessionView};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Timestamp;

/// A new session, or what changes when one is resumed.
#[derive(Clone, Debug)]
pub struct CreateSession {
    /// Where.
    pub namespace: String,
    /// Shown with what it holds.
    pub process_id: String,
    /// How long it lives after the last sign of life, in milliseconds.
    pub ttl_ms: u64,
    /// For whoever looks at it.
    pub metadata: Metadata,
}

/// A session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Session)]
pub struct SessionInfo {
    /// Begins with `se_`.
    pub session_id: String,
    /// As given.
    pub process_id: String,
    /// How long it lives after the last sign of life.
    pub ttl_ms: u64,
    /// How much of that is left.
    pub remaining_ms: u64,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// Its first opening.
    pub opened_at: Timestamp,
    /// How many holds it has.
    pub holds: u64,
    /// How many of its requests wait.
    pub waiting: u64,
}

impl From<SessionView> for SessionInfo {
    fn from(session: SessionView) -> Self {
        Self {
            session_id: session.session_id,
            process_id: session.process_id,
            ttl_ms: session.ttl_ms,
            remaining_ms: session.remaining_ms,
            metadata: session.metadata,
            opened_at: Timestamp(session.opened_at_ms),
            holds: session.holds,
            waiting: session.waiting,
        }
    }
}
