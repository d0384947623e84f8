//! `holdfast-gateway`: the stateless gateway of a cluster; run as many as you like.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use holdfast_backend::{Backend, BackendOptions};
use holdfast_cluster::ClusterConfig;
use holdfast_gateway::server::{ServerOptions, serve};
use holdfast_gateway::{FrontendArgs, LocktopusOptions, serve_locktopus};
use holdfast_routing::TlsDialer;
use holdfast_runtime::{
    ClusterTlsArgs, SecretsArgs, ShutdownArgs, SigningArgs, TelemetryArgs, TlsArgs, bind, check_listen_address,
    run_server,
};
use holdfast_tls::ServerTls;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// The flag that enables TLS, for the error about an unencrypted listen address.
const TLS_FLAG: &str = "--tls-cert-file";

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
    let tls = args.tls.load()?;
    check_listen_address(args.listen, TLS_FLAG, tls.is_some(), args.insecure)?;
    let listener = bind(args.listen).await?;
    let address = listener.local_addr()?;
    let locktopus = bind_locktopus(&args, tls.as_ref()).await?;
    let mut options = BackendOptions::new(config, cluster_secret, &operator_token, format!("gateway {address}"));
    options.signing = args.signing.rotation();
    if let Some(tls) = args.cluster_tls.load_client()? {
        options.dialer = Arc::new(TlsDialer::new(tls));
    }
    let service = Backend::start(options)?;
    let server_options = ServerOptions {
        service: service.clone(),
        dlocks_account_metadata: args.frontends.dlocks_account_metadata,
        metrics: Arc::new(move || metrics.render()),
        tls: tls.clone(),
    };
    tracing::info!(%address, tls = tls.is_some(), "gateway listens");
    let stopped = CancellationToken::new();
    let locktopus = async {
        if let Some((listener, options)) = locktopus {
            let address = listener.local_addr()?;
            tracing::info!(%address, "gateway listens for Locktopus clients");
            serve_locktopus(listener, tls, service.clone(), options, stopped.cancelled()).await;
        }
        anyhow::Ok(())
    };
    let stopping = async {
        shutdown.await;
        stopped.cancel();
    };
    let (served, locktopus, ()) =
        tokio::join!(serve(listener, server_options, stopped.cancelled()), locktopus, stopping);
    served?;
    locktopus?;
    service.shutdown().await;
    Ok(())
}

/// Binds the port for Locktopus clients, if enabled.
async fn bind_locktopus(args: &Args, tls: Option<&ServerTls>) -> Result<Option<(TcpListener, LocktopusOptions)>> {
    let Some((listen, options)) = args.frontends.locktopus() else { return Ok(None) };
    check_listen_address(listen, TLS_FLAG, tls.is_some(), args.insecure)?;
    Ok(Some((bind(listen).await?, options)))
}
