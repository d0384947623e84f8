//! The plan of processes to start, checked before any is started.

use std::fs;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use holdfast_bootstrap::Secrets;
use holdfast_cluster::{ClusterConfig, Node};

use super::UpArgs;
use crate::topology;

const CONFIG_FILE: &str = "cluster_config.json";
const SECRET_FILE: &str = "cluster.secret";

/// A cluster that can be started.
#[derive(Debug)]
pub(super) struct Plan {
    /// Absolute.
    pub(super) dir: PathBuf,
    pub(super) config: ClusterConfig,
    pub(super) listen: SocketAddr,
    /// Whether the nodes serve clients, at the addresses that the config names, and there is no other gateway.
    pub(super) gateways_in_nodes: bool,
    pub(super) node_program: PathBuf,
    pub(super) gateway_program: PathBuf,
}

impl Plan {
    /// Finds the programs and the config; writes nothing.
    pub(super) fn from_args(args: &UpArgs) -> Result<Self> {
        ensure!(
            args.listen.ip().is_loopback(),
            "--listen {}: a cluster of `dev cluster up` serves this machine only; choose a loopback address such as \
             127.0.0.1:8080, or start holdfast-gateway yourself",
            args.listen
        );
        let dir =
            std::path::absolute(&args.data_dir).with_context(|| format!("--data-dir {}", args.data_dir.display()))?;
        let mut config = config_of(&dir, args)?;
        for (index, node) in config.nodes.iter_mut().enumerate() {
            node.gateway_address = gateway_address(args, index)?;
        }
        if let Some(node) = config.nodes.iter().find(|node| node.address == args.listen.to_string()) {
            bail!("--listen {}: is the address of {}; choose another, or another --base-port", args.listen, node.id);
        }
        let own = std::env::current_exe().context("this program's own file can't be found")?;
        Ok(Self {
            dir,
            config,
            listen: args.listen,
            gateways_in_nodes: args.gateways_in_nodes,
            node_program: program_beside(&own, "holdfast-node")?,
            gateway_program: program_beside(&own, "holdfast-gateway")?,
        })
    }

    /// Returns the names of all processes, the gateway last.
    pub(super) fn names(&self) -> Vec<String> {
        let nodes = self.config.nodes.iter().map(|node| node.id.clone());
        nodes.chain((!self.gateways_in_nodes).then(|| "gateway".to_owned())).collect()
    }

    /// Checks that every port is free, and chooses one for a gateway with port 0.
    pub(super) fn reserve_ports(&mut self) -> Result<()> {
        let mut listeners = Vec::new();
        let mut problems = Vec::new();
        for node in &self.config.nodes {
            for address in [&node.address].into_iter().chain(&node.gateway_address) {
                match address.parse().context("is not IP:PORT").and_then(bind_free) {
                    Ok(listener) => listeners.push(listener),
                    Err(error) => problems.push(format!("{address} ({}): {error:#}", node.id)),
                }
            }
        }
        if !self.gateways_in_nodes {
            match bind_free(self.listen) {
                Ok(listener) => {
                    self.listen = listener.local_addr().context("the gateway's address can't be read")?;
                    listeners.push(listener);
                }
                Err(error) => problems.push(format!("{} (gateway): {error:#}", self.listen)),
            }
        }
        ensure!(
            problems.is_empty(),
            "nothing was started; can't listen on\n  {}\nIs another cluster running? Stop what listens there, or choose \
             other ports with --base-port (nodes, in a new --data-dir) and --listen (gateway)",
            problems.join("\n  ")
        );
        Ok(())
    }

    /// Creates the directory with config and secrets, or loads them from it.
    pub(super) fn prepare(&self) -> Result<Secrets> {
        fs::create_dir_all(&self.dir).with_context(|| format!("can't make {}", self.dir.display()))?;
        let path = self.config_file();
        // Written again when the gateways have moved: nodes take other addresses at a start.
        if !ClusterConfig::load(&path).is_ok_and(|written| written == self.config) {
            // A crash must not leave a partial config, which no later start would accept.
            let draft = self.dir.join(".cluster_config.json.new");
            fs::write(&draft, self.config.to_json())
                .and_then(|()| fs::rename(&draft, &path))
                .with_context(|| format!("can't write {}", path.display()))?;
        }
        Ok(Secrets::load_or_create(&self.dir)?)
    }

    pub(super) fn config_file(&self) -> PathBuf {
        self.dir.join(CONFIG_FILE)
    }
}

/// Returns the config of an existing cluster, which must match the arguments, or a new one.
fn config_of(dir: &Path, args: &UpArgs) -> Result<ClusterConfig> {
    let wanted = topology::generate(args.nodes, args.base_port, topology::DEFAULT_SHARDS, None)?;
    let path = dir.join(CONFIG_FILE);
    if !path.exists() {
        let secret = dir.join(SECRET_FILE);
        ensure!(
            !secret.exists(),
            "{} is there and {CONFIG_FILE} is not: this is the directory of something else, such as \
             holdfast-standalone; choose another --data-dir",
            secret.display()
        );
        return Ok(wanted);
    }
    let config = ClusterConfig::load(&path)?;
    let (has, asked) = (config.nodes.len(), args.nodes);
    ensure!(
        has == usize::from(asked),
        "{} is of a cluster with {has} nodes, and {asked} were asked for; pass --nodes {has}, or another --data-dir for \
         a new cluster",
        path.display()
    );
    ensure!(
        addresses(&config.nodes) == addresses(&wanted.nodes),
        "{} has its nodes at {}, and --base-port {} is another; pass the base port of the first start, or another \
         --data-dir for a new cluster",
        path.display(),
        addresses(&config.nodes).join(", "),
        args.base_port
    );
    Ok(config)
}

/// Returns the address of the gateway in a node, if nodes have gateways.
fn gateway_address(args: &UpArgs, index: usize) -> Result<Option<String>> {
    if !args.gateways_in_nodes {
        return Ok(None);
    }
    let listen = args.listen;
    let port = u16::try_from(index).ok().and_then(|index| listen.port().checked_add(index));
    let port = port.filter(|_| listen.port() != 0).with_context(|| {
        format!("--listen {listen}: --gateways-in-nodes needs a port for each node, from that one on; choose another")
    })?;
    Ok(Some(SocketAddr::new(listen.ip(), port).to_string()))
}

fn addresses(nodes: &[Node]) -> Vec<&str> {
    nodes.iter().map(|node| node.address.as_str()).collect()
}

fn program_beside(own: &Path, name: &str) -> Result<PathBuf> {
    let path = own.with_file_name(name);
    ensure!(path.is_file(), "{} is missing; build it with `make build`", path.display());
    Ok(path)
}

fn bind_free(address: SocketAddr) -> Result<TcpListener> {
    TcpListener::bind(address).map_err(|error| match error.kind() {
        ErrorKind::AddrInUse => anyhow::anyhow!("is in use"),
        _ => error.into(),
    })
}
