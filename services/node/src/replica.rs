//! A replica as the node sees it: its group, its state, and its duties while it leads.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use holdfast_core::shard::Application;
use holdfast_replication::{Group, Reads};
use tokio::task::JoinHandle;

use crate::duties;
use crate::machine::ShardMachine;
use crate::router::Delivery;

/// One replica of a shard on this node.
pub(crate) struct Replica {
    pub(crate) application: Application,
    pub(crate) group: Group,
    pub(crate) machine: Arc<ShardMachine>,
    pub(crate) reads: Reads,
    duties: JoinHandle<()>,
    is_retiring: AtomicBool,
}

impl Replica {
    /// Takes up the duties whenever the replica leads.
    pub(crate) fn start(
        application: Application,
        group: Group,
        machine: Arc<ShardMachine>,
        reads: Reads,
        delivery: Delivery,
    ) -> Self {
        let duties = tokio::spawn(duties::follow(group.clone(), Arc::clone(&machine), delivery));
        Self { application, group, machine, reads, duties, is_retiring: AtomicBool::new(false) }
    }

    /// The config has no place for it any more: it goes on until its group does without it.
    pub(crate) fn retire(&self) {
        self.is_retiring.store(true, Ordering::Release);
    }

    /// Whether the config has no place for it any more.
    pub(crate) fn is_retiring(&self) -> bool {
        self.is_retiring.load(Ordering::Acquire)
    }

    /// Ends the duties; the group goes on.
    pub(crate) fn end_duties(&self) {
        self.duties.abort();
    }
}
