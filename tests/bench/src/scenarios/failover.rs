//! Failover: from `kill -9` of a node until each shard that it led grants a lock again.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use futures::future::try_join_all;
use serde::{Deserialize, Serialize};

use crate::clients::{Client, LockName, Mode, Target};
use crate::cluster::{self, NAMESPACES_PER_SHARD, NODES, Tenant};
use crate::load::Recorder;
use crate::report::Quantiles;
use crate::systems::System;
use holdfast_testkit::{Cluster, Setup};

const RETRY_DELAY: Duration = Duration::from_millis(1);
const MAX_WAIT: Duration = Duration::from_secs(60);

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Failover {
    /// How many nodes were killed, one after the other.
    pub kills: usize,
    /// Time to the next grant, for each shard that a killed node led.
    pub shards: Quantiles,
    /// How many those were.
    pub samples: u64,
    /// The same for the last shard of each kill.
    pub whole_node: Quantiles,
    /// Calls that failed meanwhile and were made again.
    pub failed_calls: u64,
}

/// Kills nodes of a new cluster.
///
/// # Errors
/// When the cluster does not come back.
pub async fn failover(setup: &Setup, kills: usize) -> Result<Failover> {
    let mut cluster = Cluster::start(setup.clone()).await;
    let tenant = cluster::create_tenant(&cluster, setup.shards as usize * NAMESPACES_PER_SHARD).await?;
    let probes = probes(&cluster, &tenant);
    let recorder = Recorder::default();
    for _ in 0..kills {
        let leaders = cluster::wait_leaders(&cluster).await?;
        let led = |node: usize| probes.iter().filter(|(shard, _)| leaders.get(*shard) == Some(&node)).count();
        let victim = (0..NODES).max_by_key(|node| led(*node)).context("there are nodes")?;
        let locks = probes.iter().filter(|(shard, _)| leaders.get(*shard) == Some(&victim)).map(|(_, lock)| lock);
        let locks: Vec<&LockName> = locks.collect();
        let mut clients =
            System::connect_holdfast(&cluster, &tenant, Target::Grpc, locks.len(), &tenant.namespaces).await?;
        // Connections and caches are warm, as those of working clients are.
        try_join_all(clients.iter_mut().zip(&locks).map(|(client, lock)| pair(client, lock))).await?;
        let killed = Instant::now();
        cluster.nodes[victim].kill().await;
        let waits = clients.iter_mut().zip(&locks).map(|(client, lock)| time_to_grant(client, lock, killed, &recorder));
        let last = try_join_all(waits).await?.into_iter().max().unwrap_or_default();
        recorder.record(&[("node", last)]);
        cluster.nodes[victim].start();
        cluster.wait_ready().await;
    }
    let recorded = recorder.take();
    let phase = |name| recorded.phases.get(name).context("a node that led a shard was killed");
    Ok(Failover {
        kills,
        shards: Quantiles::of(phase("shard")?),
        samples: phase("shard")?.len(),
        whole_node: Quantiles::of(phase("node")?),
        failed_calls: recorded.errors,
    })
}

/// A lock in every shard that has a namespace, by shard id.
fn probes(cluster: &Cluster, tenant: &Tenant) -> BTreeMap<String, LockName> {
    let probe = |namespace: String| LockName::flat(&namespace, "probe".to_owned());
    cluster::namespace_per_shard(cluster, tenant)
        .into_iter()
        .map(|(shard, namespace)| (shard, probe(namespace)))
        .collect()
}

async fn pair(client: &mut Client, lock: &LockName) -> Result<()> {
    let token = client.acquire(lock, Mode::Write).await?.context("a lock that nobody wants is refused")?;
    client.release(lock, token).await?;
    Ok(())
}

/// Asks until the lock is granted. How long that took since the kill.
async fn time_to_grant(client: &mut Client, lock: &LockName, killed: Instant, recorder: &Recorder) -> Result<Duration> {
    loop {
        let error = match client.acquire(lock, Mode::Write).await {
            Ok(Some(token)) => {
                let waited = killed.elapsed();
                recorder.record(&[("shard", waited)]);
                client.release(lock, token).await?;
                return Ok(waited);
            }
            Ok(None) => bail!("a lock that nobody wants is refused"),
            Err(error) => error,
        };
        recorder.record_error(&format!("{error:#}"));
        if killed.elapsed() > MAX_WAIT {
            bail!("no lock was granted for {MAX_WAIT:?}: {error:#}");
        }
        tokio::time::sleep_until((Instant::now() + RETRY_DELAY).into()).await;
    }
}
