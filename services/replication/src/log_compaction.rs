//! Limits the size of the log.
//!
//! openraft counts entries, each of which may have a megabyte. This module counts the entries and the bytes that are
//! applied. At a limit it triggers a snapshot, unless the state can't be frozen now, and purges entries far enough
//! behind it.

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

/// The same limits in entries; the one reached first applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryLimits {
    /// Entries after which a replica makes a snapshot.
    pub(crate) snapshot_interval: u64,
    /// Entries kept behind a snapshot.
    pub(crate) retain: u64,
}

impl EntryLimits {
    const NONE: Self = Self { snapshot_interval: u64::MAX, retain: u64::MAX };
}

/// Counts what was applied since the replica started. Clones share it.
#[derive(Clone)]
pub(crate) struct LogSize {
    counts: Arc<Mutex<Counts>>,
    changed: Arc<watch::Sender<()>>,
}

/// Triggers snapshots and purges by the counts.
pub(crate) struct LogCompactor {
    counts: Arc<Mutex<Counts>>,
    /// Closes with the last [`LogSize`].
    changed: watch::Receiver<()>,
    can_freeze: Box<dyn Fn() -> bool + Send + Sync>,
}

struct Counts {
    limits: LogLimits,
    entry_limits: EntryLimits,
    applied: u64,
    /// Entries applied since the latest snapshot was started.
    entries: u64,
    /// Applied bytes when the latest snapshot was started.
    begun: u64,
    /// The latest saved snapshot: its index, then its bytes.
    saved: Option<(u64, u64)>,
    /// Indexes of entries, each with the bytes up to and including it.
    marks: VecDeque<(u64, u64)>,
    /// The last entry that was found purgeable.
    purged: u64,
}

impl Counts {
    fn new(limits: LogLimits, entry_limits: EntryLimits) -> Self {
        Self { limits, entry_limits, applied: 0, entries: 0, begun: 0, saved: None, marks: VecDeque::new(), purged: 0 }
    }

    fn is_due(&self) -> bool {
        self.applied - self.begun >= self.limits.snapshot_interval_bytes
            || self.entries >= self.entry_limits.snapshot_interval
    }

    /// Returns true, for some of the entries after the limit, if a snapshot is due by entries. openraft makes one
    /// snapshot at a time, so the compactor may have to trigger it again.
    fn is_due_again(&self) -> bool {
        let interval = self.entry_limits.snapshot_interval;
        self.entries >= interval && (self.entries - interval).is_multiple_of((interval / 16).max(1))
    }

    /// Returns, once, the last entry far enough behind the saved snapshot to be purged.
    fn take_purgeable(&mut self) -> Option<u64> {
        let (index, saved) = self.saved?;
        let keep = self.limits.retain_bytes;
        let behind = self.marks.partition_point(|(_, bytes)| bytes.saturating_add(keep) <= saved);
        let by_bytes = self.marks.drain(..behind).next_back().map(|(index, _)| index);
        let by_entries = index.checked_sub(self.entry_limits.retain).filter(|last| *last > self.purged);
        let purgeable = by_bytes.max(by_entries)?;
        self.purged = self.purged.max(purgeable);
        Some(purgeable)
    }
}

impl LogSize {
    pub(crate) fn new(limits: LogLimits) -> Self {
        Self { counts: Arc::new(Mutex::new(Counts::new(limits, EntryLimits::NONE))), changed: Arc::default() }
    }

    pub(crate) fn set_entry_limits(&self, limits: EntryLimits) {
        self.counts.lock().entry_limits = limits;
    }

    /// Returns the compactor for these counts. It makes no snapshot while `can_freeze` returns false.
    pub(crate) fn compactor(&self, can_freeze: Box<dyn Fn() -> bool + Send + Sync>) -> LogCompactor {
        LogCompactor { counts: Arc::clone(&self.counts), changed: self.changed.subscribe(), can_freeze }
    }

    /// Counts an applied entry of this size.
    pub(crate) fn applied(&self, index: u64, bytes: u64) {
        let mut counted = self.counts.lock();
        counted.applied += bytes;
        counted.entries += 1;
        let (applied, last) = (counted.applied, counted.marks.back().map_or(0, |(_, bytes)| *bytes));
        let is_marked = applied - last >= counted.limits.spacing();
        if is_marked {
            counted.marks.push_back((index, applied));
        }
        if (is_marked && counted.is_due()) || counted.is_due_again() {
            self.changed.send_replace(());
        }
    }

    /// Records the start of a snapshot of the applied state. Returns the bytes so far.
    pub(crate) fn snapshot_begun(&self) -> u64 {
        let mut counted = self.counts.lock();
        counted.begun = counted.applied;
        counted.entries = 0;
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
        *counted = Counts::new(counted.limits, counted.entry_limits);
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
            if is_due && (self.can_freeze)() && raft.trigger().snapshot().await.is_err() {
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

    fn counted(log: &LogSize) -> (bool, Option<u64>) {
        let mut counted = log.counts.lock();
        (counted.is_due(), counted.take_purgeable())
    }

    #[test]
    fn a_snapshot_is_due_by_bytes_and_so_is_what_is_kept_behind_it() {
        let log = LogSize::new(LogLimits { snapshot_interval_bytes: 10 * MIB, retain_bytes: 3 * MIB });
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
    fn a_snapshot_is_due_by_entries_and_so_is_what_is_kept_behind_it() {
        let log = LogSize::new(LogLimits::default());
        log.set_entry_limits(EntryLimits { snapshot_interval: 100, retain: 10 });
        (1..100).for_each(|index| log.applied(index, 1));
        assert_eq!(counted(&log), (false, None));
        let mut changed = log.changed.subscribe();
        log.applied(100, 1);
        assert!(changed.has_changed().unwrap());
        assert_eq!(counted(&log), (true, None));
        let begun = log.snapshot_begun();
        assert_eq!(counted(&log), (false, None));
        log.snapshot_saved(100, begun);
        assert_eq!(counted(&log), (false, Some(90)));
        assert_eq!(counted(&log), (false, None), "that is told once");
        changed.borrow_and_update();
        (101..=200).for_each(|index| log.applied(index, 1));
        assert!(changed.has_changed().unwrap());
    }

    #[test]
    fn of_small_entries_few_are_remembered() {
        let log = LogSize::new(LogLimits { snapshot_interval_bytes: 10 * MIB, retain_bytes: 5 * MIB });
        (1..=100_000).for_each(|index| log.applied(index, 100));
        assert!(log.counts.lock().marks.len() <= 32);
        let begun = log.snapshot_begun();
        log.snapshot_saved(100_000, begun);
        let purgeable = counted(&log).1.unwrap();
        assert!((40_000..=47_571).contains(&purgeable), "{purgeable}");
    }
}
