//! Status of a replica.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::group::Group;
use crate::types::LogId;

/// Status of a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// The current term.
    pub term: u64,
    /// The leader, if known.
    pub leader: Option<u64>,
    /// Index of the last entry in the log.
    pub last_log_index: u64,
    /// Index of the last entry known to be committed.
    pub committed_index: u64,
    /// Index of the last entry that is applied as a whole, as all before it are.
    pub applied_index: u64,
    /// Index of the last entry in the snapshot.
    pub snapshot_index: u64,
    /// Index of the last entry purged from the log.
    pub purged_index: u64,
    /// openraft's name for the replica's state.
    pub state: String,
    /// While this replica leads: every other replica with its lag in entries.
    pub followers: Vec<(u64, u64)>,
    /// The voters of the group as this replica knows it; during a membership change, the old and the new ones.
    pub voters: Vec<u64>,
    /// The rules of the next entry.
    pub rules: u16,
    /// Replicas that are catching up.
    pub learners: Vec<u64>,
    /// Time since the snapshot was made or installed; for an older one, since the process started.
    pub snapshot_age: Duration,
    /// Bytes of the entries applied since that snapshot; since the process started if that is later.
    pub bytes_since_snapshot: u64,
}

impl Group {
    /// Returns the number of commands of the shard of this number that wait for their entry.
    pub fn queued_commands(&self, shard: u32) -> usize {
        self.proposals().len_of(shard)
    }

    /// Returns the number of its commands in the apply queue: of entries that the group has passed. At most 1,024, or one
    /// section.
    pub fn apply_queue_commands(&self, shard: u32) -> usize {
        self.adapter().queues.len_of(shard)
    }

    /// Returns the status of the replica.
    pub fn status(&self) -> GroupStatus {
        let metrics = self.raft().metrics().borrow_watched().clone();
        let last = metrics.last_log_index.unwrap_or(0);
        let behind = |matched: Option<LogId>| last.saturating_sub(matched.map_or(0, |id| id.index));
        let followers = metrics.replication.iter().flatten();
        let followers = followers.filter(|(replica, _)| **replica != self.replica());
        let index = |id: Option<LogId>| id.map_or(0, |id| id.index);
        GroupStatus {
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_log_index: last,
            committed_index: index(metrics.cluster_committed),
            applied_index: self.last_applied_index(),
            snapshot_index: index(metrics.snapshot),
            purged_index: index(metrics.purged),
            state: match &metrics.running_state {
                Ok(()) => format!("{:?}", metrics.state),
                Err(fatal) => format!("stopped: {fatal}"),
            },
            followers: followers.map(|(replica, matched)| (*replica, behind(*matched))).collect(),
            voters: metrics.membership_config.voter_ids().collect(),
            learners: metrics.membership_config.membership().learner_ids().collect(),
            rules: self.rules(),
            snapshot_age: self.snapshot_age(),
            bytes_since_snapshot: self.bytes_since_snapshot(),
        }
    }

    /// Returns true if this replica is a voter; a new replica in an existing group becomes one when it has caught up.
    pub fn is_member(&self) -> bool {
        let metrics = self.raft().metrics();
        metrics.borrow_watched().membership_config.voter_ids().any(|voter| voter == self.replica())
    }

    /// Returns the term in which this replica was elected and is not deposed, whether or not it already serves.
    pub fn elected_term(&self) -> Option<u64> {
        let metrics = self.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.state.is_leader().then_some(metrics.vote.leader_id.term)
    }

    /// Returns the latest term that this replica knows, whoever leads in it.
    pub fn current_term(&self) -> u64 {
        let metrics = self.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.vote.leader_id.term
    }
}
