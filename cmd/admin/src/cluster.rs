//! Connection to the nodes of a running cluster: its latest config, and the next one.
//!
//! The subcommands connect to the nodes directly, as gateways do, so they work without a gateway. They need the cluster
//! secret.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Error, Result, anyhow, bail, ensure};
use clap::Args;
use holdfast_auth::{ClusterSecret, ServiceSigner, read_secret_file};
use holdfast_cluster::{ClusterConfig, Node};
use holdfast_operator::{ClusterFiles, output};
use holdfast_routing::{AdminClient, AdminError, Dialer, TcpDialer, TlsDialer};
use holdfast_runtime::ClusterTlsArgs;

use crate::files;

/// Added if no node answers a client without certificates: nodes with TLS close its connections without a reason.
const TLS_HINT: &str = "\nIf the nodes use TLS, give --cluster-tls-cert-file, --cluster-tls-key-file and \
                        --cluster-tls-ca-file";

/// Flags that select the cluster and authenticate to its nodes, over TLS or not.
#[derive(Debug, Args)]
pub(crate) struct ClusterArgs {
    #[command(flatten)]
    files: ClusterFiles,
    #[command(flatten)]
    cluster_tls: ClusterTlsArgs,
}

/// A running cluster.
pub(crate) struct Cluster {
    pub(crate) operations: AdminClient,
    /// The latest config of any node.
    pub(crate) config: ClusterConfig,
    /// The file with the config of this machine.
    pub(crate) file: PathBuf,
    is_encrypted: bool,
}

impl ClusterArgs {
    /// Reads the cluster secret.
    pub(crate) fn secret(&self) -> Result<ClusterSecret> {
        let path = &self.files.cluster_secret_file;
        let secret = ClusterSecret::from_hex(read_secret_file(path)?.secret.expose());
        secret.with_context(|| format!("--cluster-secret-file {}", path.display()))
    }

    /// Connects to the nodes and reads their latest config.
    pub(crate) async fn connect(&self) -> Result<Cluster> {
        let config = ClusterConfig::load(&self.files.cluster_config)?;
        let signer = ServiceSigner::new(&self.secret()?, "admin");
        let tls = self.cluster_tls.load_client()?;
        let is_encrypted = tls.is_some();
        let dialer: Arc<dyn Dialer> = match tls {
            Some(tls) => Arc::new(TlsDialer::new(tls)),
            None => Arc::new(TcpDialer),
        };
        let operations = AdminClient::new(signer, dialer);
        let file = self.files.cluster_config.clone();
        let mut cluster = Cluster { operations, config, file, is_encrypted };
        cluster.refresh_config().await?;
        Ok(cluster)
    }
}

impl Cluster {
    /// Reads the latest config of any node. Repeats with it, because nodes that only it names may have a later one.
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
                "{} is version {} of the cluster config, and the nodes have version {}: restart them with it, or use \
                 the file that they were started with",
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

    /// Sends the next config to every node, in the order of their ids: the first node rejects one of two concurrent
    /// changes, and nothing of it is applied. Unreachable nodes get the config from the others later.
    pub(crate) async fn push_config(&mut self, next: ClusterConfig) -> Result<()> {
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
            "only {taken} of {} nodes have config version {}; start the others and run the command again",
            self.config.nodes.len(),
            next.version
        );
        output::info(format_args!("{taken} nodes have config version {}", next.version));
        if let Err(error) = files::write_atomically(&self.file, next.to_json().as_bytes()) {
            output::info(format_args!(
                "can't write {}: {error}; `holdfast-admin config show` prints the config for \
                 processes that start later",
                self.file.display()
            ));
        }
        self.config = next;
        Ok(())
    }

    /// Explains why a node rejects the next config: most likely it has a newer one by now.
    async fn rejection(&self, node: &Node, next: &ClusterConfig, error: AdminError) -> Error {
        match self.operations.config(node).await {
            Ok(config) if config.version >= next.version => anyhow!(
                "a concurrent change won: node {} has config version {} already. Run the same command again",
                node.id,
                config.version
            ),
            _ => error.into(),
        }
    }

    /// Returns the node with this id.
    pub(crate) fn node(&self, id: &str) -> Result<&Node> {
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

/// Returns a config for tests: nodes `nd_1` and so on, three replicas of each group.
#[cfg(test)]
pub(crate) fn config_of(nodes: u16) -> ClusterConfig {
    let node = |number| (format!("nd_{number}"), format!("127.0.0.1:{}", 6999 + number));
    ClusterConfig::generate((1..=nodes).map(node).collect(), 2, 3).unwrap()
}
