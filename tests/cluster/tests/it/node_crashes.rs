//! Nodes are killed with `kill -9` under load: nothing that was answered is lost, and the service is back soon.

use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Load, LoadPlan, Outages, assert_no_violations, lock_ids, print_summary, read_all_locks, shards_of,
};
use holdfast_testkit::{Cluster, Program, Setup, eventually, eventually_within};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

/// Within which the service is back after a kill.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);
const NAMESPACES: [&str; 8] = ["orders", "invoices", "users", "builds", "mail", "search", "maps", "audit"];

fn test_duration() -> Duration {
    let seconds = std::env::var("HOLDFAST_TEST_KILL_SECONDS").ok().and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(60))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_outlives_every_kill() {
    let mut cluster = Cluster::start(Setup { shards: 16, gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("kills", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let load = Load::start(
        &LoadPlan { clients: 200, locks: locks.clone(), gateways, some_have_short_deadlines: true },
        &history,
    );

    let mut outages = Outages::default();
    let (until, mut kills) = (Instant::now() + test_duration(), 0);
    while Instant::now() < until {
        let node = kills % 3;
        let led = cluster.shards_led_by(node).await;
        let killed_at = cluster.nodes[node].kill().await;
        outages.add(history.at(killed_at), led);
        eventually_within(Duration::from_secs(30), "every shard answers writes again", async || {
            match outages.check_recovered(&history, &shards) {
                Ok(()) => Ok(()),
                Err(shard) => Err(format!("{shard} does not:\n{}", cluster.describe(shard).await)),
            }
        })
        .await;
        cluster.nodes[node].start();
        cluster.wait_ready().await;
        kills += 1;
    }
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;

    print_summary(&history);
    let (lost, others) = outages.stats(&history, &shards);
    println!("{kills} kills; back, of shards that lost their leader: {lost}; of the others: {others}");
    assert_no_violations(&history);
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same bytes on all three nodes");
    assert!(lost.is_mostly_within(RECOVERY_TIMEOUT), "shards were away for long: {lost}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_locks_are_as_answered_after_all_nodes_were_killed_at_once() {
    let mut cluster = Cluster::start(Setup { shards: 16, gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("all", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let load = Load::start(
        &LoadPlan { clients: 50, locks: locks.clone(), gateways, some_have_short_deadlines: true },
        &history,
    );

    for round in 0..3 {
        let calls = history.len();
        eventually("the clients are at work", async || {
            if history.len() > calls + 2_000 { Ok(()) } else { Err(format!("{} calls", history.len())) }
        })
        .await;
        join_all(cluster.nodes.iter_mut().map(Program::kill)).await;
        let began = Instant::now();
        cluster.nodes.iter_mut().for_each(Program::start);
        cluster.wait_ready().await;
        println!("round {round}: all nodes are ready {:.1?} after their start", began.elapsed());
    }
    load.stop().await;
    read_all_locks(&cluster.rest_client(1, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    cluster.wait_equal_states().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_answer_is_lost_in_a_storm_of_kills_that_waits_for_nothing() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("storm", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: true };
    let load = Load::start(&plan, &history);

    // The same storm each time: the order of kills, and how long each gust lasts at the most.
    let mut random = SmallRng::seed_from_u64(2);
    for _ in 0..40 {
        let (mut up, mut down): (Vec<_>, Vec<_>) = cluster.nodes.iter_mut().partition(|node| node.is_started());
        // Seldom more than one is down: without a majority nothing is answered that could be lost.
        let starts = random.random_ratio([0, 3, 4][down.len().min(2)], 4);
        if starts {
            let one = random.random_range(0..down.len());
            down[one].start();
        } else {
            let one = random.random_range(0..up.len());
            up[one].kill().await;
        }
        let (calls, gust) = (history.len(), Duration::from_millis(random.random_range(0..1_200)));
        let many_calls = eventually("many calls are answered", async || {
            if history.len() > calls + 1_000 { Ok(()) } else { Err(String::new()) }
        });
        // Whichever comes first: often no call is answered for want of nodes.
        let _ = tokio::time::timeout(gust, many_calls).await;
    }
    cluster.nodes.iter_mut().filter(|node| !node.is_started()).for_each(Program::start);
    cluster.wait_ready().await;
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    cluster.wait_equal_states().await;
}
