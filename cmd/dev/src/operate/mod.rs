//! What an operator does to a running cluster: nodes, replicas, leaders, backups. These subcommands speak to the nodes
//! themselves, as gateways do, so that they work while no gateway does. They need the cluster's secret.

mod backup;
mod config;
mod files;
mod finalize;
mod leaders;
mod moves;
mod restore;
mod wait;

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::Args;
use holdfast_auth::{ClusterSecret, ServiceSigner, read_secret_file};
use holdfast_cluster::{ClusterConfig, Node};
use holdfast_routing::{AdminClient, AdminError, Dialer, TcpDialer, TlsDialer};
use holdfast_runtime::ClusterTlsArgs;

pub(crate) use backup::{BackupArgs, back_up};
pub(crate) use config::{
    AddNodeArgs, ApplyConfigArgs, RemoveNodeArgs, ShowConfigArgs, add_node, apply_config, remove_node, show_config,
};
pub(crate) use finalize::{FinalizeArgs, finalize};
pub(crate) use leaders::{TransferLeadersArgs, transfer_leaders};
pub(crate) use moves::{MoveReplicaArgs, ReplaceNodeArgs, move_replica, replace_node};
pub(crate) use restore::{RestoreArgs, restore};

use crate::output;

/// Said when no node answers a caller without certificates: nodes that encrypt answer it with nothing that tells why.
const TLS_HINT: &str = "\nIf the nodes want TLS, give --cluster-tls-cert-file, --cluster-tls-key-file and \
                             --cluster-tls-ca-file";

/// Which cluster, and the proof of belonging to it.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    /// A config of the cluster, to find a node by; the latest one is asked of the nodes, and written here when it
    /// changes, for the processes that start later.
    #[arg(
        long,
        env = "HOLDFAST_CLUSTER_CONFIG",
        default_value = "data/cluster/cluster_config.json",
        value_name = "FILE"
    )]
    cluster_config: PathBuf,
    /// File with the cluster secret.
    #[arg(
        long,
        env = "HOLDFAST_CLUSTER_SECRET_FILE",
        default_value = "data/cluster/cluster.secret",
        value_name = "FILE"
    )]
    cluster_secret_file: PathBuf,
    #[command(flatten)]
    cluster_tls: ClusterTlsArgs,
}

/// A running cluster.
pub(crate) struct Cluster {
    operations: AdminClient,
    /// The latest config that a node has.
    config: ClusterConfig,
    file: PathBuf,
    is_encrypted: bool,
}

impl ClusterArgs {
    pub(crate) fn secret(&self) -> Result<ClusterSecret> {
        let file = read_secret_file(&self.cluster_secret_file)?;
        let secret = ClusterSecret::from_hex(file.secret.expose());
        secret.with_context(|| format!("--cluster-secret-file {}", self.cluster_secret_file.display()))
    }

    /// Finds the cluster's nodes and the config that they have.
    pub(crate) async fn connect(&self) -> Result<Cluster> {
        let config = ClusterConfig::load(&self.cluster_config)?;
        let signer = ServiceSigner::new(&self.secret()?, "dev");
        let tls = self.cluster_tls.load_client()?;
        let is_encrypted = tls.is_some();
        let connector: Arc<dyn Dialer> = match tls {
            Some(tls) => Arc::new(TlsDialer::new(tls)),
            None => Arc::new(TcpDialer),
        };
        let operations = AdminClient::new(signer, connector);
        let mut cluster = Cluster { operations, config, file: self.cluster_config.clone(), is_encrypted };
        cluster.refresh_config().await?;
        Ok(cluster)
    }
}

impl Cluster {
    /// Takes the latest config that any node has; a node that only that one names may have a later one still.
    async fn refresh_config(&mut self) -> Result<()> {
        loop {
            let nodes = self.config.nodes.clone();
            let answers = futures::future::join_all(nodes.iter().map(|node| self.operations.config(node))).await;
            let mut problems = Vec::new();
            let mut latest = None;
            for answer in answers {
                match answer {
                    Ok(config) => latest = latest.max_by_version(config),
                    Err(error) => problems.push(error.to_string()),
                }
            }
            let Some(latest) = latest else {
                let hint = if self.is_encrypted { "" } else { TLS_HINT };
                bail!("no node of {} answers:\n  {}{hint}", self.file.display(), problems.join("\n  "))
            };
            let is_later = latest.version > self.config.version;
            ensure!(
                is_later || latest.version == self.config.version,
                "{} is version {} of the cluster config, and the nodes have version {}: give it to them by starting them \
                 with it, or use the file that they were started with",
                self.file.display(),
                self.config.version,
                latest.version
            );
            self.config = latest;
            if !is_later {
                return Ok(());
            }
        }
    }

    /// Gives the next config to every node, in the order of their ids: of two operators at a time one is refused by the
    /// first node, with nothing changed. Nodes that are away get it from the others.
    async fn push_config(&mut self, next: ClusterConfig) -> Result<()> {
        let mut nodes: Vec<Node> = self.config.nodes.clone();
        nodes.extend(next.nodes.iter().filter(|node| self.config.node(&node.id).is_none()).cloned());
        nodes.sort_by(|one, other| one.id.cmp(&other.id));
        let mut taken = 0;
        for node in &nodes {
            match self.operations.set_config(node, &next).await {
                Ok(()) => taken += usize::from(self.config.node(&node.id).is_some()),
                Err(error) if error.is_unreachable => output::info(format_args!("{error}; it gets the config later")),
                Err(error) => return Err(self.rejection(node, &next, error).await),
            }
        }
        let majority = self.config.nodes.len() / 2 + 1;
        ensure!(
            taken >= majority,
            "only {taken} of {} nodes could be given config version {}; start the others and run this again",
            self.config.nodes.len(),
            next.version
        );
        output::info(format_args!("config version {} is given to {taken} nodes", next.version));
        if let Err(error) = files::write_atomically(&self.file, next.to_json().as_bytes()) {
            output::info(format_args!(
                "can't write {}: {error}; `dev show-config` prints the config for processes that start later",
                self.file.display()
            ));
        }
        self.config = next;
        Ok(())
    }

    /// Why a node does not take the next config: most likely it has got another one meanwhile.
    async fn rejection(&self, node: &Node, next: &ClusterConfig, error: AdminError) -> Error {
        match self.operations.config(node).await {
            Ok(config) if config.version >= next.version => anyhow!(
                "another change came in between: node {} has config version {} already. Run the same command again",
                node.id,
                config.version
            ),
            _ => error.into(),
        }
    }

    fn node(&self, id: &str) -> Result<&Node> {
        let known = || self.config.nodes.iter().map(|node| node.id.as_str()).collect::<Vec<_>>().join(", ");
        self.config.node(id).with_context(|| format!("there is no node {id:?}; there are {}", known()))
    }
}

trait MaxByVersion {
    fn max_by_version(self, other: ClusterConfig) -> Option<ClusterConfig>;
}

impl MaxByVersion for Option<ClusterConfig> {
    fn max_by_version(self, other: ClusterConfig) -> Option<ClusterConfig> {
        match self {
            Some(known) if known.version >= other.version => Some(known),
            _ => Some(other),
        }
    }
}

/// Of so many nodes, for tests: `nd_1` and so on, with three replicas of each shard.
#[cfg(test)]
fn config_of(nodes: u16) -> ClusterConfig {
    let place = |number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number));
    ClusterConfig::generate((1..=nodes).map(place).collect(), 2, 3).unwrap()
}
