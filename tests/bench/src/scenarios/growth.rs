//! Growth: what an operation costs with more shards busy, and with more locks held.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::holds::fill;
use super::wait_for;
use crate::clients::Door;
use crate::cluster::{Cluster, NAMESPACES_PER_SHARD, Setup, Tenant};
use crate::load::{self, Pace, Window};
use crate::measure::Sample;
use crate::report::{Measurement, Quantiles};
use crate::systems::System;
use crate::workloads::{Kind, Worker};

/// Shards that are busy.
const SHARDS: [u32; 5] = [1, 2, 4, 8, 16];
/// Clients for each of them, so that every shard has the same to do.
const CLIENTS_PER_SHARD: usize = 16;
/// Clients that are spread over more and more shards.
const SPREAD_CLIENTS: usize = 256;
/// Clients while locks are held.
const CLIENTS: usize = 64;
/// Processors that servers may use at rest.
const RESTING: f64 = 0.1;
const LOOKED_AT: Duration = Duration::from_secs(1);
const SETTLES_WITHIN: Duration = Duration::from_secs(120);
const NAMESPACES: usize = 64;
const FEWEST_HOLDS: usize = 1_000;

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
            let cluster = Cluster::start(&setup).await?;
            let tenant = cluster.tenant(NAMESPACES_PER_SHARD * busy).await?;
            let namespaces: Vec<String> = cluster.one_in_each_shard(&tenant).into_values().collect();
            ensure!(namespaces.len() == busy, "of {count} shards {} have a namespace", namespaces.len());
            let (step, _) = pairs((cluster, tenant), &namespaces, busy, clients, length).await?;
            let Step { rate, server_cpu_us, .. } = step;
            eprintln!("growth: {count} shards, {clients} clients: {rate:.0} pairs/s, {server_cpu_us:.0} µs of CPU");
            steps.push(step);
        }
    }
    let cluster = Cluster::start(setup).await?;
    let tenant = cluster.tenant(NAMESPACES).await?;
    let namespaces = tenant.namespaces.clone();
    let (mut own, mut held, mut holds) = ((cluster, tenant), 0, Vec::new());
    let sizes = std::iter::successors(Some(FEWEST_HOLDS), |size| size.checked_mul(10));
    for size in sizes.take_while(|size| *size <= most_holds) {
        fill(&own.0, &own.1, held..size).await?;
        held = size;
        settle(&own.0).await?;
        let (step, back) = pairs(own, &namespaces, size, CLIENTS, length).await?;
        own = back;
        eprintln!("growth: {size} holds: {:.0} pairs/s, {:.0} µs of CPU", step.rate, step.server_cpu_us);
        holds.push(step);
    }
    Ok(Growth { shards, spread, holds })
}

/// Waits until the servers take hardly more than they do when nobody calls: many locks at once leave snapshots and
/// compactions behind that would be counted as the cost of a pair.
async fn settle(cluster: &Cluster) -> Result<()> {
    let (begun, pids) = (Instant::now(), cluster.pids());
    loop {
        let before = Sample::take(&pids)?;
        wait_for(LOOKED_AT).await;
        let used: f64 = Sample::take(&pids)?.since(&before).cpu_seconds.values().sum();
        if used < RESTING * LOOKED_AT.as_secs_f64() {
            return Ok(());
        }
        ensure!(begun.elapsed() < SETTLES_WITHIN, "servers that nobody calls still use {used} s of CPU a second");
    }
}

async fn pairs(
    (cluster, tenant): (Cluster, Tenant),
    namespaces: &[String],
    size: usize,
    clients: usize,
    length: Duration,
) -> Result<(Step, (Cluster, Tenant))> {
    let system = System::Holdfast(Box::new(cluster), tenant);
    let workers = Worker::prepare(&system, Door::Stream, Kind::Pairs, clients, namespaces).await?;
    let window = Window { warm_up: Duration::from_secs(1), measured: length };
    let outcome = load::run(&system, workers, Pace::Closed, window).await?;
    let measured = Measurement::new(Kind::Pairs, Door::Stream, clients, namespaces.len(), Pace::Closed, outcome);
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
