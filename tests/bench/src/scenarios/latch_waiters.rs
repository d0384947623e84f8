//! Many who wait for one latch: how soon the last of them is told that it is complete.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::clients::{GrpcConnection, channel};
use crate::cluster::{self, Tenant};
use crate::load::Recorder;
use crate::measure::Sample;
use crate::report::Quantiles;
use holdfast_testkit::{Cluster, RestClient, Setup};

/// As many may wait for one latch.
const MAX_WAITERS: usize = 10_000;
const WAITERS_PER_CONNECTION: usize = 500;
/// How long it may take until all wait.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LatchWaiters {
    /// How many wait.
    pub waiters: usize,
    /// How often that was measured, each time with another latch.
    pub rounds: usize,
    /// From the call that completes the latch until the first of them is told.
    pub first_told: Quantiles,
    /// From that call until the last of them is told.
    pub all_told: Quantiles,
    /// CPU time of all servers for each of them, from the completion on, in microseconds.
    pub server_cpu_us: f64,
}

/// Starts a cluster and lets so many wait for a latch, in each round for another one. The first round is not counted.
///
/// # Errors
/// If one of them is told anything else than that it is complete.
pub async fn latch_waiters(setup: &Setup, waiters: usize, rounds: usize) -> Result<LatchWaiters> {
    ensure!((1..=MAX_WAITERS).contains(&waiters), "--latch-waiters is 1 to {MAX_WAITERS}");
    let cluster = Cluster::start(setup.clone()).await;
    let tenant = cluster::create_tenant(&cluster, 1).await?;
    let mut connections = Vec::new();
    for _ in (0..waiters).step_by(WAITERS_PER_CONNECTION) {
        connections.push(GrpcConnection::new(channel(cluster::gateway(&cluster)).await?, &tenant.key)?);
    }
    let (recorder, mut cpu_seconds) = (Recorder::default(), 0.0);
    for round in 0..=rounds {
        let seconds = run_round(&cluster, &tenant, &connections, (waiters, round), &recorder).await?;
        if round == 0 {
            recorder.clear();
        } else {
            cpu_seconds += seconds;
        }
    }
    let recorded = recorder.take();
    let quantiles = |phase| recorded.phases.get(phase).map(Quantiles::of).context("something was measured");
    Ok(LatchWaiters {
        waiters,
        rounds,
        first_told: quantiles("first")?,
        all_told: quantiles("all")?,
        server_cpu_us: cpu_seconds * 1e6 / (waiters * rounds) as f64,
    })
}

/// Returns the CPU seconds of all servers from the completion on.
async fn run_round(
    cluster: &Cluster,
    tenant: &Tenant,
    connections: &[GrpcConnection],
    (waiters, round): (usize, usize),
    recorder: &Recorder,
) -> Result<f64> {
    let (api, namespace, latch) =
        (cluster.rest_client(0, &tenant.key), &tenant.namespaces[0], format!("latch-{round}"));
    call(&api, namespace, "create", json!({"name": latch, "total": 1})).await?;
    let mut tasks = JoinSet::new();
    for (number, connection) in connections.iter().cycle().take(waiters).enumerate() {
        let (connection, namespace, latch) = (connection.clone(), namespace.clone(), latch.clone());
        tasks.spawn(async move {
            let told = connection.wait_for_latch(&namespace, &latch).await;
            told.with_context(|| format!("waiter {number}")).map(|()| Instant::now())
        });
    }
    wait_until_all_wait(&api, waiters, &mut tasks).await?;
    let pids = cluster::pids(cluster);
    let (before, begun) = (Sample::take(&pids)?, Instant::now());
    call(&api, namespace, "count_down", json!({"name": latch, "ids": ["last"]})).await?;
    let mut told = Vec::with_capacity(waiters);
    while let Some(one) = tasks.join_next().await {
        told.push(one?? - begun);
    }
    let used = Sample::take(&pids)?.since(&before).cpu_seconds.values().sum();
    let (first, all) = (told.iter().min(), told.iter().max());
    let (Some(first), Some(all)) = (first, all) else { bail!("nobody waited") };
    recorder.record(&[("first", *first), ("all", *all)]);
    Ok(used)
}

async fn call(api: &RestClient, namespace: &str, verb: &str, body: Value) -> Result<Value> {
    Ok(api.fetch::<Value>(&format!("POST /v1/namespaces/{namespace}/latches/{verb}"), Some(body)).await?)
}

/// Waits until the gateway says that so many wait.
async fn wait_until_all_wait(api: &RestClient, waiters: usize, tasks: &mut JoinSet<Result<Instant>>) -> Result<()> {
    let begun = Instant::now();
    loop {
        if let Some(ended) = tasks.try_join_next() {
            bail!("one waits no more: {:?}", ended?.err());
        }
        let usage = api.fetch::<Value>("GET /v1/usage", None).await?;
        let mut rows = usage["limit_usage"].as_array().into_iter().flatten();
        let row = rows.find(|row| row["limit"] == "max_held_questions");
        let asked = row.and_then(|row| row["used"].as_u64()).context("the limit is shown")?;
        if asked == waiters as u64 {
            return Ok(());
        }
        ensure!(begun.elapsed() < QUEUE_TIMEOUT, "after {QUEUE_TIMEOUT:?} only {asked} wait");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
