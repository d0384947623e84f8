//! A look at a replica.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;

use crate::group::Group;
use crate::types::LogId;

/// A look at a replica.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GroupStatus {
    /// Current term.
    pub term: u64,
    /// The leader, if known.
    pub leader: Option<u64>,
    /// Last entry in the log.
    pub last_log_index: u64,
    /// Last entry known to be committed.
    pub committed_index: u64,
    /// Last entry applied.
    pub applied_index: u64,
    /// Last entry in the snapshot.
    pub snapshot_index: u64,
    /// Last entry no longer in the log.
    pub purged_index: u64,
    /// openraft's name for what the replica is doing.
    pub state: String,
    /// While this replica leads: every other replica with how many entries it is behind.
    pub followers: Vec<(u64, u64)>,
    /// The voters of the group as this replica knows it; while it changes, those of before and after.
    pub voters: Vec<u64>,
    /// The rules by which the next entry is applied.
    pub rules: u16,
    /// Replicas that are being brought up to date.
    pub learners: Vec<u64>,
    /// Commands that wait for their entry.
    pub queued_commands: usize,
    /// How long ago the snapshot was made or taken over; since the start of the process when it is from before.
    pub snapshot_age: Duration,
}

impl Group {
    /// A look at the replica.
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
            applied_index: index(metrics.last_applied),
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
            queued_commands: self.queued_commands(),
            snapshot_age: self.snapshot_age(),
        }
    }

    /// Whether the group counts on this replica; a new one in an old group is taken in once it has caught up.
    pub fn is_member(&self) -> bool {
        let metrics = self.raft().metrics();
        metrics.borrow_watched().membership_config.voter_ids().any(|voter| voter == self.replica())
    }

    /// The term in which this replica has won an election and was not deposed yet, whether or not it serves by now.
    pub fn elected_term(&self) -> Option<u64> {
        let metrics = self.raft().server_metrics();
        let metrics = metrics.borrow_watched();
        metrics.state.is_leader().then_some(metrics.vote.leader_id.term)
    }
}
