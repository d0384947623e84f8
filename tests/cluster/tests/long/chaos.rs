//! Random faults of real processes under load, round after round, each judged by the checker. `make chaos MINUTES=n`
//! runs it for long; the seed that is printed for a round repeats that round's faults.

use std::time::{Duration, Instant};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Fault, Load, LoadPlan, Outages, assert_no_violations, lock_ids, print_summary, read_all_locks, shards_of,
};
use holdfast_testkit::{Cluster, Setup, check_net_ns_support, eventually_within, wait_out};
use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

const CLIENTS: usize = 40;
const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
/// Groups of faults in one round.
const FAULT_GROUPS: usize = 4;
/// Within which every shard serves again once nothing is broken any more; most of it is the start of processes.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(20);

fn env_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|value| value.parse().ok())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "as long as it is told: make chaos"]
async fn nothing_that_was_answered_is_wrong_whatever_breaks() {
    let length = Duration::from_secs(env_number("HOLDFAST_CHAOS_SECONDS").unwrap_or(1));
    let first_seed = env_number("HOLDFAST_CHAOS_SEED").unwrap_or_else(|| u64::from(rand::random::<u32>()));
    let is_networked = check_net_ns_support().inspect_err(|reason| println!("without partitions: {reason}")).is_ok();
    let mut cluster = Cluster::start(Setup { gateways: 2, is_networked, ..Setup::default() }).await;
    let began = Instant::now();
    let (mut seed, mut calls, mut faults) = (first_seed, 0, 0);
    while seed == first_seed || began.elapsed() < length {
        println!("{:>5.0?} round with seed {seed}; to repeat: make chaos SEED={seed}", began.elapsed());
        let (round_calls, round_faults) = run_round(&mut cluster, seed).await;
        calls += round_calls;
        faults += round_faults;
        seed += 1;
    }
    println!("{} rounds, {faults} faults, {calls} calls in {:.0?}: no finding", seed - first_seed, began.elapsed());
}

/// Faults and load, and then the verdict. Answers how many calls and faults there were.
async fn run_round(cluster: &mut Cluster, seed: u64) -> (usize, usize) {
    let mut random = SmallRng::seed_from_u64(seed);
    let tenant = cluster.create_tenant(&format!("chaos-{seed}-{:08x}", rand::random::<u32>()), &NAMESPACES).await;
    let locks = lock_ids(cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: CLIENTS, locks: locks.clone(), gateways, some_have_short_deadlines: true };
    let load = Load::start(&plan, &history);
    let (mut faults, mut outages) = (0, Outages::default());
    for _ in 0..FAULT_GROUPS {
        wait_out(Duration::from_millis(random.random_range(100..1_000))).await;
        for _ in 0..random.random_range(1..=3) {
            let fault = Fault::draw(&mut random, cluster);
            println!("      {fault:?}");
            fault.inject(cluster).await;
            faults += 1;
            wait_out(Duration::from_millis(random.random_range(0..2_500))).await;
        }
        Fault::heal_all(cluster);
        outages.add(history.now(), Vec::new());
        eventually_within(RECOVERY_TIMEOUT, &format!("all is well again, seed {seed}"), async || {
            match outages.check_recovered(&history, &shards) {
                Ok(()) => Ok(()),
                Err(shard) => Err(format!("{shard} does not answer:\n{}", cluster.describe(shard).await)),
            }
        })
        .await;
        cluster.wait_ready().await;
    }
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    let (_, back) = outages.stats(&history, &shards);
    println!("      back after the end of a fault: {back}");
    assert_no_violations(&history);
    cluster.wait_equal_states().await;
    (history.len(), faults)
}
