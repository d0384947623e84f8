//! A node that missed more than the others still have in their logs catches up from snapshots.

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Load, LoadPlan, assert_no_violations, lock_ids, print_summary, read_all_locks, shards_of,
};
use holdfast_testkit::{Cluster, Setup, eventually, replica_of};

const SNAPSHOT_INTERVAL_ENTRIES: u64 = 200;
const RETAIN_ENTRIES: u64 = 50;
const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];

#[tokio::test(flavor = "multi_thread")]
async fn a_node_whose_log_was_compacted_away_catches_up_and_all_states_are_equal() {
    let flags = [("--snapshot-after", SNAPSHOT_INTERVAL_ENTRIES), ("--retain-entries", RETAIN_ENTRIES)];
    let node_flags = flags.map(|(flag, value)| (flag, value.to_string())).to_vec();
    let mut cluster = Cluster::start(Setup { shards: 2, node_flags, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("snapshots", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 10);
    let shards = shards_of(&locks);
    let api = cluster.rest_client(0, &tenant.key);
    let history = History::default();

    let before = cluster.status(2, false).await.unwrap();
    cluster.nodes[2].kill().await;
    let plan =
        LoadPlan { clients: 32, locks: locks.clone(), gateways: vec![api.clone()], some_have_short_deadlines: false };
    let load = Load::start(&plan, &history);
    for shard in &shards {
        let had = replica_of(&before, shard).last_log_index;
        eventually("the others have compacted their logs", async || {
            let compacted = futures::future::join_all([cluster.status(0, false), cluster.status(1, false)]).await;
            for status in compacted {
                let replica = replica_of(&status?, shard).clone();
                if replica.purged_index <= had + SNAPSHOT_INTERVAL_ENTRIES {
                    return Err(format!("{replica:?}"));
                }
            }
            Ok(())
        })
        .await;
    }

    // It restarts under load, during which logs are compacted.
    cluster.nodes[2].start();
    cluster.wait_ready().await;
    for shard in &shards {
        let had = replica_of(&before, shard).last_log_index;
        let replica = eventually("the node has caught up", async || {
            let (first, third) = (cluster.status(0, false).await?, cluster.status(2, false).await?);
            let (first, third) = (replica_of(&first, shard).clone(), replica_of(&third, shard).clone());
            if third.applied_index + SNAPSHOT_INTERVAL_ENTRIES > first.applied_index {
                Ok(third)
            } else {
                Err(format!("{third:?}"))
            }
        })
        .await;
        println!("{shard}: was at {had}, has purged up to {}, applied {}", replica.purged_index, replica.applied_index);
        // What it never had it can only have got in a snapshot.
        assert!(replica.purged_index > had && replica.snapshot_index > had, "{replica:?}");
    }
    load.stop().await;
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same bytes on all three nodes");

    // What it got is good enough to lead with.
    cluster.nodes[0].kill().await;
    read_all_locks(&api, &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
}
