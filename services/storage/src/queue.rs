//! The queue from all replicas of a node to its committer, bounded by bytes.

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::StorageError;
use crate::limits::{MAX_QUEUE_BYTES, OPERATION_OVERHEAD_BYTES};
use crate::snapshot_pointer::{PartPointer, SnapshotPointer};

/// Called exactly once, in order per replica: with `Ok` after the sync, or with the error. The committer calls it, so
/// it must be quick and must not block. After the store was closed, the submitting caller calls it.
pub type Completion = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// An entry of the log. `head` and `body` are stored as one value, one after the other.
pub struct LogRow {
    /// The index of the entry.
    pub index: u64,
    /// The first bytes.
    pub head: Vec<u8>,
    /// All others, which may be shared with what else needs them.
    pub body: Bytes,
}

impl LogRow {
    /// Returns the number of bytes to store.
    pub fn bytes(&self) -> usize {
        self.head.len() + self.body.len()
    }
}

impl From<(u64, Bytes)> for LogRow {
    fn from((index, body): (u64, Bytes)) -> Self {
        Self { index, head: Vec::new(), body }
    }
}

/// A piece of a chunk of a snapshot.
pub(crate) struct SnapshotPiece {
    /// That of its part.
    pub(crate) generation: u64,
    /// Its number in the part.
    pub(crate) number: u32,
    /// Whether it is the last piece of its chunk.
    pub(crate) ends_chunk: bool,
    pub(crate) bytes: Bytes,
}

/// An operation that the committer can perform for a replica.
pub(crate) enum Operation {
    Append {
        rows: Vec<LogRow>,
    },
    SaveVote {
        vote: Bytes,
    },
    Truncate {
        from: u64,
    },
    Purge {
        to: u64,
        meta: Bytes,
    },
    SaveMeta {
        name: &'static str,
        value: Bytes,
    },
    SaveSnapshotPieces {
        pieces: Vec<SnapshotPiece>,
    },
    SwitchSnapshot {
        pointer: SnapshotPointer,
    },
    /// Records which snapshot is being received.
    SaveIncoming {
        pointer: SnapshotPointer,
    },
    DiscardIncoming,
    RemoveGenerations {
        generations: Vec<u64>,
    },
    Destroy,
    PinPeer {
        store_id: String,
    },
    SaveLongestLease {
        ms: u64,
    },
    SaveRules {
        rules: u16,
    },
    /// Changes nothing: it is done when all earlier operations are.
    Flush,
}

impl Operation {
    fn bytes(&self) -> usize {
        let payload = match self {
            Self::Append { rows } => rows.iter().map(|row| row.bytes() + OPERATION_OVERHEAD_BYTES).sum(),
            Self::SaveVote { vote } => vote.len(),
            Self::Purge { meta, .. } => meta.len(),
            Self::SaveMeta { value, .. } => value.len(),
            Self::SaveSnapshotPieces { pieces } => pieces.iter().map(|piece| piece.bytes.len()).sum(),
            Self::SwitchSnapshot { pointer } | Self::SaveIncoming { pointer } => {
                let part_bytes = |part: &PartPointer| part.summary.name.len() + OPERATION_OVERHEAD_BYTES;
                let names: usize = pointer.parts.iter().map(part_bytes).sum();
                names + pointer.meta.len()
            }
            Self::PinPeer { store_id } => store_id.len(),
            Self::Truncate { .. }
            | Self::Destroy
            | Self::DiscardIncoming
            | Self::RemoveGenerations { .. }
            | Self::SaveLongestLease { .. }
            | Self::SaveRules { .. }
            | Self::Flush => 0,
        };
        payload + OPERATION_OVERHEAD_BYTES
    }
}

/// A submitted operation, with its callback.
pub(crate) struct WriteRequest {
    pub(crate) replica: u64,
    pub(crate) operation: Operation,
    pub(crate) done: Completion,
}

/// All operations that were queued at the time of a drain.
pub(crate) struct WriteGroup {
    pub(crate) operations: Vec<WriteRequest>,
    /// The bytes that they count in the queue until they are committed.
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// The queue is drained to the end, then stopped.
    Closing,
    /// There is no committer any more.
    Stopped,
}

