//! The server side: dispatches each message to its replica.

use std::collections::HashMap;
use std::sync::Arc;

use futures::FutureExt;
use holdfast_proto::internal::{Hello, Kind, RaftMessage, RaftMessages};
use holdfast_rpc::{CallerId, Event, Server, ServerConnection};
use holdfast_supervise::spawn_temporary;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::yield_now;

use super::append_stream::AppendStream;
use super::{Raft, unary};
use crate::group::Group;
use crate::group_manager::GroupManager;
use crate::shard_failures::FailureNews;

/// Queued responses on one connection.
const MAX_QUEUED_RESPONSES: usize = 1_024;
/// Responses in one frame.
const MAX_FRAME_RESPONSES: usize = 128;
/// Concurrent votes, heartbeats and transfers on one connection. The heartbeats of all groups that a node leads arrive
/// together.
const MAX_UNARY_CALLS: usize = 4_096;

/// Serves the peers of a node.
pub(crate) struct PeerServer(pub(crate) GroupManager);

impl Server<Raft> for PeerServer {
    async fn admit(&self, caller: &CallerId, theirs: &Hello) -> Result<Hello, String> {
        if (&caller.name, caller.run) != (&theirs.node_id, theirs.run) {
            return Err(format!("caller {} says that it is node {}", caller.name, theirs.node_id));
        }
        self.0.peer_registry().check(theirs, None).await?;
        self.0.peer_registry().hello()
    }

    async fn serve(&self, connection: ServerConnection<Raft>, theirs: Hello) {
        self.0.mark_run_alive(&theirs.node_id, theirs.run);
        let store_id = theirs.store_id.clone();
        tokio::select! {
            () = serve(self.0.clone(), theirs, connection) => {}
            () = self.0.peer_registry().wait_rejected(&store_id) => {}
        }
    }
}

/// One inbound connection; its state ends with it.
struct InboundConnection {
    manager: GroupManager,
    peer: Hello,
    responses: mpsc::Sender<RaftMessage>,
    append_streams: HashMap<(u64, u64), AppendStream>,
    unary_permits: Arc<Semaphore>,
}

async fn serve(manager: GroupManager, peer: Hello, mut connection: ServerConnection<Raft>) {
    let (responses, mut collected) = mpsc::channel(MAX_QUEUED_RESPONSES);
    let unary_permits = Arc::new(Semaphore::new(MAX_UNARY_CALLS));
    let (disk, mut failures) = (manager.clone(), manager.failures().subscribe());
    let mut inbound = InboundConnection { manager, peer, responses, append_streams: HashMap::new(), unary_permits };
    // Responses that no task gives.
    let mut rejections = Vec::new();
    loop {
        let (is_flushed, reads) = (connection.is_flushed(), rejections.len() < MAX_QUEUED_RESPONSES);
        let done = tokio::select! {
            biased;
            Some(first) = next_response(&mut rejections, &mut collected), if is_flushed => {
                // Responses that ready tasks are about to give join the frame.
                yield_now().await;
                let mut messages = vec![first];
                while messages.len() < MAX_FRAME_RESPONSES
                    // Not `try_recv`, which would block the thread while a send on another thread is half done.
                    && let Some(Some(next)) = next_response(&mut rejections, &mut collected).now_or_never()
                {
                    messages.push(next);
                }
                connection.send(frame(messages, &disk, &mut failures))
            }
            () = failures.changed(), if is_flushed => connection.send(frame(Vec::new(), &disk, &mut failures)),
            event = connection.next(reads) => match event {
                Ok(Event::Received(frame)) => {
                    for message in frame.messages {
                        rejections.extend(inbound.dispatch(message, frame.disk_is_full).await);
                    }
                    Ok(())
                }
                Ok(Event::Flushed) => Ok(()),
                Err(error) => Err(error),
            },
        };
        if done.is_err() {
            return;
        }
    }
}

/// Builds a frame. What the responses in it follow from is read before and said in it: above all, which shards failed.
fn frame(messages: Vec<RaftMessage>, manager: &GroupManager, failures: &mut FailureNews) -> RaftMessages {
    RaftMessages { messages, disk_is_full: !manager.has_disk_space(), failed_shards: failures.take() }
}

async fn next_response(
    rejections: &mut Vec<RaftMessage>,
    collected: &mut mpsc::Receiver<RaftMessage>,
) -> Option<RaftMessage> {
    match rejections.pop() {
        Some(rejection) => Some(rejection),
        None => collected.recv().await,
    }
}

impl InboundConnection {
    /// Passes a message to its replica; returns the response if it is rejected.
    async fn dispatch(&mut self, message: RaftMessage, peer_is_full: bool) -> Option<RaftMessage> {
        // The peer must have presented the replica, and the configuration must assign it to that node.
        let known = self.peer.replicas.iter().any(|replica| replica.id == message.from)
            || self.manager.peer_registry().admit(message.from, &self.peer.node_id, &self.peer.store_id).await;
        let lives_there = |group: &Group| group.locations().get(&message.from) == Some(&self.peer.node_id);
        let group = self.manager.group(message.to).filter(|group| known && lives_there(group));
        let Some(group) = group else {
            let reason = format!("replicas {} and {} share no group here", message.from, message.to);
            return Some(unary::error(message.call, &reason));
        };
        if message.kind() == Kind::Append {
            let lane = self.append_streams.entry((message.from, message.to)).or_default();
            let appended = lane.append(&group, &message, peer_is_full, self.peer.run, &self.responses);
            return appended.err().map(|reason| unary::error(message.call, reason));
        }
        let Ok(permit) = Arc::clone(&self.unary_permits).try_acquire_owned() else {
            return Some(unary::error(message.call, "too many calls at a time"));
        };
        let (answers, run) = (self.responses.clone(), self.peer.run);
        spawn_temporary("peer_call", async move {
            let answer = unary::handle_unary(&group, message, run).await;
            // The connection may have ended; the peer then retries.
            let _ = answers.send(answer).await;
            drop(permit);
        });
        None
    }
}
