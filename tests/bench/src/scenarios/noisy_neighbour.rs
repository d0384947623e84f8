//! What a loud tenant does to the latency of a quiet one: it calls as fast as it is answered whatever it is answered,
//! has a long queue for one lock, and events that it does not read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::wait_for;
use crate::clients::{Client, LockName, Mode, Target};
use crate::cluster::{self, Tenant};
use crate::load::{Recorded, Recorder};
use crate::report::Quantiles;
use crate::systems::System;
use holdfast_testkit::{Cluster, Setup};

/// The quiet tenant's clients, and the pairs a second of each.
const QUIET_CLIENTS: usize = 4;
const QUIET_PAIRS: u32 = 25;
/// Clients of the loud one that never rest.
const LOUD_CLIENTS: usize = 64;
/// How long a waiting client rests after it was refused a place.
const RETRY_DELAY: Duration = Duration::from_millis(200);
/// How long the load runs before it is measured.
const WARM_UP: Duration = Duration::from_secs(2);

/// How loud.
#[derive(Clone, Copy, Debug)]
pub struct LoadLevel {
    /// Requests a second that it may make; 0 for half of what the service does.
    pub rate: u32,
    /// Clients that wait for one lock.
    pub waiting: usize,
    /// Event streams that are not read.
    pub slow_readers: usize,
}

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct NoisyNeighbour {
    /// Requests a second that the loud tenant may make.
    pub limit: u32,
    /// How many of its clients wait for one lock.
    pub waiting: usize,
    /// Its event streams that are not read.
    pub slow_readers: usize,
    /// Latency of a pair of the quiet tenant, alone.
    pub alone: Quantiles,
    /// The same beside the loud one.
    pub beside: Quantiles,
    /// Calls of the quiet tenant that failed beside it.
    pub failed: u64,
    /// Pairs of the loud one a second.
    pub served_per_second: f64,
    /// Its calls a second that were refused.
    pub refused_per_second: f64,
}

/// Counts of the loud tenant.
#[derive(Default)]
struct Counts {
    served: AtomicU64,
    refused: AtomicU64,
}

/// Starts a cluster with both, and measures the quiet one alone and beside the other, in turns.
///
/// # Errors
/// When the cluster fails.
pub async fn noisy_neighbour(
    setup: &Setup,
    loudness: LoadLevel,
    length: Duration,
    rounds: usize,
) -> Result<NoisyNeighbour> {
    let cluster = Cluster::start(setup.clone()).await;
    let quiet = cluster::create_tenant_with_email(&cluster, "quiet@example.com", 4).await?;
    let loud = cluster::create_tenant_with_email(&cluster, "loud@example.com", 16).await?;
    let limit = match loudness.rate {
        0 => half_capacity(&cluster, &loud).await?,
        rate => rate,
    };
    cluster::update_limits(&cluster, &loud, json!({"max_requests_per_second": limit})).await?;
    let (alone, beside) = (Recorder::default(), Recorder::default());
    let counts = Arc::new(Counts::default());
    let mut loud_seconds = 0.0;
    for _ in 0..rounds {
        wait_for(WARM_UP).await;
        quiet_load(&cluster, &quiet, length, &alone).await?;
        let tasks = loud_load(&cluster, &loud, loudness, &counts).await?;
        wait_for(WARM_UP).await;
        let (before, begun) = (counts.read(), Instant::now());
        quiet_load(&cluster, &quiet, length, &beside).await?;
        loud_seconds += begun.elapsed().as_secs_f64();
        let after = counts.read();
        drop(tasks);
        // What ran before it was measured is taken off again.
        counts.served.fetch_sub(before.0, Ordering::Relaxed);
        counts.refused.fetch_sub(before.1, Ordering::Relaxed);
        ensure!(after.0 > before.0, "the loud tenant was not served at all");
    }
    let (alone, beside) = (alone.take(), beside.take());
    let quantiles =
        |recorded: &Recorded| recorded.phases.get("pair").map(Quantiles::of).context("the quiet tenant was answered");
    let (served, refused) = counts.read();
    Ok(NoisyNeighbour {
        limit,
        waiting: loudness.waiting,
        slow_readers: loudness.slow_readers,
        alone: quantiles(&alone)?,
        beside: quantiles(&beside)?,
        failed: beside.errors,
        served_per_second: served as f64 / loud_seconds,
        refused_per_second: refused as f64 / loud_seconds,
    })
}

