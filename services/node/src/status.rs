//! Node status: readiness and every replica.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_cluster::MAX_ADVISED_GROUPS;
use holdfast_proto::internal::{Follower, ReplicaStatus, StatusAnswer};
use holdfast_replication::{Failure, Group};
use holdfast_supervise::{failing_background_task, failing_process_task};
use tokio::time::sleep;

use crate::machine::{ShardHealth, digest_of};
use crate::node::NodeInner;
use crate::replica::{Replica, ShardReplica};
use crate::replica_supervisor::{self, PoisonedReplica};

/// Attempts to read a state at a stable index before the digest is omitted.
const MAX_DIGEST_ATTEMPTS: usize = 10;

/// How often a starting node checks whether it is ready.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Returns the reason why the node can't serve, if any.
pub(crate) fn not_ready(shared: &NodeInner) -> Option<String> {
    if let Some(error) = shared.store.failed().borrow().as_ref() {
        return Some(error.to_string());
    }
    if shared.is_stopping() {
        return Some("the node is stopping".into());
    }
    let map = shared.map();
    if map.node(&shared.node_id).is_none() {
        return Some("the cluster config has no place for this node any more: stop it".into());
    }
    if let Some(left_out) = shared.poisoned_replicas.read().values().next() {
        return Some(left_out.reason());
    }
    let expected = map.replicas_of_node(&shared.node_id).len();
    let replicas: Vec<_> = shared.replicas().into_iter().filter(|replica| !replica.is_decommissioned()).collect();
    let trouble = |replica: &Arc<Replica>| replica.failure().or_else(|| replica.group.tasks().unhealthy_reason());
    if let Some((replica, trouble)) = replicas.iter().find_map(|replica| Some((replica, trouble(replica)?))) {
        return Some(format!("replica {} of {}: {trouble}", replica.group.replica(), replica.group.id()));
    }
    if let Some(trouble) =
        replicas.iter().flat_map(|replica| &replica.shards).find_map(|shard| failed_shard(shared, shard))
    {
        return Some(trouble);
    }
    if replicas.len() < expected {
        return Some(format!("{} of {expected} replicas have started", replicas.len()));
    }
    if let Some(trouble) = failing_process_task() {
        return Some(trouble);
    }
    let all = replicas.len();
    let failing = |fails: fn(&Group) -> bool| failing(&replicas, fails);
    if let Some((count, first)) = failing(|group| group.status().leader.is_none()) {
        return Some(format!("{count} of {all} groups have no leader, {first} first"));
    }
    let takes_over = |group: &Group| group.elected_term().is_some() && group.subscribe_leadership().borrow().is_none();
    if let Some((count, first)) = failing(takes_over) {
        return Some(format!("{count} of {all} groups still apply the entries of earlier leaders, {first} first"));
    }
    if let Some((count, first)) = failing(|group| !group.is_in_contact()) {
        return Some(format!(
            "replicas of {count} of {all} groups hear nothing of their leader or, where they lead, of the others, \
             {first} first: the log says why"
        ));
    }
    if failing(|group| !group.may_vote()).is_some() {
        return Some(
            "started less than a lease ago: its replicas don't vote yet, so no other node may stop now".into(),
        );
    }
    let (count, first) = failing(|group| !group.is_member())?;
    Some(format!("{count} of {all} replicas are being rebuilt from their peers, {first} first"))
}

/// Returns a problem with tasks that belong to no replica, if any. The node serves without these tasks: if their work
/// is missing, its replicas show it, for example when connections to a majority of their peers are lost.
pub(crate) fn failing_task(shared: &NodeInner) -> Option<String> {
    let of_node = shared.tasks.unhealthy_reason().or_else(|| shared.group_manager.failing_task());
    of_node.or_else(|| shared.outbox_sender.router().failing_task()).or_else(failing_background_task)
}

/// Returns the ids of the shards that have failed here and, as far as is known, serve on no other node that is
/// connected.
pub(crate) fn down_shards(shared: &NodeInner) -> Vec<String> {
    let replicas = shared.replicas();
    let shards = replicas.iter().filter(|replica| !replica.is_decommissioned()).flat_map(|replica| &replica.shards);
    shards.filter(|shard| is_down(shard)).map(|shard| shard.id.clone()).collect()
}

/// Returns true if a shard has failed here for good and on all other replicas too: there is no copy to take its state
/// from, so waiting does not bring it back.
fn is_down(shard: &ShardReplica) -> bool {
    matches!(*shard.machine.health().borrow(), ShardHealth::Failed(_)) && shard.other_replicas_serving().is_empty()
}

/// Returns why a shard does not serve here, if it does not and may yet: a restart of another node has to wait for it. A
/// shard that is down everywhere is no reason, or one shard would take all nodes out of service.
fn failed_shard(shared: &NodeInner, shard: &ShardReplica) -> Option<String> {
    if is_down(shard) {
        return None;
    }
    let (id, replica) = (&shard.id, shard.group.replica());
    match shard.machine.health().borrow().clone() {
        ShardHealth::Healthy => {
            let reason = shard.machine.leader_state_failed().borrow().clone()?;
            Some(format!("the leader state of shard {id} of replica {replica} is built again: {reason}"))
        }
        ShardHealth::Broken(failed) => {
            Some(format!("shard {id} of replica {replica} is built again: {}", Failure::StateMachine(failed)))
        }
        ShardHealth::Failed(failed) => {
            let rebuilding = match shard.rebuild_problem() {
                None => "its state is being taken from other replicas".to_owned(),
                Some(problem) => format!("its state can't be taken from other replicas: {problem}"),
            };
            Some(format!(
                "shard {id} of replica {replica} has failed for good: release {} can't apply {}; {rebuilding}",
                shared.release,
                Failure::StateMachine(failed)
            ))
        }
    }
}

