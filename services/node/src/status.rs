//! Node status: readiness and every replica.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_proto::internal::{Follower, ReplicaStatus, StatusAnswer};
use holdfast_replication::Group;
use sha2::{Digest, Sha256};
use tokio::time::sleep;

use crate::node::NodeInner;
use crate::replica::Replica;
use crate::replica_supervisor::PoisonedReplica;

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
        return Some(format!("replica {} of {}: {trouble}", replica.group.replica(), replica.group.shard()));
    }
    if replicas.len() < expected {
        return Some(format!("{} of {expected} replicas have started", replicas.len()));
    }
    if let Some(trouble) = shared.tasks.unhealthy_reason().or_else(|| shared.group_manager.failing_task()) {
        return Some(trouble);
    }
    let all = replicas.len();
    let failing = |fails: fn(&Group) -> bool| failing(&replicas, fails);
    if let Some((count, first)) = failing(|group| group.status().leader.is_none()) {
        return Some(format!("{count} of {all} shards have no leader, {first} first"));
    }
    let takes_over = |group: &Group| group.elected_term().is_some() && group.subscribe_leadership().borrow().is_none();
    if let Some((count, first)) = failing(takes_over) {
        return Some(format!("{count} of {all} shards still apply the entries of earlier leaders, {first} first"));
    }
    if let Some((count, first)) = failing(|group| !group.is_in_contact()) {
        return Some(format!(
            "replicas of {count} of {all} shards hear nothing of their leader or, where they lead, of the others, \
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

/// Waits until the node is ready for the first time, and logs that in one line for all shards.
pub(crate) async fn report_ready(shared: Weak<NodeInner>) {
    loop {
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        if not_ready(&shared).is_none() {
            shared.is_serving.store(true, Ordering::Relaxed);
            let replicas = shared.replicas();
            let leading = replicas.iter().filter(|replica| replica.group.subscribe_leadership().borrow().is_some());
            let (leads, rules) = (leading.clone().count(), leading.map(|replica| replica.group.rules()).min());
            tracing::info!(replicas = replicas.len(), leads, rules, "the node is ready");
            return;
        }
        drop(shared);
        sleep(POLL_INTERVAL).await;
    }
}

/// Returns the number of failing replicas, and the shard of the first.
fn failing(replicas: &[Arc<Replica>], fails: impl Fn(&Group) -> bool) -> Option<(usize, &str)> {
    let mut failing = replicas.iter().filter(|replica| fails(&replica.group)).map(|replica| replica.group.shard());
    let first = failing.next()?;
    Some((1 + failing.count(), first))
}

/// Collects the reply to a status call.
pub(crate) fn collect(shared: &NodeInner, with_digests: bool) -> StatusAnswer {
    let replicas = shared.replicas();
    let left_out = shared.poisoned_replicas.read();
    let replicas = replicas.iter().map(|replica| replica_status(replica, with_digests));
    let left_out = left_out.values().map(|left_out| poisoned_status(left_out));
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

/// Returns the SHA-256 of a snapshot.
fn digest_of(chunks: &[Vec<u8>]) -> Vec<u8> {
    let mut hasher = Sha256::new();
    chunks.iter().for_each(|chunk| hasher.update(chunk));
    hasher.finalize().to_vec()
}

fn replica_status(replica: &Replica, with_digest: bool) -> ReplicaStatus {
    let mut status = replica.group.status();
    let mut digest = Vec::new();
    if with_digest {
        for _ in 0..MAX_DIGEST_ATTEMPTS {
            let before = replica.group.applied_index();
            let frozen = replica.machine.frozen_state();
            let after = replica.group.applied_index();
            let same = before.filter(|_| before == after);
            if let (Some(index), Some(frozen)) = (same, frozen) {
                status = replica.group.status();
                status.applied_index = index;
                digest = digest_of(&frozen.encode());
                break;
            }
        }
    }
    let kept = replica.machine.usage();
    let follower = |(replica, entries_behind)| Follower { replica, entries_behind };
    ReplicaStatus {
        shard: replica.group.shard().to_owned(),
        replica: replica.group.replica(),
        term: status.term,
        leader: status.leader.unwrap_or(0),
        last_log_index: status.last_log_index,
        committed_index: status.committed_index,
        applied_index: status.applied_index,
        snapshot_index: status.snapshot_index,
        purged_index: status.purged_index,
        state: status.state,
        state_digest: digest.into(),
        followers: status.followers.into_iter().map(follower).collect(),
        snapshot_age_ms: u64::try_from(status.snapshot_age.as_millis()).unwrap_or(u64::MAX),
        holds: kept.holds as u64,
        waiting: kept.waits as u64,
        sessions: kept.sessions as u64,
        queued_commands: status.queued_commands as u64,
        voters: status.voters,
        learners: status.learners,
        rules: status.rules.into(),
        poison: None,
    }
}

fn poisoned_status(left_out: &PoisonedReplica) -> ReplicaStatus {
    let (shard, poison) = (left_out.shard.clone(), Some(left_out.to_record()));
    ReplicaStatus { shard, replica: left_out.replica, state: "failed".into(), poison, ..ReplicaStatus::default() }
}
