//! Clients: one for each frontend and each peer, with the same few calls.

mod etcd;
mod etcd_api;
mod grpc;
mod redis;
mod rest;
mod session;

use std::fmt;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

pub(crate) use etcd::{EtcdClient, EtcdConnection};
pub(crate) use grpc::{ChannelPool, GrpcClient, GrpcConnection, channel};
pub(crate) use redis::RedisClient;
pub(crate) use rest::RestClient;
pub(crate) use session::{Session, SessionClient};

/// Long enough that nothing expires while it is measured.
pub(crate) const TTL_MS: u64 = 3_600_000;
/// Names a hold of a permit among those of its owner, which has one of each semaphore at most.
pub(crate) const PERMIT_REQUEST_ID: &str = "r";
/// How long a client waits for a lock that others want too.
pub(crate) const WAIT_MS: u64 = 60_000;
/// Clients that share a connection, where the protocol carries many calls on one (gRPC). Each has its own otherwise.
pub(crate) const CLIENTS_PER_CONNECTION: usize = 16;

/// Over how many sessions clients are spread, in turns. A session is of one namespace, and all of these are to be at
/// work: as many sessions as there are namespaces, or one for each client where there are fewer, and more where too many
/// clients would share one. As many sessions share a connection as have as many clients as may share it.
pub(crate) fn session_count(clients: usize, namespaces: usize) -> usize {
    clients.min(namespaces).max(clients.div_ceil(CLIENTS_PER_CONNECTION))
}

/// What is measured: the service through one of its frontends, or a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Target {
    /// Holdfast, REST over HTTP/1.1, a connection for each client.
    Rest,
    /// Holdfast, unary gRPC.
    Grpc,
    /// Holdfast, the session stream over gRPC: clients that share a connection share its sessions.
    Stream,
    /// The same in namespaces whose lock tables are in the memory of leaders.
    Memory,
    /// etcd, its v3 API.
    Etcd,
    /// Redis, RESP, a connection for each client.
    Redis,
    /// The same, of a Redis that writes nothing.
    RedisMemory,
}

impl Target {
    /// Whether it is one of this service's.
    pub fn is_holdfast(self) -> bool {
        matches!(self, Self::Rest | Self::Grpc | Self::Stream | Self::Memory)
    }

    /// Whether its clients share sessions.
    pub(crate) fn has_sessions(self) -> bool {
        matches!(self, Self::Stream | Self::Memory)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rest => "Holdfast REST",
            Self::Grpc => "Holdfast gRPC",
            Self::Stream => "Holdfast stream",
            Self::Memory => "Holdfast stream, SESSION",
            Self::Etcd => "etcd",
            Self::Redis => "Redis",
            Self::RedisMemory => "Redis in memory only",
        })
    }
}

/// One lock, or the one permit of a semaphore.
#[derive(Clone, Debug)]
pub struct LockName {
    /// Its namespace.
    pub namespace: String,
    /// Where it is in it.
    path: Vec<String>,
    /// Whether it is a permit.
    is_permit: bool,
}

impl LockName {
    /// A lock that is named, and neither below nor above another.
    pub fn flat(namespace: &str, name: String) -> Self {
        Self { namespace: namespace.to_owned(), path: vec![name], is_permit: false }
    }

    /// The permit of a semaphore that nobody configured: as a lock, it is there while somebody holds it or waits for it.
    pub fn permit(namespace: &str, name: String) -> Self {
        Self { is_permit: true, ..Self::flat(namespace, name) }
    }

    /// A lock in a tree.
    pub fn in_tree(namespace: &str, path: Vec<String>) -> Self {
        Self { namespace: namespace.to_owned(), path, is_permit: false }
    }

    /// The one above it.
    pub fn parent(&self) -> Self {
        let above = &self.path[..self.path.len().saturating_sub(1)];
        Self { namespace: self.namespace.clone(), path: above.to_vec(), is_permit: false }
    }

