//! The server side: decodes frames and dispatches each message to its replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::internal::raft_frame::Body;
use holdfast_proto::internal::raft_service_server::{RaftService, RaftServiceServer};
use holdfast_proto::internal::{Hello, Kind, RaftFrame, RaftMessage, RaftMessages, SnapshotAnswer, SnapshotChunk};
use holdfast_supervise::spawn_temporary;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::append_stream::AppendStream;
use super::{MAX_FRAME_BYTES, snapshot, unary};
use crate::coalesce::coalesce;
use crate::group::Group;
use crate::group_manager::GroupManager;

/// Queued responses on one connection.
const MAX_QUEUED_RESPONSES: usize = 1_024;
/// Responses in one frame.
const MAX_FRAME_RESPONSES: usize = 128;
/// Frames buffered ahead of the transport.
const FRAMES_AHEAD: usize = 16;
/// Concurrent votes, heartbeats and transfers on one connection. The heartbeats of all groups that a node leads arrive
/// together.
const MAX_UNARY_CALLS: usize = 4_096;
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// The service for peers of a node.
pub(crate) struct PeerService {
    manager: GroupManager,
}

impl PeerService {
    pub(crate) fn new(manager: GroupManager) -> RaftServiceServer<Self> {
        RaftServiceServer::new(Self { manager })
            .max_decoding_message_size(MAX_FRAME_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES)
    }

    fn authorize<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let value = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        if self.manager.credentials().accepts(value) {
            return Ok(());
        }
        Err(Status::unauthenticated("the call carries no service token of this cluster; do both have the same secret?"))
    }
}

#[tonic::async_trait]
impl RaftService for PeerService {
    type ExchangeStream = ReceiverStream<Result<RaftFrame, Status>>;

    async fn exchange(&self, request: Request<Streaming<RaftFrame>>) -> Result<Response<Self::ExchangeStream>, Status> {
        self.authorize(&request)?;
        let mut frames = request.into_inner();
        let first = timeout(HELLO_TIMEOUT, frames.message())
            .await
            .map_err(|_| Status::deadline_exceeded("the peer did not introduce itself"))??;
        let Some(Body::Hello(theirs)) = first.and_then(|frame| frame.body) else {
            return Err(Status::invalid_argument("the first frame must be a hello"));
        };
        self.manager.peer_registry().check(&theirs, None).await.map_err(Status::failed_precondition)?;
        let (out, stream) = mpsc::channel(FRAMES_AHEAD);
        let ours = self.manager.peer_registry().hello().map_err(Status::unavailable)?;
        let hello = RaftFrame { body: Some(Body::Hello(ours)) };
        out.send(Ok(hello)).await.map_err(|_| Status::cancelled("the peer went away"))?;
        let ended = self.manager.inbound_connections().register(&theirs.node_id, theirs.run);
        self.manager.mark_run_alive(&theirs.node_id, theirs.run);
        let host = self.manager.clone();
        spawn_temporary("peer connection", async move {
            // The future owns everything about the connection; when it is dropped, the connection counts as ended.
            let _ending = ended.clone().drop_guard();
            let store_id = theirs.store_id.clone();
            let serving = serve(host.clone(), theirs, frames, out);
            tokio::select! {
                _ = ended.run_until_cancelled(serving) => {}
                () = host.peer_registry().wait_rejected(&store_id) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotChunk>>,
    ) -> Result<Response<SnapshotAnswer>, Status> {
        self.authorize(&request)?;
        snapshot::receive(&self.manager, request.into_inner()).await.map(Response::new)
    }
}

/// One inbound connection; its state ends with its frames.
struct InboundConnection {
    manager: GroupManager,
    peer: Hello,
    responses: mpsc::Sender<RaftMessage>,
    append_streams: HashMap<(u64, u64), AppendStream>,
    unary_permits: Arc<Semaphore>,
}

async fn serve(
    manager: GroupManager,
    peer: Hello,
    mut frames: Streaming<RaftFrame>,
    out: mpsc::Sender<Result<RaftFrame, Status>>,
) {
    let (responses, collected) = mpsc::channel(MAX_QUEUED_RESPONSES);
    spawn_temporary("peer answers", send_responses(manager.clone(), collected, out));
    let unary_permits = Arc::new(Semaphore::new(MAX_UNARY_CALLS));
    let mut connection = InboundConnection { manager, peer, responses, append_streams: HashMap::new(), unary_permits };
    while let Ok(Some(frame)) = frames.message().await {
        let Some(Body::Messages(messages)) = frame.body else { continue };
        for message in messages.messages {
            connection.dispatch(message, messages.disk_is_full).await;
        }
    }
}

impl InboundConnection {
    async fn dispatch(&mut self, message: RaftMessage, peer_is_full: bool) {
        // The peer must have presented the replica, and the configuration must assign it to that node.
        let known = self.peer.replicas.iter().any(|replica| replica.id == message.from)
            || self.manager.peer_registry().admit(message.from, &self.peer.node_id, &self.peer.store_id).await;
        let lives_there = |group: &Group| group.locations().get(&message.from) == Some(&self.peer.node_id);
        let group = self.manager.group(message.to).filter(|group| known && lives_there(group));
        let Some(group) = group else {
            let reason = format!("replicas {} and {} share no group here", message.from, message.to);
            self.reject(&message, &reason).await;
            return;
        };
        if message.kind() == Kind::Append {
            let lane = self.append_streams.entry((message.from, message.to)).or_default();
            if let Err(reason) = lane.append(&group, &message, peer_is_full, self.peer.run, &self.responses) {
                self.reject(&message, reason).await;
            }
            return;
        }
        let Ok(permit) = Arc::clone(&self.unary_permits).try_acquire_owned() else {
            self.reject(&message, "too many calls at a time").await;
            return;
        };
        let (answers, run) = (self.responses.clone(), self.peer.run);
        spawn_temporary("peer call", async move {
            let answer = unary::handle_unary(&group, message, run).await;
            // The connection may have ended; the peer then retries.
            let _ = answers.send(answer).await;
            drop(permit);
        });
    }

    async fn reject(&self, message: &RaftMessage, reason: &str) {
        let _ = self.responses.send(unary::error(message.call, reason)).await;
    }
}

/// Coalesces ready responses into one frame.
async fn send_responses(
    host: GroupManager,
    mut collected: mpsc::Receiver<RaftMessage>,
    out: mpsc::Sender<Result<RaftFrame, Status>>,
) {
    let mut messages = Vec::with_capacity(MAX_FRAME_RESPONSES);
    while collected.recv_many(&mut messages, MAX_FRAME_RESPONSES).await > 0 {
        coalesce(&mut collected, &mut messages, MAX_FRAME_RESPONSES).await;
        let messages = std::mem::take(&mut messages);
        let frame =
            RaftFrame { body: Some(Body::Messages(RaftMessages { messages, disk_is_full: !host.has_disk_space() })) };
        if out.send(Ok(frame)).await.is_err() {
            return;
        }
    }
}
