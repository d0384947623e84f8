//! Waiting requests.

use serde::Serialize;
use utoipa::ToSchema;

use super::{ModeName, ReasonInfo};
use crate::Timestamp;

/// A waiting request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Wait)]
pub struct WaitInfo {
    /// The owner's process id; of a session: the session's.
    pub process_id: String,
    /// Set when a session waits.
    pub session_id: Option<String>,
    /// Distinguishes threads that share a session.
    pub holder: Option<String>,
    /// As given, if it was.
    pub request_id: Option<String>,
    /// The claims that it waits for, all together.
    pub resources: Vec<ResourceInfo>,
    /// Whether it waits, at the head of the queue, to change the mode of its own hold.
    pub upgrade: bool,
    /// When it began to wait.
    pub waiting_since: Timestamp,
    /// Computed from `remaining_ms`; absent for a session's request, which waits without a limit.
    pub expires_at: Option<Timestamp>,
    /// The remaining time of its wait.
    pub remaining_ms: Option<u64>,
    /// Why it waits, its blockers, and its position in the queue.
    pub reason: ReasonInfo,
}

/// One path in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AwaitedResource)]
pub struct ResourceInfo {
    /// Segments from the root.
    pub path: Vec<String>,
    /// The mode.
    #[schema(value_type = ModeName)]
    pub mode: &'static str,
}
