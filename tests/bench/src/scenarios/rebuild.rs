//! The leader of a namespace whose lock table is in its memory is killed: how soon the next one has the table of all
//! sessions, and what each hold takes meanwhile in the memory of leader and gateway.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::{StreamExt, TryStreamExt, stream};
use holdfast_cluster::Application;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::clients::{ChannelPool, Session};
use crate::cluster::{self, Tenant};
use crate::load::Recorder;
use crate::measure::rss_bytes;
use crate::report::Quantiles;
use holdfast_testkit::{Cluster, Program, RestClient, Setup};

const SESSIONS_PER_CONNECTION: usize = 64;
/// Claims of one request.
const CLAIMS: usize = 50;
/// As many as one namespace may have in the memory of a leader.
const MAX_HOLDS_OF_NAMESPACE: usize = 200_000;
/// Calls in flight while the sessions take their locks.
const CONCURRENT_CALLS: usize = 64;
/// How long the next leader may take until it grants.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const REBUILD_SUM: &str = "holdfast_table_rebuild_seconds_sum";

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Rebuild {
    /// How many sessions there are.
    pub sessions: usize,
    /// How many locks each holds.
    pub holds_each: usize,
    /// Leaders that were killed.
    pub kills: usize,
    /// From the kill until the next leader has the whole table.
    pub ready: Quantiles,
    /// From the beginning of its epoch until then.
    pub rebuild: Quantiles,
    /// Bytes of a hold in the memory of the leader, as it counts them.
    pub leader_bytes: f64,
    /// Resident bytes of a hold in the gateway, with its share of the session.
    pub gateway_bytes: f64,
}

/// Starts a cluster, opens sessions that hold locks, and kills the leader so often.
///
/// # Errors
/// If a lock is refused, or a hold is lost.
pub async fn rebuild(setup: &Setup, sessions: usize, holds_each: usize, kills: usize) -> Result<Rebuild> {
    let mut cluster = Cluster::start(setup.clone()).await;
    let count = (sessions * holds_each).div_ceil(MAX_HOLDS_OF_NAMESPACE).max(1);
    let tenant = cluster::create_tenant(&cluster, count).await?;
    let namespaces = cluster::create_session_namespaces_in_one_shard(&cluster, &tenant, count).await?;
    let shard = cluster.map.shard_of(Application::Locks, tenant.account, &namespaces[0]).id.clone();
    let gateway_rss = gateway_rss(&cluster)?;
    let open = open_all(&cluster, &tenant, &namespaces, (sessions, holds_each)).await?;
    let holds = (sessions * holds_each) as f64;
    let gateway_bytes = (self::gateway_rss(&cluster)? - gateway_rss) / holds;
    let leader_bytes = cluster.metric_sums(&["holdfast_table_bytes"]).await.map_err(anyhow::Error::msg)?[0] / holds;
    let (recorder, api) = (Recorder::default(), cluster.rest_client(0, &tenant.key));
    for _ in 0..kills {
        keep_alive_all(&open).await?;
        let leader = *cluster::wait_leaders(&cluster).await?.get(&shard).context("the shard has a leader")?;
        let others: Vec<usize> = (0..cluster::NODES).filter(|node| *node != leader).collect();
        let before = rebuild_seconds(&cluster, &others).await?;
        let epoch = table(&api, &namespaces[0]).await?["epoch"].as_u64();
        let killed = Instant::now();
        cluster.nodes[leader].kill().await;
        for namespace in &namespaces {
            wait_ready(&api, namespace, epoch).await?;
        }
        let ready = killed.elapsed();
        let took = rebuild_seconds(&cluster, &others).await? - before;
        recorder.record(&[("ready", ready), ("rebuild", Duration::from_secs_f64(took))]);
        cluster.nodes[leader].start();
        cluster.wait_ready().await;
    }
    keep_alive_all(&open).await?;
    let usage = api.fetch::<Value>("GET /v1/usage", None).await?;
    let is_one = |it: &&Value| namespaces.iter().any(|namespace| it["name"] == namespace.as_str());
    let of_all = usage["namespaces"].as_array().into_iter().flatten().filter(is_one);
    let held = of_all.map(|it| it["holds"].as_u64()).sum::<Option<u64>>().context("usage has the namespaces")?;
    ensure!(held == holds as u64, "{held} of {holds} are held");
    let recorded = recorder.take();
    let quantiles = |phase| recorded.phases.get(phase).map(Quantiles::of).context("something was measured");
    let (ready, rebuild) = (quantiles("ready")?, quantiles("rebuild")?);
    Ok(Rebuild { sessions, holds_each, kills, ready, rebuild, leader_bytes, gateway_bytes })
}

async fn open_all(
    cluster: &Cluster,
    tenant: &Tenant,
    namespaces: &[String],
    (sessions, holds_each): (usize, usize),
) -> Result<Vec<Arc<Session>>> {
    let mut channels = ChannelPool::new(SESSIONS_PER_CONNECTION);
    let mut connected = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        connected.push(channels.connect(cluster::gateway(cluster)).await?);
    }
    let open = stream::iter(connected.into_iter().enumerate()).map(|(number, channel)| async move {
        let namespace = &namespaces[number % namespaces.len()];
        let session = Session::open(channel, &tenant.key, namespace, true).await?;
        for first in (0..holds_each).step_by(CLAIMS) {
            let numbers = first..holds_each.min(first + CLAIMS);
            let paths = numbers.map(|at| vec![format!("of-{number}"), at.to_string()]).collect();
            session.hold(&format!("r{first}"), paths).await?;
        }
        anyhow::Ok(session)
    });
    open.buffered(CONCURRENT_CALLS).try_collect().await
}

async fn keep_alive_all(open: &[Arc<Session>]) -> Result<()> {
    stream::iter(open)
        .map(|session| async move { if session.keep_alive().await? { Ok(()) } else { bail!("a session has ended") } })
        .buffer_unordered(CONCURRENT_CALLS)
        .try_collect()
        .await
}

async fn rebuild_seconds(cluster: &Cluster, nodes: &[usize]) -> Result<f64> {
    let mut sum = 0.0;
    for node in nodes {
        sum += cluster.nodes[*node].metrics().await.map_err(anyhow::Error::msg)?.sum(REBUILD_SUM);
    }
    Ok(sum)
}

async fn table(api: &RestClient, namespace: &str) -> Result<Value> {
    let shown = api.fetch::<Value>(&format!("GET /v1/namespaces/{namespace}"), None).await?;
    Ok(shown["table"].clone())
}

/// Waits until the leader of a later epoch has the whole table.
async fn wait_ready(api: &RestClient, namespace: &str, before: Option<u64>) -> Result<()> {
    let begun = Instant::now();
    loop {
        let table = table(api, namespace).await.unwrap_or_default();
        if table["state"] == "READY" && table["epoch"].as_u64() > before {
            return Ok(());
        }
        ensure!(begun.elapsed() < READY_TIMEOUT, "after {READY_TIMEOUT:?} the table is {table}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

fn gateway_rss(cluster: &Cluster) -> Result<f64> {
    let pid = cluster.gateways.first().and_then(Program::pid).context("there is a gateway")?;
    rss_bytes(pid.cast_signed())
}
