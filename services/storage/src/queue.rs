//! The queue from all replicas of a node to its committer, bounded by bytes.

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use tokio::sync::Notify;

use crate::StorageError;
use crate::limits::{OPERATION_OVERHEAD, QUEUE_BYTES};

/// Called exactly once, in order per replica: with `Ok` after the sync, or with the error. The committer calls it, so
/// it must be quick and must not block; after the store was closed it is called by the one who hands over.
pub type Done = Box<dyn FnOnce(Result<(), StorageError>) + Send>;

/// One piece of a snapshot.
pub(crate) struct Piece {
    pub(crate) number: u32,
    /// The last piece of its chunk.
    pub(crate) ends_chunk: bool,
    pub(crate) bytes: Bytes,
}

/// What the committer can do for a replica.
pub(crate) enum Operation {
    Append {
        entries: Vec<(u64, Bytes)>,
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
    SavePieces {
        generation: u64,
        pieces: Vec<Piece>,
    },
    SwitchSnapshot {
        generation: u64,
        pieces: u32,
        meta: Bytes,
    },
    Destroy,
    PinPeer {
        store_id: String,
    },
    KeepLease {
        ms: u64,
    },
    NoteRules {
        rules: u16,
    },
    /// Changes nothing: done when everything before is.
    Settle,
}

impl Operation {
    fn bytes(&self) -> usize {
        let payload = match self {
            Self::Append { entries } => entries.iter().map(|(_, entry)| entry.len() + OPERATION_OVERHEAD).sum(),
            Self::SaveVote { vote } => vote.len(),
            Self::Purge { meta, .. } | Self::SwitchSnapshot { meta, .. } => meta.len(),
            Self::SaveMeta { value, .. } => value.len(),
            Self::SavePieces { pieces, .. } => pieces.iter().map(|piece| piece.bytes.len()).sum(),
            Self::PinPeer { store_id } => store_id.len(),
            Self::Truncate { .. } | Self::Destroy | Self::KeepLease { .. } | Self::NoteRules { .. } | Self::Settle => 0,
        };
        payload + OPERATION_OVERHEAD
    }
}

/// An operation on its way, with the one who waits for it.
pub(crate) struct Queued {
    pub(crate) replica: u64,
    pub(crate) operation: Operation,
    pub(crate) done: Done,
}

/// Everything that was waiting at one moment.
pub(crate) struct Drained {
    pub(crate) operations: Vec<Queued>,
    /// What they count in the queue until they are committed.
    pub(crate) bytes: usize,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Open,
    /// Drained to the end, then stopped.
    Closing,
    /// Nobody drains any more.
    Stopped,
}

#[derive(Default)]
struct State {
    operations: Vec<Queued>,
    /// Bytes in the queue.
    waiting: usize,
    /// Bytes that the committer has drained and not committed.
    drained: usize,
    phase: Phase,
}

/// The queue. It has a wake-up for a committer in a thread and one for a committer in a task.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    thread: Condvar,
    task: Notify,
    room: Notify,
}

impl Queue {
    /// Hands over without blocking. Gives the operation back when nobody drains the queue any more.
    pub(crate) fn push(&self, queued: Queued) -> Result<(), Queued> {
        let mut state = self.state.lock();
        if state.phase == Phase::Stopped {
            return Err(queued);
        }
        let was_empty = state.operations.is_empty();
        state.waiting += queued.operation.bytes();
        state.operations.push(queued);
        drop(state);
        if was_empty {
            self.wake();
        }
        Ok(())
    }

    /// Waits until there is room. Returns at once when the queue is closed.
    pub(crate) async fn ready(&self) {
        loop {
            let freed = self.room.notified();
            tokio::pin!(freed);
            // From here on a wake-up is not missed, so the check cannot race with the committer.
            freed.as_mut().enable();
            if self.has_room() {
                return;
            }
            freed.await;
        }
    }

    fn has_room(&self) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Stopped || state.waiting + state.drained < QUEUE_BYTES
    }

    /// Blocks the thread until there is something to do; nothing when the queue was closed and is empty.
    pub(crate) fn drain_in_thread(&self) -> Option<Drained> {
        let mut state = self.state.lock();
        loop {
            match state.drain() {
                Next::Work(drained) => return Some(drained),
                Next::End => return None,
                Next::Wait => self.thread.wait(&mut state),
            }
        }
    }

    /// Waits until there is something to do; nothing when the queue was closed and is empty.
    pub(crate) async fn drain_in_task(&self) -> Option<Drained> {
        loop {
            let woken = self.task.notified();
            match self.state.lock().drain() {
                Next::Work(drained) => return Some(drained),
                Next::End => return None,
                Next::Wait => {}
            }
            // `notify_one` leaves a permit when nobody waits, so a wake-up in between is not lost.
            woken.await;
        }
    }

    /// The drained bytes are committed, or have failed.
    pub(crate) fn release(&self, bytes: usize) {
        let mut state = self.state.lock();
        let was_full = state.waiting + state.drained >= QUEUE_BYTES;
        state.drained -= bytes;
        drop(state);
        if was_full {
            self.room.notify_waiters();
        }
    }

    /// No end of the work that is queued, but of the committer after it.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        if state.phase == Phase::Open {
            state.phase = Phase::Closing;
        }
        drop(state);
        self.wake();
    }

    /// The committer is gone; gives back what it did not drain.
    pub(crate) fn stop(&self) -> Vec<Queued> {
        let mut state = self.state.lock();
        state.phase = Phase::Stopped;
        state.waiting = 0;
        let rest = std::mem::take(&mut state.operations);
        drop(state);
        self.room.notify_waiters();
        rest
    }

    fn wake(&self) {
        self.thread.notify_one();
        self.task.notify_one();
    }
}

enum Next {
    Work(Drained),
    Wait,
    End,
}

impl State {
    fn drain(&mut self) -> Next {
        if !self.operations.is_empty() {
            let bytes = std::mem::take(&mut self.waiting);
            self.drained += bytes;
            return Next::Work(Drained { operations: std::mem::take(&mut self.operations), bytes });
        }
        match self.phase {
            Phase::Open => Next::Wait,
            Phase::Closing | Phase::Stopped => Next::End,
        }
    }
}
