//! The answering side: takes frames apart and hands each message to its replica.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::internal::raft_frame::Body;
use holdfast_proto::internal::raft_service_server::{RaftService, RaftServiceServer};
use holdfast_proto::internal::{Hello, Kind, RaftFrame, RaftMessage, RaftMessages, SnapshotAnswer, SnapshotChunk};
use holdfast_supervise::brief;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};

use super::lane::Lane;
use super::{MAX_FRAME_BYTES, answer, snapshot};
use crate::gather::gather;
use crate::group::Group;
use crate::host::Host;

/// Answers that wait to be sent on one connection.
const ANSWERS: usize = 1_024;
/// Answers in one frame.
const FRAME_ANSWERS: usize = 128;
/// Frames handed to the transport ahead of what it has sent.
const FRAMES_AHEAD: usize = 16;
/// Votes, heartbeats and transfers that are being answered on one connection. The heartbeats of all groups that a node
/// leads come together.
const SINGLE_CALLS: usize = 4_096;
const HELLO_TIMEOUT: Duration = Duration::from_secs(1);

/// The service that a node offers its peers.
pub(crate) struct PeerService {
    host: Host,
}

impl PeerService {
    pub(crate) fn new(host: Host) -> RaftServiceServer<Self> {
        RaftServiceServer::new(Self { host })
            .max_decoding_message_size(MAX_FRAME_BYTES)
            .max_encoding_message_size(MAX_FRAME_BYTES)
    }

    fn authorize<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let value = request.metadata().get("authorization").and_then(|value| value.to_str().ok()).unwrap_or("");
        if self.host.credentials().accepts(value) {
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
        self.host.introductions().check(&theirs, None).await.map_err(Status::failed_precondition)?;
        let (out, stream) = mpsc::channel(FRAMES_AHEAD);
        let ours = self.host.introductions().hello().map_err(Status::unavailable)?;
        let hello = RaftFrame { body: Some(Body::Hello(ours)) };
        out.send(Ok(hello)).await.map_err(|_| Status::cancelled("the peer went away"))?;
        let ended = self.host.connections().register(&theirs.node_id, theirs.run);
        self.host.meet_run(&theirs.node_id, theirs.run);
        let host = self.host.clone();
        brief("peer connection", async move {
            // Everything of the connection is dropped with the future, and then it counts as ended.
            let _ending = ended.clone().drop_guard();
            let store_id = theirs.store_id.clone();
            let serving = serve(host.clone(), theirs, frames, out);
            tokio::select! {
                _ = ended.run_until_cancelled(serving) => {}
                () = host.introductions().until_refused(&store_id) => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(stream)))
    }

    async fn install_snapshot(
        &self,
        request: Request<Streaming<SnapshotChunk>>,
    ) -> Result<Response<SnapshotAnswer>, Status> {
        self.authorize(&request)?;
        snapshot::receive(&self.host, request.into_inner()).await.map(Response::new)
    }
}

/// One connection: everything about it ends when its frames do.
struct Connection {
    host: Host,
    peer: Hello,
    answers: mpsc::Sender<RaftMessage>,
    lanes: HashMap<(u64, u64), Lane>,
    singles: Arc<Semaphore>,
}

async fn serve(
    host: Host,
    peer: Hello,
    mut frames: Streaming<RaftFrame>,
    out: mpsc::Sender<Result<RaftFrame, Status>>,
) {
    let (answers, collected) = mpsc::channel(ANSWERS);
    brief("peer answers", send_answers(host.clone(), collected, out));
    let singles = Arc::new(Semaphore::new(SINGLE_CALLS));
    let mut connection = Connection { host, peer, answers, lanes: HashMap::new(), singles };
    while let Ok(Some(frame)) = frames.message().await {
        let Some(Body::Messages(messages)) = frame.body else { continue };
        for message in messages.messages {
            connection.dispatch(message, messages.disk_is_full).await;
        }
    }
}

impl Connection {
    async fn dispatch(&mut self, message: RaftMessage, peer_is_full: bool) {
        // The replica must be one that the peer introduced, and one that the configuration gives to that node.
        let known = self.peer.replicas.iter().any(|replica| replica.id == message.from)
            || self.host.introductions().meet(message.from, &self.peer.node_id, &self.peer.store_id).await;
        let lives_there = |group: &Group| group.places().get(&message.from) == Some(&self.peer.node_id);
        let group = self.host.group(message.to).filter(|group| known && lives_there(group));
        let Some(group) = group else {
            let reason = format!("replicas {} and {} share no group here", message.from, message.to);
            self.refuse(&message, &reason).await;
            return;
        };
        if message.kind() == Kind::Append {
            let lane = self.lanes.entry((message.from, message.to)).or_default();
            if let Err(reason) = lane.append(&group, &message, peer_is_full, self.peer.run, &self.answers) {
                self.refuse(&message, reason).await;
            }
            return;
        }
        let Ok(permit) = Arc::clone(&self.singles).try_acquire_owned() else {
            self.refuse(&message, "too many calls at a time").await;
            return;
        };
        let (answers, run) = (self.answers.clone(), self.peer.run);
        brief("peer call", async move {
            let answer = answer::single(&group, message, run).await;
            // The connection may be gone by now; the peer asks again.
            let _ = answers.send(answer).await;
            drop(permit);
        });
    }

    async fn refuse(&self, message: &RaftMessage, reason: &str) {
        let _ = self.answers.send(answer::error(message.call, reason)).await;
    }
}

/// Puts whatever answers are ready into one frame.
async fn send_answers(
    host: Host,
    mut collected: mpsc::Receiver<RaftMessage>,
    out: mpsc::Sender<Result<RaftFrame, Status>>,
) {
    let mut messages = Vec::with_capacity(FRAME_ANSWERS);
    while collected.recv_many(&mut messages, FRAME_ANSWERS).await > 0 {
        gather(&mut collected, &mut messages, FRAME_ANSWERS).await;
        let messages = std::mem::take(&mut messages);
        let frame = RaftFrame { body: Some(Body::Messages(RaftMessages { messages, disk_is_full: !host.has_room() })) };
        if out.send(Ok(frame)).await.is_err() {
            return;
        }
    }
}
