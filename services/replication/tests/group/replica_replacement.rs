//! A replica whose disk is lost is made anew under a new id.

use holdfast_storage::MemoryDisk;

use crate::common::node::Disk;
use crate::common::{Cluster, Setup, command, eventually};

/// Loses the disk of the third node, and gives everybody a configuration in which its replica has a new id.
async fn replace_third(cluster: &mut Cluster) {
    cluster.kill(2).await;
    cluster.disks[2] = Disk::Memory(MemoryDisk::new());
    cluster.renewed.insert(2);
    for index in [0, 1] {
        cluster.kill(index).await;
        cluster.start(index).await;
    }
    cluster.start(2).await;
}

async fn wait_member(cluster: &Cluster, index: usize) {
    eventually("the new replica is a member", || async { cluster.group(index).is_member().then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_new_replica_gets_everything_and_makes_a_majority_with_either_of_the_others() {
    // From the log, and from a snapshot.
    for snapshot_interval_entries in [100_000, 20] {
        let mut cluster =
            Cluster::bootstrapped(Setup { snapshot_interval_entries, retain_entries: 5, ..Setup::default() }).await;
        for number in 0..60 {
            cluster.propose(&command(format!("before-{number}"))).await.expect("answered");
        }
        replace_third(&mut cluster).await;
        wait_member(&cluster, 2).await;
        cluster.propose(&command("after")).await.expect("answered");
        cluster.all_applied().await;
        let commands = cluster.node(2).machine.commands();
        assert_eq!((commands.len(), commands.last()), (61, Some(&command("after"))));
        for index in [0, 1] {
            cluster.kill(index).await;
            cluster.propose(&command(format!("without-{index}"))).await.expect("answered");
            cluster.start(index).await;
            cluster.all_applied().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_an_older_configuration_turns_nothing_back() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.propose(&command("before")).await.expect("answered");
    replace_third(&mut cluster).await;
    wait_member(&cluster, 2).await;
    // The first two run with the old configuration again, and one of them has to lead: neither knows the third.
    cluster.renewed.clear();
    for index in [0, 1] {
        cluster.kill(index).await;
        cluster.start(index).await;
    }
    cluster.kill(2).await;
    cluster.propose(&command("after")).await.expect("answered");
    // With the new configuration for all, the third one still belongs to the group, and has its data.
    cluster.renewed.insert(2);
    for index in [0, 1] {
        cluster.kill(index).await;
        cluster.start(index).await;
    }
    cluster.start(2).await;
    wait_member(&cluster, 2).await;
    cluster.propose(&command("last")).await.expect("answered");
    cluster.all_applied().await;
    assert_eq!(cluster.node(2).machine.commands().len(), 3);
}
