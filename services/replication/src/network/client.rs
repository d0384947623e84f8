//! openraft's view of a peer replica.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::Stream;
use holdfast_proto::internal::Kind;
use openraft::base::{BoxFuture, BoxStream};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Timeout, Unreachable};
use openraft::network::{RPCOption, RPCTypes, RaftNetworkFactory, RaftNetworkV2};
use openraft::raft::{
    AppendEntriesResponse, SnapshotResponse, StreamAppendResult, TransferLeaderRequest, TransferLeaderResponse,
    VoteRequest, VoteResponse,
};
use serde::de::DeserializeOwned;
use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use super::append_pipeline::AppendPipeline;
use super::peer_connection::PeerConnection;
use super::request::{PeerRequest, RpcError};
use super::snapshot_sender::SnapshotTransfer;
use super::{MemberLocationsReceiver, PeerConnections};
use crate::encoded::{Encoded, encode_append};
use crate::leadership::Leadership;
use crate::lease::{LeaseTracker, SendTime};
use crate::timing::DEFAULT_PEER_LEASE;
use crate::types::{AppendEntriesRequest, Snapshot, SnapshotData, TypeConfig, Vote, decode, encode};

/// Timeout of an append. openraft uses the heartbeat timeout, which a busy disk exceeds.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type RpcResult<T> = Result<T, RPCError<TypeConfig>>;
type AppendResults<'s> = BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>;
type ResponseReceiver = oneshot::Receiver<Result<Bytes, RpcError>>;

/// Creates the client of each peer of one replica.
pub(crate) struct RaftNetwork {
    replica: u64,
    locations: MemberLocationsReceiver,
    peer_connections: PeerConnections,
    leadership: watch::Receiver<Option<Leadership>>,
    lease_tracker: Arc<LeaseTracker>,
}

impl RaftNetwork {
    pub(crate) fn new(
        replica: u64,
        locations: MemberLocationsReceiver,
        peer_connections: PeerConnections,
        leadership: watch::Receiver<Option<Leadership>>,
        lease_tracker: Arc<LeaseTracker>,
    ) -> Self {
        Self { replica, locations, peer_connections, leadership, lease_tracker }
    }

    fn client(&self, target: u64, kind: Kind) -> ReplicaClient {
        let (leadership, lease_tracker) = (self.leadership.clone(), Arc::clone(&self.lease_tracker));
        let (locations, peer_connections) = (self.locations.clone(), self.peer_connections.clone());
        ReplicaClient {
            from: self.replica,
            to: target,
            append_kind: kind,
            locations,
            peer_connections,
            leadership,
            lease_tracker,
        }
    }
}

impl RaftNetworkFactory<TypeConfig> for RaftNetwork {
    type Network = ReplicaClient;

    async fn new_client(&mut self, target: u64, _node: &()) -> ReplicaClient {
        self.client(target, Kind::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _node: &()) -> ReplicaClient {
        // Each heartbeat would open an append stream with one request; sent as single frames, heartbeats need no
        // stream.
        self.client(target, Kind::Heartbeat)
    }
}

/// A peer replica, over the connection that its node shares with all groups.
pub(crate) struct ReplicaClient {
    from: u64,
    to: u64,
    append_kind: Kind,
    locations: MemberLocationsReceiver,
    peer_connections: PeerConnections,
    leadership: watch::Receiver<Option<Leadership>>,
    lease_tracker: Arc<LeaseTracker>,
}

impl ReplicaClient {
    /// Sends an append or a heartbeat of this size. A heartbeat carries the clock of its term.
    pub(crate) fn send_append(
        &self,
        stream: u64,
        request: &AppendEntriesRequest,
    ) -> Result<(ResponseReceiver, usize), RpcError> {
        let clock_ms = match self.append_kind {
            Kind::Heartbeat => {
                let leads = self.leadership.borrow().filter(|leads| leads.term == request.vote.leader_id.term);
                leads.map_or(0, |leads| leads.clock.now_ms())
            }
            _ => 0,
        };
        let body = encode_append(request);
        let bytes = body.len();
        Ok((self.send(self.append_kind, stream, clock_ms, body)?, bytes))
    }

    /// Returns the time at which a message is sent now.
    pub(crate) fn send_time(&self) -> SendTime {
        self.lease_tracker.send_time()
    }

