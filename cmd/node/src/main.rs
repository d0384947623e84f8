//! `holdfast-node`: hosts the replicas that the cluster config assigns to one node.

mod gateway;
mod restore;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::{Parser, ValueEnum};
use holdfast_auth::{ClusterSecret, OperatorToken, OperatorVerifier};
use holdfast_cluster::ClusterConfig;
use holdfast_node::{AdminEndpoints, MetricsText, Node, NodeOptions, serve};
use holdfast_replication::ReadMode;
use holdfast_routing::{Dialer, TcpDialer, TlsDialer};
use holdfast_runtime::{ClusterTlsArgs, MemoryArgs, SecretsArgs, ShutdownArgs, TelemetryArgs, run_server};
use tokio_util::sync::CancellationToken;

use crate::gateway::GatewayArgs;
use crate::restore::RestoreArgs;

/// Hosts replicas of groups, each of which holds many shards. Listens on the address that the cluster config assigns to
/// the node.
#[derive(Debug, Parser)]
#[command(name = "holdfast-node", version)]
struct Args {
    /// This node's id in the cluster config.
    #[arg(long, env = "HOLDFAST_NODE_ID", default_value = "nd_1")]
    node_id: String,
    /// The topology, the same file for every process of the cluster.
    #[arg(long, env = "HOLDFAST_CLUSTER_CONFIG", default_value = "cluster_config.json", value_name = "FILE")]
    cluster_config: PathBuf,
    /// The data directory.
    #[arg(long, env = "HOLDFAST_DATA_DIR", value_name = "DIR")]
    data_dir: PathBuf,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// How reads are made linearizable: lease (assumes that clock rates differ by at most 0.1 %, and that the machine is
    /// not paused together with all of its clocks) or quorum.
    #[arg(long, env = "HOLDFAST_READS", value_enum, default_value_t = ReadsArg::Lease)]
    reads: ReadsArg,
    /// Log entries of a group after which its replica makes a snapshot.
    #[arg(long, env = "HOLDFAST_SNAPSHOT_AFTER", default_value_t = 50_000, value_name = "ENTRIES")]
    snapshot_after: u64,
    /// Log entries kept behind a snapshot for replicas that lag a little.
    #[arg(
        long,
        alias = "keep-entries",
        env = "HOLDFAST_RETAIN_ENTRIES",
        default_value_t = 10_000,
        value_name = "ENTRIES"
    )]
    retain_entries: u64,
    /// How long the preferred leader of a group is ready before it gets the leadership back from another node, in
    /// seconds. What an operator has moved stays where it is. 0 for never.
    #[arg(long, env = "HOLDFAST_LEADER_RETURN_AFTER_S", default_value_t = 60, value_name = "SECONDS")]
    leader_return_after_s: u32,
    /// Space that stays free on the disk, in MiB: with less, the node rejects writes and continues to serve reads. 0
    /// for no limit.
    #[arg(long, env = "HOLDFAST_DISK_RESERVE_MIB", default_value_t = 256, value_name = "MIB")]
    disk_reserve_mib: u32,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    restore: RestoreArgs,
    #[command(flatten)]
    cluster_tls: ClusterTlsArgs,
    #[command(flatten)]
    gateway: GatewayArgs,
    /// Listen on an address that other machines can reach although nothing is encrypted.
    #[arg(long, env = "HOLDFAST_INSECURE")]
    insecure: bool,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    shutdown: ShutdownArgs,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ReadsArg {
    Lease,
    Quorum,
}

fn main() -> Result<()> {
    let args = Args::parse();
    run_server(args.shutdown.clone(), |shutdown| run(args, shutdown))?
}

