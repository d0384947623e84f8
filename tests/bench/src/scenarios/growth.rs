//! Growth: what an operation costs with more shards busy, and with more locks held.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::holds::acquire_all;
use super::wait_for;
use crate::clients::Target;
use crate::cluster::{self, NAMESPACES_PER_SHARD, Tenant};
use crate::load::{self, LoadShape, Window};
use crate::measure::Sample;
use crate::report::{Measurement, Quantiles};
use crate::systems::System;
use crate::workloads::{Kind, Worker};
use holdfast_testkit::{Cluster, Setup};

/// Shards that are busy.
const SHARDS: [u32; 5] = [1, 2, 4, 8, 16];
/// Clients for each of them, so that every shard has the same to do.
const CLIENTS_PER_SHARD: usize = 16;
/// Clients that are spread over more and more shards.
const SPREAD_CLIENTS: usize = 256;
/// Clients while locks are held.
const CLIENTS: usize = 64;
/// Processors that servers may use at rest.
const IDLE_CPU: f64 = 0.1;
const SAMPLE_INTERVAL: Duration = Duration::from_secs(1);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(120);
const NAMESPACES: usize = 64;
const MIN_HOLDS: usize = 1_000;

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Growth {
    /// By shards that are busy, each as much as the others.
    pub shards: Vec<Step>,
    /// By shards over which the same clients are spread.
    pub spread: Vec<Step>,
    /// By locks that are held.
    pub holds: Vec<Step>,
}

/// One size, and pairs of acquire and release through the session stream at that size.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Step {
    /// Shards or holds.
    pub size: usize,
    /// Clients at a time.
    pub clients: usize,
    /// Pairs a second.
    pub rate: f64,
    /// CPU time of all servers for a pair, in microseconds.
    pub server_cpu_us: f64,
    /// Of an acquire.
    pub acquire: Quantiles,
}

/// Measures both, in clusters of their own; with at most so many holds.
///
/// # Errors
/// When a cluster fails, or refuses a lock.
pub async fn growth(setup: &Setup, most_holds: usize, length: Duration) -> Result<Growth> {
    let mut shards = Vec::new();
    let mut spread = Vec::new();
    for count in SHARDS {
        let busy = usize::try_from(count)?;
        let setup = Setup { shards: count, ..setup.clone() };
        for (steps, clients) in [(&mut shards, CLIENTS_PER_SHARD * busy), (&mut spread, SPREAD_CLIENTS)] {
            let cluster = Cluster::start(setup.clone()).await;
            let tenant = cluster::create_tenant(&cluster, NAMESPACES_PER_SHARD * busy).await?;
            let namespaces: Vec<String> = cluster::namespace_per_shard(&cluster, &tenant).into_values().collect();
            ensure!(namespaces.len() == busy, "of {count} shards {} have a namespace", namespaces.len());
            let (step, _) = measure_pairs((cluster, tenant), &namespaces, busy, clients, length).await?;
            let Step { rate, server_cpu_us, .. } = step;
            eprintln!("growth: {count} shards, {clients} clients: {rate:.0} pairs/s, {server_cpu_us:.0} µs of CPU");
            steps.push(step);
        }
    }
    let cluster = Cluster::start(setup.clone()).await;
    let tenant = cluster::create_tenant(&cluster, NAMESPACES).await?;
    let namespaces = tenant.namespaces.clone();
    let (mut own, mut held, mut holds) = ((cluster, tenant), 0, Vec::new());
    let sizes = std::iter::successors(Some(MIN_HOLDS), |size| size.checked_mul(10));
    for size in sizes.take_while(|size| *size <= most_holds) {
        acquire_all(&own.0, &own.1, held..size).await?;
        held = size;
        wait_idle(&own.0).await?;
        let (step, back) = measure_pairs(own, &namespaces, size, CLIENTS, length).await?;
        own = back;
        eprintln!("growth: {size} holds: {:.0} pairs/s, {:.0} µs of CPU", step.rate, step.server_cpu_us);
        holds.push(step);
    }
    Ok(Growth { shards, spread, holds })
}

/// Waits until the servers take hardly more than they do when nobody calls: many locks at once leave snapshots and
/// compactions behind that would be counted as the cost of a pair.
async fn wait_idle(cluster: &Cluster) -> Result<()> {
    let (begun, pids) = (Instant::now(), cluster::pids(cluster));
    loop {
        let before = Sample::take(&pids)?;
        wait_for(SAMPLE_INTERVAL).await;
        let used: f64 = Sample::take(&pids)?.since(&before).cpu_seconds.values().sum();
        if used < IDLE_CPU * SAMPLE_INTERVAL.as_secs_f64() {
            return Ok(());
        }
        ensure!(begun.elapsed() < SETTLE_TIMEOUT, "servers that nobody calls still use {used} s of CPU a second");
    }
}

async fn measure_pairs(
    (cluster, tenant): (Cluster, Tenant),
    namespaces: &[String],
    size: usize,
    clients: usize,
    length: Duration,
) -> Result<(Step, (Cluster, Tenant))> {
    let system = System::Holdfast(Box::new(cluster), tenant);
    let workers = Worker::prepare(&system, Target::Stream, Kind::Pairs, clients, namespaces).await?;
    let window = Window { warm_up: Duration::from_secs(1), measured: length };
    let outcome = load::run(&system, workers, LoadShape::Closed, window).await?;
    let (kind, door, at, pace) = (Kind::Pairs, Target::Stream, system.entry_point(), LoadShape::Closed);
    let measured = Measurement::new(kind, door, at, clients, namespaces.len(), pace, outcome);
    if let Some(error) = &measured.first_error {
        bail!("{} operations failed, the first: {error}", measured.errors);
    }
    let acquire = measured.main_latency();
    let step = Step { size, clients, rate: measured.rate, server_cpu_us: measured.server_cpu_us, acquire };
    match system {
        System::Holdfast(cluster, tenant) => Ok((step, (*cluster, tenant))),
        _ => bail!("the system is this service"),
    }
}
