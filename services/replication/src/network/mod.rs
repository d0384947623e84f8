//! Messages between replicas: one connection of each node to each other one, shared by all their groups.

mod append_pipeline;
mod append_stream;
mod client;
mod exchange;
mod outbound_frame;
mod peer_connection;
mod request;
mod send_queue;
mod server;
pub(crate) mod snapshot;
mod snapshot_receiver;
mod snapshot_sender;
mod unary;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::internal::{Hello, RaftMessages, SnapshotAnswer, SnapshotChunk};
use holdfast_rpc::Protocol;
use parking_lot::RwLock;
use tokio::sync::watch;

pub(crate) use client::RaftNetwork;
pub(crate) use peer_connection::{PeerConnection, PeerConnectionOptions};
pub(crate) use request::PeerRequest;
pub(crate) use server::PeerServer;
pub(crate) use snapshot::SnapshotServer;
use snapshot_sender::SnapshotPacer;

/// Largest message between nodes, in bytes: a full append of large commands plus overhead.
const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// The messages of a node to the replicas of another one, and their responses.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Raft;

impl Protocol for Raft {
    const NAME: &'static str = "raft";
    const MAX_FRAME_BYTES: usize = MAX_FRAME_BYTES;
    type Request = RaftMessages;
    type Reply = RaftMessages;
    type Handshake = Hello;
}

/// One snapshot, in chunks, over a connection of its own, so that it does not delay other messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotTransfers;

impl Protocol for SnapshotTransfers {
    const NAME: &'static str = "snapshot";
    const MAX_FRAME_BYTES: usize = MAX_FRAME_BYTES;
    /// A snapshot may wait for others to be installed; the sender ends it if there is no progress.
    const STALL_TIMEOUT: Duration = Duration::MAX;
    const IS_EXCLUSIVE: bool = false;
    type Request = SnapshotChunk;
    type Reply = SnapshotAnswer;
    type Handshake = Hello;
}

/// One connection to every peer node, by node id. Clones share it; nodes change with the configuration.
#[derive(Clone, Default)]
pub(crate) struct PeerConnections {
    links: Arc<RwLock<HashMap<String, Arc<PeerConnection>>>>,
    /// Paces the snapshots that are sent to all of them.
    pacer: Arc<SnapshotPacer>,
}

impl PeerConnections {
    pub(crate) fn get(&self, node: &str) -> Option<Arc<PeerConnection>> {
        self.links.read().get(node).cloned()
    }

    /// Inserts a connection. Returns its predecessor, which ends when dropped.
    pub(crate) fn insert(&self, node: &str, link: Arc<PeerConnection>) -> Option<Arc<PeerConnection>> {
        self.links.write().insert(node.to_owned(), link)
    }

    /// Returns what paces the snapshots that this node sends.
    pub(crate) fn snapshot_pacer(&self) -> &SnapshotPacer {
        &self.pacer
    }

    /// Closes all connections.
    pub(crate) fn end(&self) {
        self.links.read().values().for_each(|link| link.tasks().cancel());
    }

    /// Returns a problem with the connections' tasks, if any.
    pub(crate) fn failing_task(&self) -> Option<String> {
        let links = self.links.read();
        links.values().find_map(|link| Some(format!("link to {}: {}", link.node(), link.tasks().unhealthy_reason()?)))
    }

    /// Closes all connections except those for which `stays` returns true.
    pub(crate) fn retain(&self, stays: impl Fn(&str, &PeerConnection) -> bool) {
        self.links.write().retain(|node, link| stays(node, link));
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
