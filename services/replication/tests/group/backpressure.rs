//! Shards that send more than a follower takes.

use std::time::Duration;

use crate::common::node::RULES;
use crate::common::{Cluster, Setup, command, eventually, propose_to, replica_of};
use holdfast_replication::{Group, ReadMode, Timing};
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Groups under load; one more is idle.
const BUSY_GROUPS: usize = 4;
const COMMAND_BYTES: usize = 64_000;
/// Entries of up to a megabyte that the slow follower owes each busy group: together they are more than a node keeps for
/// a peer.
const MIN_LAG_ENTRIES: u64 = 40;
/// So long that a process that is not run for a second does not end it.
const LEASE: Duration = Duration::from_secs(4);
/// Longer than any lease.
const OBSERVATION_TIME: Duration = Duration::from_secs(6);
/// A disk that does not come back.
const NEVER: Duration = Duration::from_secs(3_600);

/// The replica of a group on a node; the idle group is the last.
fn replica(cluster: &Cluster, group: usize, index: usize) -> Group {
    let node = cluster.node(index);
    if group == 0 { node.group.clone() } else { node.more[group - 1].0.clone() }
}

/// Waits until that node leads a group; in which term.
async fn wait_leading_term(cluster: &Cluster, group: usize, index: usize) -> u64 {
    eventually("the node leads the group", || async {
        let replicas = (0..3).map(|index| replica(cluster, group, index));
        for leader in replicas.filter(|replica| replica.subscribe_leadership().borrow().is_some()) {
            if leader.replica() != replica_of(group, index) {
                leader
                    .transfer_leadership_among(|replica| replica == replica_of(group, index), Duration::from_secs(1))
                    .await;
            }
        }
        replica(cluster, group, index).subscribe_leadership().borrow().map(|leads| leads.term)
    })
    .await
}

/// Proposes large commands, one after the other.
async fn load(group: Group, term: u64) {
    let fill = command("x".repeat(COMMAND_BYTES));
    while propose_to(&group, term, &fill).await.is_ok() {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_slow_follower_owes_costs_no_other_shard_its_leader() {
    let timing = Timing { election_min: LEASE / 2, election_max: LEASE, ..Timing::default() };
    let mut cluster = Cluster::bootstrapped(Setup { groups: BUSY_GROUPS + 1, timing, ..Setup::default() }).await;
    for group in 1..=BUSY_GROUPS {
        cluster.node(0).manager.bootstrap(&replica(&cluster, group, 0)).await.expect("the group forms");
    }
    let (leader, _) = cluster.leader().await;
    let [slow, other] = [1, 2].map(|step| (leader + step) % 3);
    let mut loads = JoinSet::new();
    let idle_term = wait_leading_term(&cluster, BUSY_GROUPS, leader).await;
    // A follower acknowledges no heartbeat while an entry before it is not on its disk.
    eventually("the idle group has nothing left to write", || async {
        let status = replica(&cluster, BUSY_GROUPS, leader).status();
        let is_settled = status.rules == RULES.highest && status.followers.iter().all(|(_, behind)| *behind == 0);
        (is_settled && status.followers.len() == 2).then_some(())
    })
    .await;
    cluster.disks[slow].memory().set_sync_delay(NEVER);
    for group in 0..BUSY_GROUPS {
        let term = wait_leading_term(&cluster, group, leader).await;
        for _ in 0..16 {
            loads.spawn(load(replica(&cluster, group, leader), term));
        }
    }
    eventually("it owes much of every busy group", || async {
        let owes = |group| {
            let followers = replica(&cluster, group, leader).status().followers;
            followers
                .iter()
                .any(|(follower, behind)| *follower == replica_of(group, slow) && *behind >= MIN_LAG_ENTRIES)
        };
        (0..BUSY_GROUPS).all(owes).then_some(())
    })
    .await;
    // From now on the leader of the idle group has only the slow one to hear of.
    loads.shutdown().await;
    cluster.kill(other).await;
    let (killed, idle) = (Instant::now(), replica(&cluster, BUSY_GROUPS, leader));
    eventually("longer than any lease", || async {
        let permit = idle.read_permit(ReadMode::Lease, Instant::now()).await;
        assert!(permit.is_ok(), "the idle group has no lease {:?} after the kill", killed.elapsed());
        (killed.elapsed() > OBSERVATION_TIME).then_some(())
    })
    .await;
    assert_eq!(idle.subscribe_leadership().borrow().map(|leads| leads.term), Some(idle_term));
}
