//! Messages about conditions in the session protocol as JSON.

use holdfast_api::session_message;
use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
/// Gives a lock up to await a condition of it.
pub(super) struct Await {
    /// In a pending message, the number from its original connection: it does not count here.
    pub(super) seq: Option<u64>,
    request_id: String,
    condition: Option<String>,
    wait_ms: Option<u64>,
    fencing_token: Option<u64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
/// Wakes those who await a condition.
pub(super) struct Signal {
    pub(super) seq: u64,
    request_id: String,
    condition: Option<String>,
    all: Option<bool>,
    signal_id: Option<String>,
}

impl Await {
    pub(super) fn read(self) -> session_message::Await {
        session_message::Await {
            request_id: self.request_id,
            condition: self.condition.unwrap_or_default(),
            wait_ms: self.wait_ms,
            fencing_token: self.fencing_token,
        }
    }
}

impl Signal {
    pub(super) fn read(self) -> session_message::Signal {
        let (condition, all) = (self.condition.unwrap_or_default(), self.all.unwrap_or(false));
        session_message::Signal { request_id: self.request_id, condition, all, signal_id: self.signal_id }
    }
}
