//! A command on its way to the log.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use tokio::sync::oneshot;

use crate::error::ProposeError;

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const CANCELLED: u8 = 2;

/// The reply to a command.
pub(crate) type ProposalResult = Result<Bytes, ProposeError>;

/// Whether a command has left the queue. Decides between "nothing was done" and "outcome unknown" when its caller
/// cancels.
#[derive(Clone, Default)]
pub(crate) struct ProposalState(Arc<AtomicU8>);

impl ProposalState {
    /// Cancels the command. Returns true if it was not proposed, and so never will be.
    pub(crate) fn cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Returns true if the caller has cancelled.
    pub(crate) fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Acquire) == CANCELLED
    }

    pub(crate) fn mark_proposed(&self) -> bool {
        self.0.compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A command to be written to the log.
pub(crate) struct Proposal {
    /// The number of the shard.
    pub(crate) shard: u32,
    /// The term of the leader that it is addressed to.
    pub(crate) term: u64,
    /// Without a command, only the shard's clock is to advance.
    pub(crate) command: Option<Bytes>,
    /// A number for commands that the state machine prices alike.
    pub(crate) kind: u8,
    /// Its minimum cost in units.
    pub(crate) min_units: u64,
    pub(crate) state: ProposalState,
    pub(crate) reply: oneshot::Sender<ProposalResult>,
}

impl Proposal {
    pub(crate) fn bytes(&self) -> usize {
        self.command.as_ref().map_or(0, Bytes::len)
    }
}
