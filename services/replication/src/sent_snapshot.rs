//! The snapshot that a replica is sending, and the replicas that it is sent to. Whoever is sent one gets the same
//! again after an interruption, though newer ones are saved meanwhile, so that it goes on where it was; and the log
//! keeps what comes after it until they have that, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::applied::AppliedIndex;
use crate::types::{LogId, Snapshot, SnapshotData, SnapshotMeta};

/// How long a snapshot is offered again before a newer one takes its place. What the receiver has of it counts for
/// that, too, as far as parts are the same.
const MAX_AGE: Duration = Duration::from_secs(600);

/// How long the log keeps what comes after a snapshot for a replica that gets no further: its transfer was interrupted,
/// or it has the snapshot and failed afterwards.
const LOG_MAX_WAIT: Duration = Duration::from_secs(20);

/// The last entry that each other replica has, as far as the leader knows.
pub(crate) type Matched = BTreeMap<u64, Option<LogId>>;

/// The snapshot that is being sent, if there is one. Clones share it.
#[derive(Clone, Default)]
pub(crate) struct SentSnapshot(Arc<Shared>);

#[derive(Default)]
struct Shared {
    transfers: Mutex<Transfers>,
    applied: AppliedIndex,
    damage_found: Notify,
}

#[derive(Default)]
struct Transfers {
    pinned: Option<PinnedSnapshot>,
    /// The number of transfers in progress.
    running: usize,
    /// When the last of them was interrupted, while there is none.
    idle_since: Option<Instant>,
    /// The replicas that were not sent all of it.
    unfinished: BTreeSet<u64>,
    /// The replicas that were, and still need entries of the log.
    catching_up: BTreeMap<u64, CatchUp>,
    /// A stored part could not be read: all parts are to be written again.
    is_damaged: bool,
}

/// How far a replica is that has got the snapshot.
struct CatchUp {
    /// The last entry that was applied here when it had the snapshot: it needs the entries up to this one.
    target: u64,
    /// The last entry that it has, and since when.
    matched: u64,
    since: Instant,
}

impl CatchUp {
    /// Records what the replica has. Returns true while it needs more and gets on.
    fn goes_on(&mut self, matched: u64) -> bool {
        if matched > self.matched {
            (self.matched, self.since) = (matched, Instant::now());
        }
        self.matched < self.target && self.since.elapsed() < LOG_MAX_WAIT
    }
}

struct PinnedSnapshot {
    snapshot: Snapshot,
    since: Instant,
}

impl PinnedSnapshot {
    fn index(&self) -> u64 {
        self.snapshot.meta.last_log_id.map_or(0, |id| id.index)
    }
}

impl fmt::Debug for SentSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SentSnapshot").finish_non_exhaustive()
    }
}

impl SentSnapshot {
    pub(crate) fn new(applied: AppliedIndex) -> Self {
        Self(Arc::new(Shared { applied, ..Shared::default() }))
    }

    /// Changes the transfers. What is then not sent any more is dropped outside of the lock, since that may read.
    fn update(&self, change: impl FnOnce(&mut Transfers) -> Option<PinnedSnapshot>) {
        let dropped = change(&mut self.0.transfers.lock());
        drop(dropped);
    }

    /// Records that this snapshot is being sent to a replica.
    pub(crate) fn begin(&self, to: u64, meta: &SnapshotMeta, data: &SnapshotData) -> Transfer {
        // Without a reference to itself, which would keep it forever.
        let data = SnapshotData { sent: Self::default(), ..data.clone() };
        let snapshot = Snapshot { meta: meta.clone(), snapshot: data };
        self.update(|transfers| {
            transfers.running += 1;
            transfers.idle_since = None;
            transfers.unfinished.insert(to);
            transfers.catching_up.remove(&to);
            let is_pinned =
                transfers.pinned.as_ref().is_some_and(|pinned| pinned.snapshot.meta.last_log_id == meta.last_log_id);
            let new = PinnedSnapshot { snapshot, since: Instant::now() };
            if is_pinned { Some(new) } else { transfers.pinned.replace(new) }
        });
        Transfer { sent: self.clone(), to }
    }

    /// Forgets a snapshot that was offered for long and is not being sent now: it need not be stored any more.
    pub(crate) fn expire(&self) {
        self.update(|transfers| {
            let is_idle = transfers.running == 0;
            let expired = transfers.pinned.take_if(|pinned| is_idle && pinned.since.elapsed() >= MAX_AGE)?;
            transfers.unfinished.clear();
            Some(expired)
        });
    }

