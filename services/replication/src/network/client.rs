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
use tokio::time::{Instant, timeout};

use super::appends::Appends;
use super::exchange::Question;
use super::link::{Link, LinkError};
use super::{Links, Members, snapshot};
use crate::leadership::Leadership;
use crate::lease::Acks;
use crate::timing::UNSAID_LEASE;
use crate::types::{AppendEntriesRequest, Snapshot, State, TypeConfig, Vote, decode, encode, encode_append};

/// Longest wait for the answer to an append. openraft's own figure is the heartbeat's, which a busy disk exceeds.
const APPEND_TIMEOUT: Duration = Duration::from_secs(2);

pub(crate) type RpcResult<T> = Result<T, RPCError<TypeConfig>>;
type AppendStream<'s> = BoxStream<'s, RpcResult<StreamAppendResult<TypeConfig>>>;
type AnswerReceiver = oneshot::Receiver<Result<Bytes, LinkError>>;

/// Makes the view of each peer of one replica.
pub(crate) struct Network {
    replica: u64,
    members: Members,
    links: Links,
    leadership: watch::Receiver<Option<Leadership>>,
    acks: Arc<Acks>,
}

impl Network {
    pub(crate) fn new(
        replica: u64,
        members: Members,
        links: Links,
        leadership: watch::Receiver<Option<Leadership>>,
        acks: Arc<Acks>,
    ) -> Self {
        Self { replica, members, links, leadership, acks }
    }

    fn peer(&self, target: u64, kind: Kind) -> Peer {
        let (leadership, acks) = (self.leadership.clone(), Arc::clone(&self.acks));
        let (members, links) = (self.members.clone(), self.links.clone());
        Peer { from: self.replica, to: target, append_kind: kind, members, links, leadership, acks }
    }
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, _node: &()) -> Peer {
        self.peer(target, Kind::Append)
    }

    async fn new_heartbeat_client(&mut self, target: u64, _node: &()) -> Peer {
        // Every heartbeat opens an append stream of one request; as single frames they cost no stream.
        self.peer(target, Kind::Heartbeat)
    }
}

/// A peer replica, over the link that its node shares with all groups.
pub(crate) struct Peer {
    from: u64,
    to: u64,
    append_kind: Kind,
    members: Members,
    links: Links,
    leadership: watch::Receiver<Option<Leadership>>,
    acks: Arc<Acks>,
}

impl Peer {
    /// Sends an append or a heartbeat, of so many bytes. A heartbeat carries the clock of the term that it belongs to.
    pub(crate) fn ask_append(
        &self,
        stream: u64,
        request: &AppendEntriesRequest,
    ) -> Result<(AnswerReceiver, usize), LinkError> {
        let clock_ms = match self.append_kind {
            Kind::Heartbeat => {
                let leads = self.leadership.borrow().filter(|leads| leads.term == request.vote.leader_id.term);
                leads.map_or(0, |leads| leads.clock.now_ms())
            }
            _ => 0,
        };
        let body = encode_append(request);
        let bytes = body.len();
        Ok((self.ask(self.append_kind, stream, clock_ms, body)?, bytes))
    }

    /// The peer has accepted what the leader of that term sent at that time, and has its log up to that entry.
    pub(crate) fn acknowledged(&self, term: u64, sent: Instant, matched: Option<u64>) {
        // The lease of the process that is there now. If it is not the one that acknowledged, that one's successor holds
        // back for longer than any lease.
        let lease = self.link().map_or(UNSAID_LEASE, |link| link.lease());
        self.acks.record(term, self.to, lease, sent, matched);
    }

    /// Whether the peer has lost an entry: see [`Acks::is_lost`].
    pub(crate) fn is_lost(&self, term: u64, index: u64, sent: Instant) -> bool {
        self.acks.is_lost(term, self.to, index, sent)
    }

    /// The peer's data is older than what it acknowledged: it takes no part any more.
    pub(crate) fn refuse_rolled_back(&self, index: u64) {
        if let Ok(link) = self.link() {
            link.refuse_rolled_back(self.to, index);
        }
    }

