//! Bytes of awaits: their charge, which is an upper bound of their memory, and their share of the limit of their
//! namespace's tables. The charge includes the memory that an await needs while it waits for its lock again, so that no
//! signal fails for lack of memory.

use holdfast_primitives::item_bytes::ItemBytes;
use holdfast_primitives::metadata::EncodedMetadata;

use super::Await;
use super::came_from::{of_past, of_signal};
use crate::locks::charge::{self, NODE_EXTRA};
use crate::{AwaitCondition, Claim, Mode, Path};

/// An await without the name of its condition, its owner, and what it will take while it waits.
const AWAIT: u64 = 320;

impl Await {
    pub(super) fn bytes(&self) -> ItemBytes {
        let (request_id, metadata) = (self.request_id.as_deref(), self.terms.metadata.len());
        of_await((&self.path, &self.condition), self.owner_bytes, request_id, metadata)
    }
}

/// Returns the bytes of an await of a condition of a lock, given the length of its owner's names.
pub(super) fn of_await(
    (path, condition): (&Path, &str),
    owner_bytes: usize,
    request_id: Option<&str>,
    metadata_bytes: usize,
) -> ItemBytes {
    let claim = Claim { path: path.clone(), mode: Mode::Write };
    let nodes: u64 = path.0.iter().map(|segment| charge::path(segment.len()) + NODE_EXTRA).sum();
    let waits = charge::waiting(request_id, &[claim], metadata_bytes, 0) + of_past(condition);
    let named = AWAIT + condition.len() as u64;
    ItemBytes { charged: named + nodes + NODE_EXTRA + waits, counted: named + owner_bytes as u64 }
}

/// Returns the maximum that an await can add, whatever the state is.
pub(in crate::locks) fn max_of_await(awaits: &AwaitCondition, max_metadata: u64) -> ItemBytes {
    let metadata = match &awaits.metadata {
        Some(metadata) => EncodedMetadata::encoded_len(metadata),
        None => usize::try_from(max_metadata).unwrap_or(usize::MAX),
    };
    let owner_bytes = charge::name_bytes(&awaits.owner);
    let owner = ItemBytes { charged: charge::owner(owner_bytes), counted: 0 };
    owner + of_await((&awaits.path, &awaits.condition), owner_bytes, Some(MAX_REQUEST_ID), metadata)
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
