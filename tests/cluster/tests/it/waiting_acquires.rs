//! Waiting calls and the loss of what they wait at: a leader, a gateway, a caller.

use holdfast_cluster_tests::get_lock;
use std::time::Duration;

use futures::future::join_all;
use holdfast_testkit::{CallError, CallOutcome, Cluster, RestClient, Setup, Tenant, eventually, wait_before_retry};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const WAITERS: usize = 8;
const NAMESPACE: &str = "orders";

/// A long poll, repeated when its shard or gateway was lost: it finds its place, or what it was granted.
async fn acquire_with_polls(apis: Vec<RestClient>, owner: String) -> u64 {
    let path = format!("/v1/namespaces/{NAMESPACE}/locks/one/acquire");
    let body = json!({"process_id": owner, "ttl_ms": 3_600_000, "wait_ms": 60_000, "poll_ms": 15_000});
    for api in apis.iter().cycle() {
        let answer: Result<Value, CallError> = api.fetch(&format!("POST {path}"), Some(body.clone())).await;
        match answer {
            Ok(answer) if answer["success"] == true => return answer["fencing_token"].as_u64().expect("a token"),
            Ok(answer) => assert_eq!(answer["reason"]["code"], "QUEUED", "{owner} was refused: {answer}"),
            Err(error) => {
                assert!(
                    error.outcome == CallOutcome::Unknown || error.status == 503 || error.status == 0,
                    "{owner}: {error}"
                );
                wait_before_retry().await;
            }
        }
    }
    unreachable!("the gateways are asked in turns for ever")
}

async fn waiting_count(api: &RestClient) -> Result<u64, String> {
    let shown: Result<Value, CallError> = api.fetch(&format!("GET /v1/namespaces/{NAMESPACE}/locks/one"), None).await;
    shown.map_err(|error| error.to_string())?["lock"]["waiting"].as_u64().ok_or("no number".to_owned())
}

async fn wait_for_queue(api: &RestClient, length: u64) {
    eventually(&format!("{length} wait"), async || match waiting_count(api).await? {
        now if now == length => Ok(()),
        now => Err(format!("{now} wait")),
    })
    .await;
}

async fn release(api: &RestClient, owner: &str) {
    let path = format!("/v1/namespaces/{NAMESPACE}/locks/one/release");
    eventually(&format!("{owner} releases"), async || {
        let answer: Result<Value, CallError> =
            api.fetch(&format!("POST {path}"), Some(json!({"process_id": owner}))).await;
        answer.map(|_| ()).map_err(|error| error.to_string())
    })
    .await;
}

/// Waiters in a known order, in turns through the gateways.
async fn enqueue_waiters(cluster: &Cluster, tenant: &Tenant) -> Vec<JoinHandle<u64>> {
    let apis: Vec<RestClient> = (0..cluster.gateways.len()).map(|at| cluster.rest_client(at, &tenant.key)).collect();
    let mut waiters = Vec::new();
    for at in 0..WAITERS {
        let mut mine = apis.clone();
        mine.rotate_left(at % apis.len());
        waiters.push(tokio::spawn(acquire_with_polls(mine, format!("waiter-{at}"))));
        wait_for_queue(&apis[0], at as u64 + 1).await;
    }
    waiters
}

/// Lets one after the other go; each must be the next in order, with a higher token.
async fn grant_in_order(api: &RestClient, waiters: Vec<JoinHandle<u64>>) {
    release(api, "holder").await;
    let mut last = 0;
    for (at, waiter) in waiters.into_iter().enumerate() {
        let token = waiter.await.expect("the waiter was granted");
        assert!(token > last, "waiter {at} has token {token} after {last}");
        last = token;
        wait_for_queue(api, (WAITERS - at - 1) as u64).await;
        let view = get_lock(api, NAMESPACE, "one").await.expect("a look");
        assert_eq!(view.holds.iter().map(|hold| &*hold.owner).collect::<Vec<_>>(), [format!("waiter-{at}")]);
        release(api, &format!("waiter-{at}")).await;
    }
}

/// Waits until another node leads a shard, in a later term.
pub(crate) async fn wait_for_another_leader(cluster: &Cluster, shard: &str, (leader, term): (usize, u64)) {
    eventually("another leads", async || {
        let looks = join_all((0..3).filter(|node| *node != leader).map(|node| cluster.status(node, false))).await;
        let replicas = looks.into_iter().flatten().flat_map(|status| status.replicas);
        let led = replicas.filter(|replica| replica.shard == shard && replica.leader == replica.replica);
        if led.into_iter().any(|replica| replica.term > term) { Ok(()) } else { Err("nobody yet".to_owned()) }
    })
    .await;
}

/// Kills or pauses the leader of a shard until another one leads.
pub(crate) async fn lose_leader(cluster: &mut Cluster, shard: &str, is_killed: bool) {
    let (leader, _, term) = cluster.wait_leader(shard).await;
    if is_killed {
        _ = cluster.nodes[leader].kill().await
    } else {
        cluster.nodes[leader].pause()
    }
    wait_for_another_leader(cluster, shard, (leader, term)).await;
    if is_killed {
        cluster.nodes[leader].start()
    } else {
        cluster.nodes[leader].resume()
    }
    cluster.wait_ready().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_calls_keep_their_places_when_their_leader_is_lost() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("waits", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    api.acquire(NAMESPACE, "one", "holder").await.expect("the first takes it");
    let waiters = enqueue_waiters(&cluster, &tenant).await;
    for is_killed in [true, false, true] {
        lose_leader(&mut cluster, &shard, is_killed).await;
        wait_for_queue(&api, WAITERS as u64).await;
    }
    grant_in_order(&api, waiters).await;
    cluster.wait_equal_states().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_dies_costs_its_callers_no_place_when_they_ask_again() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("gateways", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.acquire(NAMESPACE, "one", "holder").await.expect("the first takes it");
    let waiters = enqueue_waiters(&cluster, &tenant).await;
    cluster.gateways[1].kill().await;
    grant_in_order(&api, waiters).await;
    cluster.wait_equal_states().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_are_gone_leave_the_queue_and_give_back_what_they_were_granted() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("gone", &[NAMESPACE]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.acquire(NAMESPACE, "one", "holder").await.expect("the first takes it");
    let waiters = enqueue_waiters(&cluster, &tenant).await;
    // Half of them go by themselves, and leave at once; the others with their gateway, and leave after a while.
    for waiter in waiters.iter().step_by(2) {
        waiter.abort();
    }
    wait_for_queue(&api, WAITERS as u64 / 2).await;
    for waiter in &waiters {
        waiter.abort();
    }
    cluster.gateways[1].kill().await;
    release(&api, "holder").await;
    eventually("nothing is left", async || {
        let view = get_lock(&api, NAMESPACE, "one").await.map_err(|error| error.to_string())?;
        let waiting = waiting_count(&api).await?;
        if view.holds.is_empty() && waiting == 0 { Ok(()) } else { Err(format!("{view:?}, {waiting} wait")) }
    })
    .await;
    // The next request does not wait for abandoned ones.
    let next = tokio::time::timeout(Duration::from_secs(5), api.acquire(NAMESPACE, "one", "next")).await;
    next.expect("in time").expect("the lock is free");
}
