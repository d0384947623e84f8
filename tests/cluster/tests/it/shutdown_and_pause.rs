//! Nodes that stop in order, and nodes that pause.

use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::history::{Call, History};
use holdfast_cluster_tests::{
    DurationStats, Load, LoadPlan, Outages, assert_no_violations, call_lock, get_lock, lock_ids, print_summary,
    read_all_locks, shards_of,
};
use holdfast_proto::internal::answer::Outcome;
use holdfast_testkit::{Cluster, Setup, eventually, eventually_within};
use holdfast_types::{Path, Query, Reply, Response, codec};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_under_load_hands_over_and_no_request_fails() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("planned", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let gateways = vec![cluster.rest_client(0, &tenant.key), cluster.rest_client(1, &tenant.key)];
    let history = History::default();
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: false };
    let load = Load::start(&plan, &history);
    for node in 0..3 {
        let led = cluster.shards_led_by(node).await.len();
        let began = Instant::now();
        let status = cluster.nodes[node].terminate().await;
        println!("node {node} led {led} shards and stopped in {:.1?}", began.elapsed());
        assert!(status.success(), "node {node} ended with {status}");
        cluster.nodes[node].start();
        cluster.wait_ready().await;
        let calls = history.len();
        eventually("the clients go on", async || {
            if history.len() > calls + 500 { Ok(()) } else { Err(format!("{} calls", history.len())) }
        })
        .await;
    }
    load.stop().await;
    read_all_locks(&cluster.rest_client(0, &tenant.key), &locks, &history).await;
    print_summary(&history);
    assert_no_violations(&history);
    assert_eq!(history.error_summaries(), [""; 0], "requests failed");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_paused_answers_nothing_stale_and_the_service_goes_on_without_it() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("paused", &NAMESPACES).await;
    let locks = lock_ids(&cluster, &tenant, &NAMESPACES, 5);
    let shards = shards_of(&locks);
    let api = cluster.rest_client(0, &tenant.key);
    let history = History::default();
    let mut outages = Outages::default();
    let gateways = vec![api.clone()];
    let plan = LoadPlan { clients: 40, locks: locks.clone(), gateways, some_have_short_deadlines: true };
    let load = Load::start(&plan, &history);
    for round in 0..4 {
        let (name, owner) = (format!("paused-{round}"), format!("new-{round}"));
        api.acquire("orders", &name, "old").await.unwrap();
        let (node, replica, _) = cluster.wait_leader(&cluster.locks_shard(&tenant, "orders")).await;
        outages.add(history.now(), cluster.shards_led_by(node).await);
        cluster.nodes[node].pause();
        eventually_within(Duration::from_secs(30), "every shard answers writes again", async || {
            outages.check_recovered(&history, &shards).map_err(str::to_owned)
        })
        .await;
        // The lock changes hands while its old leader sleeps, with questions at its door.
        assert!(call_lock(&api, "orders", &name, "old", Call::Release { token: None }).await.unwrap().success);
        let token = api.acquire("orders", &name, &owner).await.unwrap();
        let (query, key) = (lock_query(&cluster, &tenant, &name).await, cluster.locks_key(&tenant, "orders"));
        let asked: Vec<_> = (0..20)
            .map(|_| {
                let (mut sleeper, query) = (cluster.node_client(node), query.clone());
                tokio::spawn(async move { sleeper.query(replica, key, &query).await })
            })
            .collect();
        // The other gateway does not know the new leader.
        let through_other = get_lock(&cluster.rest_client(1, &tenant.key), "orders", &name).await.unwrap();
        assert_eq!(through_other.holds[0].token, token);
        cluster.nodes[node].resume();
        for outcome in join_all(asked).await {
            assert_fresh(outcome.expect("no task panics"), token);
        }
        cluster.wait_ready().await;
    }
    load.stop().await;
    read_all_locks(&api, &locks, &history).await;
    print_summary(&history);
    let (lost, others): (DurationStats, DurationStats) = outages.stats(&history, &shards);
    println!("back, of shards whose leader was paused: {lost}; of the others: {others}");
    assert_no_violations(&history);
    assert!(lost.is_mostly_within(RECOVERY_TIMEOUT), "shards were away for long: {lost}");
}

/// What a gateway asks a node to see a lock.
async fn lock_query(cluster: &Cluster, tenant: &holdfast_testkit::Tenant, lock: &str) -> Query {
    let namespace = cluster.namespace_ref(tenant, "orders").await;
    Query::Lock { namespace, path: Path::flat(lock) }
}

/// Either the answer is of the lock as it is now, or there is none.
fn assert_fresh(outcome: Result<Outcome, tonic::Status>, token: u64) {
    let bytes = match outcome {
        Ok(Outcome::Reply(bytes)) => bytes,
        Ok(Outcome::NotLeader(_) | Outcome::NotProposed(_)) => return,
        other => panic!("{other:?}"),
    };
    let reply: Reply = codec::decode(&bytes).unwrap();
    let Ok(Response::Lock(lock)) = &reply.outcome else { panic!("{reply:?}") };
    let holder = lock.write_lock_holder.as_ref();
    assert_eq!(holder.map(|holder| holder.fencing_token), Some(token), "a stale answer: {lock:?}");
}
