//! A three-node etcd of this machine.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow, bail};
use futures::future::try_join_all;
use holdfast_testkit::{Metrics, Program, Scratch, free_address};

use crate::clients::EtcdConnection;
use crate::cluster::{NODES, find_installed, pids_of};
use crate::measure::Storage;

const READY_TIMEOUT: Duration = Duration::from_secs(30);

/// etcd with its usual settings. All processes end with it.
pub struct Etcd {
    processes: Vec<Program>,
    clients: Vec<SocketAddr>,
    // After the processes: their data goes when they are gone.
    _dir: Scratch,
}

impl Etcd {
    /// Starts it and waits until it takes writes.
    ///
    /// # Errors
    /// When it is not installed, or does not become ready.
    pub async fn start(data_dir: &Path) -> Result<Self> {
        let program = find_installed("etcd", "etcd-server")?;
        let dir = Scratch::new_in(data_dir);
        let clients = (0..NODES).map(|_| free_address()).collect::<Vec<_>>();
        let peers = (0..NODES).map(|_| free_address()).collect::<Vec<_>>();
        let named = |at: usize| format!("etcd-{}", at + 1);
        let all: Vec<String> = peers.iter().enumerate().map(|(at, p)| format!("{}=http://{p}", named(at))).collect();
        let mut processes = Vec::new();
        for at in 0..NODES {
            let client = format!("http://{}", clients[at]);
            let peer = format!("http://{}", peers[at]);
            let data = dir.path().join(named(at)).display().to_string();
            let flags = [
                ("--name", named(at)),
                ("--data-dir", data),
                ("--listen-client-urls", client.clone()),
                ("--advertise-client-urls", client),
                ("--listen-peer-urls", peer.clone()),
                ("--initial-advertise-peer-urls", peer),
                ("--initial-cluster", all.join(",")),
                ("--initial-cluster-state", "new".to_owned()),
            ];
            let arguments = flags.into_iter().flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
            processes.push(Program::of_machine(&named(at), &program, arguments, dir.path()));
        }
        for process in &mut processes {
            process.start();
        }
        let mut etcd = Self { processes, clients, _dir: dir };
        etcd.wait_ready().await?;
        Ok(etcd)
    }

    async fn wait_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + READY_TIMEOUT;
        loop {
            self.processes.iter_mut().for_each(Program::assert_running);
            let probe = async { self.connect()?.put("ready").await };
            match tokio::time::timeout(Duration::from_secs(2), probe).await {
                Ok(Ok(_)) => return Ok(()),
                Ok(Err(error)) if Instant::now() > deadline => bail!("etcd is not ready: {error:#}"),
                Err(_) if Instant::now() > deadline => bail!("etcd is not ready: it does not answer"),
                Ok(Err(_)) | Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
            }
        }
    }

    /// A connection to all three nodes, which takes turns.
    pub(crate) fn connect(&self) -> Result<EtcdConnection> {
        let endpoints: Vec<String> = self.clients.iter().map(|address| format!("http://{address}")).collect();
        EtcdConnection::new(endpoints)
    }

    pub(crate) fn pids(&self) -> Vec<(String, i32)> {
        pids_of(&self.processes)
    }

    pub(crate) async fn storage(&self) -> Result<Storage> {
        let nodes = try_join_all(self.clients.iter().map(|address| Metrics::read(*address))).await;
        let nodes = nodes.map_err(|error| anyhow!(error))?;
        let names = ["etcd_disk_wal_fsync_duration_seconds_count", "etcd_disk_backend_commit_duration_seconds_count"];
        let syncs = nodes.iter().flat_map(|metrics| names.iter().map(|name| metrics.sum(name))).sum();
        Ok(Storage { syncs: Some(syncs), bytes: None })
    }
}
