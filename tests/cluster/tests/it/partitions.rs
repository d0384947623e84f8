//! Nodes that are cut off from one another, one way and both ways, while callers reach all of them: nothing that is
//! answered is wrong, and the side with a majority serves.

use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::history::{Call, History};
use holdfast_cluster_tests::{
    Load, LoadPlan, Outages, assert_no_violations, call_lock, get_lock, lock_ids, print_summary, read_all_locks,
    shards_of,
};
use holdfast_testkit::{Cluster, Setup, eventually, eventually_within, skip_without_net_ns};
use holdfast_types::Mode;

/// Within which the side with a majority serves again. A leader that is cut off one way only is heard for a while: what
/// it sends gets through until too much of it is without an answer.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(5);
/// Within which a side without a majority answers.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
/// The nodes' places in the network; gateways come behind them.
const NODES: [usize; 3] = [0, 1, 2];

/// How a node is cut off from the other two.
#[derive(Clone, Copy, Debug)]
enum PartitionKind {
    BothWays,
    InboundOnly,
    OutboundOnly,
}

fn partition(cluster: &Cluster, node: usize, how: PartitionKind) {
    for other in NODES.into_iter().filter(|other| *other != node) {
        match how {
            PartitionKind::BothWays => cluster.network().cut_both_ways(&[node], &[other]),
            PartitionKind::InboundOnly => cluster.network().cut(other, node),
            PartitionKind::OutboundOnly => cluster.network().cut(node, other),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_cut_off_serves_nothing_stale_and_the_others_go_on() {
    if skip_without_net_ns("partitions") {
        return;
    }
    let mut cluster = Cluster::start(Setup { gateways: 2, is_networked: true, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("partitions", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let load = Load::start(
        &LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: true },
        &history,
    );
    let mut outages = Outages::default();
    for how in [PartitionKind::BothWays, PartitionKind::InboundOnly, PartitionKind::OutboundOnly] {
        // The one that leads most, so that something is at stake.
        let led = join_all(NODES.map(|node| cluster.shards_led_by(node))).await;
        let node = NODES.into_iter().max_by_key(|node| led[*node].len()).expect("there are nodes");
        partition(&cluster, node, how);
        let cut_at = Instant::now();
        outages.add(history.at(cut_at), led[node].clone());
        eventually_within(Duration::from_secs(30), "every shard answers writes again", async || {
            match outages.check_recovered(&history, &shards) {
                Ok(()) => Ok(()),
                Err(shard) => Err(format!("{how:?} of {node}: {shard} does not:\n{}", cluster.describe(shard).await)),
            }
        })
        .await;
        println!("{how:?}: node {node} led {} shards; all are back after {:.1?}", led[node].len(), cut_at.elapsed());
        cluster.network().heal();
        cluster.wait_ready().await;
    }
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    let (lost, others) = outages.stats(&history, &shards);
    println!("back, of shards whose leader was cut off: {lost}; of the others: {others}");
    assert_no_violations(&history);
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same bytes on all three nodes");
    assert!(lost.is_mostly_within(RECOVERY_TIMEOUT), "shards were away for long: {lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_on_the_wrong_side_answers_in_time_and_serves_nothing() {
    if skip_without_net_ns("a gateway on the wrong side") {
        return;
    }
    let mut cluster = Cluster::start(Setup { gateways: 2, is_networked: true, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("wrong-side", &NAMESPACES).await;
    let (right, wrong) = (cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key));
    for namespace in NAMESPACES {
        right.acquire(namespace, "one", "before").await.expect("the service is up");
        get_lock(&wrong, namespace, "one").await.expect("the service is up");
    }
    // The second gateway and the first node are alone.
    cluster.network().cut_both_ways(&[0, 4], &[1, 2, 3]);
    let cut_at = Instant::now();
    // Until after the lease, and the elections on both sides.
    while cut_at.elapsed() < RESPONSE_TIMEOUT {
        let calls = NAMESPACES.map(async |namespace| {
            let asked = Instant::now();
            let lease_may_last = cut_at.elapsed() < Duration::from_secs(1);
            let got = get_lock(&wrong, namespace, "one").await;
            assert!(lease_may_last || got.is_err(), "a read was served by a minority: {got:?}");
            let take = Call::Acquire { mode: Mode::Write, ttl_ms: 60_000, token: None };
            let taken = call_lock(&wrong, namespace, "two", "after", take).await;
            assert!(taken.is_err(), "a write was served by a minority: {taken:?}");
            asked.elapsed()
        });
        let slowest = join_all(calls).await.into_iter().max().expect("there are namespaces");
        assert!(slowest <= 3 * RESPONSE_TIMEOUT, "two calls took {slowest:?}");
    }
    for namespace in NAMESPACES {
        right.acquire(namespace, "three", "right").await.expect("the majority serves");
    }
    cluster.network().heal();
    let healed_at = Instant::now();
    for namespace in NAMESPACES {
        eventually("the gateway serves again", async || {
            let view = get_lock(&wrong, namespace, "three").await.map_err(|error| error.to_string())?;
            assert_eq!(view.holds.len(), 1, "what the majority granted is there: {view:?}");
            Ok(())
        })
        .await;
        let view = get_lock(&right, namespace, "one").await.expect("the service is up");
        assert_eq!(view.holds.len(), 1, "{view:?}");
    }
    println!("the gateway serves again {:.1?} after the end of the cut", healed_at.elapsed());
    cluster.wait_ready().await;
    cluster.wait_equal_states().await;
}