fn node_options(args: &Args, config: ClusterConfig, cluster_secret: ClusterSecret) -> NodeOptions {
    let mut options = NodeOptions::new(&args.node_id, config, cluster_secret, &args.data_dir);
    options.reads = match args.reads {
        ReadsArg::Lease => ReadMode::Lease,
        ReadsArg::Quorum => ReadMode::Quorum,
    };
    options.snapshot_interval_entries = args.snapshot_after;
    options.retain_entries = args.retain_entries;
    let return_after = Duration::from_secs(args.leader_return_after_s.into());
    options.leader_return_after = (!return_after.is_zero()).then_some(return_after);
    options.memory_limit = args.memory.limit_bytes();
    options.soft_memory = args.memory.soft_bytes();
    options.disk_reserve = u64::from(args.disk_reserve_mib) * 1024 * 1024;
    options
}

/// Runs the node until `shutdown` completes.
async fn run(args: Args, shutdown: impl Future<Output = ()>) -> Result<()> {
    let metrics = args.telemetry.init("holdfast-node", env!("CARGO_PKG_VERSION"))?;
    let metrics: MetricsText = Arc::new(move || metrics.render());
    let config = ClusterConfig::load(&args.cluster_config)?;
    let (cluster_secret, operator_token) = args.secrets.read()?;
    let options = node_options(&args, config, cluster_secret);
    if args.restore.restore(&options).await? {
        return Ok(());
    }
    // The ports first: a second process for the same node must change nothing.
    let address = address_of(&options)?;
    let tls = args.cluster_tls.load_server()?;
    let listener = args.cluster_tls.bind(address, args.insecure).await?;
    let frontends = args.gateway.bind(args.insecure).await?;
    let dialer: Arc<dyn Dialer> = match args.cluster_tls.load_client()? {
        Some(tls) => Arc::new(TlsDialer::new(tls)),
        None => Arc::new(TcpDialer),
    };
    let node = Node::open(&options, Arc::clone(&dialer))?;
    let start_gateway = |frontends| args.gateway.start(frontends, &node, &options, &operator_token, dialer);
    let gateway = frontends.map(start_gateway).transpose()?;
    let probes = AdminEndpoints { metrics: Arc::clone(&metrics), is_operator: is_operator(&operator_token) };
    let stopped = CancellationToken::new();
    let serving = serve(listener, tls, &node, probes, stopped.clone().cancelled_owned());
    let running = async {
        node.start_replicas(&options).await?;
        tracing::info!(node = args.node_id, %address, "node runs");
        shutdown.await;
        // Before the gateway ends, which may take long: callers of all gateways need leaders meanwhile.
        node.transfer_leaderships().await;
        Ok(())
    };
    let running = async {
        match gateway {
            Some(gateway) => gateway.serve_while(metrics, running).await,
            None => running.await,
        }
    };
    let ending = async {
        let result = tokio::select! {
            result = running => result,
            // At once, since calls in flight can't be completed without the store.
            error = node.store_failure() => Err(error.into()),
        };
        // The node still responds while it stops: callers are redirected to the new leaders.
        node.stop().await;
        stopped.cancel();
        result
    };
    let (served, result) = tokio::join!(serving, ending);
    served.context("the listener failed")?;
    result
}

fn address_of(options: &NodeOptions) -> Result<SocketAddr> {
    let node = options.cluster_config.node(&options.node_id);
    let address = node.map(|node| node.address.as_str()).with_context(|| {
        format!("node {} is not in the cluster config; check --node-id and --cluster-config", options.node_id)
    })?;
    let mut found = std::net::ToSocketAddrs::to_socket_addrs(address)
        .with_context(|| format!("the address {address} of node {} can't be resolved", options.node_id))?;
    found.next().with_context(|| format!("the address {address} of node {} has no IP address", options.node_id))
}

fn is_operator(token: &OperatorToken) -> holdfast_node::IsOperator {
    let verifier = OperatorVerifier::new(token);
    Arc::new(move |authorization| {
        let presented = authorization.strip_prefix("Bearer ").and_then(|text| OperatorToken::parse(text).ok());
        presented.is_some_and(|token| verifier.accepts(&token))
    })
}
