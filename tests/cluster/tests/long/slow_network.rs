//! Nodes that are far away, all of them or one: slow is not wrong.

use std::time::{Duration, Instant};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Load, LoadPlan, Outages, assert_no_violations, lock_ids, print_summary, read_all_locks, shards_of,
};
use holdfast_testkit::{Cluster, Setup, eventually_within, wait_out};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const DELAY_DURATION: Duration = Duration::from_secs(1);
/// The deadline of a call that brings none, and the way of its answer.
const MAX_CALL_TIME: Duration = Duration::from_secs(11);

#[tokio::test(flavor = "multi_thread")]
#[ignore = "half a minute: make fault-tests"]
async fn on_a_slow_network_everything_answered_is_right_and_the_service_goes_on() {
    let mut cluster = Cluster::start(Setup { gateways: 2, has_latency_proxies: true, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("slow", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: true };
    let load = Load::start(&plan, &history);
    for delays in [[20, 20, 20], [0, 300, 0], [900, 0, 100], [80, 80, 80]] {
        set_delays(&cluster, delays);
        wait_all_shards_serve(&cluster, &history, &shards, delays).await;
    }
    // Farther than any call waits for a leader: what such a node leads is as good as cut off, and nothing else is.
    let far = [1_500, 0, 100];
    let led = cluster.shards_led_by(0).await;
    set_delays(&cluster, far);
    let others: Vec<String> = shards.iter().filter(|shard| !led.contains(shard)).cloned().collect();
    wait_all_shards_serve(&cluster, &history, &others, far).await;
    set_delays(&cluster, [0, 0, 0]);
    wait_all_shards_serve(&cluster, &history, &shards, [0, 0, 0]).await;
    load.stop().await;
    cluster.wait_ready().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    let slowest = history.with_records(|records| records.iter().map(|record| record.end - record.start).max());
    println!("no call took longer than {slowest:.1?}");
    assert!(slowest <= Some(MAX_CALL_TIME), "a call hung: {slowest:?}");
    cluster.wait_equal_states().await;
}

/// From now on each node is so far away, in milliseconds there and back each.
fn set_delays(cluster: &Cluster, delays: [u64; 3]) {
    for (node, delay) in delays.into_iter().enumerate() {
        cluster.latency_proxy(node).set_delay(Duration::from_millis(delay));
    }
}

/// Waits until each of these shards answered a write, and lets them go on for a while.
async fn wait_all_shards_serve(cluster: &Cluster, history: &History, shards: &[String], delays: [u64; 3]) {
    let (began, calls) = (Instant::now(), history.len());
    let mut outages = Outages::default();
    outages.add(history.now(), Vec::new());
    eventually_within(Duration::from_secs(20), &format!("every shard answers writes, {delays:?}"), async || {
        match outages.check_recovered(history, shards) {
            Ok(()) => Ok(()),
            Err(shard) => Err(format!("{shard} does not:\n{}", cluster.describe(shard).await)),
        }
    })
    .await;
    let back = began.elapsed();
    wait_out(DELAY_DURATION).await;
    let rate = (history.len() - calls) as f64 / began.elapsed().as_secs_f64();
    println!("{delays:?} ms: {} shards answer after {back:.1?}; {rate:.0} calls/s", shards.len());
}
