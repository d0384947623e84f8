//! Unary gRPC.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_proto::v1;
use holdfast_proto::v1::latches_service_client::LatchesServiceClient;
use holdfast_proto::v1::locks_service_client::LocksServiceClient;
use holdfast_proto::v1::semaphores_service_client::SemaphoresServiceClient;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Streaming};

use super::{AcquireKind, LockName, Mode, PERMIT_REQUEST_ID, TTL_MS, WAIT_MS};

/// A connection that several clients share.
#[derive(Clone)]
pub(crate) struct GrpcConnection {
    client: LocksServiceClient<Channel>,
    semaphores: SemaphoresServiceClient<Channel>,
    latches: LatchesServiceClient<Channel>,
    authorization: MetadataValue<Ascii>,
}

/// Connects, once.
pub(crate) async fn channel(gateway: SocketAddr) -> Result<Channel> {
    let endpoint = Endpoint::from_shared(format!("http://{gateway}"))?.tcp_nodelay(true);
    Ok(endpoint.connect_timeout(Duration::from_secs(5)).connect().await?)
}

/// Opens connections that several clients or sessions share.
pub(crate) struct ChannelPool {
    /// How many share one.
    users_each: usize,
    /// The last connection to each gateway, and how many use it.
    last: HashMap<SocketAddr, (Channel, usize)>,
}

impl ChannelPool {
    /// A pool of connections that so many share each, at least one.
    pub(crate) fn new(users_each: usize) -> Self {
        Self { users_each, last: HashMap::new() }
    }

    /// Returns a connection to a gateway, a new one if all are shared by as many as may.
    pub(crate) async fn connect(&mut self, gateway: SocketAddr) -> Result<Channel> {
        let last = self.last.get_mut(&gateway).filter(|(_, users)| *users < self.users_each);
        if let Some((channel, users)) = last {
            *users += 1;
            return Ok(channel.clone());
        }
        let channel = channel(gateway).await?;
        self.last.insert(gateway, (channel.clone(), 1));
        Ok(channel)
    }
}

impl GrpcConnection {
    /// Calls over a connection, with a key.
    pub(crate) fn new(channel: Channel, key: &str) -> Result<Self> {
        Ok(Self {
            client: LocksServiceClient::new(channel.clone()),
            semaphores: SemaphoresServiceClient::new(channel.clone()),
            latches: LatchesServiceClient::new(channel),
            authorization: format!("Bearer {key}").parse()?,
        })
    }

    /// Waits until a latch is complete, with one call.
    pub(crate) async fn wait_for_latch(&self, namespace: &str, name: &str) -> Result<()> {
        let (namespace, name) = (namespace.to_owned(), Some(name.to_owned()));
        let message = v1::WaitForLatchRequest { namespace, name, wait_ms: WAIT_MS, ..Default::default() };
        let answer = self.latches.clone().wait_for_latch(self.signed(message)).await?.into_inner();
        let outcome = answer.outcome();
        ensure!(outcome == v1::wait_for_latch_response::Outcome::Completed, "a waiter is told {outcome:?}");
        Ok(())
    }

    fn signed<T>(&self, message: T) -> Request<T> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("authorization", self.authorization.clone());
        request
    }

    /// Follows the events of a namespace from now on.
    pub(crate) async fn watch(&self, namespace: &str) -> Result<Streaming<v1::Event>> {
        let message = v1::WatchRequest { namespace: namespace.to_owned(), ..Default::default() };
        Ok(self.client.clone().watch(self.signed(message)).await?.into_inner())
    }
}

/// A client of the gRPC door.
pub struct GrpcClient {
    connection: GrpcConnection,
    owner: String,
}

impl GrpcClient {
    pub(crate) fn new(connection: GrpcConnection, owner: String) -> Self {
        Self { connection, owner }
    }

    pub(crate) async fn acquire(&mut self, lock: &LockName, mode: Mode, asks: AcquireKind) -> Result<Option<u64>> {
        if lock.is_permit {
            return self.acquire_permit(lock, asks).await;
        }
        let mode = if mode == Mode::Read { v1::Mode::Read } else { v1::Mode::Write };
        let message = v1::AcquireLockRequest {
            namespace: lock.namespace.clone(),
            name: lock.name().map(str::to_owned),
            path: path(lock),
            process_id: Some(self.owner.clone()),
            mode: mode.into(),
            ttl_ms: Some(TTL_MS),
            fencing_token: if let AcquireKind::Extend(token) = asks { Some(token) } else { None },
            wait_ms: if asks == AcquireKind::Wait { WAIT_MS } else { 0 },
            ..Default::default()
        };
        let request = self.connection.signed(message);
        let answer = self.connection.client.acquire_lock(request).await?.into_inner();
        if !answer.success {
            return Ok(None);
        }
        answer.fencing_token.context("a grant has a token").map(Some)
    }

    async fn acquire_permit(&mut self, lock: &LockName, asks: AcquireKind) -> Result<Option<u64>> {
        let message = v1::AcquirePermitsRequest {
            namespace: lock.namespace.clone(),
            name: lock.name().map(str::to_owned),
            process_id: Some(self.owner.clone()),
            request_id: PERMIT_REQUEST_ID.to_owned(),
            permits: Some(1),
            ttl_ms: Some(TTL_MS),
            fencing_token: if let AcquireKind::Extend(token) = asks { Some(token) } else { None },
            wait_ms: if asks == AcquireKind::Wait { WAIT_MS } else { 0 },
            ..Default::default()
        };
        let request = self.connection.signed(message);
        let answer = self.connection.semaphores.acquire_permits(request).await?.into_inner();
        if !answer.success {
            return Ok(None);
        }
        answer.fencing_token.context("a grant has a token").map(Some)
    }

    async fn release_permit(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        let message = v1::ReleasePermitsRequest {
            namespace: lock.namespace.clone(),
            name: lock.name().map(str::to_owned),
            process_id: Some(self.owner.clone()),
            fencing_token: Some(token),
            ..Default::default()
        };
        let request = self.connection.signed(message);
        Ok(self.connection.semaphores.release_permits(request).await?.into_inner().released)
    }

    pub(crate) async fn release(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        if lock.is_permit {
            return self.release_permit(lock, token).await;
        }
        let message = v1::ReleaseLockRequest {
            namespace: lock.namespace.clone(),
            name: lock.name().map(str::to_owned),
            path: path(lock),
            process_id: Some(self.owner.clone()),
            fencing_token: Some(token),
            ..Default::default()
        };
        let request = self.connection.signed(message);
        Ok(self.connection.client.release_lock(request).await?.into_inner().released)
    }

    pub(crate) async fn get(&mut self, lock: &LockName) -> Result<bool> {
        let message = v1::GetLockRequest {
            namespace: lock.namespace.clone(),
            name: lock.name().map(str::to_owned),
            path: path(lock),
            ..Default::default()
        };
        let request = self.connection.signed(message);
        let lock = self.connection.client.get_lock(request).await?.into_inner().lock.context("a lock is shown")?;
        Ok(lock.state() != v1::lock::State::Unlocked)
    }
}

/// The path of a lock in a tree; one with a name has none.
fn path(lock: &LockName) -> Vec<String> {
    if lock.name().is_some() { Vec::new() } else { lock.path.clone() }
}
