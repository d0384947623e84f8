//! How long a lock can't be granted after the process of its shard's leader was killed: from the kill to the next
//! granted lock, on a cluster that is otherwise idle and on one under load; and after it fell silent. `make failover
//! KILLS=n` takes n of each, `ONLY=idle` those of an idle cluster alone. With `HOLDFAST_BIN_DIR` the programs of another
//! build are measured by the same test, so that two builds can take turns.

use std::time::{Duration, Instant};

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    DurationStats, Load, LoadPlan, assert_no_violations, lock_ids, print_summary, read_all_locks,
};
use holdfast_testkit::{Cluster, RestClient, Setup, Tenant, eventually_within};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const CLIENTS: usize = 40;
/// A failover without proof of death takes the lease and an election.
const MAX_FAILOVER: Duration = Duration::from_secs(3);

fn kill_count() -> usize {
    std::env::var("HOLDFAST_FAILOVER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(2)
}

/// How many of one part of the measurement: none where another part alone is wanted.
fn kill_count_for(part: &str) -> usize {
    let only = std::env::var("HOLDFAST_FAILOVER_ONLY").unwrap_or_default();
    if only.is_empty() || only == part { kill_count() } else { 0 }
}

/// How a leader fails.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FailureMode {
    /// Its process is dead, and its address refuses connections.
    Killed,
    /// It is silent, as if its host were gone.
    Unreachable,
}

/// Ends the leader of a namespace's locks. The time from then to the next lock that is granted there.
async fn fail_over(
    cluster: &mut Cluster,
    tenant: &Tenant,
    api: &RestClient,
    kill: usize,
    end: FailureMode,
    witnesses: &mut Vec<Duration>,
) -> Duration {
    let namespace = NAMESPACES[kill % NAMESPACES.len()];
    let (node, ..) = cluster.wait_leader(&cluster.locks_shard(tenant, namespace)).await;
    api.acquire(namespace, &format!("before-{kill}"), "p").await.expect("the service is up");
    let before = if end == FailureMode::Killed { witness_totals(cluster).await } else { Vec::new() };
    let killed_at = match end {
        FailureMode::Killed => cluster.nodes[node].kill().await,
        FailureMode::Unreachable => {
            cluster.nodes[node].pause();
            Instant::now()
        }
    };
    let name = format!("after-{kill}");
    eventually_within(Duration::from_secs(30), "a lock is granted again", async || {
        api.acquire(namespace, &name, "p").await.map_err(|error| error.to_string())
    })
    .await;
    let took = killed_at.elapsed();
    if end == FailureMode::Killed {
        witnesses.extend(mean_witness_time(&before, &witness_totals(cluster).await));
    }
    match end {
        FailureMode::Killed => cluster.nodes[node].start(),
        FailureMode::Unreachable => cluster.nodes[node].resume(),
    }
    cluster.wait_ready().await;
    took
}

/// How often each running node asked a second witness about a dead process, and how many seconds that took altogether.
async fn witness_totals(cluster: &Cluster) -> Vec<Option<(f64, f64)>> {
    let mut nodes = Vec::new();
    for node in &cluster.nodes {
        let totals = node.metrics().await.ok().map(|metrics| {
            (metrics.sum("holdfast_second_witness_seconds_count"), metrics.sum("holdfast_second_witness_seconds_sum"))
        });
        nodes.push(totals);
    }
    nodes
}

/// The mean time of a question to the second witness between two samples, if there was one.
fn mean_witness_time(before: &[Option<(f64, f64)>], after: &[Option<(f64, f64)>]) -> Option<Duration> {
    let both = before.iter().zip(after).filter_map(|(before, after)| Some(((*before)?, (*after)?)));
    let (count, seconds) = both.fold((0.0, 0.0), |(count, seconds), (before, after)| {
        (count + after.0 - before.0, seconds + after.1 - before.1)
    });
    (count > 0.0).then(|| Duration::from_secs_f64(seconds / count))
}

/// The middle and the longest of times that are far below a millisecond.
fn format_ms(times: &[Duration]) -> String {
    let mut ms: Vec<f64> = times.iter().map(|time| time.as_secs_f64() * 1_000.0).collect();
    ms.sort_unstable_by(f64::total_cmp);
    let (middle, most) = (ms.get(ms.len() / 2).copied().unwrap_or_default(), ms.last().copied().unwrap_or_default());
    format!("{middle:.3} in the middle, {most:.3} at the most, of {}", ms.len())
}

/// Prints times, those of several runs to be put together as well.
fn print_stats(what: &str, times: Vec<Duration>) -> DurationStats {
    let ms: Vec<u128> = times.iter().map(Duration::as_millis).collect();
    let figures = DurationStats::from_durations(times);
    println!("{what}: {figures}; in ms: {ms:?}");
    figures
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_death_of_a_leader_locks_are_granted_soon() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("failover", &NAMESPACES).await;
    let api = cluster.rest_client(0, &tenant.key);
    let (mut idle, mut witnesses) = (Vec::new(), Vec::new());
    for kill in 0..kill_count_for("idle") {
        idle.push(fail_over(&mut cluster, &tenant, &api, kill, FailureMode::Killed, &mut witnesses).await);
    }
    let idle = print_stats("from kill to the next granted lock, idle", idle);
    println!("the second witness, idle, in ms: {}", format_ms(&witnesses));
    let mut silent = Vec::new();
    for kill in kill_count()..kill_count() + kill_count_for("silent") {
        silent.push(fail_over(&mut cluster, &tenant, &api, kill, FailureMode::Unreachable, &mut Vec::new()).await);
    }
    let silent = print_stats("from silence to the next granted lock, idle", silent);
    let loaded = fail_over_loaded(&mut cluster, &tenant, &api).await;
    let all_are_soon = [&idle, &silent, &loaded].into_iter().all(|times| times.is_mostly_within(MAX_FAILOVER));
    assert!(all_are_soon, "idle {idle}; silent {silent}; loaded {loaded}");
}

/// Kills leaders while forty clients work, and checks what these were answered.
async fn fail_over_loaded(cluster: &mut Cluster, tenant: &Tenant, api: &RestClient) -> DurationStats {
    let locks = lock_ids(cluster, tenant, &NAMESPACES, 5);
    let history = History::default();
    let gateways = vec![api.clone(), cluster.rest_client(1, &tenant.key)];
    let plan = LoadPlan { clients: CLIENTS, locks: locks.clone(), gateways, some_have_short_deadlines: false };
    let load = Load::start(&plan, &history);
    let (mut loaded, mut witnesses) = (Vec::new(), Vec::new());
    for kill in 2 * kill_count()..2 * kill_count() + kill_count_for("loaded") {
        loaded.push(fail_over(cluster, tenant, api, kill, FailureMode::Killed, &mut witnesses).await);
    }
    let took = history.now().as_secs_f64();
    load.stop().await;
    let loaded = print_stats("from kill to the next granted lock, loaded", loaded);
    println!("the second witness, loaded, in ms: {}", format_ms(&witnesses));
    println!("{:.0} calls/s", history.len() as f64 / took);
    read_all_locks(api, &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    loaded
}
