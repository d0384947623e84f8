//! Which shards do not serve on which replica: of this node, for its peers, and of a peer, as it last said.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_proto::internal::{NodeFailures, RaftMessages, ReplicaFailures};
use parking_lot::Mutex;
use tokio::sync::watch;

/// The numbers of the failed shards of each replica of a node, without replicas whose shards all serve: at most the
/// shards of the groups that the node hosts.
type FailuresByReplica = BTreeMap<u64, BTreeSet<u32>>;

/// The failed shards of this node's replicas. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct LocalFailures(Arc<watch::Sender<FailuresByReplica>>);

impl LocalFailures {
    /// Reads the failed shards of a replica again. Connections to peers send them before whatever follows.
    pub(crate) fn update(&self, replica: u64, read: impl FnOnce() -> BTreeSet<u32>) {
        // Read under the lock of the channel, so that an earlier state never replaces a later one.
        self.0.send_if_modified(|failures| {
            let failed = read();
            if failed.is_empty() {
                return failures.remove(&replica).is_some();
            }
            let changes = failures.get(&replica) != Some(&failed);
            failures.insert(replica, failed);
            changes
        });
    }

    /// Returns what one connection has yet to send. Its peer knows nothing, which means that all shards serve.
    pub(crate) fn subscribe(&self) -> FailureNews {
        let mut failures = self.0.subscribe();
        if !failures.borrow().is_empty() {
            failures.mark_changed();
        }
        FailureNews(failures)
    }
}

/// Changes of this node's failed shards that one connection has yet to send.
pub(crate) struct FailureNews(watch::Receiver<FailuresByReplica>);

impl FailureNews {
    /// Waits for a change. [`Self::take`] returns it.
    pub(crate) async fn changed(&mut self) {
        if self.0.changed().await.is_err() {
            // The node is stopping.
            std::future::pending::<()>().await;
        }
        self.0.mark_changed();
    }

    /// Returns all failed shards if they have changed since the last call.
    pub(crate) fn take(&mut self) -> Option<NodeFailures> {
        // An error means that the node is stopping.
        if !self.0.has_changed().unwrap_or(false) {
            return None;
        }
        let failures = self.0.borrow_and_update();
        let replicas = failures.iter().map(|(replica, shards)| {
            let shards = shards.iter().copied().collect();
            ReplicaFailures { replica: *replica, shards }
        });
        Some(NodeFailures { replicas: replicas.collect() })
    }
}

/// What a peer node last said of itself.
#[derive(Default)]
pub(crate) struct PeerReport {
    is_disk_full: AtomicBool,
    replicas: Mutex<BTreeMap<u64, ReplicaReport>>,
}

/// What a replica on a peer node last said of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct ReplicaReport {
    /// Index of the last entry that it had applied; 0 if it has not said. It then had said what failed up to there.
    pub(crate) applied_index: u64,
    /// The numbers of the shards that do not serve there.
    pub(crate) failed_shards: BTreeSet<u32>,
}

impl PeerReport {
    /// Forgets what was said of replicas: on a new connection, a peer says it anew.
    pub(crate) fn reset(&self) {
        self.replicas.lock().clear();
    }

    /// Records what the peer says in a frame.
    pub(crate) fn record(&self, frame: &RaftMessages) {
        self.is_disk_full.store(frame.disk_is_full, Ordering::Relaxed);
        let mut applied = frame.messages.iter().filter(|message| message.from > 0).peekable();
        if frame.failed_shards.is_none() && applied.peek().is_none() {
            return;
        }
        let mut replicas = self.replicas.lock();
        if let Some(failed) = &frame.failed_shards {
            replicas.values_mut().for_each(|report| report.failed_shards.clear());
            for ReplicaFailures { replica, shards } in &failed.replicas {
                replicas.entry(*replica).or_default().failed_shards = shards.iter().copied().collect();
            }
        }
        for message in applied {
            replicas.entry(message.from).or_default().applied_index = message.applied_index;
        }
    }

    /// Returns true if the peer last reported disk space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        !self.is_disk_full.load(Ordering::Relaxed)
    }

    /// Returns what a replica of the peer last said of itself.
    pub(crate) fn replica(&self, replica: u64) -> ReplicaReport {
        self.replicas.lock().get(&replica).cloned().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_proto::internal::RaftMessage;

    use super::*;

    fn frame(failed_shards: Option<NodeFailures>) -> RaftMessages {
        RaftMessages { failed_shards, ..RaftMessages::default() }
    }

    fn failed(report: &PeerReport, replica: u64) -> Vec<u32> {
        report.replica(replica).failed_shards.into_iter().collect()
    }

    #[test]
    fn each_connection_sends_each_change_once_and_a_new_one_what_is_failed_now() {
        let (local, report) = (LocalFailures::default(), PeerReport::default());
        let mut news = local.subscribe();
        assert_eq!(news.take(), None, "a peer takes all shards for healthy");
        local.update(10, || [3, 5].into());
        local.update(20, || [0].into());
        assert!(news.changed().now_or_never().is_some());
        report.record(&frame(news.take()));
        assert_eq!((failed(&report, 10), failed(&report, 20)), (vec![3, 5], vec![0]));
        local.update(20, || [0].into());
        assert!(news.take().is_none() && news.changed().now_or_never().is_none(), "nothing has changed");
        local.update(10, BTreeSet::new);
        report.record(&frame(news.take()));
        assert_eq!((failed(&report, 10), failed(&report, 20)), (vec![], vec![0]));
        report.record(&frame(None));
        assert_eq!(failed(&report, 20), [0], "a frame that says nothing changes nothing");

        report.reset();
        assert_eq!(failed(&report, 20), [0; 0]);
        report.record(&frame(local.subscribe().take()));
        assert_eq!(failed(&report, 20), [0]);
    }

    #[test]
    fn what_a_replica_has_applied_stays_known_when_others_speak() {
        let report = PeerReport::default();
        let answer = |from, applied_index| RaftMessage { from, applied_index, ..RaftMessage::default() };
        report.record(&RaftMessages { messages: vec![answer(10, 7), answer(0, 0)], ..RaftMessages::default() });
        report.record(&RaftMessages { messages: vec![answer(20, 9)], disk_is_full: true, ..RaftMessages::default() });
        assert_eq!([10, 20, 0].map(|replica| report.replica(replica).applied_index), [7, 9, 0]);
        assert!(!report.has_disk_space());
    }
}
