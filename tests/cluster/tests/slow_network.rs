//! Nodes that are far away, all of them or one: slow is not wrong.

use std::time::{Duration, Instant};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Cluster, Load, LoadPlan, Outages, Setup, assert_right, eventually_within, look_at_all, print_summary, shards_of,
    wait_out,
};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const LASTS: Duration = Duration::from_secs(1);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "long, and a leader that is 1.5 s away from everybody does not always serve: make faults"]
async fn on_a_slow_network_everything_answered_is_right_and_the_service_goes_on() {
    let mut cluster = Cluster::start(Setup { gateways: 2, is_slow: true, ..Setup::default() }).await;
    let tenant = cluster.tenant("slow", &NAMESPACES).await;
    let locks = cluster.locks(&tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.api(0, &tenant.key), cluster.api(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_are_impatient: true };
    let load = Load::start(&plan, &history);
    // The delay of each node, in milliseconds, there and back each.
    for delays in [[20, 20, 20], [0, 300, 0], [1_500, 0, 100], [80, 80, 80], [0, 0, 0]] {
        let (began, calls) = (Instant::now(), history.len());
        let mut outages = Outages::default();
        outages.add(history.now(), Vec::new());
        for (node, delay) in delays.into_iter().enumerate() {
            cluster.slow_way(node).set_delay(Duration::from_millis(delay));
        }
        eventually_within(Duration::from_secs(20), &format!("every shard answers writes, {delays:?}"), async || {
            match outages.is_back(&history, &shards) {
                Ok(()) => Ok(()),
                Err(shard) => Err(format!("{shard} does not:\n{}", cluster.describe(shard).await)),
            }
        })
        .await;
        let back = began.elapsed();
        wait_out(LASTS).await;
        let rate = (history.len() - calls) as f64 / began.elapsed().as_secs_f64();
        println!("{delays:?} ms: every shard answers after {back:.1?}; {rate:.0} calls/s");
    }
    load.stop().await;
    cluster.wait_ready().await;
    look_at_all(&cluster.api(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_right(&history);
    cluster.wait_equal_states().await;
}
