//! `holdfast-standalone`: everything in one process, one group with one replica, on an embedded store.

mod first_start;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Result;
use clap::Parser;
use holdfast_backend::{Backend, BackendOptions};
use holdfast_bootstrap::Secrets;
use holdfast_cluster::ClusterConfig;
use holdfast_gateway::{FrontendArgs, Frontends};
use holdfast_node::{Node, NodeOptions};
use holdfast_routing::TcpDialer;
use holdfast_runtime::{
    MemoryArgs, ShutdownArgs, SigningArgs, TelemetryArgs, TlsArgs, max_client_connections, run_server,
};
use tokio::time::{Duration, Instant, sleep};

use first_start::InProcess;

/// Shards of each sharded application: as in a cluster, so that one process behaves like many.
const SHARDS: u32 = 16;
const NODE: &str = "nd_1";
/// The usual maximum time for the replica to load and elect itself; after it, and again after each such interval,
/// the program reports what it waits for.
const READY_WARNING_INTERVAL: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs the whole service in one process, for development and small installations.
#[derive(Debug, Parser)]
#[command(name = "holdfast-standalone", version)]
struct Args {
    /// Address to listen on; one port carries REST, gRPC, health and metrics.
    #[arg(long, env = "HOLDFAST_LISTEN", default_value = "127.0.0.1:8080", value_name = "HOST:PORT")]
    listen: SocketAddr,
    /// Directory of data and secrets; created at the first start.
    #[arg(long, env = "HOLDFAST_DATA_DIR", default_value = "./data", value_name = "DIR")]
    data_dir: PathBuf,
    #[command(flatten)]
    frontends: FrontendArgs,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    signing: SigningArgs,
    /// Listen on an address that other machines can reach although nothing is encrypted.
    #[arg(long, env = "HOLDFAST_INSECURE")]
    insecure: bool,
    #[command(flatten)]
    memory: MemoryArgs,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    #[command(flatten)]
    shutdown: ShutdownArgs,
}

fn main() -> Result<()> {
    let args = Args::parse();
    run_server(args.shutdown.clone(), |shutdown| run(args, shutdown))?
}

fn node_options(args: &Args, config: ClusterConfig, secrets: &Secrets) -> NodeOptions {
    let mut options = NodeOptions::new(NODE, config, secrets.cluster_secret().clone(), args.data_dir.join(NODE));
    options.memory_limit = args.memory.limit_bytes();
    options.soft_memory = args.memory.soft_bytes();
    options
}

/// Runs until `shutdown` completes.
async fn run(args: Args, shutdown: impl Future<Output = ()>) -> Result<()> {
    let metrics = args.telemetry.init("holdfast-standalone", env!("CARGO_PKG_VERSION"))?;
    // The ports first: a second process on the same data must change nothing.
    let bind = async |address| anyhow::Ok(args.tls.bind(address, args.insecure).await?);
    let frontends = Frontends::bind(args.listen, &args.frontends, args.tls.load()?, bind).await?;
    let frontends = frontends.with_max_connections(max_client_connections());
    let secrets = Secrets::load_or_create(&args.data_dir)?;
    // The address is only a name here: the gateway reaches the node through memory.
    let config = ClusterConfig::generate(vec![(NODE.into(), "127.0.0.1:7000".into())], SHARDS, 1)?;
    let cluster_secret = secrets.cluster_secret().clone();
    let options = node_options(&args, config.clone(), &secrets);
    // Nothing is dialed: there are no peers, and the gateway calls the node in memory.
    let node = Node::open(&options, Arc::new(TcpDialer))?;

    let mut backend = BackendOptions::new(config, cluster_secret, secrets.operator_token(), "standalone");
    backend.local_node = Some(node.local());
    backend.signing = args.signing.rotation();
    backend.refused_credentials_per_second = args.frontends.refused_credentials_per_second();
    let service = Backend::start(backend)?;
    let (address, locktopus_address) = (frontends.address(), frontends.locktopus_address());
    let scheme = if frontends.is_encrypted() { "https" } else { "http" };
    let running = async {
        node.start_replicas(&options).await?;
        let over = async {
            tokio::select! {
                () = shutdown => Ok(()),
                error = node.store_failure() => Err(error.into()),
            }
        };
        tokio::pin!(over);
        tokio::select! {
            result = &mut over => return result,
            () = wait_ready(|| service.ready(), |reason| tracing::warn!(reason, "not ready yet, and waiting on")) => {}
        }
        if let Some(address) = locktopus_address {
            println!("Locktopus clients connect to {}://{address}/v1?namespace=NAME", scheme.replace("http", "ws"));
        }
        let url = format!("{scheme}://{address}");
        println!("\n{}", secrets.first_start(&InProcess(&service), &url).await?);
        over.await
    };
    let result = frontends.serve_while(service.clone(), Arc::new(move || metrics.render()), running).await?;
    service.shutdown().await;
    node.stop().await;
    result
}

/// Waits until the service is ready. That takes as long as the shards need to reapply their entries, so it never times
/// out: a process that exited here would start from the beginning again.
async fn wait_ready(look: impl Fn() -> Result<(), String>, warn: impl Fn(&str)) {
    let mut say_at = Instant::now() + READY_WARNING_INTERVAL;
    while let Err(reason) = look() {
        if Instant::now() >= say_at {
            warn(&reason);
            say_at += READY_WARNING_INTERVAL;
        }
        sleep(POLL_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn shards_may_take_longer_than_usual_to_come_up() {
        let (began, replay) = (Instant::now(), READY_WARNING_INTERVAL * 5);
        let lacks = || Err("1 of 33 shards still apply the entries of earlier leaders".to_owned());
        let warned = std::cell::Cell::new(0);
        let look = || if began.elapsed() < replay { lacks() } else { Ok(()) };
        wait_ready(look, |_| warned.set(warned.get() + 1)).await;
        assert!(began.elapsed() >= replay);
        // The log reports once a minute what is missing.
        assert_eq!(warned.get(), 4);
    }
}
