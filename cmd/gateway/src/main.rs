//! `holdfast-gateway`: the stateless gateway of a cluster; run as many as you like.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use holdfast_backend::{Backend, BackendOptions};
use holdfast_cluster::ClusterConfig;
use holdfast_gateway::{FrontendArgs, Frontends};
use holdfast_routing::TlsDialer;
use holdfast_runtime::{
    ClusterTlsArgs, SecretsArgs, ShutdownArgs, SigningArgs, TelemetryArgs, TlsArgs, max_client_connections, run_server,
};

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
    #[command(flatten)]
    frontends: FrontendArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    cluster_tls: ClusterTlsArgs,
    #[command(flatten)]
    signing: SigningArgs,
    /// Listen on an address that other machines can reach although nothing is encrypted.
    #[arg(long, env = "HOLDFAST_INSECURE")]
    insecure: bool,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    shutdown: ShutdownArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    run_server(args.shutdown.clone(), |shutdown| run(args, shutdown))?
}

/// Runs the gateway until `shutdown` completes.
async fn run(args: Args, shutdown: impl Future<Output = ()>) -> Result<()> {
    let metrics = args.telemetry.init("holdfast-gateway", env!("CARGO_PKG_VERSION"))?;
    let config = ClusterConfig::load(&args.cluster_config)?;
    let (cluster_secret, operator_token) = args.secrets.read()?;
    let bind = async |address| anyhow::Ok(args.tls.bind(address, args.insecure).await?);
    let frontends = Frontends::bind(args.listen, &args.frontends, args.tls.load()?, bind).await?;
    let frontends = frontends.with_max_connections(max_client_connections());
    let process_name = format!("gateway {}", frontends.address());
    let mut options = BackendOptions::new(config, cluster_secret, &operator_token, process_name);
    options.signing = args.signing.rotation();
    options.refused_credentials_per_second = args.frontends.refused_credentials_per_second();
    if let Some(tls) = args.cluster_tls.load_client()? {
        options.dialer = Arc::new(TlsDialer::new(tls));
    }
    let service = Backend::start(options)?;
    frontends.serve_while(service.clone(), Arc::new(move || metrics.render()), shutdown).await?;
    service.shutdown().await;
    Ok(())
}
