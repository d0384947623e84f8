//! Requests to replicas on a peer node.

use bytes::Bytes;
use holdfast_proto::internal::Kind;
use holdfast_rpc::Reservation;
use tokio::sync::oneshot;

use crate::encoded::Encoded;

/// A request to a replica on the peer node.
pub(crate) struct PeerRequest {
    pub(crate) from: u64,
    pub(crate) to: u64,
    pub(crate) kind: Kind,
    pub(crate) stream: u64,
    pub(crate) clock_ms: u64,
    pub(crate) body: Encoded,
}

pub(crate) type ResponseSender = oneshot::Sender<Result<Bytes, RpcError>>;

/// A request to send, and the byte budget that it holds until it is answered.
pub(crate) struct OutboundRequest {
    pub(crate) request: PeerRequest,
    pub(crate) responder: ResponseSender,
    /// `None` for heartbeats, votes and transfers, which are small.
    pub(crate) budget: Option<Reservation>,
}

/// Why a call failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum RpcError {
    #[error("node {0} is not connected")]
    NotConnected(String),
    #[error("too many messages wait for node {0}")]
    QueueFull(String),
    #[error("the connection to node {0} broke")]
    ConnectionLost(String),
    #[error("node {0} refused: {1}")]
    Rejected(String, String),
}
