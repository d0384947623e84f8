//! The follower's end of an append stream: pipelined, answered in order.

use futures::StreamExt;
use holdfast_proto::internal::RaftMessage;
use holdfast_supervise::spawn_temporary;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::unary;
use crate::group::{DISK_IS_FULL, Group};
use crate::types::{AppendEntriesRequest, Entry, TypeConfig, decode_append, encode};

/// Appends that wait for the follower's log. The leader keeps fewer in flight.
const STREAM_CAPACITY: usize = 128;

/// Committed entries that a node without disk space still accepts. Fewer were in flight when the disks filled up.
const MAX_CATCH_UP_ENTRIES: u64 = 256;

/// The append stream that is open between two replicas on this connection, if any.
#[derive(Default)]
pub(crate) struct AppendStream {
    stream: u64,
    requests: Option<mpsc::Sender<AppendEntriesRequest>>,
    calls: Option<mpsc::Sender<AppendCall>>,
}

/// An append that awaits its response.
struct AppendCall {
    number: u64,
    term: u64,
}

impl AppendStream {
    /// Queues an append from process run `run`; its response goes to `answers`. A new stream number starts a new stream
    /// and ends its predecessor. A node accepts entries from a leader with a full disk: that leader accepts no new
    /// commands, and may need the existing entries to continue.
    ///
    /// # Errors
    /// The reason for rejecting this append; the leader then starts a new stream.
    pub(crate) fn append(
        &mut self,
        group: &Group,
        message: &RaftMessage,
        leader_is_full: bool,
        run: u64,
        answers: &mpsc::Sender<RaftMessage>,
    ) -> Result<(), &'static str> {
        let request = decode_append(&message.body).map_err(|_| "the append can't be read")?;
        let last = group.last_log_index();
        let may_come = group.has_disk_space() || (leader_is_full && is_nearly_caught_up(&request, last));
        if !may_come && has_new_commands(&request, last) {
            return Err(DISK_IS_FULL);
        }
        if self.stream != message.stream {
            self.begin(group, message.stream, run, answers);
        }
        let (Some(requests), Some(calls)) = (&self.requests, &self.calls) else { return Err("no append stream") };
        // Both channels have the same capacity and are filled in step, so the calls never lag behind the requests.
        let call = AppendCall { number: message.call, term: request.vote.leader_id.term };
        calls.try_send(call).map_err(|_| "the append stream has ended or is full")?;
        requests.try_send(request).map_err(|_| "the append stream has ended or is full")
    }

    fn begin(&mut self, group: &Group, stream: u64, run: u64, answers: &mpsc::Sender<RaftMessage>) {
        let (requests, incoming) = mpsc::channel(STREAM_CAPACITY);
        let (calls, numbers) = mpsc::channel(2 * STREAM_CAPACITY);
        let results = group.raft().stream_append(ReceiverStream::new(incoming));
        let leader = AppendOrigin { group: group.clone(), run };
        spawn_temporary("append_responses", respond_in_order(results, numbers, leader, answers.clone()));
        *self = Self { stream, requests: Some(requests), calls: Some(calls) };
    }
}

/// Returns true if the append contains commands after the last entry of this log. A node with a nearly full disk still
/// accepts entries that a group needs to continue. It also accepts entries that it already has, which a new leader
/// sends to probe the log.
fn has_new_commands(request: &AppendEntriesRequest, last: Option<u64>) -> bool {
    let is_new = |entry: &&Entry| Some(entry.log_id().index()) > last;
    request.entries.iter().filter(is_new).any(|entry| matches!(entry.payload, EntryPayload::Normal(_)))
}

/// Returns true if so few committed entries are missing that the disk reserve has space for them.
fn is_nearly_caught_up(request: &AppendEntriesRequest, last: Option<u64>) -> bool {
    let committed = request.leader_commit.map_or(0, |id| id.index());
    committed.saturating_sub(last.unwrap_or(0)) <= MAX_CATCH_UP_ENTRIES
}

/// The origin of the appends.
struct AppendOrigin {
    group: Group,
    run: u64,
}

async fn respond_in_order<S, E>(
    results: S,
    mut calls: mpsc::Receiver<AppendCall>,
    leader: AppendOrigin,
    answers: mpsc::Sender<RaftMessage>,
) where
    S: futures::Stream<Item = Result<StreamAppendResult<TypeConfig>, E>>,
    E: std::fmt::Display,
{
    let mut results = std::pin::pin!(results);
    while let Some(result) = results.next().await {
        let Some(AppendCall { number: call, term }) = calls.recv().await else { return };
        if matches!(result, Ok(Ok(_))) {
            leader.group.leader_run().observe(term, leader.run);
        }
        let message = match result {
            Ok(Ok(_)) => unary::response(call, encode(&AppendEntriesResponse::<TypeConfig>::Success)),
            Ok(Err(StreamAppendError::Conflict(_))) => {
                unary::response(call, encode(&AppendEntriesResponse::<TypeConfig>::Conflict))
            }
            Ok(Err(StreamAppendError::HigherVote(vote))) => {
                unary::response(call, encode(&AppendEntriesResponse::<TypeConfig>::HigherVote(vote)))
            }
            Err(fatal) => unary::error(call, &fatal.to_string()),
        };
        if answers.send(message).await.is_err() {
            return;
        }
    }
}