/// Waits until the node is ready for the first time, and logs that in one line for all groups.
pub(crate) async fn report_ready(shared: Weak<NodeInner>) {
    loop {
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        if not_ready(&shared).is_none() {
            shared.is_serving.store(true, Ordering::Relaxed);
            if let Some(notes) = &shared.run_markers {
                notes.finish_steps();
            }
            let replicas = shared.replicas();
            let leading = replicas.iter().filter(|replica| replica.group.subscribe_leadership().borrow().is_some());
            let (leads, rules) = (leading.clone().count(), leading.map(|replica| replica.group.rules()).min());
            tracing::info!(replicas = replicas.len(), leads, rules, "node ready");
            if replicas.len() > MAX_ADVISED_GROUPS {
                tracing::warn!(groups = replicas.len(), "more groups than the advised {MAX_ADVISED_GROUPS}");
            }
            return;
        }
        drop(shared);
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the number of failing replicas, and the group of the first.
fn failing(replicas: &[Arc<Replica>], fails: impl Fn(&Group) -> bool) -> Option<(usize, &str)> {
    let mut failing = replicas.iter().filter(|replica| fails(&replica.group)).map(|replica| replica.group.id());
    let first = failing.next()?;
    Some((1 + failing.count(), first))
}

/// Collects the reply to a status call.
pub(crate) fn collect(shared: &NodeInner, with_digests: bool) -> StatusAnswer {
    let replicas = shared.replicas();
    let left_out = shared.poisoned_replicas.read();
    let replicas = replicas.iter().flat_map(|replica| replica_statuses(replica, with_digests));
    let left_out = left_out.values().flat_map(|left_out| poisoned_statuses(left_out));
    StatusAnswer {
        node_id: shared.node_id.clone(),
        store_id: shared.store.store_id().to_owned(),
        config_version: shared.map().config().version,
        not_ready: not_ready(shared).unwrap_or_default(),
        replicas: replicas.chain(left_out).collect(),
        lowest_rules: shared.rules.lowest.into(),
        highest_rules: shared.rules.highest.into(),
    }
}

/// Returns the status of each shard of a replica. What concerns the log is the same in all.
fn replica_statuses(replica: &Replica, with_digests: bool) -> Vec<ReplicaStatus> {
    let status = of_group(&replica.group);
    let status = |shard: &Arc<ShardReplica>| shard_status(shard, status.clone(), with_digests);
    replica.shards.iter().map(status).collect()
}

fn of_group(group: &Group) -> ReplicaStatus {
    let status = group.status();
    let follower = |(replica, entries_behind)| Follower { replica, entries_behind };
    ReplicaStatus {
        group: group.id().to_owned(),
        replica: group.replica(),
        term: status.term,
        leader: status.leader.unwrap_or(0),
        last_log_index: status.last_log_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        snapshot_index: status.snapshot_index,
        purged_index: status.purged_index,
        state: status.state,
        followers: status.followers.into_iter().map(follower).collect(),
        snapshot_age_ms: u64::try_from(status.snapshot_age.as_millis()).unwrap_or(u64::MAX),
        voters: status.voters,
        learners: status.learners,
        rules: status.rules.into(),
        ..ReplicaStatus::default()
    }
}

fn shard_status(shard: &ShardReplica, mut status: ReplicaStatus, with_digest: bool) -> ReplicaStatus {
    let health = shard.machine.health().borrow().clone();
    let poison = match &health {
        ShardHealth::Healthy => None,
        // An earlier process may have failed at it for good.
        ShardHealth::Broken(_) => shard.poison(),
        ShardHealth::Failed(failed_entry) => Some(shard.poison_at(failed_entry)),
    };
    let poison = poison.map(|poison| replica_supervisor::to_record(poison.failed_entry, &poison.release));
    if with_digest {
        for _ in 0..MAX_DIGEST_ATTEMPTS {
            let before = shard.group.applied_index();
            let frozen = shard.machine.frozen_state();
            let after = shard.group.applied_index();
            let same = before.filter(|_| before == after);
            if let (Some(index), Some(frozen)) = (same, frozen) {
                status = of_group(&shard.group);
                status.applied_index = index;
                status.state_digest = digest_of(frozen.chunks());
                break;
            }
        }
    }
    let (kept, checkpoint) = (shard.machine.usage(), shard.machine.latest_checkpoint());
    ReplicaStatus {
        shard: shard.id.clone(),
        holds: kept.holds as u64,
        waiting: kept.waits as u64,
        sessions: kept.sessions as u64,
        queued_commands: shard.queued_commands() as u64,
        checkpoint_index: checkpoint.as_ref().map_or(0, |checkpoint| checkpoint.index),
        checkpoint_digest: checkpoint.and_then(|checkpoint| checkpoint.digest()).unwrap_or_default(),
        state: if matches!(health, ShardHealth::Failed(_)) { "failed".to_owned() } else { status.state },
        poison,
        ..status
    }
}

fn poisoned_statuses(left_out: &PoisonedReplica) -> Vec<ReplicaStatus> {
    let of_shard = |shard: &String| ReplicaStatus {
        shard: shard.clone(),
        group: left_out.group.clone(),
        replica: left_out.replica,
        state: "failed".into(),
        poison: Some(left_out.to_record()),
        ..ReplicaStatus::default()
    };
    left_out.shards.iter().map(of_shard).collect()
}
