//! How long a lock can't be granted after the process of its shard's leader was killed: from the kill to the next
//! granted lock, on a cluster that is otherwise idle and on one under load. `make failover KILLS=n` takes n of each.

use std::time::Duration;

use holdfast_cluster_tests::history::History;
use holdfast_cluster_tests::{
    Api, Cluster, Figures, Load, LoadPlan, Setup, Tenant, assert_right, eventually_within, look_at_all, print_summary,
};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const CLIENTS: usize = 40;
/// A failover without proof of death takes the lease and an election.
const AT_MOST: Duration = Duration::from_secs(3);

fn kills() -> usize {
    std::env::var("HOLDFAST_FAILOVER_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(2)
}

/// Kills the leader of a namespace's locks. The time from the kill to the next lock that is granted there.
async fn fail_over(cluster: &mut Cluster, tenant: &Tenant, api: &Api, kill: usize) -> Duration {
    let namespace = NAMESPACES[kill % NAMESPACES.len()];
    let (node, ..) = cluster.wait_leader(&cluster.locks_shard(tenant, namespace)).await;
    api.acquire(namespace, &format!("before-{kill}"), "p").await.expect("the service is up");
    let killed_at = cluster.nodes[node].kill().await;
    let name = format!("after-{kill}");
    eventually_within(Duration::from_secs(30), "a lock is granted again", async || {
        api.acquire(namespace, &name, "p").await.map_err(|error| error.to_string())
    })
    .await;
    let took = killed_at.elapsed();
    cluster.nodes[node].start();
    cluster.wait_ready().await;
    took
}

#[tokio::test(flavor = "multi_thread")]
async fn after_the_death_of_a_leader_locks_are_granted_soon() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.tenant("failover", &NAMESPACES).await;
    let api = cluster.api(0, &tenant.key);
    let mut idle = Vec::new();
    for kill in 0..kills() {
        idle.push(fail_over(&mut cluster, &tenant, &api, kill).await);
    }
    let idle = Figures::of(idle);
    println!("from kill to the next granted lock, idle: {idle}");

    let locks = cluster.locks(&tenant, &NAMESPACES, 5);
    let history = History::default();
    let gateways = vec![api.clone(), cluster.api(1, &tenant.key)];
    let plan = LoadPlan { clients: CLIENTS, locks: locks.clone(), gateways, some_are_impatient: false };
    let load = Load::start(&plan, &history);
    let mut loaded = Vec::new();
    for kill in kills()..2 * kills() {
        loaded.push(fail_over(&mut cluster, &tenant, &api, kill).await);
    }
    let took = history.now().as_secs_f64();
    load.stop().await;
    let loaded = Figures::of(loaded);
    println!("from kill to the next granted lock, loaded: {loaded}; {:.0} calls/s", history.len() as f64 / took);
    look_at_all(&api, &locks, &history).await;
    print_summary(&history);
    assert_right(&history);
    assert!(idle.max().max(loaded.max()) <= AT_MOST, "idle {idle}; loaded {loaded}");
}
