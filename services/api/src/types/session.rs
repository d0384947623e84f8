//! Requests for sessions, and sessions as callers see them.

use holdfast_types::{Metadata, SessionView};
use serde::Serialize;
use utoipa::ToSchema;

use crate::Timestamp;

/// A new session, or the changes of a resumed one.
#[derive(Clone, Debug)]
pub struct CreateSession {
    /// The namespace.
    pub namespace: String,
    /// Shown with its holds.
    pub process_id: String,
    /// How long it lives after the last keep-alive, in milliseconds.
    pub ttl_ms: u64,
    /// Shown with the session.
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
    /// How long it lives after the last keep-alive.
    pub ttl_ms: u64,
    /// The remaining part of that time.
    pub remaining_ms: u64,
    /// As given.
    #[schema(value_type = std::collections::BTreeMap<String, String>)]
    pub metadata: Metadata,
    /// Its first opening.
    pub opened_at: Timestamp,
    /// The number of its holds of locks, semaphores and pools.
    pub holds: u64,
    /// The number of its waiting requests for these.
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
