//! Restarts failed replicas from their store; poisons a replica that fails again at the same step.

use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_proto::internal::Poison as PoisonRecord;
use holdfast_replication::{FailedEntry, Failure, Poison, ReplicationError};
use holdfast_supervise::restart_delays;
use tokio::time::{Instant, sleep};

use crate::failure;
use crate::node::NodeInner;
use crate::replica::{Replica, ReplicaSpec};

/// A replica that ran this long without failing restarts with the shortest delay again.
const STABLE_AFTER: Duration = Duration::from_secs(60);

/// A replica of this node that does not run, because its state can't be brought past an entry.
pub(crate) struct PoisonedReplica {
    pub(crate) group: String,
    pub(crate) shards: Vec<String>,
    pub(crate) replica: u64,
    pub(crate) poison: Poison,
}

impl PoisonedReplica {
    /// Returns a human-readable reason.
    pub(crate) fn reason(&self) -> String {
        let Poison { failed_entry, release, .. } = &self.poison;
        format!(
            "replica {} of {} has failed for good: release {release} can't apply {}; install another release, or give \
             the group a new replica here",
            self.replica,
            self.group,
            Failure::StateMachine(failed_entry.clone())
        )
    }

    pub(crate) fn to_record(&self) -> PoisonRecord {
        to_record(self.poison.failed_entry.clone(), &self.poison.release)
    }
}

/// Returns the wire form of what a release failed at.
pub(crate) fn to_record(failed_entry: FailedEntry, release: &str) -> PoisonRecord {
    let FailedEntry { term, index, failure } = failed_entry;
    PoisonRecord {
        term,
        index,
        step: failure.step.to_string(),
        namespace: failure.namespace,
        command: failure.command,
        message: failure.message,
        backtrace: failure.backtrace,
        release: release.to_owned(),
    }
}

impl NodeInner {
    /// Returns the stored poison record of a replica that this release must not run. It removes a record of another
    /// release, because this release tries again.
    pub(crate) async fn load_poison(&self, replica: u64) -> Result<Option<Poison>, ReplicationError> {
        let store = self.store.replica(replica);
        let Some(poison) = Poison::read(&store)? else { return Ok(None) };
        if poison.release == self.release {
            return Ok(Some(poison));
        }
        tracing::warn!(replica, ?poison, release = self.release, "retrying entry after release change");
        Poison::remove(&store).await?;
        Ok(None)
    }

    /// Stores what ended the process before, so that no replica tries it again. Called before any is started.
    pub(crate) async fn store_fatal_step(&self) -> Result<(), ReplicationError> {
        let Some(notes) = &self.run_markers else { return Ok(()) };
        let Some(fatal) = notes.ended_at() else { return Ok(()) };
        let map = self.map();
        for place in map.replicas_of_node(&self.node_id) {
            if !map.shards_of_group(&place.group.id).iter().any(|known| known.shard.id == fatal.shard) {
                continue;
            }
            let failure = failure::from_process_end(fatal.step, &[]);
            let failed_entry = FailedEntry { term: fatal.term, index: fatal.index, failure };
            let (release, ended_process) = (self.release.clone(), Some(fatal.left_out));
            let poison = Poison { failed_entry, release, ended_process };
            tracing::error!(
                shard = fatal.shard,
                ?poison,
                "previous process ended while applying an entry; shard failed"
            );
            Poison::save_of_shard(&self.store.replica(place.replica.id), &fatal.shard, Some(poison)).await?;
        }
        notes.remove_end();
        Ok(())
    }

    /// Keeps the replica stopped until the release changes or the replica is replaced.
    pub(crate) fn mark_poisoned(&self, group: &str, shards: Vec<String>, replica: u64, poison: Poison) {
        let left_out = PoisonedReplica { group: group.to_owned(), shards, replica, poison };
        tracing::error!(group, replica, poison = ?left_out.poison, "{}", left_out.reason());
        self.poisoned_replicas.write().insert(replica, Arc::new(left_out));
    }
}

