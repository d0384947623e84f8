//! That no two replicas ever answer from memory: the rare orders of events in which a lease could be broken.

use crate::common::{Cluster, Setup, command, eventually, propose_to, replica_id};
use holdfast_replication::{Reads, testing};
use tokio::time::{Duration, Instant};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_to_stand_again_that_comes_late_breaks_no_lease() {
    let cluster = Cluster::formed(Setup::default()).await;
    let (leader, leads) = cluster.leader().await;
    cluster.propose(&command("first")).await.expect("answered");
    cluster.all_applied().await;
    // A survivor looked, found itself a candidate still, and ordered its next election. Before openraft got the order,
    // the replica voted for another one, which leads now.
    let late = (leader + 1) % cluster.setup.nodes;
    assert_eq!(cluster.group(late).status().leader, Some(replica_id(leader)));
    testing::late_order_to_stand(cluster.group(late)).await;
    let group = cluster.group(late);
    // What it gets from the leader afterwards, it gets after the order.
    propose_to(cluster.group(leader), leads.term, &command("second")).await.expect("answered in the same term");
    eventually("it follows on", || async { (cluster.node(late).machine.len() == 2).then_some(()) }).await;
    assert_eq!(group.status().term, leads.term, "it broke the lease that it had granted");
    assert_eq!(cluster.leader().await.1.term, leads.term);
}
