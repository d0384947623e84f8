//! Replicas that stop and start again.

use crate::common::{Cluster, Setup, command, eventually, propose_to};
use holdfast_replication::Timing;
use tokio::time::{Duration, Instant, sleep};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_all_three_restart_a_leader_emerges_in_a_later_term_and_everything_answered_is_there() {
    for rocks in [false, true] {
        let mut cluster = Cluster::bootstrapped(Setup { rocks, ..Setup::default() }).await;
        let mut answered = Vec::new();
        let mut last_term = 0;
        for round in 0..2 {
            let (_, leads) = cluster.leader().await;
            assert!(leads.term > last_term, "leadership came back without an election");
            last_term = leads.term;
            for number in 0..30 {
                let command = command(format!("{round}-{number}"));
                let reply = cluster.propose(&command).await.expect("answered");
                answered.push((command, reply));
            }
            for index in 0..3 {
                cluster.kill(index).await;
            }
            let started = Instant::now();
            for index in 0..3 {
                cluster.start(index).await;
            }
            let (leader, leads) = cluster.leader().await;
            println!("a leader {:?} after the start of all three", started.elapsed());
            assert!(leads.term > last_term, "leadership came back without an election");
            let last = answered.last().expect("there are some").1;
            assert!(leads.clock.now_ms() >= last.clock_ms, "the clock went back");
            let journal = cluster.node(leader).machine.commands();
            for (command, reply) in &answered {
                assert_eq!(journal.get(usize::try_from(reply.position).expect("it fits")), Some(command));
            }
        }
        cluster.all_applied().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_replica_neither_votes_nor_stands_for_one_lease() {
    // Both of the two that are left would be needed for a leader, so none emerges while one holds back.
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("kept")).await.expect("answered");
    cluster.all_applied().await;
    let [restarted, other] = [1, 2].map(|step| (leader + step) % 3);
    // The other one's lease and election timeout have passed long ago; only the restarted one is missing.
    cluster.kill(leader).await;
    cluster.kill(restarted).await;
    sleep(Duration::from_millis(2_600)).await;
    assert_eq!(cluster.group(other).status().term, leads.term, "a pre-vote does not raise the term");
    let started = Instant::now();
    cluster.start(restarted).await;
    let lease = Timing::default().lease();
    loop {
        let terms = [restarted, other].map(|index| cluster.group(index).status().term);
        let looked = started.elapsed();
        if looked >= lease {
            break;
        }
        assert!(terms.iter().all(|term| *term <= leads.term), "somebody stood or voted {looked:?} after the restart");
        sleep(Duration::from_millis(5)).await;
    }
    let (_, next) = cluster.leader().await;
    println!("a leader {:?} after the restart", started.elapsed());
    assert!(next.term > leads.term);
    assert!(started.elapsed() >= lease);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_follower_goes_on_following_without_disturbing_the_leader() {
    let mut cluster = Cluster::bootstrapped(Setup { rocks: true, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    for round in 0..3 {
        cluster.kill(follower).await;
        for number in 0..10 {
            let command = command(format!("{round}-{number}"));
            propose_to(cluster.group(leader), leads.term, &command).await.expect("a majority is there");
        }
        let started = Instant::now();
        cluster.start(follower).await;
        eventually("it has caught up", || async {
            (cluster.node(follower).machine.commands() == cluster.node(leader).machine.commands()).then_some(())
        })
        .await;
        println!("caught up {:?} after its start", started.elapsed());
        assert_eq!(cluster.leader().await.1.term, leads.term);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_failed_sync_stops_the_replica_and_nothing_is_acknowledged_by_it() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("good")).await.expect("answered");
    cluster.all_applied().await;
    // A follower whose disk fails drops out; the others go on.
    let follower = (leader + 1) % 3;
    cluster.disks[follower].memory().fail_next_sync();
    propose_to(cluster.group(leader), leads.term, &command("without one")).await.expect("a majority is there");
    eventually("the follower stops", || async { cluster.group(follower).failure() }).await;
    // The leader's disk fails: with one follower gone, too, nothing may be answered.
    cluster.disks[leader].memory().fail_next_sync();
    let refused = propose_to(cluster.group(leader), leads.term, &command("lost")).await;
    assert!(refused.is_err(), "{refused:?}");
    let why = eventually("the leader stops", || async { cluster.group(leader).failure() }).await;
    println!("{why}");
    eventually("it no longer leads", || async {
        cluster.group(leader).subscribe_leadership().borrow().is_none().then_some(())
    })
    .await;
    assert!(cluster.node(leader).store.failed().borrow().is_some());
    for index in [leader, follower] {
        cluster.kill(index).await;
        cluster.start(index).await;
    }
    cluster.propose(&command("mended")).await.expect("answered");
    cluster.all_applied().await;
    let journal = cluster.node(follower).machine.commands();
    assert_eq!(journal[..2], [command("good"), command("without one")]);
    assert_eq!(journal.last(), Some(&command("mended")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_single_replica_whose_disk_fails_answers_nothing() {
    let mut cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("good")).await.expect("answered");
    cluster.disks[leader].memory().fail_next_sync();
    let refused = propose_to(cluster.group(leader), leads.term, &command("lost")).await;
    assert!(refused.is_err(), "{refused:?}");
    cluster.kill(leader).await;
    cluster.start(leader).await;
    cluster.propose(&command("mended")).await.expect("answered");
    assert_eq!(cluster.node(leader).machine.commands(), [command("good"), command("mended")]);
}
