//! Commands that wait for their entry: a lane for each account, served in equal shares of the shard's work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use holdfast_fair_queue::{FairQueue, Full, QueueLimits};
use holdfast_mutations::{Mutation, is_enabled};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;

use crate::error::ProposeError;
use crate::state_machine::CommandCost;

/// Commands in one entry.
const MAX_BATCH_COMMANDS: usize = 512;
/// Bytes in one entry, as soon as it has one command.
const MAX_BATCH_BYTES: usize = 1024 * 1024;
/// Units that an entry is expected to take, as soon as it has one command: some milliseconds. What comes next waits for no
/// more than that, whoever filled the entry.
const MAX_BATCH_UNITS: u64 = 8_192;
const LIMITS: QueueLimits =
    QueueLimits { items: 8_192, bytes: 64 * 1024 * 1024, lane_items: 1_024, lane_bytes: 4 * 1024 * 1024 };

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const CANCELLED: u8 = 2;

pub(crate) type ProposalResult = Result<Bytes, ProposeError>;

/// Whether a command has left the queue. Decides between "nothing was done" and "outcome unknown" when its caller
/// gives up.
#[derive(Clone, Default)]
pub(crate) struct ProposalState(Arc<AtomicU8>);

impl ProposalState {
    /// The caller gives up. True when the command had not been proposed, and now never will be.
    pub(crate) fn cancel(&self) -> bool {
        self.0.compare_exchange(QUEUED, CANCELLED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    pub(crate) fn mark_proposed(&self) -> bool {
        self.0.compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A command on its way into the log.
pub(crate) struct Proposal {
    /// The term that it is addressed to.
    pub(crate) term: u64,
    pub(crate) command: Bytes,
    pub(crate) state: ProposalState,
    pub(crate) reply: oneshot::Sender<ProposalResult>,
}

struct State {
    queue: FairQueue<u64, Proposal>,
    is_closed: bool,
}

/// The queue of a shard. Any number of tasks push; the proposer pops.
pub(crate) struct ProposalQueue {
    state: Mutex<State>,
    pushed: Notify,
}

impl ProposalQueue {
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { queue: FairQueue::new(LIMITS), is_closed: false }), pushed: Notify::new() }
    }

    /// Queues a command in the lane of its account. When the queue is full, the newest of the longest lane is refused in
    /// place of one of a shorter lane.
    ///
    /// # Errors
    /// `NotProposed`: the account or the shard has too much queued, or the replica is stopping.
    pub(crate) fn push(&self, cost: CommandCost, proposal: Proposal) -> Result<(), ProposeError> {
        const TOO_MANY: ProposeError =
            ProposeError::NotProposed("too many calls of this account wait at the shard; try again later");
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(ProposeError::NotProposed("the replica is stopping"));
        }
        let lane = if is_enabled(Mutation::OneLane) { 0 } else { cost.account };
        let bytes = proposal.command.len();
        let pushed = state.queue.push(lane, cost.units, bytes, proposal);
        drop(state);
        self.pushed.notify_one();
        match pushed {
            Ok(None) => Ok(()),
            Ok(Some(evicted)) => {
                let _ = evicted.reply.send(Err(TOO_MANY));
                Ok(())
            }
            Err(Full::Lane) => Err(TOO_MANY),
            Err(Full::Queue) => Err(ProposeError::NotProposed("the shard's queue is full; try again later")),
        }
    }

    /// Waits until there is a command, and until tasks that are ready to run have added theirs. False once the queue is
    /// closed. Cancelling it loses nothing.
    pub(crate) async fn wait_nonempty(&self) -> bool {
        loop {
            let (is_empty, is_closed) = {
                let state = self.state.lock();
                (state.queue.is_empty(), state.is_closed)
            };
            if is_closed {
                return false;
            }
            if !is_empty {
                break;
            }
            self.pushed.notified().await;
        }
        // As in [`crate::coalesce::coalesce`].
        yield_now().await;
        true
    }

    /// Takes what goes into one entry.
    pub(crate) fn take_batch(&self) -> Vec<Proposal> {
        let mut state = self.state.lock();
        let (mut batch, mut bytes, mut units) = (Vec::new(), 0, 0);
        while let Some((next_units, next_bytes)) = state.queue.peek() {
            (bytes, units) = (bytes + next_bytes, units + next_units);
            let is_full = batch.len() >= MAX_BATCH_COMMANDS || bytes > MAX_BATCH_BYTES || units > MAX_BATCH_UNITS;
            if is_full && !batch.is_empty() {
                break;
            }
            batch.extend(state.queue.pop().map(|served| served.item));
        }
        batch
    }

    /// Commands that wait.
    pub(crate) fn len(&self) -> usize {
        self.state.lock().queue.len()
    }

    /// Refuses what comes from now on; what waits is dropped, and its callers hear that the replica stopped.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::replace(&mut state.queue, FairQueue::new(LIMITS))
        };
        drop(waiting);
        self.pushed.notify_one();
    }
}
