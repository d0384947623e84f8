//! Replicas that catch up by snapshot.

use crate::common::journal::COMMANDS;
use crate::common::{Cluster, Setup, command, eventually, propose_to};
use bytes::Bytes;
use futures::future::join_all;
use holdfast_replication::{HistoryStep, LogLimits, StateMachine};
use holdfast_storage::PartUpdate;
use tokio::runtime::Handle;
use tokio::task::block_in_place;
use tokio::time::Instant;

fn small() -> Setup {
    Setup { snapshot_interval_entries: 50, retain_entries: 10, ..Setup::default() }
}

/// The chunks of all parts, each part after its name.
fn snapshot(cluster: &Cluster, index: usize) -> Vec<Bytes> {
    let machine: &dyn StateMachine = cluster.node(index).machine.as_ref();
    let chunks = |update| match update {
        PartUpdate::Write(part) => std::iter::once(Bytes::copy_from_slice(part.name().as_bytes()))
            .chain(part.chunks().map(|chunk| chunk.expect("it is in memory")))
            .collect::<Vec<Bytes>>(),
        PartUpdate::Retain(name) => panic!("part {name} is not written"),
    };
    machine.freeze(&|_| false).expect("it has not failed").into_iter().flat_map(chunks).collect()
}

/// One entry after the other, until the leader's log begins behind what a follower has.
async fn compact_away(cluster: &Cluster, leader: usize, term: u64, text: &str) {
    let absent = cluster.group(leader).status().last_log_index;
    let mut number = 0;
    while cluster.group(leader).status().purged_index <= absent {
        number += 1;
        let command = command(format!("{text} {number}"));
        propose_to(cluster.group(leader), term, &command).await.expect("a majority is there");
    }
    println!("compacted away after {number} entries: {:?}", cluster.group(leader).status());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_entries_are_compacted_away_catches_up_and_all_snapshots_are_equal() {
    for rocks in [false, true] {
        let mut cluster = Cluster::bootstrapped(Setup { rocks, ..small() }).await;
        let (leader, leads) = cluster.leader().await;
        let follower = (leader + 2) % 3;
        cluster.propose(&command("before")).await.expect("answered");
        cluster.all_applied().await;
        for round in 0..3 {
            cluster.kill(follower).await;
            compact_away(&cluster, leader, leads.term, &format!("while away {round}")).await;
            let started = Instant::now();
            cluster.start(follower).await;
            eventually("it has caught up", || async {
                (cluster.node(follower).machine.len() == cluster.node(leader).machine.len()).then_some(())
            })
            .await;
            println!("caught up by snapshot {:?} after its start", started.elapsed());
            assert!(cluster.group(follower).status().snapshot_index > 0);
            cluster.all_applied().await;
            let expected = snapshot(&cluster, leader);
            (0..3).for_each(|index| assert!(snapshot(&cluster, index) == expected, "node {index} differs"));
        }
        // What came by snapshot is there after a restart of everybody, and the log goes on behind it.
        let expected = snapshot(&cluster, leader);
        for index in 0..3 {
            cluster.kill(index).await;
        }
        for index in 0..3 {
            cluster.start(index).await;
        }
        cluster.leader().await;
        cluster.all_applied().await;
        (0..3).for_each(|index| assert!(snapshot(&cluster, index) == expected, "node {index} differs"));
        cluster.propose(&command("after")).await.expect("answered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_of_many_chunks_is_transferred_while_the_group_serves() {
    let mut cluster = Cluster::bootstrapped(small()).await;
    let (leader, leads) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.kill(follower).await;
    let fills: Vec<Bytes> = (0..200).map(|number| command(format!("{number:0>65000}"))).collect();
    let group = cluster.group(leader).clone();
    let answers = join_all(fills.iter().map(|fill| propose_to(&group, leads.term, fill))).await;
    assert!(answers.iter().all(Result::is_ok));
    compact_away(&cluster, leader, leads.term, "then").await;
    let chunks = snapshot(&cluster, leader);
    println!("{} chunks, {} bytes", chunks.len(), chunks.iter().map(Bytes::len).sum::<usize>());
    assert!(chunks.len() > 8);
    let started = Instant::now();
    cluster.start(follower).await;
    let mut served = 0;
    while cluster.node(follower).machine.len() < fills.len() {
        propose_to(&group, leads.term, &command("meanwhile")).await.expect("the group serves meanwhile");
        served += 1;
        assert!(started.elapsed() < crate::common::MAX_WAIT, "it does not catch up");
    }
    println!("installed after {:?}; {served} commands were served meanwhile", started.elapsed());
    cluster.all_applied().await;
    let expected = snapshot(&cluster, leader);
    (0..3).for_each(|index| assert!(snapshot(&cluster, index) == expected, "node {index} differs"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_log_of_few_large_entries_is_kept_short_too() {
    const COMMAND: usize = 65_000;
    let log_limits = LogLimits { snapshot_interval_bytes: 2_000_000, retain_bytes: 500_000 };
    let mut cluster = Cluster::bootstrapped(Setup { log_limits, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    for absent in [None, Some(follower)] {
        if let Some(follower) = absent {
            cluster.kill(follower).await;
        }
        let began = cluster.group(leader).status().last_log_index;
        for number in 0..100 {
            let fill = command(format!("{number:0>COMMAND$}"));
            propose_to(cluster.group(leader), leads.term, &fill).await.expect("a majority is there");
        }
        for (index, node) in cluster.running() {
            let short = || async {
                let status = node.group.status();
                let left = (status.last_log_index - status.purged_index) as usize * COMMAND;
                (status.purged_index > began && left <= 3_000_000).then_some(())
            };
            eventually(&format!("node {index} has purged its log"), short).await;
        }
    }
    // What a follower lacks by now comes by snapshot.
    cluster.start(follower).await;
    eventually("it has caught up", || async {
        (cluster.node(follower).machine.len() == cluster.node(leader).machine.len()).then_some(())
    })
    .await;
    cluster.all_applied().await;
    let expected = snapshot(&cluster, leader);
    (0..3).for_each(|index| assert!(snapshot(&cluster, index) == expected, "node {index} differs"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_follower_whose_disk_fails_during_a_snapshot_stops_and_is_mended_by_a_restart() {
    let mut cluster = Cluster::bootstrapped(small()).await;
    let (leader, leads) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.kill(follower).await;
    compact_away(&cluster, leader, leads.term, "while away").await;
    // Too small for what comes: the first write beyond it fails.
    let disk = cluster.disks[follower].memory();
    disk.set_capacity(Some(disk.used_bytes() + 600));
    cluster.start(follower).await;
    let failed = cluster.node(follower).store.failed();
    let why = eventually("the follower's store stops", || async { failed.borrow().clone() }).await;
    println!("{why}");
    propose_to(cluster.group(leader), leads.term, &command("served")).await.expect("a majority is there");
    cluster.kill(follower).await;
    cluster.disks[follower].memory().set_capacity(None);
    cluster.start(follower).await;
    eventually("it has caught up", || async {
        (cluster.node(follower).machine.commands() == cluster.node(leader).machine.commands()).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_history_whose_next_entries_are_purged_meanwhile_is_refused() {
    let cluster = Cluster::bootstrapped(Setup { nodes: 1, ..small() }).await;
    let (leader, leads) = cluster.leader().await;
    let group = cluster.group(leader);
    while group.status().snapshot_index == 0 {
        propose_to(group, leads.term, &command("before")).await.expect("answered");
    }
    let began = group.status().last_log_index;
    let until = began + 200;
    let compact = async {
        while group.status().last_log_index < until {
            propose_to(group, leads.term, &command("meanwhile")).await.expect("answered");
        }
        eventually("the log is purged", || async { (group.status().purged_index > began).then_some(()) }).await;
    };
    let (mut compact, mut sections) = (Some(compact), 0);
    let replayed = group.replay(0, COMMANDS, until, |step| {
        match step {
            // Its part is read, and the entries after it are not yet.
            HistoryStep::Snapshot { .. } => {
                let compact = compact.take().expect("there is one part");
                block_in_place(|| Handle::current().block_on(compact));
            }
            HistoryStep::Section { .. } => sections += 1,
        }
        Ok(())
    });
    let refusal = replayed.await.expect_err("sections are missing between the part and the log").to_string();
    assert!(refusal.contains("not in the log any more"), "{refusal}");
    assert_eq!(sections, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_snapshot_on_demand_is_made_and_survives_a_restart() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, rocks: true, ..Setup::default() }).await;
    for number in 0..20 {
        cluster.propose(&command(format!("{number}"))).await.expect("answered");
    }
    let applied = cluster.group(0).status().applied_index;
    cluster.group(0).make_snapshot().await.expect("it runs");
    eventually("the snapshot is made", || async {
        (cluster.group(0).status().snapshot_index >= applied).then_some(())
    })
    .await;
    let expected = snapshot(&cluster, 0);
    cluster.kill(0).await;
    cluster.start(0).await;
    cluster.leader().await;
    assert!(snapshot(&cluster, 0) == expected);
    assert_eq!(cluster.node(0).machine.entries(), 0, "everything came from the snapshot");
}
