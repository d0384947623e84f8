//! How soon a revoked key and a suspended account are refused at a gateway that had no part in it: in calls, by token, in
//! waits, streams of events and connected sessions. A second is promised.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::DurationStats;
use holdfast_testkit::{Cluster, EventStream, RestClient, SessionSocket, Setup, Tenant, eventually, wait_before_retry};
use serde_json::{Value, json};
use tokio::task::JoinHandle;

const TRIES: usize = 100;
/// What is promised.
const MAX_REVOCATION_DELAY: Duration = Duration::from_secs(1);
/// Where processes are not run for a while, one try of twenty may take so long: less than the time after which a
/// gateway looks by itself.
const MAX_DELAY_ON_A_BUSY_MACHINE: Duration = Duration::from_secs(3);
/// Every so many tries an account is suspended instead of a key revoked.
const SUSPEND_EVERY: usize = 5;
const ACCESS_KINDS: [&str; 5] = ["calls with a key", "calls with a token", "waits", "event streams", "sessions"];

/// What is open at the other gateway with one credential; each ends with the instant at which it was refused.
struct OpenAccesses {
    ends: Vec<JoinHandle<Instant>>,
}

/// Calls until a call is refused.
async fn call_until_rejected(api: RestClient) -> Instant {
    loop {
        match api.fetch::<Value>("GET /v1/namespaces/ns", None).await {
            Ok(_) => wait_before_retry().await,
            Err(error) => {
                assert!(matches!(error.status, 401 | 403), "{error}");
                return Instant::now();
            }
        }
    }
}

/// Waits for a lock that another owner keeps.
async fn wait_until_rejected(api: RestClient, name: String) -> Instant {
    let body = json!({"process_id": name, "ttl_ms": 60_000, "wait_ms": 600_000});
    let answer = api.fetch::<Value>("POST /v1/namespaces/ns/locks/taken/acquire", Some(body)).await;
    let error = answer.expect_err("nobody gives the lock up");
    assert!(matches!(error.status, 401 | 403), "{error}");
    Instant::now()
}

/// Reads events until the stream ends with the reason.
async fn watch_until_rejected(mut stream: EventStream) -> Instant {
    let mut last = None;
    while let Some(event) = stream.try_next().await {
        last = Some(event);
    }
    let reason = last.expect("an event says why").data.to_string();
    assert!(reason.contains("UNAUTHENTICATED") || reason.contains("PERMISSION_DENIED"), "{reason}");
    Instant::now()
}

/// Keeps a session's connection until it is closed with the reason.
async fn hold_session_until_rejected(mut socket: SessionSocket) -> Instant {
    let reason = socket.read_until_close().await;
    assert!(["UNAUTHENTICATED", "PERMISSION_DENIED"].contains(&reason.as_str()), "{reason}");
    Instant::now()
}

/// Opens an access of every kind at a gateway with a key.
async fn open_accesses(cluster: &Cluster, gateway: usize, key: &str, name: &str) -> OpenAccesses {
    let api = cluster.rest_client(gateway, key);
    let token: Value = api.fetch("POST /v1/tokens", None).await.expect("a token");
    let by_token = cluster.rest_client(gateway, token["token"].as_str().expect("a token"));
    let waiting = tokio::spawn(wait_until_rejected(api.clone(), name.to_owned()));
    let stream = EventStream::open(&api, "ns", "", None).await.expect("a stream");
    let mut socket = SessionSocket::connect(&api).await;
    socket.open_session(30_000).await;
    eventually("the wait is in the queue", async || {
        let lock: Value = api.fetch("GET /v1/namespaces/ns/locks/taken", None).await.map_err(|e| e.to_string())?;
        if lock["lock"]["waiting"] == 1 { Ok(()) } else { Err(lock["lock"]["waiting"].to_string()) }
    })
    .await;
    let ends = vec![
        tokio::spawn(call_until_rejected(api)),
        tokio::spawn(call_until_rejected(by_token)),
        waiting,
        tokio::spawn(watch_until_rejected(stream)),
        tokio::spawn(hold_session_until_rejected(socket)),
    ];
    OpenAccesses { ends }
}

/// One try: how long each took to be refused after the answer to the revocation.
async fn try_once(cluster: &Cluster, tenant: &Tenant, at: usize) -> Vec<Duration> {
    let (here, there) = (at % 2, (at + 1) % 2);
    let admin = cluster.rest_client(here, &tenant.key);
    let key: Value = admin.fetch("POST /v1/api-keys", Some(json!({}))).await.expect("a key");
    let text = |field: &str| key[field].as_str().expect("a key has it").to_owned();
    let open = open_accesses(cluster, there, &text("api_key"), &format!("p-{at}")).await;
    let suspends = at.is_multiple_of(SUSPEND_EVERY);
    let account = format!("/v1/accounts/{}", tenant.account);
    let operator = cluster.operator_client(here);
    if suspends {
        let body = Some(json!({"status": "SUSPENDED"}));
        operator.fetch::<Value>(&format!("PATCH {account}"), body).await.expect("it is suspended");
    } else {
        admin.delete(&format!("/v1/api-keys/{}", text("key_id"))).await.expect("it is revoked");
    }
    let revoked = Instant::now();
    let ends = join_all(open.ends).await.into_iter().map(|end| end.expect("it was refused as it should be"));
    let took = ends.map(|end| end.saturating_duration_since(revoked)).collect();
    if suspends {
        let body = Some(json!({"status": "ACTIVE"}));
        operator.fetch::<Value>(&format!("PATCH {account}"), body).await.expect("it is active again");
        eventually("the account is let in again", async || {
            let seen = cluster.rest_client(there, &tenant.key).fetch::<Value>("GET /v1/namespaces/ns", None).await;
            seen.map(drop).map_err(|error| error.to_string())
        })
        .await;
    }
    took
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_revoked_at_one_gateway_ends_at_the_other_within_a_second() {
    let cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = Arc::new(cluster.create_tenant("revoked", &["ns"]).await);
    cluster.update_account(&tenant, json!({"limits": {"max_key_changes": 6_000}})).await;
    cluster.rest_client(0, &tenant.key).acquire("ns", "taken", "keeper").await.expect("it is free");
    let mut times = vec![Vec::new(); ACCESS_KINDS.len()];
    for at in 0..TRIES {
        for (times, took) in times.iter_mut().zip(try_once(&cluster, &tenant, at).await) {
            times.push(took);
        }
    }
    for (kind, times) in ACCESS_KINDS.iter().zip(times) {
        let times = DurationStats::from_durations(times);
        println!("{kind}: {times}");
        assert!(times.percentile(95) <= MAX_REVOCATION_DELAY, "{kind}: {times}");
        assert!(times.max() <= MAX_DELAY_ON_A_BUSY_MACHINE, "{kind}: {times}");
    }
}
