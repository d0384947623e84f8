//! The systems under test, each in processes of its own.

mod etcd;
mod redis;

use std::process::Command;

use anyhow::{Result, anyhow};

use crate::clients::{
    CLIENTS_PER_CONNECTION, ChannelPool, Client, EtcdClient, GrpcClient, GrpcConnection, RestClient, Session,
    SessionClient, Target, session_count,
};
use crate::cluster::{self, EntryPoint, Tenant, find_installed};
use crate::measure::Storage;
use holdfast_testkit::Cluster;

pub use etcd::Etcd;
pub use redis::Redis;

/// A running system.
pub enum System {
    /// This service, with the account that the load belongs to.
    Holdfast(Box<Cluster>, Tenant),
    /// etcd.
    Etcd(Etcd),
    /// Redis.
    Redis(Box<Redis>),
}

impl System {
    /// Whether a target belongs to this system.
    pub fn supports(&self, door: Target) -> bool {
        match self {
            Self::Holdfast(..) => door.is_holdfast(),
            Self::Etcd(_) => door == Target::Etcd,
            Self::Redis(redis) => door == if redis.writes() { Target::Redis } else { Target::RedisMemory },
        }
    }

    /// Where the clients of this service connect; nothing for a peer.
    pub fn entry_point(&self) -> Option<EntryPoint> {
        match self {
            Self::Holdfast(cluster, _) => Some(EntryPoint::of(cluster)),
            Self::Etcd(_) | Self::Redis(_) => None,
        }
    }

    /// Its processes, by name.
    pub fn pids(&self) -> Vec<(String, i32)> {
        match self {
            Self::Holdfast(cluster, _) => cluster::pids(cluster),
            Self::Etcd(etcd) => etcd.pids(),
            Self::Redis(redis) => redis.pids(),
        }
    }

    /// Which program and version it is. Nothing for this service, which is of the same version as this program.
    ///
    /// # Errors
    /// When a program can't be asked.
    pub fn version(&self) -> Result<Option<String>> {
        let program = match self {
            Self::Holdfast(..) => return Ok(None),
            Self::Etcd(_) => find_installed("etcd", "etcd-server")?,
            Self::Redis(_) => find_installed("redis-server", "redis-server")?,
        };
        let output = Command::new(program).arg("--version").output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        // What follows is about how it was built.
        Ok(text.lines().next().map(|line| line.split_whitespace().take(3).collect::<Vec<_>>().join(" ")))
    }

    /// What it says of its own storage, over all processes.
    ///
    /// # Errors
    /// When a process does not answer.
    pub async fn storage(&self) -> Result<Storage> {
        match self {
            Self::Holdfast(cluster, _) => {
                let names = ["holdfast_storage_syncs_total", "holdfast_storage_bytes_total"];
                let counters = cluster.metric_sums(&names).await.map_err(|error| anyhow!(error))?;
                Ok(Storage { syncs: Some(counters[0]), bytes: Some(counters[1]) })
            }
            Self::Etcd(etcd) => etcd.storage().await,
            Self::Redis(_) => Ok(Storage::default()),
        }
    }

    /// Connects so many clients. Those that share a session share one of these namespaces. Those that connect to
    /// leaders have one of them each, in turns.
    ///
    /// # Errors
    /// When one can't connect.
    pub async fn connect(&self, door: Target, count: usize, names: &[String]) -> Result<Vec<Client>> {
        let mut clients = Vec::with_capacity(count);
        match self {
            Self::Holdfast(cluster, tenant) => {
                return Self::connect_holdfast(cluster, tenant, door, count, names).await;
            }
            Self::Etcd(etcd) => {
                for first in (0..count).step_by(CLIENTS_PER_CONNECTION) {
                    let connection = etcd.connect()?;
                    for number in first..count.min(first + CLIENTS_PER_CONNECTION) {
                        let client = EtcdClient::new(&connection, owner_name(number)).await?;
                        clients.push(Client::Etcd(Box::new(client)));
                    }
                }
            }
            Self::Redis(redis) => {
                for number in 0..count {
                    clients.push(Client::Redis(redis.connect(owner_name(number)).await?));
                }
            }
        }
        Ok(clients)
    }

    /// Connects so many clients to this service, as [`Self::connect`].
    ///
    /// # Errors
    /// When one can't connect.
    pub async fn connect_holdfast(
        cluster: &Cluster,
        tenant: &Tenant,
        door: Target,
        count: usize,
        names: &[String],
    ) -> Result<Vec<Client>> {
        let addresses = cluster::entry_addresses(cluster, tenant, names).await?;
        let mut clients = Vec::with_capacity(count);
        if door == Target::Rest {
            for (number, address) in addresses.iter().cycle().take(count).enumerate() {
                let client = RestClient::connect(*address, &tenant.key, owner_name(number)).await?;
                clients.push(Client::Rest(client));
            }
            return Ok(clients);
        }
        if door.has_sessions() {
            let sessions = session_count(count, names.len());
            // As many sessions share a connection as have as many clients as may share it.
            let mut channels = ChannelPool::new(CLIENTS_PER_CONNECTION * sessions / count.max(1));
            let mut opened = Vec::new();
            for (namespace, address) in names.iter().zip(addresses).cycle().take(sessions) {
                let channel = channels.connect(address).await?;
                let keeps_table = door == Target::Memory;
                opened.push(Session::open(channel, &tenant.key, namespace, keeps_table).await?);
            }
            let client = |(number, session)| Client::Stream(SessionClient::new(session, owner_name(number)));
            return Ok((0..count).zip(opened.into_iter().cycle()).map(client).collect());
        }
        let mut channels = ChannelPool::new(CLIENTS_PER_CONNECTION);
        for (number, address) in addresses.iter().cycle().take(count).enumerate() {
            let connection = GrpcConnection::new(channels.connect(*address).await?, &tenant.key)?;
            clients.push(Client::Grpc(Box::new(GrpcClient::new(connection, owner_name(number)))));
        }
        Ok(clients)
    }
}

fn owner_name(number: usize) -> String {
    format!("client-{number}")
}
