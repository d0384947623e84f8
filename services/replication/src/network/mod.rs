//! What replicas say to one another: one ordered stream each way between two nodes, shared by all their groups.

mod answer;
mod appends;
mod client;
mod connections;
mod exchange;
mod lane;
mod link;
mod server;
mod snapshot;

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use tonic::transport::Channel;

pub(crate) use client::Network;
pub(crate) use connections::Connections;
pub(crate) use link::{Link, LinkOptions};
pub(crate) use server::PeerService;

/// Largest message between nodes, in bytes: a full append of large commands and some room.
pub(crate) const MAX_FRAME_BYTES: usize = 16 * 1024 * 1024;

/// One link to every peer node, by node id.
pub(crate) type Links = Arc<HashMap<String, Arc<Link>>>;

/// Opens a channel to an address (`host:port`). The one place where connections are made, so that a simulator or TLS
/// can be put in.
pub type Dialer = Arc<dyn Fn(String) -> BoxFuture<'static, Result<Channel, DialError>> + Send + Sync>;

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
