//! Three nodes and a gateway, in processes of their own.

mod leaders;
mod ports;
mod process;
mod programs;
mod tenant;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use futures::future::try_join_all;
use holdfast_auth::ServiceSigner;
use holdfast_bootstrap::Secrets;
use holdfast_cluster::{ClusterConfig, ShardMap};
use tempfile::TempDir;

use crate::measure::folder_bytes;
pub(crate) use ports::free_address;
pub use process::Process;
pub(crate) use programs::find_installed;
use programs::program;
pub(crate) use tenant::NAMESPACES_PER_SHARD;
pub use tenant::Tenant;

/// How many nodes there are, and replicas of each shard.
pub const NODES: usize = 3;
const CONFIG_FILE: &str = "cluster_config.json";
const READY_TIMEOUT: Duration = Duration::from_secs(120);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How a cluster is set up.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Shards of namespaces, and as many of locks.
    pub shards: u32,
    /// In which folder data is kept.
    pub data_dir: PathBuf,
}

/// A running cluster. All processes end with it.
pub struct Cluster {
    /// The nodes, then the gateway.
    processes: Vec<Process>,
    addresses: Vec<SocketAddr>,
    pub(crate) map: ShardMap,
    pub(crate) secrets: Secrets,
    pub(crate) signer: ServiceSigner,
    pub(crate) http: reqwest::Client,
    // After the processes: their data goes when they are gone.
    dir: TempDir,
}

impl Cluster {
    /// Starts all processes and waits until they are ready.
    ///
    /// # Errors
    /// When a program is missing, or does not become ready.
    pub async fn start(setup: &Setup) -> Result<Self> {
        let dir = temp_dir(&setup.data_dir, "holdfast")?;
        let secrets = Secrets::load_or_create(&dir.path().join("secrets"))?;
        let addresses = (0..=NODES).map(|_| free_address()).collect::<Result<Vec<_>>>()?;
        let named = |at: usize| format!("nd_{}", at + 1);
        let nodes = addresses[..NODES].iter().enumerate().map(|(at, address)| (named(at), address.to_string()));
        let config = ClusterConfig::generate(nodes.collect(), setup.shards, u32::try_from(NODES)?)?;
        let config_file = dir.path().join(CONFIG_FILE);
        std::fs::write(&config_file, config.to_json())?;
        let text = |path: PathBuf| path.display().to_string();
        let common = [
            ("--cluster-config", text(config_file)),
            ("--cluster-secret-file", text(secrets.cluster_secret_file())),
            ("--operator-token-file", text(secrets.operator_token_file())),
        ];
        let arguments = |flags: [(&str, String); 2], used: usize| -> Vec<String> {
            let all = common.iter().cloned().chain(flags.into_iter().take(used));
            all.flat_map(|(flag, value)| [flag.to_owned(), value]).collect()
        };
        let mut processes = Vec::new();
        for at in 0..NODES {
            let flags = [("--node-id", named(at)), ("--data-dir", text(dir.path().join(named(at))))];
            processes.push(Process::new_holdfast(
                &named(at),
                program("holdfast-node")?,
                arguments(flags, 2),
                dir.path(),
            ));
        }
        let flags = [("--listen", addresses[NODES].to_string()), ("", String::new())];
        processes.push(Process::new_holdfast("gateway", program("holdfast-gateway")?, arguments(flags, 1), dir.path()));
        let signer = ServiceSigner::new(secrets.cluster_secret(), "benchmark");
        let http = reqwest::Client::builder().tcp_nodelay(true).build()?;
        let map = ShardMap::new(config)?;
        let mut cluster = Self { processes, addresses, map, secrets, signer, http, dir };
        for process in &mut cluster.processes {
            process.start()?;
        }
        cluster.wait_ready().await?;
        Ok(cluster)
    }

    /// Where the gateway listens.
    pub fn gateway(&self) -> SocketAddr {
        self.addresses[NODES]
    }

    /// Where a node listens.
    pub fn node_address(&self, node: usize) -> SocketAddr {
        self.addresses[node]
    }

    /// A node's process, to kill it or to start it again.
    pub fn node(&mut self, node: usize) -> &mut Process {
        &mut self.processes[node]
    }

    /// Every process with its id, while it runs.
    pub fn pids(&self) -> Vec<(String, i32)> {
        self.processes.iter().filter_map(|process| Some((process.name().to_owned(), process.pid()?))).collect()
    }

    /// Where a node keeps its data.
    pub fn node_dir(&self, node: usize) -> PathBuf {
        self.dir.path().join(self.processes[node].name())
    }

    /// Waits until every process can serve.
    ///
    /// # Errors
    /// When one ends, or is not ready in time.
    pub async fn wait_ready(&mut self) -> Result<()> {
        for at in 0..self.processes.len() {
            self.wait_one_ready(at).await?;
        }
        Ok(())
    }

    /// Waits until one process can serve: a node by its number, the gateway behind them.
    ///
    /// # Errors
    /// When it ends, or is not ready in time.
    pub async fn wait_one_ready(&mut self, at: usize) -> Result<()> {
        let url = format!("http://{}/readyz", self.addresses[at]);
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            self.processes[at].check_running()?;
            let answer = self.http.get(&url).timeout(Duration::from_secs(2)).send().await;
            let reason = match answer {
                Ok(answer) if answer.status().is_success() => return Ok(()),
                Ok(answer) => answer.text().await.unwrap_or_default(),
                Err(error) => error.to_string(),
            };
            if Instant::now() > deadline {
                bail!("{} is not ready after {READY_TIMEOUT:?}: {reason}", self.processes[at].name());
            }
            tokio::time::sleep(POLL_INTERVAL).await;
        }
    }

    /// Has every leader make a snapshot of its shard, and keeps them all: how long that took, and their bytes.
    ///
    /// # Errors
    /// When a snapshot can't be had.
    pub async fn back_up(&self) -> Result<(Duration, f64)> {
        let folder = self.dir.path().join("backup");
        let begun = Instant::now();
        let made = tokio::process::Command::new(program("holdfast-admin")?)
            .args(["backup", "--out"])
            .arg(&folder)
            .arg("--cluster-config")
            .arg(self.dir.path().join(CONFIG_FILE))
            .arg("--cluster-secret-file")
            .arg(self.secrets.cluster_secret_file())
            .kill_on_drop(true)
            .output()
            .await?;
        let took = begun.elapsed();
        ensure!(made.status.success(), "no backup was made: {}", String::from_utf8_lossy(&made.stderr));
        Ok((took, folder_bytes(&folder)?))
    }

    /// The sum over all nodes of a counter in `/metrics`.
    ///
    /// # Errors
    /// When a node does not answer.
    pub async fn counters(&self, names: &[&str]) -> Result<Vec<f64>> {
        let texts = try_join_all((0..NODES).map(|node| self.metrics(node))).await?;
        Ok(names.iter().map(|name| texts.iter().map(|text| crate::measure::counter_in(text, name)).sum()).collect())
    }

    async fn metrics(&self, node: usize) -> Result<String> {
        let url = format!("http://{}/metrics", self.addresses[node]);
        let answer = self.http.get(url).timeout(Duration::from_secs(5)).send().await?.error_for_status();
        answer.context("a node does not show its metrics")?.text().await.map_err(Into::into)
    }
}

/// A folder that goes with the run.
pub(crate) fn temp_dir(parent: &Path, what: &str) -> Result<TempDir> {
    let dir = tempfile::Builder::new().prefix(&format!("holdfast-bench-{what}-")).tempdir_in(parent);
    dir.with_context(|| format!("no folder can be made in {}", parent.display()))
}
