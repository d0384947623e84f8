//! A gateway beside the nodes, with what only a whole program has: a listener, certificates, metrics.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use clap::Parser;
use holdfast_auth::OperatorToken;
use holdfast_backend::{Backend, BackendOptions, Service};
use holdfast_gateway::{FrontendArgs, Frontends};
use holdfast_telemetry::Metrics;
use holdfast_tls::{ClientAuth, IdentityFiles, ServerTls};
use rcgen::{CertificateParams, KeyPair};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::time::sleep;

use crate::cluster::{TestCluster, eventually};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    frontends: FrontendArgs,
}

/// It runs as long as the test.
pub(crate) struct TestGateway {
    service: Service,
    metrics: Metrics,
    // Its certificates are watched.
    _files: TempDir,
}

impl TestGateway {
    /// Starts it, and waits until it serves. What it says of itself is seen beside what the nodes say.
    pub(crate) async fn start(world: &TestCluster, metrics: Metrics) -> Self {
        metrics.spawn_upkeep();
        let operator = OperatorToken::generate().expect("there are random numbers");
        let options = BackendOptions::new(world.config.clone(), world.secret.clone(), &operator, "gateway");
        let service = Backend::start(options).expect("it starts");
        let files = TempDir::new().expect("there is room for certificates");
        let tls = ServerTls::load(self_signed(&files), ClientAuth::Disabled).expect("they can be used");
        let bind = async |address: SocketAddr| TcpListener::bind(address).await;
        let (any, args) = (SocketAddr::from(([127, 0, 0, 1], 0)), Program::parse_from(["gateway"]).frontends);
        let frontends = Frontends::bind(any, &args, Some(tls), bind).await.expect("a port is free");
        let (served, looked_at, seen) = (service.clone(), service.clone(), world.seen.clone());
        let looking = async move {
            loop {
                seen.lock().extend(looked_at.ready().err().into_iter().chain(looked_at.failing_task()));
                sleep(Duration::from_millis(2)).await;
            }
        };
        tokio::spawn(async move { frontends.serve_while::<()>(served, Arc::new(String::new), looking).await });
        let gateway = Self { service, metrics, _files: files };
        gateway.wait_ready().await;
        gateway
    }

    pub(crate) async fn wait_ready(&self) {
        let is_well = || self.service.failing_task().is_none();
        eventually("the gateway is ready", async || self.service.ready().ok().filter(|()| is_well())).await;
    }

    /// Waits until a failure of the task was counted.
    pub(crate) async fn wait_counted(&self, task: &str) {
        let counted = format!("holdfast_task_failures_total{{task=\"{task}\"}} ");
        let is_counted = |line: &str| line.strip_prefix(&counted).is_some_and(|times| times != "0");
        eventually(&counted, async || self.metrics.render().lines().any(is_counted).then_some(())).await;
    }
}

fn self_signed(folder: &TempDir) -> IdentityFiles {
    let path = |name: &str| folder.path().join(name);
    let files = IdentityFiles { cert_file: path("cert.pem"), key_file: path("key.pem") };
    let params = CertificateParams::new(vec!["localhost".to_owned()]).expect("it is a name");
    let key = KeyPair::generate().expect("there are random numbers");
    let certificate = params.self_signed(&key).expect("it can be signed");
    std::fs::write(&files.cert_file, certificate.pem()).expect("it can be written");
    std::fs::write(&files.key_file, key.serialize_pem()).expect("it can be written");
    files
}
