//! The parts of a cluster, before any process runs.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use holdfast_cluster::ClusterConfig;

use super::Secrets;
use crate::disk::{Disk, DiskKind};
use crate::network::Network;
use crate::ports::free_address;
use crate::program::Program;
use crate::scratch::Scratch;
use crate::tcp_proxy::TcpProxy;

/// Always, and as many replicas of each group.
pub(super) const NODES: usize = 3;
/// Shards of each kind in one process with everything in it.
const STANDALONE_SHARDS: u32 = 16;
/// On which processes with addresses of their own listen.
const PORT: u16 = 7000;
/// On which a node with an address of its own serves a gateway.
const NODE_GATEWAY_PORT: u16 = 7001;
const CONFIG_FILE: &str = "cluster_config.json";

/// How a cluster is set up. There are always three nodes, three groups, and three replicas of each group.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Shards of namespaces, and as many of locks.
    pub shards: u32,
    /// Nodes beside those of the configuration, to be added later; not if it is networked.
    pub spare_nodes: usize,
    /// How many gateways in processes of their own.
    pub gateways: usize,
    /// Whether each node serves a gateway too, at an address that is in the configuration; spare nodes do not.
    pub has_node_gateways: bool,
    /// Further flags of the nodes, each with its value.
    pub node_flags: Vec<(&'static str, String)>,
    /// Variables in the environment of all processes.
    pub environment: Vec<(&'static str, String)>,
    /// The folder in which the data is, instead of that of temporary files.
    pub data_dir: Option<PathBuf>,
    /// Whether each process gets an address of its own in a [`Network`] that can be cut, instead of a loopback port.
    pub is_networked: bool,
    /// A disk of its own for each node, which can be filled; only if it is networked.
    pub disk: Option<DiskKind>,
    /// Whether all processes reach the nodes through proxies that can delay them; not if it is networked.
    pub has_latency_proxies: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            shards: 4,
            spare_nodes: 0,
            gateways: 1,
            has_node_gateways: false,
            node_flags: Vec::new(),
            environment: Vec::new(),
            data_dir: None,
            is_networked: false,
            disk: None,
            has_latency_proxies: false,
        }
    }
}

/// Everything but the processes. A number of a process counts the nodes first, then the gateways, then the spare nodes.
pub(super) struct PreparedCluster {
    setup: Setup,
    addresses: Vec<SocketAddr>,
    /// Where the nodes serve gateways, if they do.
    node_gateways: Vec<SocketAddr>,
    pub(super) config: ClusterConfig,
    pub(super) secrets: Secrets,
    pub(super) network: Option<Network>,
    pub(super) disks: Vec<Disk>,
    pub(super) latency_proxies: Vec<TcpProxy>,
    pub(super) dir: Scratch,
}

impl PreparedCluster {
    pub(super) fn new(setup: Setup) -> Self {
        let dir = setup.data_dir.as_deref().map_or_else(Scratch::new, Scratch::new_in);
        let secrets = Secrets::create(&dir.path().join("secrets"));
        let processes = NODES + setup.gateways + setup.spare_nodes;
        let network =
            setup.is_networked.then(|| Network::create(processes).expect("network namespaces can be created"));
        let address_of = |number: usize, port: u16| match &network {
            Some(network) => SocketAddr::from((network.address(number), port)),
            None => free_address(),
        };
        let disk = |at: usize, kind| {
            let network = network.as_ref().expect("disks need a network");
            Disk::mount(network.net_ns(at), &dir.path().join(node_name(at)), kind).expect("a disk can be mounted")
        };
        let disks = setup.disk.map_or_else(Vec::new, |kind| (0..NODES).map(|at| disk(at, kind)).collect());
        let addresses: Vec<_> = (0..processes).map(|number| address_of(number, PORT)).collect();
        let with_gateway = if setup.has_node_gateways { 0..NODES } else { 0..0 };
        let node_gateways: Vec<_> = with_gateway.map(|at| address_of(at, NODE_GATEWAY_PORT)).collect();
        let nodes = addresses[..NODES].iter().enumerate().map(|(at, address)| (node_name(at), address.to_string()));
        let mut config = ClusterConfig::generate(nodes.collect(), setup.shards, 3).expect("three nodes are enough");
        for (node, gateway) in config.nodes.iter_mut().zip(&node_gateways) {
            node.gateway_address = Some(gateway.to_string());
        }
        let latency_proxies =
            addresses[..NODES].iter().filter(|_| setup.has_latency_proxies).map(|at| TcpProxy::to(*at)).collect();
        Self { setup, addresses, node_gateways, config, secrets, network, disks, latency_proxies, dir }
    }

