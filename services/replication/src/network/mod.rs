//! Messages between replicas: one ordered stream in each direction between two nodes, shared by all their groups.

mod append_pipeline;
mod append_stream;
mod client;
mod exchange;
mod inbound_connections;
mod peer_connection;
mod send_queue;
mod server;
mod snapshot;
mod unary;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use futures::future::BoxFuture;
use parking_lot::RwLock;
use tokio::sync::watch;
use tonic::transport::Channel;

pub(crate) use client::RaftNetwork;
pub(crate) use exchange::PeerRequest;
pub(crate) use inbound_connections::InboundConnections;
pub(crate) use peer_connection::{PeerConnection, PeerConnectionOptions};
pub(crate) use server::PeerService;

/// Largest message between nodes, in bytes: a full append of large commands plus overhead.
pub(crate) const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// One connection to every peer node, by node id. Clones share it; nodes change with the configuration.
#[derive(Clone, Default)]
pub(crate) struct PeerConnections(Arc<RwLock<HashMap<String, Arc<PeerConnection>>>>);

impl PeerConnections {
    pub(crate) fn get(&self, node: &str) -> Option<Arc<PeerConnection>> {
        self.0.read().get(node).cloned()
    }

    /// Inserts a connection. Returns its predecessor, which ends when dropped.
    pub(crate) fn insert(&self, node: &str, link: Arc<PeerConnection>) -> Option<Arc<PeerConnection>> {
        self.0.write().insert(node.to_owned(), link)
    }

    /// Closes all connections.
    pub(crate) fn end(&self) {
        self.0.read().values().for_each(|link| link.tasks().cancel());
    }

    /// Returns a problem with the connections' tasks, if any.
    pub(crate) fn failing_task(&self) -> Option<String> {
        let links = self.0.read();
        links.values().find_map(|link| Some(format!("link to {}: {}", link.node(), link.tasks().unhealthy_reason()?)))
    }

    /// Closes all connections except those for which `stays` returns true.
    pub(crate) fn retain(&self, stays: impl Fn(&str, &PeerConnection) -> bool) {
        self.0.write().retain(|node, link| stays(node, link));
    }
}

/// The nodes of a group's replicas.
#[derive(Clone, Debug)]
pub(crate) struct MemberLocations {
    /// The replicas of the current configuration, with their nodes.
    pub(crate) configured: Arc<BTreeMap<u64, String>>,
    /// The same, plus replicas of earlier configurations: they are members until the group has changed. Ids are never
    /// reused elsewhere.
    pub(crate) known: Arc<BTreeMap<u64, String>>,
}

/// Receives the locations of a group's replicas.
pub(crate) type MemberLocationsReceiver = watch::Receiver<MemberLocations>;

/// Opens a channel to an address (`host:port`). All connections are made through it, so that a simulator or TLS can be
/// inserted.
pub type DialFn = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Channel, DialError>> + Send + Sync>;

/// A connection attempt failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DialError {
    /// The human-readable reason.
    pub reason: String,
    /// The machine is up and no process listens at the port, so the process is gone. Must not be set in any other case.
    pub is_refused: bool,
}

impl From<String> for DialError {
    fn from(reason: String) -> Self {
        Self { reason, is_refused: false }
    }
}

/// Proves the identity of this node, and verifies that of callers.
pub trait Credentials: Send + Sync + 'static {
    /// Returns a fresh value for the `authorization` metadata of a call.
    fn authorization(&self) -> String;
    /// Returns true if the value comes from a member of this cluster.
    fn accepts(&self, authorization: &str) -> bool;
}
