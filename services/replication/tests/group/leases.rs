//! That no two replicas ever answer from memory: the rare orders of events in which a lease could be broken.

use crate::common::clocks::NodeClocks;
use crate::common::{Cluster, ProxyMode, Setup, command, eventually, propose_to, replica_id};
use holdfast_replication::{Group, ReadMode, Timing, testing};
use tokio::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_stand_again_that_comes_late_breaks_no_lease() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
    // A survivor looked, found itself a candidate still, and ordered its next election. Before openraft got the order,
    // the replica voted for another one, which leads now.
    let late = (leader + 1) % cluster.setup.nodes;
    assert_eq!(cluster.group(late).status().leader, Some(replica_id(leader)));
    testing::late_election_trigger(cluster.group(late)).await;
    let group = cluster.group(late);
    // What it gets from the leader afterwards, it gets after the order.
    propose_to(cluster.group(leader), leads.term, &command("second")).await.expect("answered in the same term");
    eventually("it follows on", || async { (cluster.node(late).machine.len() == 2).then_some(()) }).await;
    assert_eq!(group.status().term, leads.term, "it broke the lease that it had granted");
    assert_eq!(cluster.leader().await.1.term, leads.term);
}

/// Cuts the leader off until its lease is over. Which one, and its term.
async fn cut_off_leader(cluster: &Cluster) -> (usize, u64) {
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
    cluster.cut_off(leader, ProxyMode::Silent);
    eventually("its lease is over", || async { (!cluster.group(leader).has_lease(leads.term)).then_some(()) }).await;
    (leader, leads.term)
}

/// Until it has voted for that one: openraft refuses while its own figure is fresh.
async fn vote(group: Group, candidate: u64) {
    eventually("it votes for another", || async { testing::request_vote(&group, candidate).await.then_some(()) }).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_that_comes_after_a_vote_for_another_revives_no_lease() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, term) = cut_off_leader(&cluster).await;
    let group = cluster.group(leader).clone();
    // A slow disk: between the vote and the moment at which it is known that this replica leads no more, there is time.
    cluster.disks[leader].memory().set_sync_delay(Duration::from_secs(3));
    let asked = Instant::now();
    let voting = tokio::spawn(vote(group.clone(), replica_id((leader + 1) % 3)));
    let leads = || group.subscribe_leadership().borrow().is_some();
    eventually("the vote is being saved", || async {
        testing::late_ack(&group, term, replica_id((leader + 2) % 3));
        let read = group.read(ReadMode::Lease, Instant::now(), |_| ()).await;
        read.is_err().then_some(())
    })
    .await;
    assert!(leads(), "it read until its leadership was withdrawn, {:?} after it was asked", asked.elapsed());
    voting.await.expect("it does not panic");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_voted_for_another_reads_no_more_however_late_it_is_known_that_it_leads_no_more() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let (leader, term) = cut_off_leader(&cluster).await;
    let group = cluster.group(leader);
    vote(group.clone(), replica_id((leader + 1) % 3)).await;
    // From here on the other one may lead and write.
    testing::late_ack(group, term, replica_id((leader + 2) % 3));
    let read = group.read(ReadMode::Lease, Instant::now(), |_| ()).await;
    assert!(read.is_err(), "it read after another could lead");
}

/// Cuts the leader off while it holds its lease, and does that to its machine. Whether it answers from memory then.
async fn reads_after(cluster: &Cluster, change: impl Fn(&NodeClocks)) -> bool {
    let (leader, leads) = cluster.leader().await;
    let group = cluster.group(leader);
    cluster.propose(&command("first")).await.expect("answered");
    eventually("it reads", || async { group.has_lease(leads.term).then_some(()) }).await;
    // Nothing that is sent from here on is acknowledged.
    cluster.cut_off(leader, ProxyMode::Silent);
    change(&cluster.clocks[leader]);
    let reads = group.read(ReadMode::Lease, Instant::now(), |_| ()).await.is_ok();
    assert_eq!(reads, group.has_lease(leads.term));
    cluster.cut_off(leader, ProxyMode::Open);
    let reads_again = || async { cluster.running().find(|(_, node)| leads_by_lease(&node.group)).map(drop) };
    eventually("a leader reads again", reads_again).await;
    reads
}

fn leads_by_lease(group: &Group) -> bool {
    let leads = *group.subscribe_leadership().borrow();
    leads.is_some_and(|leads| group.has_lease(leads.term))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_machine_was_suspended_answers_nothing_from_memory() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let suspend = |clocks: &NodeClocks| clocks.suspend(Duration::from_secs(1));
    assert!(!reads_after(&cluster, suspend).await, "others may have led for a while");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_wall_clock_was_set_answers_nothing_from_memory_until_a_quorum_answers_anew() {
    let cluster = Cluster::bootstrapped(Setup::default()).await;
    let set = |clocks: &NodeClocks| clocks.set_wall_clock(Duration::from_millis(150));
    assert!(!reads_after(&cluster, set).await, "its machine may have been paused");
}

/// A lease of that length, and elections soon after it.
fn with_lease(lease: Duration) -> Timing {
    Timing { election_min: lease / 2, election_max: lease, ..Timing::default() }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_with_a_longer_lease_than_its_voters_keeps_to_theirs() {
    let mut cluster = Cluster::prepare(Setup::default()).await;
    // A release with longer leases has come to one node first.
    cluster.timings[0] = with_lease(Duration::from_secs(20));
    cluster.bootstrap().await;
    cluster.make_lead(0).await;
    let (old, leads) = cluster.leader().await;
    assert_eq!(old, 0);
    let group = cluster.group(0).clone();
    eventually("it reads", || async { group.has_lease(leads.term).then_some(()) }).await;
    cluster.cut_off(0, ProxyMode::Silent);
    let (_, next) = cluster.leader_except(&[0]).await;
    assert!(next.term > leads.term);
    assert!(!group.has_lease(leads.term), "two replicas answer from memory");
    let read = group.read(ReadMode::Lease, Instant::now(), |_| ()).await;
    assert!(read.is_err(), "it read while another led");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_comes_back_with_a_shorter_lease_holds_back_for_the_longer_one_that_it_gave() {
    let long = Duration::from_secs(4);
    let mut cluster = Cluster::prepare(Setup { timing: with_lease(long), ..Setup::default() }).await;
    cluster.bootstrap().await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("kept")).await.expect("answered");
    cluster.all_applied().await;
    // It may have acknowledged the leader just now, which trusts in that for the longer lease.
    let restarted = (leader + 1) % 3;
    cluster.timings[restarted] = Timing::default();
    cluster.kill(restarted).await;
    let started = Instant::now();
    cluster.start(restarted).await;
    let group = cluster.group(restarted).clone();
    eventually("it votes again", || async { group.may_vote().then_some(()) }).await;
    println!("it held back for {:?}", started.elapsed());
    assert!(started.elapsed() >= long);
    assert_eq!(cluster.leader().await.1.term, leads.term);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_restarts_holds_back_for_the_longest_lease_that_a_peer_says() {
    let long = Duration::from_secs(4);
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.propose(&command("kept")).await.expect("answered");
    cluster.all_applied().await;
    cluster.kill(0).await;
    cluster.kill(1).await;
    cluster.timings[0] = with_lease(long);
    cluster.start(0).await;
    let started = Instant::now();
    cluster.start(1).await;
    let group = cluster.group(1).clone();
    eventually("it votes again", || async { group.may_vote().then_some(()) }).await;
    println!("it held back for {:?}", started.elapsed());
    assert!(started.elapsed() >= long);
}