    /// Records that the peer accepted a message that the leader of this term sent at `sent`, and that its log matches
    /// up to `matched`.
    pub(crate) fn record_ack(&self, term: u64, sent: SendTime, matched: Option<u64>) {
        // The lease of the process that is connected now. If a predecessor acknowledged, its restarted successor does
        // not vote for longer than any lease.
        let lease = self.connection().map_or(DEFAULT_PEER_LEASE, |link| link.lease());
        self.lease_tracker.record(term, self.to, lease, sent, matched);
    }

    /// Returns true if the peer has lost an entry: see [`LeaseTracker::is_lost`].
    pub(crate) fn is_lost(&self, term: u64, index: u64, sent: SendTime) -> bool {
        self.lease_tracker.is_lost(term, self.to, index, sent)
    }

    /// Rejects the peer permanently, because its data is older than what it acknowledged.
    pub(crate) fn reject_rolled_back(&self, index: u64) {
        if let Ok(link) = self.connection() {
            link.reject_rolled_back(self.to, index);
        }
    }

    pub(crate) fn timeout_error(&self, timeout: Duration) -> RPCError<TypeConfig> {
        RPCError::Timeout(Timeout { action: RPCTypes::AppendEntries, id: self.from, target: self.to, timeout })
    }

    /// Returns a name for error messages.
    pub(crate) fn name(&self) -> String {
        format!("of replica {}", self.to)
    }

    /// Returns the connection to the node that hosts the replica now.
    fn connection(&self) -> Result<Arc<PeerConnection>, RpcError> {
        let link = self.locations.borrow().known.get(&self.to).and_then(|node| self.peer_connections.get(node));
        link.ok_or_else(|| RpcError::NotConnected(self.name()))
    }

    fn send(&self, kind: Kind, stream: u64, clock_ms: u64, body: Encoded) -> Result<ResponseReceiver, RpcError> {
        Ok(self.connection()?.send(PeerRequest { from: self.from, to: self.to, kind, stream, clock_ms, body }))
    }

    async fn call<A: DeserializeOwned>(&self, kind: Kind, question: Encoded, within: Duration) -> RpcResult<A> {
        let receiver = self.send(kind, 0, 0, question).map_err(unreachable)?;
        match timeout(within, receiver).await {
            Ok(Ok(Ok(bytes))) => decode(&bytes).map_err(|error| RPCError::Network(NetworkError::new(&error))),
            Ok(Ok(Err(error))) => Err(unreachable(error)),
            Ok(Err(_)) => Err(unreachable(RpcError::ConnectionLost(self.name()))),
            Err(_) => Err(self.timeout_error(within)),
        }
    }
}

pub(crate) fn unreachable(error: RpcError) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&error))
}

/// Timeout of a heartbeat: nearly all of openraft's limit. A later response counts for no lease, and idle groups of
/// distant nodes have no other traffic.
fn heartbeat_timeout(option: &RPCOption) -> Duration {
    option.hard_ttl().mul_f64(0.9)
}

impl RaftNetworkV2<TypeConfig> for ReplicaClient {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        self.call(Kind::Heartbeat, encode_append(&request), heartbeat_timeout(&option)).await
    }

    fn stream_append<'s, S>(&'s mut self, input: S, option: RPCOption) -> BoxFuture<'s, RpcResult<AppendResults<'s>>>
    where
        S: Stream<Item = AppendEntriesRequest> + openraft::OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let peer: &'s ReplicaClient = self;
            let within = match peer.append_kind {
                Kind::Heartbeat => heartbeat_timeout(&option),
                _ => APPEND_TIMEOUT.max(option.soft_ttl()),
            };
            let stream = peer.connection().map_err(unreachable)?.new_stream();
            let appends = AppendPipeline::new(peer, input, stream, within);
            // The stream ends with its input, and after the first item other than plain success.
            let answers = futures::stream::unfold(Some(appends), |appends| async move {
                let mut appends = appends?;
                let item = appends.next().await?;
                let goes_on = matches!(item, Ok(Ok(_)));
                Some((item, goes_on.then_some(appends)))
            });
            let answers: AppendResults<'s> = Box::pin(answers);
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(Kind::Vote, encode(&request).into(), option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(Kind::PreVote, encode(&request).into(), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + openraft::OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let link = self.connection().map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))?;
        let (pacer, patience) = (self.peer_connections.snapshot_pacer(), option.soft_ttl());
        let transfer = SnapshotTransfer { link: &link, pacer, from: self.from, to: self.to, patience };
        tokio::select! {
            closed = cancel => Err(closed.into()),
            response = transfer.send(vote, &snapshot) => response,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        self.call(Kind::TransferLeader, encode(&request).into(), option.soft_ttl()).await
    }
}
