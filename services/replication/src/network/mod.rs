//! What replicas say to one another: one ordered stream each way between two nodes, shared by all their groups.

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

/// Largest message between nodes, in bytes: a full append of large commands and some room.
pub(crate) const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// One link to every peer node, by node id. Clones share it; nodes come and go with the configuration.
#[derive(Clone, Default)]
pub(crate) struct PeerConnections(Arc<RwLock<HashMap<String, Arc<PeerConnection>>>>);

impl PeerConnections {
    pub(crate) fn get(&self, node: &str) -> Option<Arc<PeerConnection>> {
        self.0.read().get(node).cloned()
    }

    /// The one of before, which ends with its last use, is given back.
    pub(crate) fn insert(&self, node: &str, link: Arc<PeerConnection>) -> Option<Arc<PeerConnection>> {
        self.0.write().insert(node.to_owned(), link)
    }

    /// Ends all links.
    pub(crate) fn end(&self) {
        self.0.read().values().for_each(|link| link.tasks().cancel());
    }

    /// What is wrong with the tasks of the links now.
    pub(crate) fn failing_task(&self) -> Option<String> {
        let links = self.0.read();
        links.values().find_map(|link| Some(format!("link to {}: {}", link.node(), link.tasks().unhealthy_reason()?)))
    }

    /// Ends the links that are not to stay.
    pub(crate) fn retain(&self, stays: impl Fn(&str, &PeerConnection) -> bool) {
        self.0.write().retain(|node, link| stays(node, link));
    }
}

/// Where the replicas of a group are.
#[derive(Clone, Debug)]
pub(crate) struct MemberLocations {
    /// Those of the present configuration, with their nodes.
    pub(crate) configured: Arc<BTreeMap<u64, String>>,
    /// Those of earlier ones too: they are members until the group has changed, and no id comes back elsewhere.
    pub(crate) known: Arc<BTreeMap<u64, String>>,
}

/// Follows where the replicas of a group are.
pub(crate) type MemberLocationsReceiver = watch::Receiver<MemberLocations>;

/// Opens a channel to an address (`host:port`). The one place where connections are made, so that a simulator or TLS
/// can be put in.
pub type DialFn = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Channel, DialError>> + Send + Sync>;

/// A connection could not be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub struct DialError {
    /// For people.
    pub reason: String,
    /// The host is there and nobody listens at the port: whoever did is gone. Must not be said of anything else.
    pub is_refused: bool,
}

impl From<String> for DialError {
    fn from(reason: String) -> Self {
        Self { reason, is_refused: false }
    }
}

/// Proves who calls, and checks who does.
pub trait Credentials: Send + Sync + 'static {
    /// A fresh value for the `authorization` metadata of a call.
    fn authorization(&self) -> String;
    /// Whether the value comes from a member of this cluster.
    fn accepts(&self, authorization: &str) -> bool;
}