impl Counts {
    fn read(&self) -> (u64, u64) {
        (self.served.load(Ordering::Relaxed), self.refused.load(Ordering::Relaxed))
    }
}

/// Requests a second. Of a pair only the acquire counts.
async fn half_capacity(cluster: &Cluster, tenant: &Tenant) -> Result<u32> {
    let counts = Arc::new(Counts::default());
    let only_calls = LoadLevel { rate: 0, waiting: 0, slow_readers: 0 };
    let tasks = loud_load(cluster, tenant, only_calls, &counts).await?;
    wait_for(WARM_UP).await;
    let (before, begun) = (counts.read().0, Instant::now());
    wait_for(WARM_UP).await;
    let pairs = (counts.read().0 - before) as f64 / begun.elapsed().as_secs_f64();
    drop(tasks);
    Ok((pairs / 2.0) as u32)
}

/// Pairs at fixed times. Latency counts from the time at which one was due.
async fn quiet_load(cluster: &Cluster, tenant: &Tenant, length: Duration, recorder: &Recorder) -> Result<()> {
    let clients = System::connect_holdfast(cluster, tenant, Target::Rest, QUIET_CLIENTS, &tenant.namespaces).await?;
    let end = Instant::now() + length;
    let period = Duration::from_secs(1) / QUIET_PAIRS;
    let each = clients.into_iter().enumerate().map(|(number, mut client)| async move {
        let lock = LockName::flat(&tenant.namespaces[number], "quiet".to_owned());
        let mut due = Instant::now() + period * u32::try_from(number).unwrap_or(0) / QUIET_CLIENTS as u32;
        while due < end {
            tokio::time::sleep_until(due.into()).await;
            match pair(&mut client, &lock).await {
                Ok(()) => recorder.record(&[("pair", due.elapsed())]),
                Err(error) => recorder.record_error(&format!("{error:#}")),
            }
            due += period;
        }
    });
    futures::future::join_all(each).await;
    Ok(())
}

async fn pair(client: &mut Client, lock: &LockName) -> Result<()> {
    let token = client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
    client.release(lock, token).await.map(drop)
}

/// Everything ends when what is returned is dropped.
async fn loud_load(
    cluster: &Cluster,
    tenant: &Tenant,
    loudness: LoadLevel,
    counts: &Arc<Counts>,
) -> Result<(JoinSet<()>, Vec<TcpStream>)> {
    let mut tasks = JoinSet::new();
    let names = &tenant.namespaces;
    let clients = System::connect_holdfast(cluster, tenant, Target::Rest, LOUD_CLIENTS, names).await?;
    for (number, client) in clients.into_iter().enumerate() {
        let lock = LockName::flat(&names[number % names.len()], format!("loud-{number}"));
        tasks.spawn(run_pairs(client, lock, Arc::clone(counts)));
    }
    let waiting = System::connect_holdfast(cluster, tenant, Target::Grpc, loudness.waiting, names).await?;
    let wanted = LockName::flat(&names[0], "wanted".to_owned());
    for client in waiting {
        tasks.spawn(run_waiter(client, wanted.clone(), Arc::clone(counts)));
    }
    let mut readers = Vec::new();
    for number in 0..loudness.slow_readers {
        readers.push(open_unread_stream(cluster, tenant, &names[number % names.len()]).await?);
    }
    Ok((tasks, readers))
}

async fn run_pairs(mut client: Client, lock: LockName, counts: Arc<Counts>) {
    loop {
        let done = pair(&mut client, &lock).await;
        let count = if done.is_ok() { &counts.served } else { &counts.refused };
        count.fetch_add(1, Ordering::Relaxed);
    }
}

async fn run_waiter(mut client: Client, lock: LockName, counts: Arc<Counts>) {
    loop {
        match client.acquire_waiting(&lock).await {
            Ok(token) => {
                // A release is never refused for the rate; the hold of one that fails ends with the cluster.
                let _ = client.release(&lock, token).await;
                counts.served.fetch_add(1, Ordering::Relaxed);
            }
            Err(_) => wait_for(RETRY_DELAY).await,
        }
    }
}

async fn open_unread_stream(cluster: &Cluster, tenant: &Tenant, namespace: &str) -> Result<TcpStream> {
    let mut stream = TcpStream::connect(cluster::gateway(cluster)).await?;
    let head = format!(
        "GET /v1/namespaces/{namespace}/events HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {}\r\n\r\n",
        tenant.key
    );
    stream.write_all(head.as_bytes()).await?;
    Ok(stream)
}
