//! Waiting requests.

use holdfast_types::Mode;
use serde::Serialize;
use utoipa::ToSchema;

use super::lock_view::mode_as_name;
use super::{ModeName, PageRequest, ReasonInfo};
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
    /// The claims that it waits for, all together; empty for other kinds than locks.
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
    /// Of another kind than locks: `semaphore`, `pool` or `condition`. JSON omits it otherwise, and what follows.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>)]
    pub kind: Option<&'static str>,
    /// Of another kind than locks: segments of the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<Vec<String>>,
    /// How many permits of a semaphore it waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<u64>,
    /// How many members of a pool it waits for, whichever are free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The member of a pool, if it waits for one by its name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub member: Option<String>,
    /// From 0 to 9; 9 goes first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority: Option<u8>,
    /// The name of the condition that it awaits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub condition: Option<String>,
}

/// A list of waiting requests.
#[derive(Clone, Debug, Default)]
pub struct ListWaits {
    /// The namespace.
    pub namespace: String,
    /// What they wait for, by the names of [`Kind::plural`](holdfast_types::Kind::plural); locks if there are none.
    pub kinds: Vec<String>,
    /// The page.
    pub page: PageRequest,
}

/// One path in one mode.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = AwaitedResource)]
pub struct ResourceInfo {
    /// Segments from the root.
    pub path: Vec<String>,
    /// The mode.
    #[serde(serialize_with = "mode_as_name")]
    #[schema(value_type = ModeName)]
    pub mode: Mode,
}
