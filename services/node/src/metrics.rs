//! Metrics of the node's replicas, for `/metrics`: size, leadership and replication lag.

use std::sync::Weak;
use std::time::Duration;

use metrics::{Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge};
use tokio::time::{MissedTickBehavior, interval};

use crate::leader;
use crate::node::NodeInner;
use crate::replica::{Replica, ShardReplica};

/// Sample interval. Prometheus usually scrapes every 15 seconds.
const SAMPLE_INTERVAL: Duration = Duration::from_secs(2);

/// Samples the metrics of every replica until the node stops.
pub(crate) async fn run(shared: Weak<NodeInner>) {
    describe();
    let mut ticks = interval(SAMPLE_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        // The task keeps nothing alive: a stopped node has no metrics.
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        for replica in shared.replicas() {
            record(&replica);
        }
        let map = shared.map();
        for left_out in shared.poisoned_replicas.read().values() {
            let replicas = map.group(&left_out.group).map(|group| group.replicas.as_slice()).unwrap_or_default();
            let others = replicas.iter().filter(|replica| replica.id != left_out.replica);
            reset_group(&left_out.group, others.map(|replica| replica.node_id.as_str()));
            for shard in &left_out.shards {
                reset_shard(shard);
                gauge!("holdfast_shard_failed", "shard" => shard.clone()).set(1.0);
            }
        }
    }
}

/// Records one replica and its shards. Labels are ids of the cluster config: groups, shards, and nodes.
fn record(replica: &Replica) {
    let group = replica.group.id().to_owned();
    let of_group = |name: &'static str, value: f64| gauge!(name, "group" => group.clone()).set(value);
    let status = replica.group.status();
    let leads = replica.group.subscribe_leadership().borrow().is_some();
    let has_failed = replica.failure().is_some();
    // Replicas that don't lead report 0, so that a sum over all nodes counts nothing twice.
    of_group("holdfast_group_leader", if leads { 1.0 } else { 0.0 });
    of_group("holdfast_apply_lag_entries", status.committed_index.saturating_sub(status.applied_index) as f64);
    of_group("holdfast_snapshot_lag_entries", status.applied_index.saturating_sub(status.snapshot_index) as f64);
    of_group("holdfast_snapshot_lag_bytes", status.bytes_since_snapshot as f64);
    of_group("holdfast_snapshot_age_seconds", status.snapshot_age.as_secs_f64());
    for (id, node) in replica.group.locations().iter().filter(|(id, _)| **id != replica.group.replica()) {
        let behind = status.followers.iter().find(|(follower, _)| leads && follower == id);
        let behind = behind.map_or(0, |(_, entries)| *entries) as f64;
        gauge!("holdfast_replica_lag_entries", "group" => group.clone(), "node" => node.clone()).set(behind);
    }
    replica.shards.iter().for_each(|shard| record_shard(shard, leads, has_failed, status.rules));
}

fn record_shard(shard: &ShardReplica, leads: bool, has_failed: bool, rules: u16) {
    let of_shard = |name: &'static str, value: f64| gauge!(name, "shard" => shard.id.clone()).set(value);
    let if_leader = |value: usize| if leads { value as f64 } else { 0.0 };
    let kept = shard.machine.usage();
    of_shard("holdfast_shard_leader", if leads { 1.0 } else { 0.0 });
    of_shard("holdfast_shard_failed", if has_failed || shard.machine.check_health().is_err() { 1.0 } else { 0.0 });
    of_shard("holdfast_holds", if_leader(kept.holds));
    of_shard("holdfast_waiting_requests", if_leader(kept.waits));
    of_shard("holdfast_sessions", if_leader(kept.sessions));
    of_shard("holdfast_state_bytes", if_leader(usize::try_from(shard.machine.state_bytes()).unwrap_or(usize::MAX)));
    of_shard("holdfast_table_bytes", if_leader(usize::try_from(shard.machine.table_bytes()).unwrap_or(usize::MAX)));
    of_shard("holdfast_queued_commands", if_leader(shard.queued_commands()));
    of_shard("holdfast_shard_apply_queue_commands", shard.apply_queue_commands() as f64);
    of_shard("holdfast_shard_rules", f64::from(rules));
}

/// Resets the metrics of a shard that is no longer on this node.
pub(crate) fn reset_shard(shard: &str) {
    let names = [
        "holdfast_shard_leader",
        "holdfast_shard_failed",
        "holdfast_holds",
        "holdfast_waiting_requests",
        "holdfast_sessions",
        "holdfast_state_bytes",
        "holdfast_table_bytes",
        "holdfast_queued_commands",
        "holdfast_shard_apply_queue_commands",
        "holdfast_shard_rules",
    ];
    for name in names {
        gauge!(name, "shard" => shard.to_owned()).set(0.0);
    }
}

/// Resets the metrics of a group that no longer has a replica on this node; the others are on `nodes`.
pub(crate) fn reset_group<'a>(group: &str, nodes: impl Iterator<Item = &'a str>) {
    let names = [
        "holdfast_group_leader",
        "holdfast_apply_lag_entries",
        "holdfast_snapshot_lag_entries",
        "holdfast_snapshot_lag_bytes",
        "holdfast_snapshot_age_seconds",
    ];
    for name in names {
        gauge!(name, "group" => group.to_owned()).set(0.0);
    }
    for node in nodes {
        gauge!("holdfast_replica_lag_entries", "group" => group.to_owned(), "node" => node.to_owned()).set(0.0);
    }
}

