//! Requests for permits and members in the session protocol as JSON.

use holdfast_api::session_message::{self, InvalidRequest};
use holdfast_api::validate;
use holdfast_types::Wanted;
use serde::Deserialize;

/// Requests permits of a semaphore.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AcquirePermits {
    /// In a pending message, the number from its original connection: it does not count here.
    pub(super) seq: Option<u64>,
    request_id: String,
    path: Vec<String>,
    weight: Option<u64>,
    permits: Option<u64>,
    holder: Option<String>,
    priority: Option<u32>,
    transition_ms: Option<u64>,
    #[serde(rename = "try")]
    only_try: Option<bool>,
}

/// Requests members of a pool.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Take {
    /// In a pending message, the number from its original connection: it does not count here.
    pub(super) seq: Option<u64>,
    request_id: String,
    path: Vec<String>,
    count: Option<u64>,
    member: Option<String>,
    prefer: Option<String>,
    holder: Option<String>,
    priority: Option<u32>,
    transition_ms: Option<u64>,
    #[serde(rename = "try")]
    only_try: Option<bool>,
}

impl AcquirePermits {
    pub(super) fn read(self) -> session_message::AcquirePermits {
        session_message::AcquirePermits {
            request_id: self.request_id,
            path: self.path,
            wanted: Wanted::Permits { weight: self.weight.unwrap_or(1), permits: self.permits },
            holder: self.holder,
            priority: self.priority.unwrap_or(0),
            transition_ms: self.transition_ms.unwrap_or(0),
            only_try: self.only_try.unwrap_or(false),
        }
    }
}

impl Take {
    /// Returns the request, or what it is refused with if its fields contradict each other.
    pub(super) fn read(self) -> Result<session_message::AcquirePermits, InvalidRequest> {
        let wanted = match validate::wanted_members(self.count, self.member, self.prefer) {
            Ok(wanted) => wanted,
            Err(error) => return Err(InvalidRequest { request_id: self.request_id, error }),
        };
        Ok(session_message::AcquirePermits {
            request_id: self.request_id,
            path: self.path,
            wanted,
            holder: self.holder,
            priority: self.priority.unwrap_or(0),
            transition_ms: self.transition_ms.unwrap_or(0),
            only_try: self.only_try.unwrap_or(false),
        })
    }
}
