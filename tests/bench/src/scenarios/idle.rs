//! Servers without calls: the cost of an idle cluster.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::holds::{mean_rss, mib};
use super::wait_for;
use crate::cluster::{self, NODES};
use crate::measure::Sample;
use crate::systems::Etcd;
use holdfast_testkit::{Cluster, Setup};

/// How long they are idle before and during the measurement.
const SETTLE_TIME: Duration = Duration::from_secs(5);
const SAMPLE_INTERVAL: Duration = Duration::from_secs(20);

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// Whose servers they are.
    pub system: String,
    /// Raft groups that each node is a member of.
    pub groups: usize,
    /// CPU of all nodes together, in percent of one core.
    pub nodes_cpu_percent: f64,
    /// CPU of the gateway, in percent of one core, where there is one.
    pub gateway_cpu_percent: Option<f64>,
    /// Resident memory of a node, as a mean over the nodes.
    pub rss_mib: f64,
}

/// Starts a cluster and leaves it alone.
///
/// # Errors
/// When the cluster fails.
pub async fn idle(setup: &Setup) -> Result<Idle> {
    let cluster = Cluster::start(setup.clone()).await;
    cluster::wait_leaders(&cluster).await?;
    let pids = cluster::pids(&cluster);
    let groups = cluster.map.replicas_of_node(&pids[0].0).len();
    measure_idle("Holdfast", groups, &pids).await
}

/// The same with an etcd of as many nodes, which is one group.
///
/// # Errors
/// When it can't be started or fails.
pub async fn idle_etcd(data_dir: &Path) -> Result<Idle> {
    let etcd = Etcd::start(data_dir).await?;
    measure_idle("etcd", 1, &etcd.pids()).await
}

/// Measures processes, the nodes first.
async fn measure_idle(system: &str, groups: usize, pids: &[(String, i32)]) -> Result<Idle> {
    wait_for(SETTLE_TIME).await;
    let (began, before) = (Instant::now(), Sample::take(pids)?);
    wait_for(SAMPLE_INTERVAL).await;
    let (used, passed) = (Sample::take(pids)?.since(&before).cpu_seconds, began.elapsed());
    let percent = |pids: &[(String, i32)]| {
        let seconds: f64 = pids.iter().filter_map(|(name, _)| used.get(name)).sum();
        100.0 * seconds / passed.as_secs_f64()
    };
    let (nodes, others) = pids.split_at(NODES);
    Ok(Idle {
        system: system.to_owned(),
        groups,
        nodes_cpu_percent: percent(nodes),
        gateway_cpu_percent: (!others.is_empty()).then(|| percent(others)),
        rss_mib: mib(mean_rss(pids)?),
    })
}
