//! Namespaces are deleted and made again while nodes are killed: what is made again is empty.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::future::join_all;
use holdfast_cluster_tests::{DurationStats, get_lock};
use holdfast_testkit::{
    CallError, CallOutcome, Cluster, RestClient, Setup, eventually, eventually_within, wait_before_retry,
};
use serde_json::json;

const LOCKS: [&str; 3] = ["one", "two", "three"];
const WORKERS: usize = 8;
const KILLS: usize = 6;

/// One namespace that is made, used and deleted over and over.
struct Worker {
    namespace: String,
    /// Through which it works.
    api: RestClient,
    /// Of which it asks whether it sees the same.
    other_api: RestClient,
    rounds: Arc<AtomicUsize>,
    highest_token: u64,
    last_id: String,
    slowest: Duration,
}

impl Worker {
    async fn run(mut self, stop: &AtomicBool) -> Duration {
        while !stop.load(Ordering::Relaxed) {
            self.run_round().await;
            self.rounds.fetch_add(1, Ordering::Relaxed);
        }
        self.slowest
    }

    async fn run_round(&mut self) {
        let name = self.namespace.clone();
        let life = self.rounds.load(Ordering::Relaxed);
        let key = format!("{name}-{life}");
        let id = self.call_until_answered("create", async |api, _| api.create_namespace(&name, &key).await).await;
        assert_ne!(id, self.last_id, "{name} was made again under its old id");
        self.last_id = id;

        for lock in LOCKS {
            let other = self.other_api.clone();
            let view = self.call_until_answered("look", async |_, _| get_lock(&other, &name, lock).await).await;
            assert!(view.holds.is_empty(), "life {life} of {name} began with {view:?}");
        }
        let owner = format!("life-{life}");
        for lock in LOCKS {
            let token =
                self.call_until_answered("acquire", async |api, _| api.acquire(&name, lock, &owner).await).await;
            assert!(token > self.highest_token, "{name}/{lock}: {token} comes after {}", self.highest_token);
            self.highest_token = token;
        }
        // A repeat of a deletion that may have been done finds nothing any more, which is as good.
        let delete = async |api: RestClient, maybe_done: bool| match api.delete(&format!("/v1/namespaces/{name}")).await
        {
            Err(error) if maybe_done && error.code == "NAMESPACE_NOT_FOUND" => Ok(()),
            result => result,
        };
        self.call_until_answered("delete", delete).await;
        for api in [self.api.clone(), self.other_api.clone()] {
            let error = loop {
                match get_lock(&api, &name, LOCKS[0]).await {
                    Ok(view) => panic!("{name} is deleted, and shows {view:?}"),
                    Err(error) if is_unanswered(&error) => wait_before_retry().await,
                    Err(error) => break error,
                }
            };
            assert_eq!((&*error.code, &*error.detail), ("NAMESPACE_NOT_FOUND", "namespace not found"));
        }
    }

    /// Calls until there is an answer. The call learns whether an earlier one may have been done.
    async fn call_until_answered<T>(
        &mut self,
        what: &str,
        call: impl AsyncFn(RestClient, bool) -> Result<T, CallError>,
    ) -> T {
        let mut maybe_done = false;
        loop {
            let began = Instant::now();
            let result = call(self.api.clone(), maybe_done).await;
            self.slowest = self.slowest.max(began.elapsed());
            match result {
                Ok(answer) => return answer,
                Err(error) if is_unanswered(&error) => maybe_done |= error.outcome == CallOutcome::Unknown,
                Err(error) => panic!("{what} of {}: {error}", self.namespace),
            }
            wait_before_retry().await;
        }
    }
}

/// Whether the service could not answer, or only later, rather than refused.
fn is_unanswered(error: &CallError) -> bool {
    matches!(error.status, 0 | 429 | 503 | 504)
}

/// Waits until every worker has lived so many times more.
async fn wait_for_rounds(lives: &[Arc<AtomicUsize>], more: usize) {
    let now = || lives.iter().map(|lives| lives.load(Ordering::Relaxed)).collect::<Vec<_>>();
    let before = now();
    eventually_within(Duration::from_secs(60), "namespaces are made and deleted", async || {
        let done = now().iter().zip(&before).all(|(now, before)| *now >= before + more);
        if done { Ok(()) } else { Err(format!("{before:?}, now {:?}", now())) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_made_again_has_no_old_lock_also_when_a_node_is_killed_half_way() {
    let mut cluster = Cluster::start(Setup { gateways: 2, ..Setup::default() }).await;
    let tenant = cluster.create_tenant("namespaces", &[]).await;
    cluster.update_account(&tenant, json!({"limits": {"max_namespace_changes": 6_000}})).await;
    let mut shards = vec![cluster.namespaces_shard(&tenant)];
    let mut lives = Vec::new();
    let mut workers = Vec::new();
    for number in 0..WORKERS {
        let namespace = format!("namespace-{number}");
        shards.push(cluster.locks_shard(&tenant, &namespace));
        let (api, other_api) =
            (cluster.rest_client(number % 2, &tenant.key), cluster.rest_client((number + 1) % 2, &tenant.key));
        let own = Arc::<AtomicUsize>::default();
        lives.push(own.clone());
        let (last_id, slowest) = (String::new(), Duration::ZERO);
        workers.push(Worker { namespace, api, other_api, rounds: own, highest_token: 0, last_id, slowest });
    }
    let stop = AtomicBool::new(false);
    let killing = async {
        for round in 0..KILLS {
            wait_for_rounds(&lives, 2).await;
            // In turns the node that sends deletions, and one that receives them.
            let shard = if round % 2 == 0 { &shards[0] } else { &shards[1 + round % WORKERS] };
            let (node, _, _) = cluster.wait_leader(shard).await;
            cluster.nodes[node].kill().await;
            wait_for_rounds(&lives, 1).await;
            cluster.nodes[node].start();
            cluster.wait_ready().await;
        }
        stop.store(true, Ordering::Relaxed);
    };
    let (slowest, ()) = tokio::join!(join_all(workers.into_iter().map(|worker| worker.run(&stop))), killing);
    let total: usize = lives.iter().map(|lives| lives.load(Ordering::Relaxed)).sum();
    println!(
        "{total} lives of {WORKERS} namespaces over {KILLS} kills; slowest calls: {}",
        DurationStats::from_durations(slowest)
    );

    // Nothing of them is left anywhere.
    let compared = cluster.wait_equal_states().await;
    println!("{compared} shards have the same bytes on all three nodes");
    let api = cluster.rest_client(0, &tenant.key);
    let listed: serde_json::Value = eventually("namespaces are listed", async || {
        api.fetch("GET /v1/namespaces", None).await.map_err(|error| error.to_string())
    })
    .await;
    assert_eq!(listed["namespaces"].as_array().map(Vec::len), Some(0), "{listed}");
}
