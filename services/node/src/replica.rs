//! A replica as the node sees it: its group, its state, and its duties while it leads.

use std::sync::Arc;

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
        Self { application, group, machine, reads, duties }
    }

    /// Ends the duties; the group goes on.
    pub(crate) fn end_duties(&self) {
        self.duties.abort();
    }
}
