//! A replica as the node sees it: its group, its state, and its duties while it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_cluster::Shard;
use holdfast_core::shard::Application;
use holdfast_replication::{Group, ReadMode};
use parking_lot::Mutex;

use crate::machine::ShardMachine;
use crate::outbox_sender::OutboxSender;
use crate::tasks;

/// Which replica is to be started.
pub(crate) struct ReplicaSpec<'a> {
    pub(crate) application: Application,
    pub(crate) shard: &'a Shard,
    pub(crate) replica: u64,
    /// Whether it may be the one that forms the group.
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
    /// Why it could not be started again, since it has stopped.
    restart_failure: Mutex<Option<String>>,
}

impl Replica {
    /// Takes up the duties whenever the replica leads.
    pub(crate) fn start(
        place: &ReplicaSpec<'_>,
        group: Group,
        machine: Arc<ShardMachine>,
        reads: ReadMode,
        delivery: OutboxSender,
    ) -> Self {
        group.tasks().spawn_essential("leader_tasks", tasks::run(group.clone(), Arc::clone(&machine), delivery));
        let (is_decommissioned, restart_failure) = (AtomicBool::new(false), Mutex::default());
        let ReplicaSpec { application, may_bootstrap, .. } = *place;
        Self { application, group, machine, reads, may_bootstrap, is_decommissioned, restart_failure }
    }

    /// Why it does not run, if it does not.
    pub(crate) fn failure(&self) -> Option<String> {
        self.restart_failure.lock().clone().or_else(|| self.group.failure().map(|failure| failure.to_string()))
    }

    /// It can't be started again, for that reason.
    pub(crate) fn record_failure(&self, reason: String) {
        *self.restart_failure.lock() = Some(reason);
    }

    /// The config has no place for it any more: it goes on until its group does without it.
    pub(crate) fn decommission(&self) {
        self.is_decommissioned.store(true, Ordering::Release);
    }

    /// Whether the config has no place for it any more.
    pub(crate) fn is_decommissioned(&self) -> bool {
        self.is_decommissioned.load(Ordering::Acquire)
    }
}
