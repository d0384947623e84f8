//! `dev cluster up`: runs nodes and a gateway, or nodes with gateways, as child processes, from an empty directory to a
//! working command line.
//!
//! It starts and writes nothing before all checks that are possible in advance have passed.

mod child;
mod cluster;
mod control;
mod first_start;
mod launch_plan;
mod log;
mod ready;
mod signals;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::Args;
use futures::future::join_all;
use holdfast_bootstrap::Secrets;
use tokio::time::Instant;

use crate::topology;
use cluster::Cluster;
use control::Control;
pub(crate) use control::SOCKET_FILE;
use first_start::first_start;
use launch_plan::Plan;
use log::Log;
use ready::Readiness;
use signals::Signals;

const DEFAULT_DATA_DIR: &str = "./data/cluster";
const DEFAULT_LISTEN: &str = "127.0.0.1:8080";
/// Time for all processes to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(60);

/// Flags of `dev cluster up`.
#[derive(Debug, Args)]
pub(crate) struct UpArgs {
    /// The number of nodes of the cluster.
    #[arg(long, env = "HOLDFAST_NODES", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=i64::from(topology::MAX_NODES)))]
    pub(crate) nodes: u16,
    /// Directory of the config, the secrets and the nodes' data; created if it is missing.
    #[arg(long, env = "HOLDFAST_DATA_DIR", default_value = DEFAULT_DATA_DIR, value_name = "DIR")]
    pub(crate) data_dir: PathBuf,
    /// The gateway's listen address; port 0 selects a free port. With --gateways-in-nodes, that of the gateway in nd_1;
    /// those in the other nodes take the ports after it.
    #[arg(long, env = "HOLDFAST_LISTEN", default_value = DEFAULT_LISTEN, value_name = "ADDRESS")]
    pub(crate) listen: SocketAddr,
    /// The port of nd_1 on 127.0.0.1; the other nodes take the ports after it.
    #[arg(long, env = "HOLDFAST_BASE_PORT", default_value_t = 7_000, value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) base_port: u16,
    /// Serve clients in every node instead of a gateway in a process of its own.
    #[arg(long, env = "HOLDFAST_GATEWAYS_IN_NODES")]
    pub(crate) gateways_in_nodes: bool,
}

/// Runs a cluster until Ctrl-C, SIGTERM, or the end of its last process.
pub(crate) async fn run(args: &UpArgs) -> Result<()> {
    let mut plan = Plan::from_args(args)?;
    plan.reserve_ports()?;
    let mut signals = Signals::listen()?;
    let secrets = plan.prepare()?;
    let log = Log::start(&plan.names());
    let result = run_with_log(&plan, &secrets, &log, &mut signals).await;
    log.finish().await;
    result
}

async fn run_with_log(plan: &Plan, secrets: &Secrets, log: &Log, signals: &mut Signals) -> Result<()> {
    let nodes = plan.config.nodes.len();
    let (what, order) = match plan.gateways_in_nodes {
        true => ("nodes with a gateway each", "the nodes"),
        false => ("nodes and a gateway", "the gateway, then the nodes"),
    };
    log.write_line(format!("starting {nodes} {what}; data in {}", plan.dir.display())).await;
    let cluster = Cluster::start(plan, secrets, log)?;
    let result = tokio::select! {
        result = bring_up_and_watch(&cluster, plan, secrets, log) => result,
        signal = signals.next() => {
            log.write_line(format!("{signal}: stopping {order}; once more kills them")).await;
            Ok(())
        }
    };
    cluster.stop(log, signals).await;
    result
}

/// Returns only when there is nothing left to watch, or the cluster can't be started.
async fn bring_up_and_watch(cluster: &Cluster, plan: &Plan, secrets: &Secrets, log: &Log) -> Result<()> {
    let deadline = Instant::now() + READY_TIMEOUT;
    let http = reqwest::Client::builder().no_proxy().build().context("no HTTP client can be made")?;
    let becoming_ready = join_all(cluster.all().map(|child| ready::wait(&http, child, log, deadline)));
    let readiness = tokio::select! {
        readiness = becoming_ready => readiness,
        () = cluster.nodes_ended() => bail!("every node has ended; their lines above say why"),
    };
    // Behind --listen is the first node, or the gateway, which comes last and can serve even if a node is missing.
    let (name, entry) = match plan.gateways_in_nodes {
        true => ("the first node", readiness.first()),
        false => ("the gateway", readiness.last()),
    };
    match entry {
        Some(Readiness::Ready) => {}
        Some(Readiness::Ended) | None => bail!("{name} has ended; its lines above say why"),
        Some(Readiness::TimedOut(reason)) => bail!("{name} is not ready after {READY_TIMEOUT:?}: {reason}"),
    }
    let welcome = first_start(secrets, &format!("http://{}", plan.listen), log).await?;
    let control = Control::listen(&plan.dir, log).await;
    let next = next_command(plan, secrets);
    let end = "Ctrl-C stops the cluster; starting it again finds all its data.";
    log.write_plain(format!("\n{welcome}\nCreate some accounts, from another terminal:\n\n  {next}\n\n{end}\n")).await;
    tokio::select! {
        () = cluster.ended() => {}
        () = control.serve(cluster, &http, log) => {}
    }
    bail!("no process of the cluster is left; their lines above say why")
}

/// Returns a working command line for this cluster, with only the necessary settings.
fn next_command(plan: &Plan, secrets: &Secrets) -> String {
    let mut command = String::new();
    if plan.listen.to_string() != DEFAULT_LISTEN {
        command += &format!("HOLDFAST_URL=http://{} ", plan.listen);
    }
    if std::path::absolute(DEFAULT_DATA_DIR).ok().as_ref() != Some(&plan.dir) {
        command += &format!("HOLDFAST_OPERATOR_TOKEN=\"$(cat '{}')\" ", secrets.operator_token_file().display());
    }
    let own = std::env::args().next().unwrap_or_else(|| "dev".to_owned());
    command + &own + " seed-accounts"
}
