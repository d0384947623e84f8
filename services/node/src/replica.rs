//! A replica as the node sees it: its group, its state, and its duties while it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_cluster::Shard;
use holdfast_core::shard::Application;
use holdfast_replication::{Group, Reads};
use parking_lot::Mutex;

use crate::duties;
use crate::machine::ShardMachine;
use crate::router::Delivery;

/// Which replica is to be started.
pub(crate) struct Place<'a> {
    pub(crate) application: Application,
    pub(crate) shard: &'a Shard,
    pub(crate) replica: u64,
    /// Whether it may be the one that forms the group.
    pub(crate) may_form: bool,
}

/// One replica of a shard on this node.
pub(crate) struct Replica {
    pub(crate) application: Application,
    pub(crate) group: Group,
    pub(crate) machine: Arc<ShardMachine>,
    pub(crate) reads: Reads,
    pub(crate) may_form: bool,
    is_retiring: AtomicBool,
    /// Why it could not be started again, since it has stopped.
    stays_down: Mutex<Option<String>>,
}

impl Replica {
    /// Takes up the duties whenever the replica leads.
    pub(crate) fn start(
        place: &Place<'_>,
        group: Group,
        machine: Arc<ShardMachine>,
        reads: Reads,
        delivery: Delivery,
    ) -> Self {
        group.tasks().run("duties", duties::follow(group.clone(), Arc::clone(&machine), delivery));
        let (is_retiring, stays_down) = (AtomicBool::new(false), Mutex::default());
        let Place { application, may_form, .. } = *place;
        Self { application, group, machine, reads, may_form, is_retiring, stays_down }
    }

    /// Why it does not run, if it does not.
    pub(crate) fn failure(&self) -> Option<String> {
        self.stays_down.lock().clone().or_else(|| self.group.failure().map(|failure| failure.to_string()))
    }

    /// It can't be started again, for that reason.
    pub(crate) fn note(&self, reason: String) {
        *self.stays_down.lock() = Some(reason);
    }

    /// The config has no place for it any more: it goes on until its group does without it.
    pub(crate) fn retire(&self) {
        self.is_retiring.store(true, Ordering::Release);
    }

    /// Whether the config has no place for it any more.
    pub(crate) fn is_retiring(&self) -> bool {
        self.is_retiring.load(Ordering::Acquire)
    }
}
