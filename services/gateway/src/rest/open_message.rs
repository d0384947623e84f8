//! The message that opens a session, as JSON.

use holdfast_api::session_message;
use serde::Deserialize;

use super::body::StringMap;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Open {
    seq: u64,
    session_id: Option<String>,
    process_id: String,
    ttl_ms: u64,
    metadata: Option<StringMap>,
    keeps_table: Option<bool>,
    transition_ms: Option<u64>,
}

impl Open {
    /// Returns its number, and the message in that namespace.
    pub(super) fn read(self, namespace: &str) -> (u64, session_message::Open) {
        let Self { seq, session_id, process_id, ttl_ms, metadata, keeps_table, transition_ms } = self;
        let open = session_message::Open {
            namespace: namespace.to_owned(),
            session_id,
            process_id,
            ttl_ms,
            metadata: metadata.unwrap_or_default().0,
            keeps_table: keeps_table.unwrap_or_default(),
            transition_ms: transition_ms.unwrap_or_default(),
        };
        (seq, open)
    }
}