    /// Forgets the snapshot, and whom it was sent to: this replica has a newer one, or does not lead, or they take too
    /// long.
    pub(crate) fn clear(&self) {
        self.update(|transfers| {
            transfers.unfinished.clear();
            transfers.catching_up.clear();
            transfers.pinned.take()
        });
    }

    /// Returns the snapshot that is being sent.
    pub(crate) fn get(&self) -> Option<Snapshot> {
        self.expire();
        let mut snapshot = self.0.transfers.lock().pinned.as_ref()?.snapshot.clone();
        snapshot.snapshot.sent = self.clone();
        Some(snapshot)
    }

    /// Returns the last entry, up to `wanted`, that may be purged: those that are sent a snapshot need what comes after
    /// it. A replica that does not lead has no `matched` and sends none.
    pub(crate) fn purgeable(&self, wanted: u64, matched: Option<&Matched>) -> u64 {
        let Some(matched) = matched else {
            self.clear();
            return wanted;
        };
        self.expire();
        let has = |replica: &u64| Some(matched.get(replica)?.map_or(0, |id| id.index));
        let mut transfers = self.0.transfers.lock();
        // One that is no member any more is not waited for.
        transfers.catching_up.retain(|replica, it| has(replica).is_some_and(|matched| it.goes_on(matched)));
        let slowest = transfers.catching_up.values().map(|it| it.matched).min();
        let is_awaited = transfers.idle_since.is_none_or(|since| since.elapsed() < LOG_MAX_WAIT);
        let pinned = transfers.pinned.as_ref().filter(|_| is_awaited).map(PinnedSnapshot::index);
        [pinned, slowest].into_iter().flatten().fold(wanted, u64::min)
    }

    /// Records that a part of a snapshot can't be read. It is not sent again; all parts are to be written anew.
    pub(crate) fn report_damage(&self) {
        self.update(|transfers| {
            transfers.is_damaged = true;
            transfers.unfinished.clear();
            transfers.pinned.take()
        });
        self.0.damage_found.notify_one();
    }

    /// Waits until a part can't be read.
    pub(crate) async fn damage_found(&self) {
        self.0.damage_found.notified().await;
    }

    /// Returns true while the saved snapshot may have a damaged part.
    pub(crate) fn is_damaged(&self) -> bool {
        self.0.transfers.lock().is_damaged
    }

    /// Records that all parts of the saved snapshot were written anew.
    pub(crate) fn set_sound(&self) {
        self.0.transfers.lock().is_damaged = false;
    }
}

/// A snapshot on its way to a replica. Dropping it interrupts the transfer.
pub(crate) struct Transfer {
    sent: SentSnapshot,
    to: u64,
}

impl Transfer {
    /// Records that the replica has the snapshot. Once all have it to whom it was sent, the next one may be newer.
    pub(crate) fn end(self) {
        let applied = self.sent.0.applied.last();
        let mut transfers = self.sent.0.transfers.lock();
        // Otherwise it was forgotten meanwhile.
        if transfers.unfinished.remove(&self.to) {
            let catch_up = CatchUp { target: applied, matched: 0, since: Instant::now() };
            transfers.catching_up.insert(self.to, catch_up);
        }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.sent.update(|transfers| {
            transfers.running = transfers.running.saturating_sub(1);
            if transfers.running == 0 {
                transfers.idle_since = Some(Instant::now());
            }
            if transfers.unfinished.is_empty() { transfers.pinned.take() } else { None }
        });
    }
}

