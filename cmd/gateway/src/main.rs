//! `holdfast-gateway`: the stateless front door; run as many as you like.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use holdfast_cluster::ClusterConfig;
use holdfast_gateway::server::{Doors, serve};
use holdfast_gateway::{Gateway, GatewayOptions};
use holdfast_process::{SecretsArgs, ShutdownArgs, TelemetryArgs, bind, check_listen_address, shutdown};

/// Serves tenants over REST and gRPC, and routes their calls to the nodes.
#[derive(Debug, Parser)]
#[command(name = "holdfast-gateway", version)]
struct Args {
    /// Address to listen on; one port carries REST, gRPC, health and metrics.
    #[arg(long, env = "HOLDFAST_LISTEN", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// The topology, the same file for every process of the cluster.
    #[arg(long, env = "HOLDFAST_CLUSTER_CONFIG", default_value = "cluster_config.json", value_name = "FILE")]
    cluster_config: PathBuf,
    #[command(flatten)]
    secrets: SecretsArgs,
    /// Let dlocks clients name their account in metadata `account-id` instead of sending an API key: whoever reaches
    /// the port is then trusted.
    #[arg(long, env = "HOLDFAST_DLOCKS_ACCOUNT_METADATA")]
    dlocks_account_metadata: bool,
    /// Listen on an address that other machines reach although nothing is encrypted.
    #[arg(long, env = "HOLDFAST_INSECURE")]
    insecure: bool,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    shutdown: ShutdownArgs,
}

#[tokio::main]
async fn main() -> Result<()> {
    let args = Args::parse();
    let shutdown = shutdown(args.shutdown.clone());
    run(args, shutdown).await
}

/// Runs the gateway until `shutdown` ends.
async fn run(args: Args, shutdown: impl Future<Output = ()>) -> Result<()> {
    let metrics = args.telemetry.start("holdfast-gateway", env!("CARGO_PKG_VERSION"))?;
    let config = ClusterConfig::load(&args.cluster_config)?;
    let (cluster_secret, operator_token) = args.secrets.read()?;
    check_listen_address(args.listen, false, args.insecure)?;
    let listener = bind(args.listen).await?;
    let address = listener.local_addr()?;
    let options = GatewayOptions::new(config, cluster_secret, &operator_token, format!("gateway {address}"));
    let service = Gateway::start(options)?;
    let doors = Doors {
        service: service.clone(),
        dlocks_account_metadata: args.dlocks_account_metadata,
        metrics: Arc::new(move || metrics.render()),
    };
    tracing::info!(%address, "gateway listens");
    serve(listener, doors, shutdown).await?;
    service.shutdown().await;
    Ok(())
}
