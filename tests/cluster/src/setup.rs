//! What a cluster is made of, before anything runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_bootstrap::Secrets;
use holdfast_cluster::ClusterConfig;
use tempfile::TempDir;

use crate::disk::{Disk, DiskKind};
use crate::latency_proxy::LatencyProxy;
use crate::network::Network;
use crate::ports::free_address;
use crate::process::Process;

/// There are always three nodes.
const NODES: usize = 3;
/// Shards of each kind in one process with everything in it.
const STANDALONE_SHARDS: u32 = 16;
/// Where processes with addresses of their own listen.
const PORT: u16 = 7000;
const CONFIG_FILE: &str = "cluster_config.json";

/// How a cluster is set up. There are always three nodes, and three replicas of each shard.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Shards of namespaces, and as many of locks.
    pub shards: u32,
    /// Nodes beside those of the config, to take in later; not where it is networked.
    pub spare_nodes: usize,
    /// How many gateways.
    pub gateways: usize,
    /// Further flags of the nodes, each with its value.
    pub node_flags: Vec<(&'static str, String)>,
    /// Whether each process gets an address of its own in a [`Network`] that can be cut, instead of a loopback port.
    pub is_networked: bool,
    /// A disk of its own for each node, on which it can be made to have no room; only where it is networked.
    pub disk: Option<DiskKind>,
    /// Whether all processes reach the nodes by ways that can be made slow; not where it is networked.
    pub has_latency_proxies: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            shards: 4,
            spare_nodes: 0,
            gateways: 1,
            node_flags: Vec::new(),
            is_networked: false,
            disk: None,
            has_latency_proxies: false,
        }
    }
}

/// Everything but the processes.
pub(crate) struct PreparedCluster {
    setup: Setup,
    /// Of the nodes, then of the gateways, and then of the spare nodes.
    addresses: Vec<SocketAddr>,
    pub(crate) config: ClusterConfig,
    pub(crate) secrets: Secrets,
    pub(crate) http: reqwest::Client,
    pub(crate) network: Option<Network>,
    pub(crate) disks: Vec<Disk>,
    pub(crate) latency_proxies: Vec<LatencyProxy>,
    pub(crate) dir: TempDir,
}

impl PreparedCluster {
    pub(crate) fn prepare(setup: Setup) -> Self {
        let dir = tempfile::Builder::new().prefix("holdfast-test-").tempdir().expect("a folder can be made");
        let secrets = Secrets::load_or_create(&dir.path().join("secrets")).expect("secrets can be made");
        let places = NODES + setup.gateways + setup.spare_nodes;
        let network = setup.is_networked.then(|| Network::create(places).expect("rooms can be made"));
        let address_of = |place: usize| match &network {
            Some(network) => SocketAddr::from((network.address(place), PORT)),
            None => free_address(),
        };
        let disk = |at: usize, kind| {
            let network = network.as_ref().expect("disks come with a network");
            Disk::mount(network.net_ns(at), &dir.path().join(node_name(at)), kind).expect("a disk can be mounted")
        };
        let disks = setup.disk.map_or_else(Vec::new, |kind| (0..NODES).map(|at| disk(at, kind)).collect());
        let addresses: Vec<_> = (0..places).map(address_of).collect();
        let nodes = addresses[..NODES].iter().enumerate().map(|(at, address)| (node_name(at), address.to_string()));
        let config = ClusterConfig::generate(nodes.collect(), setup.shards, 3).expect("three nodes are enough");
        let latency_proxies =
            addresses[..NODES].iter().filter(|_| setup.has_latency_proxies).map(|at| LatencyProxy::to(*at)).collect();
        let http = reqwest::Client::builder().tcp_nodelay(true).build().expect("the HTTP client can be made");
        Self { setup, addresses, config, secrets, http, network, disks, latency_proxies, dir }
    }

    pub(crate) fn nodes(&self) -> Vec<Process> {
        (0..NODES).map(|at| self.node(at, at)).collect()
    }

