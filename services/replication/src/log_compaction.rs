//! Limits the size of the log in bytes.
//!
//! openraft counts entries, each of which may have a megabyte. This module counts the bytes of applied entries. At the
//! limit it triggers a snapshot, and purges entries far enough behind it.

use std::collections::VecDeque;
use std::sync::Arc;

use openraft::Raft;
use openraft::async_runtime::watch::WatchReceiver;
use openraft::storage::RaftStateMachine;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::types::TypeConfig;

/// Maximum bytes between two marks in the log.
const MARK_BYTES: u64 = 1024 * 1024;

/// Limits of a log in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogLimits {
    /// Bytes of entries after which a replica makes a snapshot.
    pub snapshot_interval_bytes: u64,
    /// Bytes of entries kept behind a snapshot for followers that lag a little.
    pub retain_bytes: u64,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self { snapshot_interval_bytes: 64 * 1024 * 1024, retain_bytes: 16 * 1024 * 1024 }
    }
}

impl LogLimits {
    /// Returns the bytes between two marks in the log.
    fn spacing(self) -> u64 {
        (self.snapshot_interval_bytes.min(self.retain_bytes) / 16).clamp(1, MARK_BYTES)
    }
}

/// Counts the bytes of the entries applied since the replica started. Clones share it.
#[derive(Clone)]
pub(crate) struct LogBytes {
    counts: Arc<Mutex<ByteCounts>>,
    changed: Arc<watch::Sender<()>>,
}

/// Triggers snapshots and purges by the counts.
pub(crate) struct LogCompactor {
    counts: Arc<Mutex<ByteCounts>>,
    /// Closes with the last [`LogBytes`].
    changed: watch::Receiver<()>,
}

struct ByteCounts {
    limits: LogLimits,
    applied: u64,
    /// Applied bytes when the latest snapshot was started.
    begun: u64,
    /// The latest saved snapshot: its index, then its bytes.
    saved: Option<(u64, u64)>,
    /// Indexes of entries, each with the bytes up to and including it.
    marks: VecDeque<(u64, u64)>,
}

impl ByteCounts {
    fn new(limits: LogLimits) -> Self {
        Self { limits, applied: 0, begun: 0, saved: None, marks: VecDeque::new() }
    }

    fn is_due(&self) -> bool {
        self.applied - self.begun >= self.limits.snapshot_interval_bytes
    }

    /// Returns, once, the last entry far enough behind the saved snapshot to be purged.
    fn take_purgeable(&mut self) -> Option<u64> {
        let (_, saved) = self.saved?;
        let keep = self.limits.retain_bytes;
        let behind = self.marks.partition_point(|(_, bytes)| bytes.saturating_add(keep) <= saved);
        self.marks.drain(..behind).next_back().map(|(index, _)| index)
    }
}

impl LogBytes {
    pub(crate) fn new(limits: LogLimits) -> Self {
        Self { counts: Arc::new(Mutex::new(ByteCounts::new(limits))), changed: Arc::default() }
    }

    /// Returns the compactor for these counts.
    pub(crate) fn compactor(&self) -> LogCompactor {
        LogCompactor { counts: Arc::clone(&self.counts), changed: self.changed.subscribe() }
    }

    /// Counts an applied entry of this size.
    pub(crate) fn applied(&self, index: u64, bytes: u64) {
        let mut counted = self.counts.lock();
        counted.applied += bytes;
        let (applied, last) = (counted.applied, counted.marks.back().map_or(0, |(_, bytes)| *bytes));
        if applied - last < counted.limits.spacing() {
            return;
        }
        counted.marks.push_back((index, applied));
        // openraft makes one snapshot at a time, so the compactor may have to trigger it again.
        if counted.is_due() {
            self.changed.send_replace(());
        }
    }

    /// Records the start of a snapshot of the applied state. Returns the bytes so far.
    pub(crate) fn snapshot_begun(&self) -> u64 {
        let mut counted = self.counts.lock();
        counted.begun = counted.applied;
        counted.begun
    }

    /// Records that the snapshot up to this entry, started at `begun` bytes, was saved.
    pub(crate) fn snapshot_saved(&self, index: u64, begun: u64) {
        let mut counted = self.counts.lock();
        // The state may have been replaced since then, which resets the count.
        if begun <= counted.applied {
            counted.saved = Some((index, begun));
            self.changed.send_replace(());
        }
    }

    /// Resets the count after the state was replaced by a snapshot; the log continues after it.
    pub(crate) fn restored(&self) {
        let mut counted = self.counts.lock();
        *counted = ByteCounts::new(counted.limits);
    }
}

impl LogCompactor {
    /// Limits the log's size until the replica stops.
    pub(crate) async fn run<M: RaftStateMachine<TypeConfig>>(mut self, raft: Raft<TypeConfig, M>) {
        let mut metrics = raft.metrics();
        while self.changed.changed().await.is_ok() {
            let (is_due, saved) = {
                let counted = self.counts.lock();
                (counted.is_due(), counted.saved)
            };
            if is_due && raft.trigger().snapshot().await.is_err() {
                return;
            }
            let Some((index, _)) = saved else { continue };
            // openraft purges nothing behind a snapshot until its metrics include the snapshot.
            while metrics.borrow_watched().snapshot.is_none_or(|known| known.index < index) {
                if metrics.changed().await.is_err() {
                    return;
                }
            }
            let purgeable = self.counts.lock().take_purgeable();
            if let Some(index) = purgeable
                && raft.trigger().purge_log(index).await.is_err()
            {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1024 * 1024;

    fn counted(log: &LogBytes) -> (bool, Option<u64>) {
        let mut counted = log.counts.lock();
        (counted.is_due(), counted.take_purgeable())
    }

    #[test]
    fn a_snapshot_is_due_by_bytes_and_so_is_what_is_kept_behind_it() {
        let log = LogBytes::new(LogLimits { snapshot_interval_bytes: 10 * MIB, retain_bytes: 3 * MIB });
        (1..10).for_each(|index| log.applied(index, MIB));
        assert_eq!(counted(&log), (false, None));
        log.applied(10, MIB);
        assert_eq!(counted(&log), (true, None), "nothing is purged before there is a snapshot");
        let begun = log.snapshot_begun();
        assert_eq!(counted(&log), (false, None));
        (11..=20).for_each(|index| log.applied(index, MIB));
        log.snapshot_saved(10, begun);
        assert_eq!(counted(&log), (true, Some(7)), "the last 3 MiB behind the snapshot stay");
        assert_eq!(counted(&log), (true, None), "that is told once");
        log.restored();
        assert_eq!(counted(&log), (false, None));
    }

    #[test]
    fn of_small_entries_few_are_remembered() {
        let log = LogBytes::new(LogLimits { snapshot_interval_bytes: 10 * MIB, retain_bytes: 5 * MIB });
        (1..=100_000).for_each(|index| log.applied(index, 100));
        assert!(log.counts.lock().marks.len() <= 32);
        let begun = log.snapshot_begun();
        log.snapshot_saved(100_000, begun);
        let purgeable = counted(&log).1.unwrap();
        assert!((40_000..=47_571).contains(&purgeable), "{purgeable}");
    }
}
