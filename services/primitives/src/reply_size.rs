//! Limits the size of responses.

use serde::Serialize;

use crate::{AcquireOutcome, Reason, Refused, codec};

/// Maximum bytes of a response with the outcome of a request and its locks. Only paths can exceed it.
pub const MAX_REPLY_BYTES: usize = 64 * 1024;
/// A response without locks, blockers and cycle.
const REST_BYTES: usize = 64;

/// The remaining bytes, encoded, of a response.
pub struct ByteBudget(usize);

impl ByteBudget {
    /// Creates a budget of so many bytes.
    pub fn new(bytes: usize) -> Self {
        Self(bytes)
    }

    /// Returns the budget of what a response lists that has `others` bytes besides.
    pub fn for_reply(others: usize) -> Self {
        Self(MAX_REPLY_BYTES.saturating_sub(REST_BYTES + others))
    }

    /// Returns whether so many bytes are left.
    pub fn has(&self, bytes: usize) -> bool {
        bytes <= self.0
    }

    /// Takes the encoded size of an item from the budget. Returns whether it fits.
    pub fn try_take(&mut self, shown: &impl Serialize) -> bool {
        let left = self.0.checked_sub(codec::size(shown));
        self.0 = left.unwrap_or(self.0);
        left.is_some()
    }
}

/// Returns how many items, from the first on, fit into a response that has `others` bytes besides.
pub(crate) fn within_reply<T: Serialize>(shown: &[T], others: usize) -> usize {
    let mut left = ByteBudget::for_reply(others);
    shown.iter().take_while(|one| left.try_take(*one)).count()
}

/// Returns a refusal with a reason and nothing else.
pub fn reason_only(reason: Reason) -> Refused {
    Refused { reason, blockers: Vec::new(), queue_position: None, cycle: Vec::new() }
}

/// Returns the outcome of a request that is refused.
pub fn refused(not_granted: Refused) -> AcquireOutcome {
    AcquireOutcome::Refused(Box::new(not_granted))
}