    pub(crate) fn spare_nodes(&self) -> Vec<Process> {
        (0..self.setup.spare_nodes).map(|at| self.node(NODES + at, NODES + self.setup.gateways + at)).collect()
    }

    fn node(&self, number: usize, place: usize) -> Process {
        let name = node_name(number);
        let data = data_dir(self.dir.path(), &name).display().to_string();
        let flags = [("--node-id", name.clone()), ("--data-dir", data)].into_iter();
        self.process(place, &name, "holdfast-node", flags.chain(self.setup.node_flags.clone()).collect())
    }

    pub(crate) fn gateways(&self) -> Vec<Process> {
        let gateway = |at: usize| {
            let flags = vec![("--listen", self.addresses[NODES + at].to_string())];
            self.process(NODES + at, &format!("gw_{}", at + 1), "holdfast-gateway", flags)
        };
        (0..self.setup.gateways).map(gateway).collect()
    }

    fn process(&self, place: usize, name: &str, program: &'static str, flags: Vec<(&str, String)>) -> Process {
        let text = |path: &Path| path.display().to_string();
        let common = [
            ("--cluster-config", text(&self.write_config(place))),
            ("--cluster-secret-file", text(&self.secrets.cluster_secret_file())),
            ("--operator-token-file", text(&self.secrets.operator_token_file())),
        ];
        let arguments = common.into_iter().chain(flags).flat_map(|(flag, value)| [flag.to_owned(), value]);
        // The addresses in rooms are no loopback addresses, though nobody else reaches them.
        let arguments = arguments.chain(self.network.as_ref().map(|_| "--insecure".to_owned())).collect();
        let room = self.network.as_ref().map(|network| network.net_ns(place));
        let (address, dir, http) = (self.addresses[place], self.dir.path(), self.http.clone());
        Process::new(name, program, arguments, address, dir, http).in_net_ns(room)
    }

    /// The config that the process at that place reads.
    fn write_config(&self, place: usize) -> PathBuf {
        // With slow ways a node knows its own address, and the ways to the others.
        let file =
            if self.setup.has_latency_proxies { format!("{place}-{CONFIG_FILE}") } else { CONFIG_FILE.to_owned() };
        let mut config = self.config.clone();
        for (at, way) in self.latency_proxies.iter().enumerate().filter(|(at, _)| *at != place) {
            config.nodes[at].address = way.address().to_string();
        }
        let file = self.dir.path().join(file);
        std::fs::write(&file, config.to_json()).expect("the config can be written");
        file
    }
}

/// One process with everything in it, before it runs.
pub(crate) struct PreparedStandalone {
    pub(crate) process: Process,
    pub(crate) config: ClusterConfig,
    pub(crate) secrets: Secrets,
    pub(crate) http: reqwest::Client,
    pub(crate) dir: TempDir,
}

impl PreparedStandalone {
    pub(crate) fn make() -> Self {
        let dir = tempfile::Builder::new().prefix("holdfast-test-").tempdir().expect("a folder can be made");
        let data = dir.path().join("data");
        // The process finds them there and makes no others.
        let secrets = Secrets::load_or_create(&data).expect("secrets can be made");
        let nodes = vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())];
        let config = ClusterConfig::generate(nodes, STANDALONE_SHARDS, 1).expect("one node is enough");
        let http = reqwest::Client::builder().tcp_nodelay(true).build().expect("the HTTP client can be made");
        let address = free_address();
        let arguments = [("--listen", address.to_string()), ("--data-dir", data.display().to_string())];
        let arguments = arguments.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let process = Process::new("alone", "holdfast-standalone", arguments, address, dir.path(), http.clone());
        Self { process, config, secrets, http, dir }
    }
}

fn node_name(at: usize) -> String {
    format!("nd_{}", at + 1)
}

/// The topology that processes read when they start.
pub(crate) fn config_file(dir: &Path) -> PathBuf {
    dir.join(CONFIG_FILE)
}

/// Where a node keeps its data.
pub(crate) fn data_dir(dir: &Path, node: &str) -> PathBuf {
    dir.join(node).join("data")
}
