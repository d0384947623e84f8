//! Charges of awaits in bytes. An await is charged with what it will take while it waits for its lock again, too, so
//! that no signal fails for want of room.

use super::Await;
use super::came_from::{of_past, of_signal};
use crate::locks::charge::{self, NODE_EXTRA};
use crate::locks::metadata::EncodedMetadata;
use crate::{AwaitCondition, Claim, Mode, Path};

/// An await without the name of its condition and what it will take while it waits.
const AWAIT: u64 = 320;

impl Await {
    pub(super) fn charge(&self) -> u64 {
        of_await(&self.path, &self.condition, self.request_id.as_deref(), self.terms.metadata.len())
    }
}

/// Returns the charge of an await.
pub(super) fn of_await(path: &Path, condition: &str, request_id: Option<&str>, metadata_bytes: usize) -> u64 {
    let claim = Claim { path: path.clone(), mode: Mode::Write };
    let nodes: u64 = path.0.iter().map(|segment| charge::path(segment.len()) + NODE_EXTRA).sum();
    let waits = charge::waiting(request_id, &[claim], metadata_bytes, 0) + of_past(condition);
    AWAIT + condition.len() as u64 + nodes + NODE_EXTRA + waits
}

/// Returns the maximum that an await can add, whatever the state is.
pub(in crate::locks) fn max_of_await(awaits: &AwaitCondition, max_metadata: u64) -> u64 {
    let metadata = match &awaits.metadata {
        Some(metadata) => EncodedMetadata::encoded_len(metadata),
        None => usize::try_from(max_metadata).unwrap_or(usize::MAX),
    };
    let owner = charge::owner(charge::name_bytes(&awaits.owner));
    owner + of_await(&awaits.path, &awaits.condition, Some(MAX_REQUEST_ID), metadata)
}

/// Returns the maximum that a signal can add, which its id is remembered for.
pub(in crate::locks) fn max_of_signal(signal_id: Option<&str>) -> u64 {
    signal_id.map_or(0, of_signal)
}

/// As long as a request id may be.
const MAX_REQUEST_ID: &str = match std::str::from_utf8(&[b'r'; crate::MAX_NAME_BYTES]) {
    Ok(id) => id,
    Err(_) => "",
};
