//! Leaders whose shards failed, and what replicas tell one another of them.

use crate::common::{Cluster, MAX_WAIT, Setup, command, eventually, replica_id};
use holdfast_replication::{ApplyFailure, FailedEntry, FailedShards, Poison, testing};
use tokio::time::Duration;

/// Longer than followers take to say what they have applied.
const SHORT_WAIT: Duration = Duration::from_millis(200);

/// From now on these shards have failed on the node, and no others.
pub(crate) fn fail_shards<const N: usize>(cluster: &Cluster, node: usize, failed: [(u32, u64); N]) {
    cluster.node(node).machine.fail_shards(FailedShards::from(failed));
    cluster.group(node).publish_failed_shards();
}

/// Waits until the first node knows that these shards have failed on the second, and no others.
pub(crate) async fn wait_known(cluster: &Cluster, node: usize, other: usize, failed: &[u32]) {
    eventually("it knows what failed there", || async {
        (testing::known_failed_shards(cluster.group(node), replica_id(other)) == failed).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_hands_its_failed_shards_over_to_a_replica_where_fewer_failed_and_once() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    cluster.propose(&command("the entry")).await.expect("answered");
    let index = cluster.all_applied().await;
    let (leader, _) = cluster.leader().await;
    let (second, third) = ((leader + 1) % 3, (leader + 2) % 3);
    let group = cluster.group(leader);
    fail_shards(&cluster, leader, [(0, index), (1, index)]);
    fail_shards(&cluster, second, [(0, index), (1, index)]);
    fail_shards(&cluster, third, [(2, index)]);
    wait_known(&cluster, leader, second, &[0, 1]).await;
    wait_known(&cluster, leader, third, &[2]).await;
    assert!(!group.transfer_from_failed_shards(SHORT_WAIT, MAX_WAIT).await, "nowhere is it a proper subset");
    fail_shards(&cluster, third, [(1, index)]);
    wait_known(&cluster, leader, third, &[1]).await;
    fail_shards(&cluster, leader, [(0, index + 1_000), (1, index)]);
    assert!(!group.transfer_from_failed_shards(SHORT_WAIT, MAX_WAIT).await, "no follower is past the entry");
    fail_shards(&cluster, leader, [(0, index), (1, index)]);
    assert!(group.transfer_from_failed_shards(MAX_WAIT, MAX_WAIT).await);
    assert_eq!(cluster.leader().await.0, third);

    cluster.make_lead(leader).await;
    assert!(!group.transfer_from_failed_shards(SHORT_WAIT, MAX_WAIT).await, "it did so a moment ago");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_planned_transfer_prefers_a_replica_whose_shards_serve() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    let (leader, _) = cluster.leader().await;
    let (second, third) = ((leader + 1) % 3, (leader + 2) % 3);
    fail_shards(&cluster, second, [(3, 1)]);
    wait_known(&cluster, leader, second, &[3]).await;
    cluster.propose(&command("acknowledged by all")).await.expect("answered");
    cluster.all_applied().await;
    assert!(cluster.group(leader).transfer_leadership_among(|_| true, MAX_WAIT).await);
    assert_eq!(cluster.leader().await.0, third);
    // Where no other may lead, one with failed shards does.
    let is_second = |replica| replica == replica_id(second);
    assert!(cluster.group(third).transfer_leadership_among(is_second, MAX_WAIT).await);
    assert_eq!(cluster.leader().await.0, second);
    fail_shards(&cluster, second, []);
    wait_known(&cluster, leader, second, &[]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_of_shards_that_fail_at_once_are_all_there_after_a_restart() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    cluster.propose(&command("the entry")).await.expect("answered");
    let record = |index| {
        let failure = ApplyFailure::invalid_entry("a bug".into());
        Some(Poison { failed_entry: FailedEntry { term: 1, index, failure }, release: "1".into(), ended_process: None })
    };
    let group = cluster.group(0);
    let saved = tokio::join!(
        group.save_shard_poison("a", record(3)),
        group.save_shard_poison("b", record(4)),
        group.save_shard_poison("c", record(5))
    );
    assert!(saved.0.is_ok() && saved.1.is_ok() && saved.2.is_ok());
    group.save_shard_poison("b", None).await.expect("it is removed");
    cluster.kill(0).await;
    cluster.start(0).await;
    let stored = ["a", "b", "c", "d"].map(|shard| cluster.group(0).shard_poison(shard).expect("it is readable"));
    assert_eq!(stored, [record(3), None, record(5), None]);
}