/// Supervises one replica until it is decommissioned or poisoned, or the node stops.
pub(crate) async fn run(shared: Weak<NodeInner>, id: u64) {
    let mut pauses = restart_delays();
    let mut last: Option<FailedEntry> = None;
    loop {
        let Some(replica) = shared.upgrade().and_then(|shared| shared.replica(id)) else { return };
        let began = Instant::now();
        let failure = replica.group.failed().await;
        let Some(shared_now) = shared.upgrade().filter(|shared| shared.should_run(&replica)) else { return };
        log_failure(&replica, &failure);
        shared_now.group_manager.stop_group(id).await;
        if let Failure::StateMachine(broken) = failure {
            if last.as_ref().is_some_and(|last| last.is_same_step(&broken)) {
                return shared_now.poison_replica(&replica, broken).await;
            }
            last = Some(broken);
        }
        drop(shared_now);
        if began.elapsed() >= STABLE_AFTER {
            pauses = restart_delays();
        }
        for pause in pauses.by_ref() {
            sleep(pause).await;
            let Some(shared) = shared.upgrade().filter(|shared| shared.should_run(&replica)) else { return };
            match shared.restart(&replica).await {
                Ok(()) => break,
                Err(error) => {
                    tracing::error!(group = replica.group.id(), replica = id, %error, "replica restart failed");
                    replica.record_failure(error.to_string());
                }
            }
        }
    }
}

fn log_failure(replica: &Replica, failure: &Failure) {
    let (group, id) = (replica.group.id(), replica.group.replica());
    let task = match failure {
        // Logged and counted where it occurred.
        Failure::Task(_) => None,
        Failure::StateMachine(_) => Some("apply"),
        Failure::Raft(_) => Some("raft"),
    };
    if let Some(task) = task {
        metrics::counter!("holdfast_task_failures_total", "task" => task).increment(1);
    }
    let backtrace = match failure {
        Failure::StateMachine(broken) => broken.failure.backtrace.as_str(),
        _ => "",
    };
    tracing::error!(group, replica = id, reason = %failure, backtrace, "replica failed");
}

impl NodeInner {
    /// Returns true if a stopped replica should run.
    fn should_run(&self, replica: &Arc<Replica>) -> bool {
        let is_current = self.replica(replica.group.replica()).is_some_and(|now| Arc::ptr_eq(&now, replica));
        // A failed store stops the whole node.
        is_current && !self.is_stopping() && self.store.failed().borrow().is_none()
    }

    async fn restart(&self, stopped: &Replica) -> Result<(), ReplicationError> {
        // A concurrent config change is applied before or after the restart.
        let _turn = self.config_lock.lock().await;
        let (Some(starting), map) = (self.replica_options.get(), self.map()) else { return Ok(()) };
        let (group, id) = (stopped.group.id(), stopped.group.replica());
        // A group that left the config is decommissioned.
        let Some(group) = map.group(group) else { return Ok(()) };
        let shards = map.shards_of_group(&group.id);
        let place = ReplicaSpec { group, shards, replica: id, may_bootstrap: stopped.may_bootstrap };
        self.start_replica(starting, place).await.map(drop)
    }

    async fn poison_replica(&self, replica: &Replica, failed_entry: FailedEntry) {
        let (group, id) = (replica.group.id(), replica.group.replica());
        let poison = Poison { failed_entry, release: self.release.clone(), ended_process: None };
        if let Err(error) = poison.save(&self.store.replica(id)).await {
            // A store that can't be written stops the node.
            tracing::error!(group, replica = id, %error, "replica poison record not saved");
        }
        let shards = replica.shards.iter().map(|shard| shard.id.clone()).collect();
        self.mark_poisoned(group, shards, id, poison);
        self.replicas.write().remove(&id);
    }
}