    pub(crate) fn timed_out(&self, timeout: Duration) -> RPCError<TypeConfig> {
        RPCError::Timeout(Timeout { action: RPCTypes::AppendEntries, id: self.from, target: self.to, timeout })
    }

    /// For messages.
    pub(crate) fn name(&self) -> String {
        format!("of replica {}", self.to)
    }

    /// The way to the node that keeps the replica now.
    fn link(&self) -> Result<Arc<Link>, LinkError> {
        let link = self.members.borrow().known.get(&self.to).and_then(|node| self.links.get(node));
        link.ok_or_else(|| LinkError::NotConnected(self.name()))
    }

    fn ask(&self, kind: Kind, stream: u64, clock_ms: u64, body: Bytes) -> Result<AnswerReceiver, LinkError> {
        Ok(self.link()?.ask(Question { from: self.from, to: self.to, kind, stream, clock_ms, body }))
    }

    async fn call<A: DeserializeOwned>(&self, kind: Kind, question: Bytes, within: Duration) -> RpcResult<A> {
        let receiver = self.ask(kind, 0, 0, question).map_err(unreachable)?;
        match timeout(within, receiver).await {
            Ok(Ok(Ok(bytes))) => decode(&bytes).map_err(|error| RPCError::Network(NetworkError::new(&error))),
            Ok(Ok(Err(error))) => Err(unreachable(error)),
            Ok(Err(_)) => Err(unreachable(LinkError::Broken(self.name()))),
            Err(_) => Err(self.timed_out(within)),
        }
    }
}

pub(crate) fn unreachable(error: LinkError) -> RPCError<TypeConfig> {
    RPCError::Unreachable(Unreachable::new(&error))
}

/// Longest wait for the answer to a heartbeat: nearly all that openraft gives it, since one that comes later counts for
/// no lease, and idle groups of nodes far apart have nothing else.
fn heartbeat_within(option: &RPCOption) -> Duration {
    option.hard_ttl().mul_f64(0.9)
}

impl RaftNetworkV2<TypeConfig> for Peer {
    type SnapshotData = State;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest,
        option: RPCOption,
    ) -> RpcResult<AppendEntriesResponse<TypeConfig>> {
        self.call(Kind::Heartbeat, encode_append(&request), heartbeat_within(&option)).await
    }

    fn stream_append<'s, S>(&'s mut self, input: S, option: RPCOption) -> BoxFuture<'s, RpcResult<AppendStream<'s>>>
    where
        S: Stream<Item = AppendEntriesRequest> + openraft::OptionalSend + Unpin + 'static,
    {
        Box::pin(async move {
            let peer: &'s Peer = self;
            let within = match peer.append_kind {
                Kind::Heartbeat => heartbeat_within(&option),
                _ => APPEND_TIMEOUT.max(option.soft_ttl()),
            };
            let stream = peer.link().map_err(unreachable)?.new_stream();
            let appends = Appends::new(peer, input, stream, within);
            // The stream ends with its input, and after the first thing that is not a plain success.
            let answers = futures::stream::unfold(Some(appends), |appends| async move {
                let mut appends = appends?;
                let item = appends.next().await?;
                let goes_on = matches!(item, Ok(Ok(_)));
                Some((item, goes_on.then_some(appends)))
            });
            let answers: AppendStream<'s> = Box::pin(answers);
            Ok(answers)
        })
    }

    async fn vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(Kind::Vote, encode(&request), option.soft_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<VoteResponse<TypeConfig>> {
        self.call(Kind::PreVote, encode(&request), option.soft_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: Vote,
        snapshot: Snapshot,
        cancel: impl Future<Output = ReplicationClosed> + openraft::OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let link = self.link().map_err(|error| StreamingError::Unreachable(Unreachable::new(&error)))?;
        let sending = snapshot::send(&link, self.from, self.to, vote, snapshot, option.soft_ttl());
        tokio::select! {
            closed = cancel => Err(closed.into()),
            sent = sending => sent,
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> RpcResult<TransferLeaderResponse<TypeConfig>> {
        self.call(Kind::TransferLeader, encode(&request), option.soft_ttl()).await
    }
}