    pub(super) fn nodes(&self) -> Vec<Program> {
        (0..NODES).map(|at| self.node(at, at)).collect()
    }

    pub(super) fn spare_nodes(&self) -> Vec<Program> {
        (0..self.setup.spare_nodes).map(|at| self.node(NODES + at, NODES + self.setup.gateways + at)).collect()
    }

    fn node(&self, node: usize, number: usize) -> Program {
        let name = node_name(node);
        let data = data_dir(self.dir.path(), &name).display().to_string();
        let gateway = self.node_gateways.get(node).copied();
        let flags = [("--node-id", name.clone()), ("--data-dir", data)].into_iter();
        let flags = flags.chain(gateway.map(|address| ("--gateway-listen", address.to_string())));
        let flags = flags.chain(self.setup.node_flags.clone()).collect();
        self.program(number, &name, "holdfast-node", flags).with_gateway_on(gateway)
    }

    /// Where gateways listen: those in processes of their own, then those in nodes.
    pub(super) fn gateway_addresses(&self) -> Vec<SocketAddr> {
        let own = &self.addresses[NODES..NODES + self.setup.gateways];
        own.iter().chain(&self.node_gateways).copied().collect()
    }

    pub(super) fn gateways(&self) -> Vec<Program> {
        let gateway = |at: usize| {
            let flags = vec![("--listen", self.addresses[NODES + at].to_string())];
            self.program(NODES + at, &format!("gw_{}", at + 1), "holdfast-gateway", flags)
        };
        (0..self.setup.gateways).map(gateway).collect()
    }

    fn program(&self, number: usize, name: &str, executable: &str, flags: Vec<(&str, String)>) -> Program {
        let text = |path: &Path| path.display().to_string();
        let common = [
            ("--cluster-config", text(&self.write_config(number))),
            ("--cluster-secret-file", text(&self.secrets.cluster_secret_file())),
            ("--operator-token-file", text(&self.secrets.operator_token_file())),
        ];
        let arguments = common.into_iter().chain(flags).flat_map(|(flag, value)| [flag.to_owned(), value]);
        // Addresses in network namespaces are no loopback addresses, though no other machine reaches them.
        let arguments = arguments.chain(self.network.as_ref().map(|_| "--insecure".to_owned())).collect();
        let wrapper = self.network.as_ref().map(|network| network.net_ns(number).enter_command()).unwrap_or_default();
        let program = Program::new(name, executable, arguments, self.dir.path());
        let mut program = program.listening_on(self.addresses[number]).wrapped_by(wrapper);
        for (variable, value) in &self.setup.environment {
            program.set_environment(variable, value);
        }
        program
    }

    /// The configuration that the process of that number reads.
    fn write_config(&self, number: usize) -> PathBuf {
        // With proxies a node has its own address in its configuration, and the proxies of the others.
        let file =
            if self.setup.has_latency_proxies { format!("{number}-{CONFIG_FILE}") } else { CONFIG_FILE.to_owned() };
        let mut config = self.config.clone();
        for (at, proxy) in self.latency_proxies.iter().enumerate().filter(|(at, _)| *at != number) {
            config.nodes[at].address = proxy.address().to_string();
        }
        let file = self.dir.path().join(file);
        // The form without groups, as configurations are written by hand.
        let text = config.to_seed_json().expect("the groups of a new cluster follow from its shards");
        std::fs::write(&file, text).expect("the configuration can be written");
        file
    }
}

/// One process with everything in it, before it runs.
pub(super) struct PreparedStandalone {
    pub(super) program: Program,
    pub(super) config: ClusterConfig,
    pub(super) secrets: Secrets,
    pub(super) dir: Scratch,
}

impl PreparedStandalone {
    pub(super) fn new() -> Self {
        let dir = Scratch::new();
        let data = dir.path().join("data");
        // The process uses these instead of creating others.
        let secrets = Secrets::create(&data);
        let nodes = vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())];
        let config = ClusterConfig::generate(nodes, STANDALONE_SHARDS, 1).expect("one node is enough");
        let address = free_address();
        let arguments = [("--listen", address.to_string()), ("--data-dir", data.display().to_string())];
        let arguments = arguments.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        let program = Program::new("alone", "holdfast-standalone", arguments, dir.path()).listening_on(address);
        Self { program, config, secrets, dir }
    }
}

fn node_name(at: usize) -> String {
    format!("nd_{}", at + 1)
}

/// The configuration that processes read at their start.
pub(super) fn config_file(dir: &Path) -> PathBuf {
    dir.join(CONFIG_FILE)
}

/// Where a node keeps its data.
pub(super) fn data_dir(dir: &Path, node: &str) -> PathBuf {
    dir.join(node).join("data")
}
