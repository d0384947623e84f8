//! What is left out of the histories of shards.

use bytes::Bytes;
use holdfast_replication::{Exception, ProposeError};

use crate::common::{Cluster, Setup, command, eventually};

const SHARD: u32 = 0;

fn exception(index: u64) -> Exception {
    Exception { shard: SHARD, index, what: Bytes::from_static(b"the second command") }
}

async fn restart(cluster: &mut Cluster, node: usize) {
    cluster.kill(node).await;
    cluster.start(node).await;
    cluster.all_applied().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_leader_logs_as_left_out_is_so_on_all_replicas_also_after_restarts_from_log_and_snapshot() {
    let mut cluster = Cluster::bootstrapped(Setup::default()).await;
    cluster.all_have_led().await;
    cluster.propose(&command("an entry")).await.expect("answered");
    let left_out = exception(cluster.all_applied().await);
    let (leader, _) = cluster.leader().await;
    let follower = (leader + 1) % 3;
    let refused = cluster.group(follower).log_exception(left_out.clone()).await;
    assert!(matches!(refused, Err(ProposeError::NotLeader(_))), "{refused:?}");
    cluster.group(leader).log_exception(left_out.clone()).await.expect("it leads");
    let ordered = cluster.all_applied().await;
    for (_, node) in cluster.running() {
        assert_eq!(node.machine.exceptions(), std::slice::from_ref(&left_out));
        assert_eq!(node.machine.isolated(), [(SHARD, ordered)], "its state may have what is left out");
    }

    restart(&mut cluster, follower).await;
    let machine = &cluster.node(follower).machine;
    assert_eq!((machine.exceptions(), machine.isolated()), (vec![left_out.clone()], vec![(SHARD, ordered)]));
    cluster.group(follower).make_snapshot().await.expect("it runs");
    eventually("the snapshot is made", || async {
        (cluster.group(follower).status().snapshot_index >= ordered).then_some(())
    })
    .await;
    restart(&mut cluster, follower).await;
    let machine = &cluster.node(follower).machine;
    assert_eq!((machine.exceptions(), machine.isolated()), (vec![left_out], vec![]), "the saved state is without it");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_left_out_twice_and_nothing_that_takes_too_many_bytes() {
    let cluster = Cluster::bootstrapped(Setup { nodes: 1, ..Setup::default() }).await;
    cluster.propose(&command("an entry")).await.expect("answered");
    let index = cluster.all_applied().await;
    let group = cluster.group(0);
    let too_long = Exception { what: vec![0; 5_000].into(), ..exception(index) };
    group.log_exception(exception(index)).await.expect("it leads");
    for refused in [exception(index), too_long] {
        let refusal = group.log_exception(refused).await;
        assert!(matches!(refusal, Err(ProposeError::NotProposed(_))), "{refusal:?}");
    }
    let ordered = cluster.all_applied().await;
    cluster.propose(&command("another entry")).await.expect("answered");
    let second = cluster.all_applied().await;
    let of_other_shard = Exception { shard: SHARD + 1, ..exception(second) };
    for nothing in [exception(ordered), of_other_shard] {
        let refusal = group.log_exception(nothing).await.expect_err("there is nothing to leave out");
        assert!(refusal.to_string().contains("nothing for the shard"), "{refusal}");
    }
    group.log_exception(exception(second)).await.expect("it is another one");
    assert_eq!(cluster.node(0).machine.exceptions(), [exception(index), exception(second)]);
}
