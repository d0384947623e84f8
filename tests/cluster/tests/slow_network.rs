//! Nodes that are far away, all of them or one: slow is not wrong.

use std::time::{Duration, Instant};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Cluster, Load, LoadPlan, Outages, Setup, assert_right, eventually_within, look_at_all, print_summary, shards_of,
    wait_out,
};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const LASTS: Duration = Duration::from_secs(1);
/// The deadline of a call that brings none, and the way of its answer.
const LONGEST_CALL: Duration = Duration::from_secs(11);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute: make faults"]
async fn on_a_slow_network_everything_answered_is_right_and_the_service_goes_on() {
    let mut cluster = Cluster::start(Setup { gateways: 2, is_slow: true, ..Setup::default() }).await;
    let tenant = cluster.tenant("slow", &NAMESPACES).await;
    let locks = cluster.locks(&tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.api(0, &tenant.key), cluster.api(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_are_impatient: true };
    let load = Load::start(&plan, &history);
    for delays in [[20, 20, 20], [0, 300, 0], [900, 0, 100], [80, 80, 80]] {
        slow_down(&cluster, delays);
        serves(&cluster, &history, &shards, delays).await;
    }
    // Farther than any call waits for a leader: what such a node leads is as good as cut off, and nothing else is.
    let far = [1_500, 0, 100];
    let led = cluster.led_by(0).await;
    slow_down(&cluster, far);
    let others: Vec<String> = shards.iter().filter(|shard| !led.contains(shard)).cloned().collect();
    serves(&cluster, &history, &others, far).await;
    slow_down(&cluster, [0, 0, 0]);
    serves(&cluster, &history, &shards, [0, 0, 0]).await;
    load.stop().await;
    cluster.wait_ready().await;
    look_at_all(&cluster.api(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_right(&history);
    let slowest = history.with(|records| records.iter().map(|record| record.end - record.start).max());
    println!("no call took longer than {slowest:.1?}");
    assert!(slowest <= Some(LONGEST_CALL), "a call hung: {slowest:?}");
    cluster.wait_equal_states().await;
}

/// From now on each node is so far away, in milliseconds there and back each.
fn slow_down(cluster: &Cluster, delays: [u64; 3]) {
    for (node, delay) in delays.into_iter().enumerate() {
        cluster.slow_way(node).set_delay(Duration::from_millis(delay));
    }
}

/// Waits until each of these shards answered a write, and lets them go on for a while.
async fn serves(cluster: &Cluster, history: &History, shards: &[String], delays: [u64; 3]) {
    let (began, calls) = (Instant::now(), history.len());
    let mut outages = Outages::default();
    outages.add(history.now(), Vec::new());
    eventually_within(Duration::from_secs(20), &format!("every shard answers writes, {delays:?}"), async || {
        match outages.is_back(history, shards) {
            Ok(()) => Ok(()),
            Err(shard) => Err(format!("{shard} does not:\n{}", cluster.describe(shard).await)),
        }
    })
    .await;
    let back = began.elapsed();
    wait_out(LASTS).await;
    let rate = (history.len() - calls) as f64 / began.elapsed().as_secs_f64();
    println!("{delays:?} ms: {} shards answer after {back:.1?}; {rate:.0} calls/s", shards.len());
}
