//! Many holds at once: what each takes in memory and on the disk, how long snapshots of them take, and how long a node
//! with them takes to start.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::clients::{Client, LockName, Mode, Target};
use crate::cluster::{self, NODES, Tenant};
use crate::load::{self, LoadShape, Recorder, Window};
use crate::measure::rss_bytes;
use crate::report::Quantiles;
use crate::systems::System;
use crate::workloads::{Kind, Worker};
use holdfast_testkit::{Cluster, Setup, folder_bytes};

const CLIENTS: usize = 256;
const NAMESPACES: usize = 64;
/// Before the memory is measured for the first time, so that the memory of any load is not charged to the holds.
const WARM_UP: Window = Window { warm_up: Duration::from_millis(100), measured: Duration::from_secs(2) };

/// What came of it. Bytes are of one node, as a mean over the nodes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Holds {
    /// How many locks are held.
    pub holds: usize,
    /// Grants a second while they were taken.
    pub rate: f64,
    /// Latency of an acquire meanwhile, snapshots included.
    pub acquire: Quantiles,
    /// Resident memory before.
    pub rss_mib_before: f64,
    /// Resident memory with all of them.
    pub rss_mib: f64,
    /// Memory of each hold.
    pub bytes_per_hold: f64,
    /// Size of the data directory with all of them.
    pub data_mib: f64,
    /// Until every shard has made a snapshot with all of them, and they are fetched.
    pub snapshots_seconds: f64,
    /// The size of those snapshots together.
    pub snapshots_mib: f64,
    /// From the start of a node that was killed until it says that it can serve.
    pub restart_after_kill_seconds: f64,
    /// The same for a node that was stopped.
    pub restart_after_stop_seconds: f64,
}

/// Fills a new cluster.
///
/// # Errors
/// When the cluster fails, or refuses a lock.
pub async fn holds(setup: &Setup, count: usize) -> Result<Holds> {
    let cluster = Cluster::start(setup.clone()).await;
    let tenant = cluster::create_tenant(&cluster, NAMESPACES).await?;
    let namespaces = tenant.namespaces.clone();
    let system = System::Holdfast(Box::new(cluster), tenant);
    let workers = Worker::prepare(&system, Target::Grpc, Kind::Pairs, CLIENTS, &namespaces).await?;
    load::run(&system, workers, LoadShape::Closed, WARM_UP).await?;
    let System::Holdfast(mut cluster, tenant) = system else { anyhow::bail!("the system is this service") };
    cluster::wait_leaders(&cluster).await?;
    let before = mean_rss(&cluster::pids(&cluster))?;

    let begun = Instant::now();
    let recorder = acquire_all(&cluster, &tenant, 0..count).await?;
    let seconds = begun.elapsed().as_secs_f64();
    cluster::wait_leaders(&cluster).await?;
    let after = mean_rss(&cluster::pids(&cluster))?;
    let data = (0..NODES).map(|node| folder_bytes(&cluster.data_dir(node))).sum::<std::io::Result<u64>>()?;
    let data = data as f64 / NODES as f64;
    let restart_after_kill_seconds = restart(&mut cluster, 0, true).await?;
    let restart_after_stop_seconds = restart(&mut cluster, 1, false).await?;
    // Last, since snapshots make a start shorter.
    let (snapshots, snapshot_bytes) = cluster::back_up(&cluster).await?;
    let recorded = recorder.take();
    let acquire = recorded.phases.get("acquire").context("locks were taken")?;
    Ok(Holds {
        holds: count,
        rate: count as f64 / seconds,
        acquire: Quantiles::of(acquire),
        rss_mib_before: mib(before),
        rss_mib: mib(after),
        bytes_per_hold: (after - before) / count as f64,
        data_mib: mib(data),
        snapshots_seconds: snapshots.as_secs_f64(),
        snapshots_mib: mib(snapshot_bytes),
        restart_after_kill_seconds,
        restart_after_stop_seconds,
    })
}

/// Takes the locks with these numbers.
pub(super) async fn acquire_all(cluster: &Cluster, tenant: &Tenant, numbers: Range<usize>) -> Result<Arc<Recorder>> {
    let recorder = Arc::new(Recorder::default());
    let next = Arc::new(AtomicUsize::new(numbers.start));
    let system = System::connect_holdfast(cluster, tenant, Target::Grpc, CLIENTS, &tenant.namespaces).await?;
    let tasks = system.into_iter().map(|client| {
        let (recorder, next, namespaces) = (Arc::clone(&recorder), Arc::clone(&next), tenant.namespaces.clone());
        tokio::spawn(run_acquires(client, next, numbers.end, namespaces, recorder))
    });
    for ended in try_join_all(tasks).await? {
        ended?;
    }
    Ok(recorder)
}

async fn run_acquires(
    mut client: Client,
    next: Arc<AtomicUsize>,
    end: usize,
    namespaces: Vec<String>,
    recorder: Arc<Recorder>,
) -> Result<()> {
    loop {
        let number = next.fetch_add(1, Ordering::Relaxed);
        if number >= end {
            return Ok(());
        }
        let lock = LockName::flat(&namespaces[number % namespaces.len()], format!("hold-{number}"));
        let begun = Instant::now();
        client.acquire(&lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
        recorder.record(&[("acquire", begun.elapsed())]);
    }
}

async fn restart(cluster: &mut Cluster, node: usize, kills: bool) -> Result<f64> {
    let process = &mut cluster.nodes[node];
    if kills {
        process.kill().await;
    } else {
        process.stop().await;
    }
    let begun = Instant::now();
    process.start();
    process.wait_ready().await;
    let seconds = begun.elapsed().as_secs_f64();
    cluster::wait_leaders(cluster).await?;
    Ok(seconds)
}

/// Of the nodes, which come first, without the gateway.
pub(super) fn mean_rss(pids: &[(String, i32)]) -> Result<f64> {
    let nodes = pids.iter().take(NODES);
    Ok(nodes.map(|(_, pid)| rss_bytes(*pid)).sum::<Result<f64>>()? / NODES as f64)
}

pub(super) fn mib(bytes: f64) -> f64 {
    bytes / 1_048_576.0
}
