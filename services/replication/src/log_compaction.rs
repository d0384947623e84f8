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

use crate::sent_snapshot::{Matched, SentSnapshot};
use crate::types::TypeConfig;

/// Maximum bytes between two marks in the log.
const MARK_BYTES: u64 = 1024 * 1024;
/// Applied bytes that the log keeps for replicas that are sent a snapshot. Beyond it, they are sent a newer one.
const MAX_KEPT_BYTES: u64 = 1024 * 1024 * 1024;

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
    sent: SentSnapshot,
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
    /// The last entry that was to be purged, and the bytes up to the last mark before or at it.
    purged: u64,
    purged_bytes: u64,
}

impl Counts {
    fn new(limits: LogLimits, entry_limits: EntryLimits) -> Self {
        let (applied, entries, begun, purged, purged_bytes) = Default::default();
        let (saved, marks) = (None, VecDeque::new());
        Self { limits, entry_limits, applied, entries, begun, saved, marks, purged, purged_bytes }
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

    /// Returns the last entry far enough behind the saved snapshot to be purged, unless it is purged already.
    fn purgeable(&self) -> Option<u64> {
        let (index, saved) = self.saved?;
        let keep = self.limits.retain_bytes;
        let behind = self.marks.partition_point(|(_, bytes)| bytes.saturating_add(keep) <= saved);
        let by_bytes = behind.checked_sub(1).and_then(|last| self.marks.get(last)).map(|(index, _)| *index);
        let by_entries = index.checked_sub(self.entry_limits.retain);
        by_bytes.max(by_entries).filter(|last| *last > self.purged)
    }

    /// Returns the bytes applied since the latest saved snapshot, as far as this process knows.
    fn bytes_since_snapshot(&self) -> u64 {
        self.applied - self.saved.map_or(0, |(_, bytes)| bytes)
    }

    /// Returns the applied bytes after an entry that is not purged, to the next mark at most more.
    fn bytes_after(&self, index: u64) -> u64 {
        let marked = self.marks.partition_point(|(marked, _)| *marked <= index);
        let before = marked.checked_sub(1).and_then(|last| self.marks.get(last));
        self.applied.saturating_sub(before.map_or(self.purged_bytes, |(_, bytes)| *bytes))
    }

    /// Records that the entries up to this one are purged. Returns it, unless they were before.
    fn purge(&mut self, last: u64) -> Option<u64> {
        let marked = self.marks.partition_point(|(marked, _)| *marked <= last);
        if let Some((_, bytes)) = self.marks.drain(..marked).next_back() {
            self.purged_bytes = bytes;
        }
        let is_new = last > self.purged;
        self.purged = self.purged.max(last);
        is_new.then_some(last)
    }
}

impl LogSize {
    pub(crate) fn new(limits: LogLimits) -> Self {
        Self { counts: Arc::new(Mutex::new(Counts::new(limits, EntryLimits::NONE))), changed: Arc::default() }
    }

    pub(crate) fn set_entry_limits(&self, limits: EntryLimits) {
        self.counts.lock().entry_limits = limits;
    }

    /// Returns the compactor for these counts. It makes no snapshot while `can_freeze` returns false, and keeps what
    /// those need to whom a snapshot is `sent`.
    pub(crate) fn compactor(
        &self,
        can_freeze: Box<dyn Fn() -> bool + Send + Sync>,
        sent: SentSnapshot,
    ) -> LogCompactor {
        LogCompactor { counts: Arc::clone(&self.counts), changed: self.changed.subscribe(), can_freeze, sent }
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

    /// Returns the bytes applied since the latest saved snapshot, as far as this process knows.
    pub(crate) fn bytes_since_snapshot(&self) -> u64 {
        self.counts.lock().bytes_since_snapshot()
    }

    /// Resets the count after the state was replaced by a snapshot; the log continues after it.
    pub(crate) fn restored(&self) {
        let mut counted = self.counts.lock();
        *counted = Counts::new(counted.limits, counted.entry_limits);
    }
}

impl LogCompactor {
    /// Returns, once, the last entry to be purged: far enough behind the saved snapshot, and needed by none of those to
    /// whom a snapshot is sent, unless too much would stay for them. A leader knows what other replicas have.
    fn take_purgeable(&self, matched: Option<&Matched>) -> Option<u64> {
        let wanted = self.counts.lock().purgeable()?;
        let mut last = self.sent.purgeable(wanted, matched);
        if last < wanted && self.counts.lock().bytes_after(last) > MAX_KEPT_BYTES {
            tracing::warn!(entry = last, "log purged during snapshot transfer: size limit reached");
            self.sent.clear();
            last = wanted;
        }
        self.counts.lock().purge(last)
    }

    /// Limits the log's size until the replica stops.
    pub(crate) async fn run<M: RaftStateMachine<TypeConfig>>(mut self, raft: Raft<TypeConfig, M>) {
        let mut metrics = raft.metrics();
        loop {
            tokio::select! {
                changed = self.changed.changed() => if changed.is_err() { return },
                () = self.sent.damage_found() => {}
            }
            let (is_due, saved) = {
                let counted = self.counts.lock();
                (counted.is_due(), counted.saved)
            };
            if (is_due || self.sent.is_damaged()) && (self.can_freeze)() && raft.trigger().snapshot().await.is_err() {
                return;
            }
            let Some((index, _)) = saved else { continue };
            // openraft purges nothing behind a snapshot until its metrics include the snapshot.
            while metrics.borrow_watched().snapshot.is_none_or(|known| known.index < index) {
                if metrics.changed().await.is_err() {
                    return;
                }
            }
            let matched = metrics.borrow_watched().replication.clone();
            if let Some(index) = self.take_purgeable(matched.as_ref())
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
    use crate::sent_snapshot::sample;

    const MIB: u64 = 1024 * 1024;

    fn compactor(log: &LogSize, sent: &SentSnapshot) -> LogCompactor {
        log.compactor(Box::new(|| true), sent.clone())
    }

    fn counted(log: &LogSize) -> (bool, Option<u64>) {
        let is_due = log.counts.lock().is_due();
        (is_due, compactor(log, &SentSnapshot::default()).take_purgeable(None))
    }

    #[tokio::test]
    async fn what_comes_after_a_snapshot_that_is_being_sent_is_purged_only_once_it_is_too_much() {
        let log = LogSize::new(LogLimits { snapshot_interval_bytes: 64 * MIB, retain_bytes: 16 * MIB });
        let (sent, matched) = (SentSnapshot::default(), Matched::new());
        let compactor = compactor(&log, &sent);
        let apply_to = |index: u64| {
            let applied = log.counts.lock().applied / MIB;
            (applied + 1..=index).for_each(|index| log.applied(index, MIB));
            let begun = log.snapshot_begun();
            log.snapshot_saved(index, begun);
        };
        apply_to(100);
        assert_eq!(compactor.take_purgeable(Some(&matched)), Some(84));
        let snapshot = sample(&sent, 100).await;
        let transfer = sent.begin(2, &snapshot.meta, &snapshot.snapshot);
        apply_to(500);
        assert_eq!(compactor.take_purgeable(Some(&matched)), Some(100), "the receiver needs what comes after it");
        apply_to(1_124);
        assert_eq!(compactor.take_purgeable(Some(&matched)), None);
        assert!(sent.get().is_some());
        apply_to(1_125);
        assert_eq!(compactor.take_purgeable(Some(&matched)), Some(1_109));
        assert!(sent.get().is_none(), "the next one that it is sent is newer");
        drop(transfer);
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
        assert_eq!(log.bytes_since_snapshot(), 10 * MIB);
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
