//! Replicas where a shard has failed, and the states of others at checkpoints.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Instant;

use crate::common::journal::AppliedCheckpoint;
use crate::common::{Cluster, Setup, command, eventually, replica_id};
use crate::failed_shards::{fail_shards, wait_known};
use bytes::Bytes;
use holdfast_replication::{CheckpointError, CheckpointPart};

const SHARD: u32 = 0;

/// Three nodes: the leader, a follower where the shard has failed, which the leader knows, and the third.
async fn with_failed_shard() -> (Cluster, [usize; 3]) {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    cluster.propose(&command("an entry")).await.expect("answered");
    let index = cluster.all_applied().await;
    let (leader, _) = cluster.leader().await;
    let (failed, third) = ((leader + 1) % 3, (leader + 2) % 3);
    fail_shards(&cluster, failed, [(SHARD, index)]);
    wait_known(&cluster, leader, failed, &[SHARD]).await;
    (cluster, [leader, failed, third])
}

/// Waits until the node has applied a checkpoint.
async fn wait_checkpoint(cluster: &Cluster, node: usize) -> AppliedCheckpoint {
    eventually("a checkpoint", || async { cluster.node(node).machine.checkpoints().pop() }).await
}

fn chunks_of(part: &CheckpointPart) -> Vec<Bytes> {
    part.state.chunks().collect::<Result<_, _>>().expect("it is readable")
}

fn state_of(cluster: &Cluster, node: usize, index: u64) -> Vec<Bytes> {
    let applied = cluster.node(node).machine.checkpoints();
    applied.into_iter().find(|applied| applied.index == index).expect("it has applied it").chunks
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_state_that_a_majority_has_at_a_checkpoint_is_fetched_from_one_of_it() {
    let (cluster, [leader, failed, third]) = with_failed_shard().await;
    let group = cluster.group(failed);
    assert!(group.others_may_agree(SHARD));
    let others = [leader, third].map(replica_id);
    assert_eq!(group.other_replicas_serving(SHARD), others.into());
    group.request_checkpoint(SHARD).await.expect("the leader logs it");
    let checkpoint = wait_checkpoint(&cluster, failed).await;
    assert_eq!((checkpoint.shard, checkpoint.from), (SHARD, None));
    cluster.propose(&command("of after it")).await.expect("answered");
    let part = group.fetch_checkpoint(SHARD, checkpoint.index, None).await.expect("both others have it");
    assert_ne!(part.replica, replica_id(failed));
    assert_eq!((&chunks_of(&part), &part.digest[..]), (&checkpoint.chunks, &checkpoint.chunks.concat()[..]));

    // One that was logged a moment ago counts for all: many requests at once are answered by few.
    let requested = Instant::now();
    for _ in 0..20 {
        group.request_checkpoint(SHARD).await.expect("there is one");
    }
    cluster.propose(&command("later")).await.expect("answered");
    cluster.all_applied().await;
    let (logged, seconds) = (cluster.node(failed).machine.checkpoints().len(), requested.elapsed().as_secs());
    // On a busy machine it may be one more every five seconds.
    assert!(logged as u64 <= 2 + seconds / 5, "{logged} in {seconds} s");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_no_majority_has_is_taken_from_nobody() {
    let (cluster, [leader, failed, third]) = with_failed_shard().await;
    cluster.node(third).machine.has_diverged.store(true, Ordering::Relaxed);
    cluster.group(failed).request_checkpoint(SHARD).await.expect("the leader logs it");
    let index = wait_checkpoint(&cluster, failed).await.index;
    cluster.all_applied().await;
    let fetched = cluster.group(failed).fetch_checkpoint(SHARD, index, None).await;
    let refusal = fetched.expect_err("one of the two others is wrong");
    assert!(matches!(refusal, CheckpointError::NoMajority { .. }), "{refusal}");
    for node in [leader, third] {
        assert!(refusal.to_string().contains(&format!("replica {} has ", replica_id(node))), "{refusal}");
    }

    // An operator knows which.
    cluster.group(leader).log_checkpoint(SHARD, Some(replica_id(third))).await.expect("it leads");
    let named = eventually("the next checkpoint", || async {
        cluster.node(failed).machine.checkpoints().into_iter().find(|applied| applied.index > index)
    })
    .await;
    assert_eq!(named.from, Some(replica_id(third)));
    let digests = cluster.group(leader).checkpoint_digests(SHARD, named.index).await;
    assert_eq!(digests.keys().copied().collect::<BTreeSet<_>>(), [leader, third].map(replica_id).into());
    assert_ne!(digests[&replica_id(leader)], digests[&replica_id(third)], "the operator is told");
    let part = cluster.group(failed).fetch_checkpoint(SHARD, named.index, named.from).await.expect("it is believed");
    assert_eq!((part.replica, chunks_of(&part)), (replica_id(third), state_of(&cluster, third, named.index)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_state_that_is_on_no_other_replica_is_not_waited_for() {
    let (cluster, [leader, failed, third]) = with_failed_shard().await;
    fail_shards(&cluster, third, [(SHARD, 1)]);
    wait_known(&cluster, failed, third, &[SHARD]).await;
    assert!(!cluster.group(failed).others_may_agree(SHARD), "one of three is no majority");
    assert_eq!(cluster.group(failed).other_replicas_serving(SHARD), [replica_id(leader)].into());
    let fetched = cluster.group(failed).fetch_checkpoint(SHARD, 1, Some(replica_id(third))).await;
    let refusal = fetched.expect_err("it has failed there too").to_string();
    assert!(refusal.contains(&format!("failed on replica {}", replica_id(third))), "{refusal}");
    let follower = cluster.group(failed).log_checkpoint(SHARD, None).await;
    assert!(follower.is_err(), "it does not lead");
}
