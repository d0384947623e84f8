//! The health of a cluster: running processes, unchanged leaders, short slices.

use std::collections::BTreeMap;
use std::time::Duration;

use holdfast_testkit::{Cluster, Metrics, RestClient, wait_out};
use serde_json::Value;
use tokio::time::Instant;

const POLL_INTERVAL: Duration = Duration::from_millis(50);
const TASK_FAILURES_METRIC: &str = "holdfast_task_failures_total";
const SLICE_METRIC: &str = "holdfast_apply_slice_cpu_seconds_bucket";
const SNAPSHOT_LAG_METRIC: &str = "holdfast_snapshot_lag_entries";

/// The health of the service.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Health {
    /// The leader of each group, and its term.
    pub leaders: BTreeMap<String, String>,
    /// Tasks that have ended or panicked, in all processes.
    pub failures: u64,
    /// Slices of apply that took no more processor time than the upper bound of each bucket, in nanoseconds.
    pub slices: BTreeMap<u64, u64>,
    /// Entries of a group that no snapshot of its replica has, where they are most.
    pub snapshot_lag: u64,
}

/// Faults of the service that it did not have before.
#[derive(Clone, Debug, Default)]
pub(crate) struct HealthChanges {
    /// Processes that ended, replicas that stopped, tasks that failed.
    pub failures: Vec<String>,
    /// Groups that got another leader.
    pub leader_changes: u64,
    /// The upper bound of the processor time of the longest slice of apply, in ms, by the buckets of the histogram.
    pub slice_ms: f64,
    /// As [`Health::snapshot_lag`], afterwards.
    pub snapshot_lag: u64,
}

/// Returns the health.
///
/// # Errors
/// If a process does not answer, or a shard has no leader.
pub(crate) async fn check(cluster: &mut Cluster) -> Result<Health, String> {
    for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
        let name = process.name().to_owned();
        let Some(ready) = process.readiness_if_running().await else { return Err(format!("{name} has ended")) };
        ready.map_err(|reason| format!("{name} is not ready: {reason}"))?;
    }
    let operator = cluster.operator_client(0).with_timeout(Duration::from_secs(5));
    let shown: Value = cluster_status(&operator).await?;
    let mut health = Health::default();
    for shard in shown["shards"].as_array().into_iter().flatten() {
        let id = shard["id"].as_str().unwrap_or_default();
        let leader = shard["leader"].as_str().ok_or_else(|| format!("{id} has no leader"))?;
        for replica in shard["replicas"].as_array().into_iter().flatten() {
            if !replica["poison"].is_null() {
                return Err(format!("{id} has stopped on {}: {}", replica["node_id"], replica["poison"]["message"]));
            }
        }
        let group = shard["group"].as_str().unwrap_or_default();
        health.leaders.insert(group.to_owned(), format!("{leader}, term {}", shard["term"]));
    }
    let addresses: Vec<_> = cluster.nodes.iter().chain(&cluster.gateways).map(|process| process.address()).collect();
    for address in addresses {
        health.add_metrics(address).await?;
    }
    Ok(health)
}

/// As [`check`], again and again until it succeeds.
pub(crate) async fn wait_healthy(cluster: &mut Cluster, within: Duration) -> Result<Health, String> {
    let deadline = Instant::now() + within;
    loop {
        match check(cluster).await {
            Ok(health) => return Ok(health),
            Err(reason) if Instant::now() > deadline => return Err(reason),
            Err(_) => wait_out(POLL_INTERVAL).await,
        }
    }
}

async fn cluster_status(operator: &RestClient) -> Result<Value, String> {
    let asked = operator.fetch("GET /v1/cluster", None).await;
    asked.map_err(|error| format!("the cluster can't be inspected: {error}"))
}

impl Health {
    async fn add_metrics(&mut self, address: std::net::SocketAddr) -> Result<(), String> {
        let metrics = Metrics::read(address).await?;
        self.failures += metrics.sum(TASK_FAILURES_METRIC) as u64;
        for bucket in metrics.named(SLICE_METRIC) {
            let bound = bucket.labels.get("le").and_then(|bound| bound.parse::<f64>().ok());
            let nanos = bound.filter(|bound| bound.is_finite()).map_or(u64::MAX, |bound| (bound * 1e9) as u64);
            *self.slices.entry(nanos).or_default() += bucket.value as u64;
        }
        let lags = metrics.named(SNAPSHOT_LAG_METRIC).map(|lag| lag.value as u64);
        self.snapshot_lag = lags.chain([self.snapshot_lag]).max().unwrap_or_default();
        Ok(())
    }

    /// The bucket of the longest slice since then, in ms; 0 when there was none.
    pub(crate) fn longest_slice_ms(&self, before: &Self) -> f64 {
        let since = |(bound, count): (&u64, &u64)| (*bound, count - before.slices.get(bound).unwrap_or(&0).min(count));
        let all: Vec<(u64, u64)> = self.slices.iter().map(since).collect();
        let total = all.last().map_or(0, |(_, count)| *count);
        all.iter().find(|(_, count)| total > 0 && *count == total).map_or(0.0, |(bound, _)| *bound as f64 / 1e6)
    }
}

/// Returns the changes since then.
pub(crate) fn changes(before: &Health, after: &Result<Health, String>) -> HealthChanges {
    let after = match after {
        Ok(after) => after,
        Err(reason) => return HealthChanges { failures: vec![reason.clone()], ..HealthChanges::default() },
    };
    let failed = after.failures.saturating_sub(before.failures);
    let failures = if failed > 0 { vec![format!("{failed} tasks failed")] } else { Vec::new() };
    let is_other = |(group, leader): &(&String, &String)| after.leaders.get(*group) != Some(*leader);
    let leader_changes = before.leaders.iter().filter(is_other).count() as u64;
    let (slice_ms, snapshot_lag) = (after.longest_slice_ms(before), after.snapshot_lag);
    HealthChanges { failures, leader_changes, slice_ms, snapshot_lag }
}
