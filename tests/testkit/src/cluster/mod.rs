//! A cluster of real processes.

mod secrets;
mod setup;
mod state;
mod tenant;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use futures::future::join_all;
use holdfast_cluster::ShardMap;
use tokio::sync::{Mutex, OwnedMutexGuard};

use crate::disk::Disk;
use crate::executables::run_admin;
use crate::network::Network;
use crate::node_client::NodeClient;
use crate::program::Program;
use crate::rest_client::RestClient;
use crate::scratch::Scratch;
use crate::tcp_proxy::TcpProxy;

pub use secrets::Secrets;
pub use setup::Setup;
use setup::{PreparedCluster, PreparedStandalone, config_file, data_dir};
pub use tenant::Tenant;

/// Tests of one program run side by side, but those with a cluster one after the other: times mean nothing while another
/// test loads the machine, and a test process has one network.
static MACHINE_LOCK: LazyLock<Arc<Mutex<()>>> = LazyLock::new(Arc::default);

/// Three nodes and gateways. A process has one at a time: a start waits until the one before is dropped. All processes
/// end with it.
pub struct Cluster {
    /// The nodes, `nd_1` first.
    pub nodes: Vec<Program>,
    /// Nodes that do not belong to the cluster yet, `nd_4` first; only the test starts them.
    pub spare_nodes: Vec<Program>,
    /// The gateways in processes of their own.
    pub gateways: Vec<Program>,
    /// The configuration at the start.
    pub map: ShardMap,
    /// The secrets.
    pub secrets: Secrets,
    client: RestClient,
    gateway_addresses: Vec<SocketAddr>,
    network: Option<Network>,
    disks: Vec<Disk>,
    latency_proxies: Vec<TcpProxy>,
    // After the processes: their data is removed when they have ended.
    dir: Scratch,
    _machine: OwnedMutexGuard<()>,
}

impl Cluster {
    /// Starts all processes and waits until they are ready.
    pub async fn start(setup: Setup) -> Self {
        let mut cluster = Self::prepare(setup).await;
        for process in cluster.nodes.iter_mut().chain(&mut cluster.gateways) {
            process.start();
        }
        cluster.wait_ready().await;
        cluster
    }

    /// Sets everything up, but starts no process.
    ///
    /// # Panics
    /// If that fails.
    pub async fn prepare(setup: Setup) -> Self {
        let machine = Arc::clone(&MACHINE_LOCK).lock_owned().await;
        let parts = PreparedCluster::new(setup);
        let gateway_addresses = parts.gateway_addresses();
        Self {
            nodes: parts.nodes(),
            spare_nodes: parts.spare_nodes(),
            gateways: parts.gateways(),
            client: RestClient::new(gateway_addresses[0], ""),
            gateway_addresses,
            map: ShardMap::new(parts.config).expect("the configuration is valid"),
            secrets: parts.secrets,
            network: parts.network,
            disks: parts.disks,
            latency_proxies: parts.latency_proxies,
            dir: parts.dir,
            _machine: machine,
        }
    }

    /// Starts one process with everything in it, as the only gateway of a cluster without nodes, and waits until it is
    /// ready.
    ///
    /// # Panics
    /// If that fails.
    pub async fn start_standalone() -> Self {
        let machine = Arc::clone(&MACHINE_LOCK).lock_owned().await;
        let parts = PreparedStandalone::new();
        let mut cluster = Self {
            nodes: Vec::new(),
            spare_nodes: Vec::new(),
            client: RestClient::new(parts.program.address(), ""),
            gateway_addresses: vec![parts.program.address()],
            gateways: vec![parts.program],
            map: ShardMap::new(parts.config).expect("the configuration is valid"),
            secrets: parts.secrets,
            network: None,
            disks: Vec::new(),
            latency_proxies: Vec::new(),
            dir: parts.dir,
            _machine: machine,
        };
        cluster.gateways[0].start();
        cluster.wait_ready().await;
        cluster
    }

    /// Waits until every process that runs can serve.
    pub async fn wait_ready(&mut self) {
        let started = self.nodes.iter_mut().chain(&mut self.gateways).filter(|process| process.is_started());
        join_all(started.map(Program::wait_ready)).await;
    }

    /// The network between the processes, in which they have the numbers of the nodes and then the gateways.
    ///
    /// # Panics
    /// If the cluster was set up without one.
    pub fn network(&self) -> &Network {
        self.network.as_ref().expect("the cluster was set up with a network")
    }

    /// Whether it was set up with a network.
    pub fn has_network(&self) -> bool {
        self.network.is_some()
    }

    /// Where a node keeps its data.
    pub fn data_dir(&self, node: usize) -> PathBuf {
        data_dir(self.dir.path(), self.nodes[node].name())
    }

    /// The disk of a node.
    ///
    /// # Panics
    /// If the cluster was set up without.
    pub fn disk(&self, node: usize) -> &Disk {
        &self.disks[node]
    }

    /// The proxy through which all other processes reach a node.
    ///
    /// # Panics
    /// If the cluster was set up without.
    pub fn latency_proxy(&self, node: usize) -> &TcpProxy {
        &self.latency_proxies[node]
    }

    /// The file with the configuration that processes read at their start.
    pub fn config_file(&self) -> PathBuf {
        config_file(self.dir.path())
    }

    /// A folder for the test, beside the data.
    pub fn dir(&self) -> PathBuf {
        self.dir.path().to_owned()
    }

    /// Returns the flags by which `holdfast-admin` finds the nodes.
    pub fn cluster_flags(&self) -> [String; 4] {
        let text = |path: PathBuf| path.display().to_string();
        let secret = text(self.secrets.cluster_secret_file());
        ["--cluster-config".into(), text(self.config_file()), "--cluster-secret-file".into(), secret]
    }

    /// Runs `holdfast-admin` on the nodes, concurrently with everything else.
    ///
    /// # Errors
    /// If it fails: its standard error.
    ///
    /// # Panics
    /// If it can't be started.
    pub async fn run_admin_command(&self, words: &[&str]) -> Result<String, String> {
        let mut arguments: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        arguments.extend(self.cluster_flags());
        let running =
            tokio::task::spawn_blocking(move || run_admin(&arguments.iter().map(String::as_str).collect::<Vec<_>>()));
        running.await.expect("the tool can be waited for")
    }

    /// Where a gateway listens. Those in processes of their own have the first numbers, those in nodes the next:
    /// without any of the former, each has the number of its node.
    ///
    /// # Panics
    /// If there is no such gateway.
    pub fn gateway_address(&self, gateway: usize) -> SocketAddr {
        self.gateway_addresses[gateway]
    }

    /// A client of a gateway with a credential.
    pub fn rest_client(&self, gateway: usize, key: &str) -> RestClient {
        self.client.at(self.gateway_address(gateway)).with_key(key)
    }

    /// A client of a gateway as the operator.
    pub fn operator_client(&self, gateway: usize) -> RestClient {
        self.rest_client(gateway, self.secrets.operator_token())
    }

    /// A client of a node, by the internal protocol.
    pub fn node_client(&self, node: usize) -> NodeClient {
        NodeClient::of_cluster(self.nodes[node].address(), self.secrets.cluster_secret())
    }
}
