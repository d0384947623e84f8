//! Replicas that can't go on, and that are started again in place: in the same process, under the same id.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use holdfast_replication::{ApplyStep, Failure, Timing};
use tokio::time::{Duration, Instant};

use crate::common::journal::{FATAL, POISON};
use crate::common::{Cluster, Setup, command, eventually, propose_to};

/// Stops the replica of a node and starts it again from its store, with a machine that has no fault.
async fn restart_group(cluster: &mut Cluster, index: usize) {
    let options = cluster.group_options(index).remove(0);
    cluster.nodes[index].as_mut().expect("the node runs").restart_group(options).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_machine_that_fails_stops_its_replica_alone_which_starts_again_in_place() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("good")).await.expect("answered");
    cluster.node(leader).machine.is_faulty.store(true, Ordering::Relaxed);
    let broken = propose_to(cluster.group(leader), leads.term, &Bytes::from_static(POISON)).await;
    assert!(broken.is_err(), "{broken:?}");
    let Failure::StateMachine(broken) = cluster.group(leader).failed().await else { panic!("another failure") };
    assert_eq!(
        (broken.term, broken.failure.step, broken.failure.message.as_str()),
        (leads.term, ApplyStep::Command(0), "a bug")
    );
    assert!(broken.index > 1, "{broken:?}");
    eventually("it leads no more", || async {
        cluster.group(leader).subscribe_leadership().borrow().is_none().then_some(())
    })
    .await;
    let others = [1, 2].map(|step| (leader + step) % 3);
    eventually("another one leads", || async {
        others.iter().any(|index| cluster.group(*index).subscribe_leadership().borrow().is_some()).then_some(())
    })
    .await;
    cluster.propose(&command("without it")).await.expect("a majority is there");

    let started = Instant::now();
    restart_group(&mut cluster, leader).await;
    let may_vote = eventually("it votes", || async { cluster.group(leader).may_vote().then(Instant::now) }).await;
    let held_back = may_vote - started;
    assert!(held_back >= Timing::default().lease(), "it may have granted a lease before: {held_back:?}");
    cluster.all_applied().await;
    assert_eq!(cluster.group(leader).failure(), None);
    let expected = [command("good"), Bytes::from_static(POISON), command("without it")];
    cluster.running().for_each(|(index, node)| assert_eq!(node.machine.commands(), expected, "node {index}"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_panic_in_a_later_slice_fails_the_replica_and_is_reported() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("good")).await.expect("answered");
    let (group, machine) = (cluster.group(leader).clone(), &cluster.node(leader).machine);
    machine.is_faulty.store(true, Ordering::Relaxed);
    machine.stall(&[0]);
    let calling = tokio::spawn({
        let group = group.clone();
        async move { propose_to(&group, leads.term, &Bytes::from_static(FATAL)).await }
    });
    eventually("its section is queued", || async { (group.apply_queue_commands(0) == 1).then_some(()) }).await;
    machine.stall(&[]);
    // Nobody but the worker of the queues applies it.
    let Failure::StateMachine(broken) = group.failed().await else { panic!("another failure") };
    assert!(broken.failure.message.contains("on purpose"), "{broken:?}");
    assert!(calling.await.expect("it does not panic").is_err());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_on_its_way_to_the_disk_belongs_to_the_replica_that_starts_again() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let mut answered = Vec::new();
    for disk in &cluster.disks {
        disk.memory().set_sync_delay(Duration::from_millis(20));
    }
    for round in 0..8 {
        let (leader, leads) = cluster.leader().await;
        let victim = (leader + round) % 3;
        // Under way when the replica stops, here or there.
        let group = cluster.group(leader).clone();
        let proposing = tokio::spawn(async move {
            let mut answered = Vec::new();
            for number in 0..20 {
                let command = command(format!("{round}-{number}"));
                if propose_to(&group, leads.term, &command).await.is_ok() {
                    answered.push(command);
                }
            }
            answered
        });
        let first = command(format!("{round}-2"));
        let has_it = || async { cluster.node(victim).machine.commands().contains(&first).then_some(()) };
        eventually("some are answered", has_it).await;
        restart_group(&mut cluster, victim).await;
        answered.extend(proposing.await.expect("it does not panic"));
        cluster.all_applied().await;
    }
    // What is on the disks is what was said.
    for index in 0..3 {
        cluster.kill(index).await;
    }
    for index in 0..3 {
        cluster.start(index).await;
    }
    cluster.propose(&command("last")).await.expect("answered");
    cluster.all_applied().await;
    let journal = cluster.node(0).machine.commands();
    answered.iter().for_each(|command| assert!(journal.contains(command), "{command:?} is lost"));
    cluster.running().for_each(|(index, node)| assert_eq!(node.machine.commands(), journal, "node {index}"));
}