#[derive(Default)]
struct QueueState {
    operations: Vec<WriteRequest>,
    /// Bytes in the queue.
    queued_bytes: usize,
    /// Bytes that the committer has drained and not yet committed.
    in_flight_bytes: usize,
    phase: Phase,
}

/// The queue. It can wake up a committer in a thread and one in a task.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<QueueState>,
    thread_wakeup: Condvar,
    task_wakeup: Notify,
    space_freed: Notify,
}

impl Queue {
    /// Adds an operation without blocking. Returns it if there is no committer any more.
    pub(crate) fn push(&self, queued: WriteRequest) -> Result<(), WriteRequest> {
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            return Err(queued);
        }
        let was_empty = state.operations.is_empty();
        state.queued_bytes += queued.operation.bytes();
        state.operations.push(queued);
        drop(state);
        if was_empty {
            self.wake();
        }
        Ok(())
    }

    /// Waits until there is space. Returns immediately if the committer has stopped.
    pub(crate) async fn ready(&self) {
        loop {
            let freed = self.space_freed.notified();
            tokio::pin!(freed);
            // From here on no wake-up is missed, so the check does not race with the committer.
            freed.as_mut().enable();
            if self.has_capacity() {
                return;
            }
            freed.await;
        }
    }

    fn has_capacity(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Stopped || state.queued_bytes + state.in_flight_bytes < MAX_QUEUE_BYTES
    }

    /// Blocks the thread until there are operations. Returns `None` if the queue was closed and is empty.
    pub(crate) fn drain_in_thread(&self) -> Option<WriteGroup> {
        let mut state = self.state.lock();
        loop {
            match state.drain() {
                DrainResult::Work(drained) => return Some(drained),
                DrainResult::End => return None,
                DrainResult::Wait => self.thread_wakeup.wait(&mut state),
            }
        }
    }

    /// Waits until there are operations. Returns `None` if the queue was closed and is empty.
    pub(crate) async fn drain_in_task(&self) -> Option<WriteGroup> {
        loop {
            let woken = self.task_wakeup.notified();
            match self.state.lock().drain() {
                DrainResult::Work(drained) => return Some(drained),
                DrainResult::End => return None,
                DrainResult::Wait => {}
            }
            // `notify_one` stores a permit if there is no waiter, so a wake-up in between is not lost.
            woken.await;
        }
    }

    /// Frees the space of drained bytes that were committed or have failed.
    pub(crate) fn release(&self, bytes: usize) {
        let mut state = self.state.lock();
        let was_full = state.queued_bytes + state.in_flight_bytes >= MAX_QUEUE_BYTES;
        state.in_flight_bytes -= bytes;
        drop(state);
        if was_full {
            self.space_freed.notify_waiters();
        }
    }

    /// Closes the queue. The committer finishes the queued operations, then stops.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        drop(state);
        self.wake();
    }

    /// Marks the committer as stopped, and returns the operations that it did not drain.
    pub(crate) fn stop(&self) -> Vec<WriteRequest> {
        let mut state = self.state.lock();
        state.phase = Phase::Stopped;
        state.queued_bytes = 0;
        let rest = std::mem::take(&mut state.operations);
        drop(state);
        self.space_freed.notify_waiters();
        rest
    }

    fn wake(&self) {
        self.thread_wakeup.notify_one();
        self.task_wakeup.notify_one();
    }
}

enum DrainResult {
    Work(WriteGroup),
    Wait,
    End,
}

impl QueueState {
    fn drain(&mut self) -> DrainResult {
        if !self.operations.is_empty() {
            let bytes = std::mem::take(&mut self.queued_bytes);
            self.in_flight_bytes += bytes;
            return DrainResult::Work(WriteGroup { operations: std::mem::take(&mut self.operations), bytes });
        }
        match self.phase {
            Phase::Open => DrainResult::Wait,
            Phase::Closing | Phase::Stopped => DrainResult::End,
        }
    }
}
