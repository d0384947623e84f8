//! Groups are formed once, by a replica that never had data.

use crate::common::{Cluster, Setup, command, eventually, propose_to};
use holdfast_storage::MemoryDisk;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_group_forms_and_elects_a_leader_and_forming_again_changes_nothing() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    let reply = cluster.propose(&command("first")).await.expect("it is answered");
    assert_eq!(reply.position, 0);
    let before = cluster.all_applied().await;
    for (_, node) in cluster.running() {
        node.manager.bootstrap(&node.group).await.expect("forming again is harmless");
        node.group.bootstrap().await.expect("forming again is harmless");
    }
    assert_eq!(cluster.leader().await.0, leader);
    assert_eq!(cluster.group(leader).subscribe_leadership().borrow().expect("it leads").term, leads.term);
    assert_eq!(cluster.group(leader).status().last_log_index, before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_lost_its_disk_forms_nothing_and_its_peers_refuse_it() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.propose(&command("kept")).await.expect("it is answered");
    cluster.all_applied().await;
    cluster.kill(0).await;
    cluster.disks[0] = crate::common::node::Disk::Memory(MemoryDisk::new());
    cluster.start(0).await;
    let lost = cluster.node(0);
    lost.manager.bootstrap(&lost.group).await.expect("it returns");
    assert!(!lost.group.is_bootstrapped().await, "a replica without data must not form a second group");
    let (leader, leads) = cluster.leader().await;
    assert_ne!(leader, 0);
    // The others go on without it, and nothing reaches it.
    let reply = propose_to(cluster.group(leader), leads.term, &command("also kept")).await.expect("it is answered");
    assert_eq!(reply.position, 1);
    let others = [1, 2];
    eventually("both healthy replicas have both commands", || async {
        others.iter().all(|index| cluster.node(*index).machine.len() == 2).then_some(())
    })
    .await;
    assert_eq!(cluster.node(0).machine.len(), 0);
    assert!(!cluster.group(0).is_bootstrapped().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_serves_at_once_and_again_after_a_restart() {
    use holdfast_replication::ReadMode;
    use tokio::time::{Duration, Instant};

    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    for round in 0..3_u64 {
        let started = Instant::now();
        let (leader, leads) = cluster.leader().await;
        println!("single replica led after {:?}", started.elapsed());
        let group = cluster.group(leader);
        for reads in [ReadMode::Lease, ReadMode::Quorum] {
            let permit = group.read_permit(reads, Instant::now() + Duration::from_secs(5)).await.expect("it may read");
            assert_eq!(permit.term, leads.term);
        }
        let reply = propose_to(group, leads.term, &command(format!("round {round}"))).await.expect("it is answered");
        assert_eq!(reply.position, round);
        cluster.kill(0).await;
        cluster.start(0).await;
    }
}
