//! A replica as the node sees it: its group, its state, and its leader tasks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_cluster::Shard;
use holdfast_core::Application;
use holdfast_replication::{Group, ReadMode};
use parking_lot::Mutex;

use crate::machine::ShardMachine;
use crate::outbox_sender::OutboxSender;
use crate::tasks;

/// The replica to start.
pub(crate) struct ReplicaSpec<'a> {
    pub(crate) application: Application,
    pub(crate) shard: &'a Shard,
    pub(crate) replica: u64,
    /// Whether it may bootstrap the group.
    pub(crate) may_bootstrap: bool,
}

/// One replica of a shard on this node.
pub(crate) struct Replica {
    pub(crate) application: Application,
    pub(crate) group: Group,
    pub(crate) machine: Arc<ShardMachine>,
    pub(crate) reads: ReadMode,
    pub(crate) may_bootstrap: bool,
    is_decommissioned: AtomicBool,
    /// Why it could not be restarted after it stopped.
    restart_failure: Mutex<Option<String>>,
}

impl Replica {
    /// Starts the leader tasks' supervisor, which runs them whenever the replica leads.
    pub(crate) fn start(
        place: &ReplicaSpec<'_>,
        group: Group,
        machine: Arc<ShardMachine>,
        reads: ReadMode,
        outbox_sender: OutboxSender,
        is_serving: Arc<AtomicBool>,
    ) -> Self {
        let leader_tasks = tasks::run(group.clone(), Arc::clone(&machine), outbox_sender, is_serving);
        group.tasks().spawn_essential("leader_tasks", leader_tasks);
        let (is_decommissioned, restart_failure) = (AtomicBool::new(false), Mutex::default());
        let ReplicaSpec { application, may_bootstrap, .. } = *place;
        Self { application, group, machine, reads, may_bootstrap, is_decommissioned, restart_failure }
    }

    /// Returns the reason why the replica does not run, if any.
    pub(crate) fn failure(&self) -> Option<String> {
        self.restart_failure.lock().clone().or_else(|| self.group.failure().map(|failure| failure.to_string()))
    }

    /// Records why the replica can't be restarted.
    pub(crate) fn record_failure(&self, reason: String) {
        *self.restart_failure.lock() = Some(reason);
    }

    /// Marks a replica that left the config: it runs until its group works without it.
    pub(crate) fn decommission(&self) {
        self.is_decommissioned.store(true, Ordering::Release);
    }

    /// Returns true if the replica left the config.
    pub(crate) fn is_decommissioned(&self) -> bool {
        self.is_decommissioned.load(Ordering::Acquire)
    }
}
