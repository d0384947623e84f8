//! etcd, with the cheapest correct lock that has a time to live.
//!
//! A client keeps one lease for all of its locks. Taking a lock is one transaction: create the key under the lease if
//! it is absent. Giving it back is one transaction: delete the key if it is still the one that was created. That is two
//! writes through Raft for a pair, as few as there can be. The lock service of etcd (`v3lock`) does more for the same:
//! it writes a key for each waiter. It is used where clients wait for one lock, since waiting is what it is for.
//! Extending is a keep-alive of the lease, which etcd answers without a write; it extends everything under the lease at
//! once.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use super::etcd_api::etcdserverpb::compare::TargetUnion;
use super::etcd_api::etcdserverpb::kv_client::KvClient;
use super::etcd_api::etcdserverpb::lease_client::LeaseClient;
use super::etcd_api::etcdserverpb::request_op::Request as Op;
use super::etcd_api::etcdserverpb::{
    Compare, DeleteRangeRequest, LeaseGrantRequest, LeaseKeepAliveRequest, LeaseKeepAliveResponse, PutRequest,
    RangeRequest, RequestOp, TxnRequest,
};
use super::etcd_api::v3lockpb::lock_client::LockClient;
use super::etcd_api::v3lockpb::{LockRequest, UnlockRequest};
use super::{LockName, TTL_MS};

/// What a transaction compares: the revision at which a key was created.
const COMPARE_CREATE_REVISION: i32 = 1;

/// A connection to etcd, which several clients share; calls take turns over its nodes.
#[derive(Clone)]
pub(crate) struct EtcdConnection(Channel);

impl EtcdConnection {
    /// Connects when it is first used.
    pub(crate) fn new(endpoints: Vec<String>) -> Result<Self> {
        let endpoint = |url| Ok(Endpoint::from_shared(url)?.tcp_nodelay(true).connect_timeout(Duration::from_secs(5)));
        let endpoints = endpoints.into_iter().map(endpoint).collect::<Result<Vec<_>>>()?;
        Ok(Self(Channel::balance_list(endpoints.into_iter())))
    }

    /// Writes something.
    pub(crate) async fn put(&self, key: &str) -> Result<()> {
        let request = PutRequest { key: key.into(), value: b"yes".to_vec(), lease: 0 };
        KvClient::new(self.0.clone()).put(request).await?;
        Ok(())
    }
}

/// A client of etcd.
pub struct EtcdClient {
    kv: KvClient<Channel>,
    locks: LockClient<Channel>,
    owner: String,
    lease: i64,
    keep_alive_tx: mpsc::Sender<LeaseKeepAliveRequest>,
    keep_alive_rx: Streaming<LeaseKeepAliveResponse>,
    /// Token and key of the lock that it waited for.
    held: Option<(u64, Vec<u8>)>,
}

impl EtcdClient {
    /// Makes the client's lease on a connection that it shares with others.
    pub(crate) async fn new(connection: &EtcdConnection, owner: String) -> Result<Self> {
        let mut leases = LeaseClient::new(connection.0.clone());
        let ttl = i64::try_from(TTL_MS / 1_000)?;
        let lease = leases.lease_grant(LeaseGrantRequest { ttl }).await?.into_inner().id;
        let (keep_alive_tx, keeps) = mpsc::channel(1);
        // The stream's head comes with its first answer.
        keep_alive_tx.send(LeaseKeepAliveRequest { id: lease }).await?;
        let mut keep_alive_rx = leases.lease_keep_alive(ReceiverStream::new(keeps)).await?.into_inner();
        keep_alive_rx.message().await?.context("the stream of keep-alives has ended")?;
        let (kv, locks) = (KvClient::new(connection.0.clone()), LockClient::new(connection.0.clone()));
        Ok(Self { kv, locks, owner, lease, keep_alive_tx, keep_alive_rx, held: None })
    }

    pub(crate) async fn acquire(&mut self, lock: &LockName) -> Result<Option<u64>> {
        let key = key(lock);
        let put = PutRequest { key: key.clone(), value: self.owner.clone().into(), lease: self.lease };
        let answer = self.kv.txn(txn_if_created_at(0, key, Op::RequestPut(put))).await?.into_inner();
        if !answer.succeeded {
            return Ok(None);
        }
        Ok(Some(u64::try_from(answer.header.context("an answer has a header")?.revision)?))
    }

    /// Waits until it has the lock. The token is the revision of the answer; the key to give back is remembered.
    pub(crate) async fn acquire_waiting(&mut self, lock: &LockName) -> Result<u64> {
        let answer = self.locks.lock(LockRequest { name: key(lock), lease: self.lease }).await?.into_inner();
        let token = u64::try_from(answer.header.context("an answer has a header")?.revision)?;
        self.held = Some((token, answer.key));
        Ok(token)
    }

    pub(crate) async fn release(&mut self, lock: &LockName, token: u64) -> Result<bool> {
        if let Some((_, key)) = self.held.take_if(|(held, _)| *held == token) {
            self.locks.unlock(UnlockRequest { key }).await?;
            return Ok(true);
        }
        let key = key(lock);
        let delete = Op::RequestDeleteRange(DeleteRangeRequest { key: key.clone() });
        Ok(self.kv.txn(txn_if_created_at(i64::try_from(token)?, key, delete)).await?.into_inner().succeeded)
    }

    pub(crate) async fn extend(&mut self) -> Result<bool> {
        self.keep_alive_tx.send(LeaseKeepAliveRequest { id: self.lease }).await?;
        match self.keep_alive_rx.message().await? {
            Some(answer) => Ok(answer.ttl > 0),
            None => bail!("the stream of keep-alives has ended"),
        }
    }

    pub(crate) async fn get(&mut self, lock: &LockName) -> Result<bool> {
        Ok(self.kv.range(RangeRequest { key: key(lock) }).await?.into_inner().count > 0)
    }
}

/// A transaction that does something to a key if it was created at that revision; at 0: if it is absent.
fn txn_if_created_at(revision: i64, key: Vec<u8>, op: Op) -> TxnRequest {
    let target_union = Some(TargetUnion::CreateRevision(revision));
    let compare = Compare { result: 0, target: COMPARE_CREATE_REVISION, key, target_union };
    TxnRequest { compare: vec![compare], success: vec![RequestOp { request: Some(op) }] }
}

fn key(lock: &LockName) -> Vec<u8> {
    format!("{}/{}", lock.namespace, lock.path.join("/")).into_bytes()
}
