//! A cluster that nobody calls: what it costs to be there.

use std::time::Duration;

use anyhow::Result;
use serde::{Deserialize, Serialize};

use super::holds::{mean_rss, mib};
use super::wait_for;
use crate::cluster::{Cluster, NODES, Setup};
use crate::measure::Sample;

/// How long it is left alone before it is looked at, and while.
const SETTLES: Duration = Duration::from_secs(5);
const LOOKED_AT: Duration = Duration::from_secs(20);

/// What came of it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Idle {
    /// Replicas on each node.
    pub replicas: usize,
    /// CPU of all nodes together, in percent of one core.
    pub nodes_cpu_percent: f64,
    /// CPU of the gateway, in percent of one core.
    pub gateway_cpu_percent: f64,
    /// Resident memory of a node, as a mean over the nodes.
    pub rss_mib: f64,
}

/// Starts a cluster and leaves it alone.
///
/// # Errors
/// When the cluster fails.
pub async fn idle(setup: &Setup) -> Result<Idle> {
    let cluster = Cluster::start(setup).await?;
    cluster.wait_leaders().await?;
    wait_for(SETTLES).await;
    let pids = cluster.pids();
    let before = Sample::take(&pids)?;
    wait_for(LOOKED_AT).await;
    let used = Sample::take(&pids)?.since(&before).cpu_seconds;
    let percent = |seconds: f64| 100.0 * seconds / LOOKED_AT.as_secs_f64();
    let of_nodes: f64 = pids.iter().take(NODES).filter_map(|(name, _)| used.get(name)).sum();
    let of_all: f64 = used.values().sum();
    Ok(Idle {
        replicas: cluster.map.replicas_of_node(&pids[0].0).len(),
        nodes_cpu_percent: percent(of_nodes),
        gateway_cpu_percent: percent(of_all - of_nodes),
        rss_mib: mib(mean_rss(&cluster)?),
    })
}
