//! Sessions under the loss of leaders: an answered keep-alive is never followed by an early end, and the silent end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::{DurationStats, get_lock};
use holdfast_testkit::{Cluster, RestClient, Setup, eventually, eventually_within, wait_before_retry};
use serde_json::{Value, json};

const NAMESPACES: [&str; 4] = ["orders", "invoices", "users", "builds"];
const SESSIONS: usize = 120;
const TTL: Duration = Duration::from_secs(4);
const KILLS: usize = 4;
/// A silent session ends within its time to live, started anew by every leader, and an election.
const EXPIRY_TIMEOUT: Duration = Duration::from_secs(15);

struct Session {
    namespace: &'static str,
    id: String,
}

async fn create_session(api: &RestClient, at: usize) -> Session {
    let namespace = NAMESPACES[at % NAMESPACES.len()];
    let body = json!({"process_id": format!("process-{at}"), "ttl_ms": TTL.as_millis() as u64});
    let path = format!("/v1/namespaces/{namespace}/sessions");
    let opened: Value = api.fetch(&format!("POST {path}"), Some(body)).await.expect("a session is opened");
    let id = opened["session_id"].as_str().expect("a session has an id").to_owned();
    let lock = format!("/v1/namespaces/{namespace}/locks/of-{at}/acquire");
    let taken: Value = api.fetch(&format!("POST {lock}"), Some(json!({"session_id": id}))).await.expect("an answer");
    assert_eq!(taken["success"], true, "{taken}");
    Session { namespace, id }
}

/// Keeps a session alive as a client does. Returns the longest time that a keep-alive took.
async fn run_keep_alives(api: RestClient, session: &Session, stop: &AtomicBool) -> Duration {
    let path = format!("/v1/namespaces/{}/sessions/{}/keepalive", session.namespace, session.id);
    let api = api.with_timeout(Duration::from_millis(2_500));
    let mut good_until = Instant::now() + TTL;
    let mut slowest = Duration::ZERO;
    while !stop.load(Ordering::Relaxed) {
        let sent = Instant::now();
        let answer: Result<Value, _> = api.fetch(&format!("POST {path}"), None).await;
        slowest = slowest.max(sent.elapsed());
        match answer {
            Ok(answer) => {
                assert_eq!(answer["remaining_ms"], json!(TTL.as_millis() as u64), "{answer}");
                good_until = sent + TTL;
            }
            Err(error) if error.code == "SESSION_NOT_FOUND" => {
                assert!(Instant::now() >= good_until, "{} ended early", session.id);
                panic!("{} could not be kept alive for {TTL:?}", session.id);
            }
            Err(_) => {}
        }
        for _ in 0..20 {
            wait_before_retry().await;
        }
    }
    slowest
}

#[tokio::test(flavor = "multi_thread")]
async fn the_living_live_and_the_silent_end_while_leaders_are_killed() {
    let mut cluster = Cluster::start(Setup::default()).await;
    let tenant = cluster.create_tenant("sessions", &NAMESPACES).await;
    let api = cluster.rest_client(0, &tenant.key);
    let (created, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    // Each is kept alive from its creation on, however long that of the others takes.
    let keepers: Vec<_> = (0..SESSIONS)
        .map(|at| {
            let (api, created, stop) = (api.clone(), Arc::clone(&created), Arc::clone(&stop));
            tokio::spawn(async move {
                let session = create_session(&api, at).await;
                created.fetch_add(1, Ordering::Relaxed);
                let slowest = run_keep_alives(api, &session, &stop).await;
                (session, slowest)
            })
        })
        .collect();
    eventually("all sessions are open", async || match created.load(Ordering::Relaxed) {
        SESSIONS => Ok(()),
        some => Err(format!("{some} are")),
    })
    .await;
    let mut silent_for = Vec::new();
    for kill in 0..KILLS {
        let at = SESSIONS + kill;
        let silent = create_session(&api, at).await;
        let since = Instant::now();
        let shard = cluster.locks_shard(&tenant, silent.namespace);
        let (leader, _, _) = cluster.wait_leader(&shard).await;
        cluster.nodes[leader].kill().await;
        let path = format!("/v1/namespaces/{}/sessions/{}", silent.namespace, silent.id);
        eventually_within(EXPIRY_TIMEOUT, "a silent session ends", async || {
            match api.fetch::<Value>(&format!("GET {path}"), None).await {
                Err(error) if error.code == "SESSION_NOT_FOUND" => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
        assert!(since.elapsed() >= TTL, "a silent session ended after {:?}", since.elapsed());
        silent_for.push(since.elapsed());
        let view = get_lock(&api, silent.namespace, &format!("of-{at}")).await.expect("a look");
        assert!(view.holds.is_empty(), "the session is gone and {view:?} is left");
        cluster.nodes[leader].start();
        cluster.wait_ready().await;
    }
    stop.store(true, Ordering::Relaxed);
    let kept = join_all(keepers).await.into_iter().map(|keeper| keeper.expect("the session lived"));
    let (living, slowest): (Vec<Session>, Vec<Duration>) = kept.unzip();
    println!("silent sessions ended after {}", DurationStats::from_durations(silent_for));
    println!("{SESSIONS} sessions lived on; the slowest keep-alives: {}", DurationStats::from_durations(slowest));
    for (at, session) in living.iter().enumerate() {
        let view = get_lock(&api, session.namespace, &format!("of-{at}")).await.expect("a look");
        assert_eq!(view.holds.len(), 1, "{} lives and lost its hold", session.id);
    }
    cluster.wait_equal_states().await;
}
