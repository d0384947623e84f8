//! Watch fan-out: many watchers of one namespace, and the time until the last of them has received a change.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::clients::{CLIENTS_PER_CONNECTION, Client, GrpcConnection, LockName, Mode, Target, channel};
use crate::cluster::{self, Tenant};
use crate::load::Recorder;
use crate::measure::Sample;
use crate::report::Quantiles;
use crate::systems::System;
use holdfast_testkit::{Cluster, Setup};

const DELIVERY_TIMEOUT: Duration = Duration::from_secs(30);
/// Changes before it is measured.
const WARM_UP: u64 = 10;

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Watchers {
    /// How many watch.
    pub watchers: usize,
    /// How many changes they received.
    pub events: u64,
    /// From the call that makes a change until the last watcher has received it.
    pub all_heard: Quantiles,
    /// Events delivered a second; each change is made when all have received the one before.
    pub delivered_per_second: f64,
    /// CPU time of all servers for one event delivered to one watcher, in microseconds.
    pub server_cpu_us: f64,
}

/// How many events all watchers together have received, and whether one of them was cut off.
struct Listeners {
    received: AtomicU64,
    changed: watch::Sender<Option<String>>,
}

/// Starts a cluster and lets so many watch it.
///
/// # Errors
/// If a watcher is cut off, or does not receive a change.
pub async fn watchers(setup: &Setup, watchers: usize, length: Duration) -> Result<Watchers> {
    let cluster = Cluster::start(setup.clone()).await;
    let tenant = cluster::create_tenant(&cluster, 1).await?;
    let ears = Arc::new(Listeners { received: AtomicU64::new(0), changed: watch::Sender::new(None) });
    let mut tasks = open_watches(&cluster, &tenant, watchers, &ears).await?;
    let mut clients = System::connect_holdfast(&cluster, &tenant, Target::Grpc, 1, &tenant.namespaces).await?;
    let client = clients.first_mut().context("a client was asked for")?;
    let lock = LockName::flat(&tenant.namespaces[0], "watched".to_owned());
    let (mut events, per_event) = (0, watchers as u64);
    let recorder = Recorder::default();
    while events < WARM_UP {
        pair(client, &lock, &ears, &mut events, per_event, &recorder).await?;
    }
    recorder.clear();
    let (before, first, begun) = (Sample::take(&cluster::pids(&cluster))?, events, Instant::now());
    while begun.elapsed() < length {
        pair(client, &lock, &ears, &mut events, per_event, &recorder).await?;
    }
    let seconds = begun.elapsed().as_secs_f64();
    let used: f64 = Sample::take(&cluster::pids(&cluster))?.since(&before).cpu_seconds.values().sum();
    tasks.abort_all();
    let recorded = recorder.take();
    let delivered = ((events - first) * per_event) as f64;
    Ok(Watchers {
        watchers,
        events: events - first,
        all_heard: Quantiles::of(recorded.phases.get("heard").context("something was measured")?),
        delivered_per_second: delivered / seconds,
        server_cpu_us: used * 1e6 / delivered,
    })
}

async fn open_watches(
    cluster: &Cluster,
    tenant: &Tenant,
    watchers: usize,
    ears: &Arc<Listeners>,
) -> Result<JoinSet<()>> {
    let mut tasks = JoinSet::new();
    for first in (0..watchers).step_by(CLIENTS_PER_CONNECTION) {
        let connection = GrpcConnection::new(channel(cluster::gateway(cluster)).await?, &tenant.key)?;
        let count = CLIENTS_PER_CONNECTION.min(watchers - first);
        let streams = (0..count).map(|_| connection.watch(&tenant.namespaces[0]));
        for mut stream in try_join_all(streams).await? {
            let ears = Arc::clone(ears);
            tasks.spawn(async move {
                let end = loop {
                    match stream.message().await {
                        Ok(Some(_)) => ears.record_event(),
                        Ok(None) => break "the service ended it".to_owned(),
                        Err(error) => break error.to_string(),
                    }
                };
                ears.changed.send_replace(Some(end));
            });
        }
    }
    Ok(tasks)
}

impl Listeners {
    fn record_event(&self) {
        self.received.fetch_add(1, Ordering::AcqRel);
        self.changed.send_modify(|_| {});
    }

    async fn wait_until_received(&self, count: u64) -> Result<()> {
        let mut changed = self.changed.subscribe();
        loop {
            if let Some(end) = changed.borrow_and_update().clone() {
                bail!("a watcher was cut off: {end}");
            }
            if self.received.load(Ordering::Acquire) >= count {
                return Ok(());
            }
            changed.changed().await?;
        }
    }
}

async fn pair(
    client: &mut Client,
    lock: &LockName,
    ears: &Listeners,
    events: &mut u64,
    per_event: u64,
    recorder: &Recorder,
) -> Result<()> {
    let begun = Instant::now();
    let token = client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
    measure_delivery(ears, events, per_event, begun, recorder).await?;
    let begun = Instant::now();
    client.release(lock, token).await?;
    measure_delivery(ears, events, per_event, begun, recorder).await
}

async fn measure_delivery(
    ears: &Listeners,
    events: &mut u64,
    per_event: u64,
    begun: Instant,
    recorder: &Recorder,
) -> Result<()> {
    *events += 1;
    let heard = tokio::time::timeout(DELIVERY_TIMEOUT, ears.wait_until_received(*events * per_event)).await;
    heard.context("a watcher did not hear of a change")??;
    recorder.record(&[("heard", begun.elapsed())]);
    Ok(())
}