/// A snapshot up to the entry of this index, to be sent by whoever has `sent`.
#[cfg(test)]
pub(crate) async fn sample(sent: &SentSnapshot, index: u64) -> Snapshot {
    use holdfast_storage::{Identity, MemoryDisk, NodeStore};
    use openraft::vote::RaftLeaderId;

    use crate::rules::GroupState;
    use crate::types::{StoredMembership, Vote};

    let identity = Identity { cluster_id: "c".into(), node_id: "nd_1".into() };
    let store = NodeStore::in_memory(&MemoryDisk::new(), &identity).expect("it opens").replica(1);
    store.save_snapshot(bytes::Bytes::new(), Vec::new()).await.expect("it is saved");
    let stored = store.snapshot().expect("it is readable").expect("there is one");
    let leader = RaftLeaderId::to_committed(&Vote::new_committed(1, 1).leader_id);
    let last_log_id = Some(LogId::new(leader, index));
    let meta = SnapshotMeta { last_log_id, last_membership: StoredMembership::default() };
    Snapshot { meta, snapshot: SnapshotData { group: GroupState::default(), stored, sent: sent.clone() } }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(sent: &SentSnapshot, to: u64, snapshot: &Snapshot) -> Transfer {
        sent.begin(to, &snapshot.meta, &snapshot.snapshot)
    }

    fn pinned(sent: &SentSnapshot) -> Option<u64> {
        sent.get().and_then(|snapshot| snapshot.meta.last_log_id).map(|id| id.index)
    }

    /// What the leader knows of these replicas: the last entry of each.
    async fn matched(of: &[(u64, u64)]) -> Matched {
        let mut matched = Matched::new();
        for (replica, index) in of {
            matched.insert(*replica, sample(&SentSnapshot::default(), *index).await.meta.last_log_id);
        }
        matched
    }

    #[tokio::test]
    async fn a_snapshot_is_offered_again_until_all_have_it_to_whom_it_was_sent() {
        let sent = SentSnapshot::default();
        let (snapshot, newer) = (sample(&sent, 10).await, sample(&sent, 20).await);
        let (one, other) = (begin(&sent, 1, &snapshot), begin(&sent, 2, &snapshot));
        one.end();
        assert_eq!(pinned(&sent), Some(10), "the other is not sent all of it yet");
        drop(other);
        assert_eq!(pinned(&sent), Some(10), "it was interrupted");
        begin(&sent, 2, &snapshot).end();
        assert_eq!(pinned(&sent), None);
        drop(begin(&sent, 2, &newer));
        assert_eq!(pinned(&sent), Some(20));
        sent.clear();
        assert_eq!(pinned(&sent), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_snapshot_that_nobody_fetches_is_offered_for_some_minutes() {
        let sent = SentSnapshot::default();
        let snapshot = sample(&sent, 10).await;
        let transfer = begin(&sent, 1, &snapshot);
        tokio::time::advance(2 * MAX_AGE).await;
        assert_eq!(pinned(&sent), Some(10), "it is being sent");
        drop(transfer);
        assert_eq!(pinned(&sent), None);
        drop(begin(&sent, 1, &snapshot));
        tokio::time::advance(MAX_AGE / 2).await;
        assert_eq!(pinned(&sent), Some(10));
    }

    #[tokio::test(start_paused = true)]
    async fn what_comes_after_a_snapshot_stays_until_its_receivers_have_it() {
        let applied = AppliedIndex::default();
        let sent = SentSnapshot::new(applied.clone());
        let snapshot = sample(&sent, 10).await;
        let behind = matched(&[(1, 3), (2, 90)]).await;
        assert_eq!(sent.purgeable(50, Some(&behind)), 50, "no snapshot is sent");
        let transfer = begin(&sent, 1, &snapshot);
        assert_eq!((sent.purgeable(50, Some(&behind)), sent.purgeable(7, Some(&behind))), (10, 7));
        tokio::time::advance(LOG_MAX_WAIT).await;
        assert_eq!(sent.purgeable(50, Some(&behind)), 10, "it is still being sent");
        drop(transfer);
        assert_eq!(sent.purgeable(50, Some(&behind)), 10, "it may go on soon");
        tokio::time::advance(LOG_MAX_WAIT).await;
        assert_eq!(sent.purgeable(50, Some(&behind)), 50, "it does not");
        let transfer = begin(&sent, 1, &snapshot);
        applied.end(80);
        transfer.end();
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 10)]).await)), 10, "it has just the snapshot");
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 40)]).await)), 40);
        tokio::time::advance(LOG_MAX_WAIT / 2).await;
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 41)]).await)), 41, "it gets on");
        tokio::time::advance(LOG_MAX_WAIT / 2).await;
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 41)]).await)), 41);
        assert_eq!(sent.purgeable(95, Some(&matched(&[(1, 80)]).await)), 95, "it has all that was there by then");
        begin(&sent, 1, &snapshot).end();
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 40)]).await)), 40);
        tokio::time::advance(LOG_MAX_WAIT).await;
        assert_eq!(sent.purgeable(50, Some(&matched(&[(1, 40)]).await)), 50, "it has failed");
        for cleared in [Some(matched(&[(2, 90)]).await), None] {
            begin(&sent, 1, &snapshot).end();
            assert_eq!(sent.purgeable(50, cleared.as_ref()), 50, "it is no member, or this one does not lead");
        }
    }

    #[tokio::test]
    async fn a_damaged_snapshot_is_not_offered_again() {
        let sent = SentSnapshot::default();
        let snapshot = sample(&sent, 10).await;
        let transfer = begin(&sent, 1, &snapshot);
        sent.report_damage();
        sent.damage_found().await;
        drop(transfer);
        assert_eq!((pinned(&sent), sent.is_damaged()), (None, true));
        sent.set_sound();
        assert!(!sent.is_damaged());
    }
}
