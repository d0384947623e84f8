//! Locks of a namespace whose durability is SESSION, in the memory of one leader after the other: never two holders,
//! and tokens that rise, while leaders are killed or wake up deposed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use futures::future::join_all;
use holdfast_client::{Client, Guard};
use holdfast_testkit::{Cluster, EventStream, RestClient, Setup, eventually_within, run_dev, wait_before_retry};
use serde_json::{Value, json};

use crate::waiting_acquires::{lose_leader, wait_for_another_leader};

const NAMESPACE: &str = "soft";
const CONTENDERS: usize = 4;
const TTL: Duration = Duration::from_secs(2);
/// Longer than an election.
const LONG_TTL: Duration = Duration::from_secs(30);
/// Longer than an election, and the end of all sessions of before.
const RECOVERY_TIMEOUT: Duration = Duration::from_secs(40);
/// Sections between two losses of the leader.
const SECTIONS: u64 = 20;

/// What those who hold the lock see, by their own clocks.
#[derive(Default)]
struct Witness {
    inside: AtomicUsize,
    last_token: AtomicU64,
    sections: AtomicU64,
    stop: AtomicBool,
}

impl Witness {
    fn stops(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    /// Holds the lock for a moment, or until it is lost.
    async fn hold(&self, guard: &Guard) {
        if guard.is_lost() {
            return;
        }
        let (others, token) = (self.inside.fetch_add(1, Ordering::SeqCst), guard.fencing_token());
        let last = self.last_token.swap(token, Ordering::SeqCst);
        tokio::select! {
            () = wait_before_retry() => {}
            _ = guard.lost() => {}
        }
        self.inside.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(others, 0, "two hold it, one of them with the token {token}");
        assert!(last < token, "tokens rise: {last}, then {token}");
        self.sections.fetch_add(1, Ordering::SeqCst);
    }

    /// Waits until the lock was held so many more times.
    async fn wait_for_more(&self, what: &str) {
        let before = self.sections.load(Ordering::SeqCst);
        eventually_within(RECOVERY_TIMEOUT, what, async || {
            let more = self.sections.load(Ordering::SeqCst) - before;
            if more >= SECTIONS { Ok(()) } else { Err(format!("it was held {more} times")) }
        })
        .await;
    }
}

/// Takes the lock again and again, with another session when one has ended.
async fn contend(client: Client, witness: Arc<Witness>) {
    while !witness.stops() {
        let Ok(session) = client.session(NAMESPACE).ttl(TTL).open().await else {
            wait_before_retry().await;
            continue;
        };
        while !witness.stops() && session.end_reason().is_none() {
            match session.mutex("one").lock_timeout(TTL).await {
                Ok(guard) => {
                    witness.hold(&guard).await;
                    // A session that has ended has released it.
                    let _ = guard.release().await;
                }
                // The leader has no complete table yet, or is being lost.
                Err(_) => wait_before_retry().await,
            }
        }
        session.close().await;
    }
}

async fn table_state(api: &RestClient) -> Value {
    api.call(&format!("GET /v1/namespaces/{NAMESPACE}")).await.ok()["table"].clone()
}

#[tokio::test(flavor = "multi_thread")]
async fn nobody_holds_what_another_holds_while_leaders_are_lost() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("soft", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    let made = api.json("POST /v1/namespaces", json!({"name": NAMESPACE, "durability": "SESSION"})).await.ok();
    assert_eq!(made["durability"], "SESSION");
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let witness = Arc::new(Witness::default());
    let contenders: Vec<_> = (0..CONTENDERS)
        .map(|number| {
            let address = cluster.gateway_address(number % 2);
            let client = Client::new(&format!("http://{address}"), &tenant.key).expect("it is a client");
            tokio::spawn(contend(client, Arc::clone(&witness)))
        })
        .collect();
    witness.wait_for_more("the first leader grants").await;
    let mut epoch = 0;
    for is_killed in [true, false, true] {
        let before = table_state(&api).await;
        assert_eq!(before["state"], "READY", "{before}");
        assert!(before["epoch"].as_u64() > Some(epoch), "{before}");
        epoch = before["epoch"].as_u64().expect("an epoch");
        lose_leader(&mut cluster, &shard, is_killed).await;
        witness.wait_for_more("the next leader grants").await;
    }
    witness.stop.store(true, Ordering::SeqCst);
    join_all(contenders).await.into_iter().for_each(|ended| ended.expect("no two hold it"));
    println!("the lock was held {} times", witness.sections.load(Ordering::SeqCst));
    cluster.wait_equal_states().await;
}

/// The nodes of this cluster are processes of the test, which no `dev cluster up` can kill.
#[tokio::test(flavor = "multi_thread")]
async fn the_scenario_of_a_rebuild_moves_a_leader_that_it_can_not_kill_and_says_so() {
    let cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("baker", &[]).await;
    let mut arguments = vec!["scenario-rebuild".to_owned()];
    for (flag, value) in [
        ("--account-id", tenant.account.to_string()),
        ("--url", format!("http://{}", cluster.gateway_address(0))),
        ("--operator-token", cluster.secrets.operator_token().to_owned()),
    ] {
        arguments.extend([flag.to_owned(), value]);
    }
    arguments.extend(cluster.cluster_flags());
    let run = move || run_dev(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let told = tokio::task::spawn_blocking(run).await.expect("it can be waited for");
    let told = told.unwrap_or_else(|error| panic!("{error}"));
    assert!(told.ends_with("# All responses were as expected"), "{told}");
    assert!(told.contains("  table: {"), "its progress is shown: {told}");
    assert!(told.contains("!! NO PROCESS IS KILLED: no `dev cluster up` of this machine answers at"), "{told}");
    let left = cluster.rest_client(0, &tenant.key).call("GET /v1/namespaces").await.ok();
    assert_eq!(left["namespaces"], json!([]));
}

/// The gateways go on, and tell each next leader what their sessions have.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_and_who_waits_outlive_their_leaders() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("soft", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.json("POST /v1/namespaces", json!({"name": NAMESPACE, "durability": "SESSION"})).await.ok();
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let mut sessions = Vec::new();
    for gateway in 0..2 {
        let address = cluster.gateway_address(gateway);
        let client = Client::new(&format!("http://{address}"), &tenant.key).expect("it is a client");
        sessions.push(client.session(NAMESPACE).ttl(LONG_TTL).open().await.expect("it is opened"));
    }
    let (waiter, holder) = (sessions.pop().expect("two"), sessions.pop().expect("two"));
    let guard = holder.mutex("one").lock_timeout(RECOVERY_TIMEOUT).await.expect("it is free");
    let token = guard.fencing_token();
    let waiting = tokio::spawn(async move {
        let next = waiter.mutex("one").lock_timeout(4 * RECOVERY_TIMEOUT).await.expect("it is granted in the end");
        (next.fencing_token(), waiter)
    });
    for is_killed in [true, false] {
        lose_leader(&mut cluster, &shard, is_killed).await;
        eventually_within(RECOVERY_TIMEOUT, "its table is complete", async || {
            let table = table_state(&api).await;
            if table["state"] == "READY" { Ok(()) } else { Err(table.to_string()) }
        })
        .await;
    }
    assert!(!guard.is_lost() && !waiting.is_finished());
    let held = api.call(&format!("GET /v1/namespaces/{NAMESPACE}/locks/one")).await.ok();
    assert_eq!(held["lock"]["write_lock_holder"]["fencing_token"].as_u64(), Some(token), "{held}");
    guard.release().await.expect("it has it");
    let (next, waiter) = waiting.await.expect("it is granted");
    assert!(next > token);
    assert_eq!((holder.end_reason(), waiter.end_reason()), (None, None));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_is_told_that_events_begin_anew_with_each_leader() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("soft", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.json("POST /v1/namespaces", json!({"name": NAMESPACE, "durability": "SESSION"})).await.ok();
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    let mut events = EventStream::open(&api, NAMESPACE, "", None).await.expect("it can be watched");
    let client = Client::new(&format!("http://{}", cluster.gateway_address(0)), &tenant.key).expect("it is a client");
    let session = client.session(NAMESPACE).ttl(LONG_TTL).open().await.expect("it is opened");
    let _guard = session.mutex("one").lock_timeout(RECOVERY_TIMEOUT).await.expect("it is free");
    let seen = events.next_n(2).await;
    assert_eq!([seen[0].kind.as_str(), seen[1].kind.as_str()], ["SESSION_OPENED", "ACQUIRED"]);
    lose_leader(&mut cluster, &shard, true).await;
    let end = events.next().await;
    assert_eq!((end.kind.as_str(), &end.data["code"]), ("error", &json!("REVISION_COMPACTED")), "{end:?}");
    assert!(end.data["oldest"].as_u64() > Some(seen[1].id), "it is of a later epoch: {end:?}");
}

/// Nobody is left who knows what the sessions have, but their clients.
#[tokio::test(flavor = "multi_thread")]
async fn who_holds_and_who_waits_outlive_their_leader_and_their_gateway_together() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("soft", &[]).await;
    let api = cluster.rest_client(0, &tenant.key);
    api.json("POST /v1/namespaces", json!({"name": NAMESPACE, "durability": "SESSION"})).await.ok();
    let shard = cluster.locks_shard(&tenant, NAMESPACE);
    // All their connections are at the first gateway.
    cluster.gateways[1].kill().await;
    let urls = [0, 1].map(|gateway| format!("http://{}", cluster.gateway_address(gateway)));
    let mut sessions = Vec::new();
    for _ in 0..2 {
        let builder = Client::builder().gateway(&urls[0]).gateway(&urls[1]).api_key(&tenant.key).prefer_leader(false);
        let client = builder.build().expect("it is a client");
        sessions.push(client.session(NAMESPACE).ttl(LONG_TTL).open().await.expect("it is opened"));
    }
    let (waiter, holder) = (sessions.pop().expect("two"), sessions.pop().expect("two"));
    let guard = holder.mutex("one").lock_timeout(RECOVERY_TIMEOUT).await.expect("it is free");
    let (token, other) = (guard.fencing_token(), holder.mutex("two").lock_timeout(RECOVERY_TIMEOUT).await);
    let other = other.expect("it is free");
    let waiting = tokio::spawn(async move {
        let next = waiter.mutex("one").lock_timeout(4 * RECOVERY_TIMEOUT).await.expect("it is granted in the end");
        (next.fencing_token(), waiter)
    });
    cluster.gateways[1].start();
    cluster.wait_ready().await;
    let api = cluster.rest_client(1, &tenant.key);
    let waits = format!("GET /v1/namespaces/{NAMESPACE}/waits");
    eventually_within(RECOVERY_TIMEOUT, "one waits", async || {
        let waits = api.call(&waits).await.ok();
        if waits["waits"].as_array().is_some_and(|waits| waits.len() == 1) { Ok(()) } else { Err(waits.to_string()) }
    })
    .await;

    let (leader, _, term) = cluster.wait_leader(&shard).await;
    let (gateways, nodes) = (&mut cluster.gateways, &mut cluster.nodes);
    tokio::join!(gateways[0].kill(), nodes[leader].kill());
    wait_for_another_leader(&cluster, &shard, (leader, term)).await;
    eventually_within(RECOVERY_TIMEOUT, "its table is complete", async || {
        let table = table_state(&api).await;
        if table["state"] == "READY" { Ok(()) } else { Err(table.to_string()) }
    })
    .await;
    assert!(!guard.is_lost() && !other.is_lost() && !waiting.is_finished());
    let held = api.call(&format!("GET /v1/namespaces/{NAMESPACE}/locks/one")).await.ok();
    assert_eq!(held["lock"]["write_lock_holder"]["fencing_token"].as_u64(), Some(token), "{held}");
    // Who comes now is behind the one that waited before.
    let client = Client::new(&urls[1], &tenant.key).expect("it is a client");
    let late = client.session(NAMESPACE).ttl(LONG_TTL).open().await.expect("it is opened");
    assert!(late.mutex("two").try_lock().await.is_err(), "it is held");
    guard.release().await.expect("it has it");
    let (next, waiter) = waiting.await.expect("it is granted");
    assert!(next > token);
    assert_eq!((holder.end_reason(), waiter.end_reason()), (None, None));
    other.release().await.expect("it has it");
}