fn describe() {
    leader::describe();
    describe_gauge!("holdfast_group_leader", "1 on the node that leads the group, 0 on others.");
    describe_gauge!("holdfast_shard_leader", "1 on the node that leads the shard's group, 0 on others.");
    describe_gauge!("holdfast_shard_failed", "1 while the shard is out of service on this node after a failure.");
    let failures = "Long-lived tasks that ended or panicked, by task. The node restarts the task or its replica.";
    describe_counter!("holdfast_task_failures_total", failures);
    let refused = "Connections closed at a limit of the port, by limit.";
    describe_counter!("holdfast_node_connections_refused_total", refused);
    for task in ["apply", "raft", "leader_state"] {
        counter!("holdfast_task_failures_total", "task" => task).increment(0);
    }
    describe_gauge!("holdfast_holds", "Holds in any state, reported by the leader.");
    describe_gauge!("holdfast_waiting_requests", "Requests in the queues of locks, reported by the leader.");
    describe_gauge!("holdfast_sessions", "Sessions, reported by the leader.");
    describe_gauge!("holdfast_state_bytes", Unit::Bytes, "State charged to accounts, reported by the leader.");
    let tables = "State charged to accounts for lock tables in the leader's memory.";
    describe_gauge!("holdfast_table_bytes", Unit::Bytes, tables);
    describe_gauge!("holdfast_queued_commands", "Commands waiting at the leader for a log entry.");
    let applying = "Commands of committed entries that the shard has still to apply while its group goes on.";
    describe_gauge!("holdfast_shard_apply_queue_commands", applying);
    describe_gauge!("holdfast_shard_rules", "Version of the rules for the replica's next entry.");
    describe_gauge!("holdfast_apply_lag_entries", "Committed entries not yet applied.");
    describe_gauge!("holdfast_replica_lag_entries", "Entries by which a follower lags, reported by the leader.");
    describe_gauge!("holdfast_snapshot_lag_entries", "Entries applied since the latest snapshot.");
    let log = "Bytes of the entries applied since the latest snapshot, or since the start of the process.";
    describe_gauge!("holdfast_snapshot_lag_bytes", Unit::Bytes, log);
    let age = "Time since the latest snapshot, or since the start of the process if that is later.";
    describe_gauge!("holdfast_snapshot_age_seconds", Unit::Seconds, age);
    let parts = "Parts of saved snapshots, by outcome: written, or kept from the previous snapshot.";
    describe_counter!("holdfast_snapshot_parts_total", parts);
    for outcome in ["written", "kept"] {
        counter!("holdfast_snapshot_parts_total", "outcome" => outcome).increment(0);
    }
    describe_counter!("holdfast_leader_elections_total", "Times a replica of this node became leader.");
    describe_counter!("holdfast_fast_failovers_total", "Immediate elections started after the leader's process died.");
    counter!("holdfast_fast_failovers_total").increment(0);
    let witness = "Time until enough replicas for an election confirmed that the leader's process is dead.";
    describe_histogram!("holdfast_second_witness_seconds", Unit::Seconds, witness);
    let commit = "Time from the proposal of an entry until the leader applies it, durable on a majority.";
    describe_histogram!("holdfast_commit_seconds", Unit::Seconds, commit);
    describe_histogram!("holdfast_apply_seconds", Unit::Seconds, "Time to apply one entry, without what is queued.");
    let slice = "Time for which one apply slice of an entry locks the state.";
    describe_histogram!("holdfast_apply_slice_seconds", Unit::Seconds, slice);
    let cpu = "CPU time of one apply slice of an entry.";
    describe_histogram!("holdfast_apply_slice_cpu_seconds", Unit::Seconds, cpu);
    let rebuild = "Time from a leader's table epoch until all its lock tables in memory grant locks.";
    describe_histogram!("holdfast_table_rebuild_seconds", Unit::Seconds, rebuild);
    let conflicts = "Claims that a new leader left out of a lock table in memory because a later claim conflicts.";
    describe_counter!("holdfast_conflicting_claims_total", conflicts);
    counter!("holdfast_conflicting_claims_total").increment(0);
    describe_histogram!("holdfast_entry_commands", "Commands in one log entry.");
    describe_histogram!("holdfast_entry_shards", "Shards with commands or a tick in one log entry.");
    describe_histogram!("holdfast_storage_sync_seconds", Unit::Seconds, "Time of one write with its fsync.");
    describe_histogram!("holdfast_storage_batch_operations", "Operations in one write.");
    describe_histogram!("holdfast_storage_batch_bytes", Unit::Bytes, "Bytes in one write.");
    describe_gauge!("holdfast_storage_free_bytes", Unit::Bytes, "Free space on the disk of the data directory.");
    describe_counter!("holdfast_storage_syncs_total", "Writes, each with its fsync.");
    describe_counter!("holdfast_storage_bytes_total", "Bytes written.");
}
