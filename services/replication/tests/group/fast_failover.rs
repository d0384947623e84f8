//! Whom replicas take for dead, and what a survivor makes of it.

use crate::common::{Cluster, ProxyMode, Setup, command, eventually, propose_to, replica_id};
use holdfast_replication::{Group, Leadership, Timing, testing};
use tokio::time::{Duration, Instant};

/// How often a test is tried that a slow machine keeps from showing anything.
const MAX_TRIES: usize = 5;

/// Leases so long that nobody is elected in these tests who waits for the end of one.
const LEASE: Duration = Duration::from_secs(12);

async fn bootstrapped(nodes: usize) -> Cluster {
    let timing = Timing { election_min: LEASE / 2, election_max: LEASE, ..Timing::default() };
    let cluster = Cluster::bootstrapped(Setup { nodes, timing, ..Setup::default() }).await;
    // A process that was never met can't be found gone.
    cluster.all_have_led().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
    cluster
}

/// The replica follows that leader in its term for two seconds, in which an address that refuses is tried several times.
async fn follows_on(group: &Group, leader: usize, leads: Leadership) {
    let began = leads.clock.now_ms();
    eventually("two seconds under the same leader", || async {
        assert_eq!(group.status().term, leads.term, "somebody broke the lease of the leader");
        assert_eq!(group.status().leader, Some(replica_id(leader)), "it does not follow any more");
        (leads.clock.now_ms() >= began + 2_000).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn when_a_leaders_process_ends_others_take_over_within_its_lease() {
    for nodes in [3, 5] {
        let mut cluster = bootstrapped(nodes).await;
        let (leader, leads) = cluster.leader().await;
        let ended = Instant::now();
        cluster.terminate(leader).await;
        let (next, next_leads) = cluster.leader_except(&[leader]).await;
        let took = ended.elapsed();
        println!("{nodes} nodes: another replica leads {took:?} after the end of the process");
        assert!(next_leads.term > leads.term);
        assert!(took < LEASE / 2, "nobody was a witness: it took as long as an ordinary election");
        propose_to(cluster.group(next), next_leads.term, &command("second")).await.expect("answered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_whose_leaders_address_refuses_breaks_no_lease() {
    let cluster = bootstrapped(3).await;
    let (leader, leads) = cluster.leader().await;
    // The leader lives, and so do its connections with the other follower. Between it and this one everything is refused.
    let follower = (leader + 1) % 3;
    cluster.cut(leader, follower, ProxyMode::Cut);
    cluster.refuse(follower, leader);
    eventually("it takes the leader's process for gone", || async {
        testing::has_found_dead(cluster.group(follower), replica_id(leader)).then_some(())
    })
    .await;
    follows_on(cluster.group(follower), leader, leads).await;
    assert!(cluster.group(leader).has_lease(leads.term));
    propose_to(cluster.group(leader), leads.term, &command("second")).await.expect("answered in the same term");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_end_of_a_process_is_none_of_the_next_at_its_address() {
    for _ in 0..MAX_TRIES {
        if the_next_leads_while_it_holds_back().await {
            return;
        }
    }
    panic!("the machine was too slow to show anything, {MAX_TRIES} times");
}

/// False when the one that came back did not lead before it held back no more.
async fn the_next_leads_while_it_holds_back() -> bool {
    let mut cluster = bootstrapped(3).await;
    let (restarted, before, other) = (0, 1, 2);
    cluster.make_lead(before).await;
    cluster.terminate(restarted).await;
    // Both see it. As it did not lead, that changes nothing.
    for witness in [before, other] {
        eventually("they find the process gone", || async {
            testing::has_found_dead(cluster.group(witness), replica_id(restarted)).then_some(())
        })
        .await;
    }
    // It comes back, and one of them still finds nobody at its address.
    cluster.listen_again(before, restarted);
    cluster.start(restarted).await;
    cluster.propose(&command("while it was away")).await.expect("answered");
    cluster.all_applied().await;
    // It is ordered to lead while it holds back.
    let is_it = |replica| replica == replica_id(restarted);
    cluster.group(before).transfer_leadership_among(is_it, LEASE).await;
    let (leader, leads) = cluster.leader().await;
    if leader != restarted || cluster.group(restarted).may_vote() {
        return false;
    }
    eventually("the other one follows it", || async {
        (cluster.group(other).status().leader == Some(replica_id(restarted))).then_some(())
    })
    .await;
    follows_on(cluster.group(other), restarted, leads).await;
    propose_to(cluster.group(restarted), leads.term, &command("second")).await.expect("answered in the same term");
    true
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_was_taken_for_gone_and_is_met_again_is_not_gone() {
    let mut cluster = bootstrapped(3).await;
    let (leader, leads) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    cluster.cut(leader, follower, ProxyMode::Cut);
    cluster.refuse(follower, leader);
    let finds_gone = || testing::has_found_dead(cluster.group(follower), replica_id(leader));
    eventually("it takes the leader's process for gone", || async { finds_gone().then_some(()) }).await;
    cluster.cut(leader, follower, ProxyMode::Open);
    eventually("it has met it again", || async { (!finds_gone()).then_some(()) }).await;
    cluster.listen_again(follower, leader);
    propose_to(cluster.group(leader), leads.term, &command("second")).await.expect("answered in the same term");
    cluster.all_applied().await;
}