    /// Its name, unless it is in a tree.
    fn name(&self) -> Option<&str> {
        match self.path.as_slice() {
            [name] => Some(name),
            _ => None,
        }
    }
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Together with other readers.
    Read,
    /// Alone.
    Write,
}

/// What an acquire asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AcquireKind {
    /// The lock, now or not at all.
    Try,
    /// The lock, sooner or later.
    Wait,
    /// More time for the hold of that token.
    Extend(u64),
}

/// One client, with an owner name of its own.
pub enum Client {
    /// Of the REST door.
    Rest(RestClient),
    /// Of the gRPC door.
    Grpc(Box<GrpcClient>),
    /// Of a session's connection.
    Stream(SessionClient),
    /// Of etcd.
    Etcd(Box<EtcdClient>),
    /// Of Redis.
    Redis(RedisClient),
}

impl Client {
    /// Tries to acquire a lock. Returns the token, or none if another owner holds it.
    ///
    /// # Errors
    /// When there is no answer, or it is not one.
    pub async fn acquire(&mut self, lock: &LockName, mode: Mode) -> Result<Option<u64>> {
        match (self, mode) {
            (Self::Rest(client), _) => client.acquire(lock, mode, AcquireKind::Try).await,
            (Self::Grpc(client), _) => client.acquire(lock, mode, AcquireKind::Try).await,
            (Self::Stream(client), _) => client.acquire(lock, mode, false).await,
            (Self::Etcd(client), Mode::Write) => client.acquire(lock).await,
            (Self::Redis(client), Mode::Write) => client.acquire(lock).await,
            (Self::Etcd(_) | Self::Redis(_), Mode::Read) => bail!("it has no read locks"),
        }
    }

    /// Takes a lock, after as long a wait as it needs. Its token.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub async fn acquire_waiting(&mut self, lock: &LockName) -> Result<u64> {
        let token = match self {
            Self::Rest(client) => client.acquire(lock, Mode::Write, AcquireKind::Wait).await?,
            Self::Grpc(client) => client.acquire(lock, Mode::Write, AcquireKind::Wait).await?,
            Self::Stream(client) => client.acquire(lock, Mode::Write, true).await?,
            Self::Etcd(client) => Some(client.acquire_waiting(lock).await?),
            Self::Redis(_) => bail!("it has no waiting"),
        };
        token.context("a lock was not granted in time")
    }

    /// Gives a lock back. Whether a hold ended.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub async fn release(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        match self {
            Self::Rest(client) => client.release(lock, token).await,
            Self::Grpc(client) => client.release(lock, token).await,
            Self::Stream(client) => client.release(token).await,
            Self::Etcd(client) => client.release(lock, token).await,
            Self::Redis(client) => client.release(lock, token).await,
        }
    }

    /// Holds a lock for longer. Whether it was still held.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub async fn extend(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        match self {
            Self::Rest(client) => Ok(client.acquire(lock, Mode::Write, AcquireKind::Extend(token)).await?.is_some()),
            Self::Grpc(client) => Ok(client.acquire(lock, Mode::Write, AcquireKind::Extend(token)).await?.is_some()),
            Self::Stream(client) => client.keep_alive().await,
            Self::Etcd(client) => client.extend().await,
            Self::Redis(client) => client.extend(lock, token).await,
        }
    }

    /// Reads a lock, with an answer that is not stale. Returns whether it is held.
    ///
    /// # Errors
    /// As [`Self::acquire`].
    pub async fn get(&mut self, lock: &LockName) -> Result<bool> {
        match self {
            Self::Rest(client) => client.get(lock).await,
            Self::Grpc(client) => client.get(lock).await,
            Self::Stream(_) => bail!("a session's connection does not look"),
            Self::Etcd(client) => client.get(lock).await,
            Self::Redis(client) => client.get(lock).await,
        }
    }
}
