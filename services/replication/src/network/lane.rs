//! Appends of one leader to one follower: pipelined, answered in order.

use futures::StreamExt;
use holdfast_proto::internal::RaftMessage;
use holdfast_supervise::brief;
use openraft::EntryPayload;
use openraft::entry::RaftEntry;
use openraft::raft::{AppendEntriesResponse, StreamAppendError, StreamAppendResult};
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;

use super::answer;
use crate::group::{DISK_IS_FULL, Group};
use crate::types::{AppendEntriesRequest, Entry, TypeConfig, decode_append, encode};

/// Appends that wait for the follower's log. The leader keeps fewer under way.
const DEPTH: usize = 128;

/// Committed entries that a node without room takes in at most. Those that were under way as the disks filled up are fewer.
const LAST_FEW: u64 = 256;

/// The append stream that is open between two replicas on this connection, if any.
#[derive(Default)]
pub(crate) struct Lane {
    stream: u64,
    requests: Option<mpsc::Sender<AppendEntriesRequest>>,
    calls: Option<mpsc::Sender<Call>>,
}

/// An append that is to be answered.
struct Call {
    number: u64,
    term: u64,
}

impl Lane {
    /// Queues an append of that run; its answer goes to `answers`. A new stream number begins a new stream, whose predecessor ends.
    /// A leader whose own disk is full takes in no commands: what it has, it had before, and may need to go on.
    ///
    /// # Errors
    /// The reason to refuse this append; the leader begins a new stream then.
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
        let may_come = group.has_room() || (leader_is_full && is_nearly_level(&request, last));
        if !may_come && brings_data(&request, last) {
            return Err(DISK_IS_FULL);
        }
        if self.stream != message.stream {
            self.begin(group, message.stream, run, answers);
        }
        let (Some(requests), Some(calls)) = (&self.requests, &self.calls) else { return Err("no append stream") };
        // Both channels have the same depth and are filled in step, so the calls never lag behind the requests.
        let call = Call { number: message.call, term: request.vote.leader_id.term };
        calls.try_send(call).map_err(|_| "the append stream has ended or is full")?;
        requests.try_send(request).map_err(|_| "the append stream has ended or is full")
    }

    fn begin(&mut self, group: &Group, stream: u64, run: u64, answers: &mpsc::Sender<RaftMessage>) {
        let (requests, incoming) = mpsc::channel(DEPTH);
        let (calls, numbers) = mpsc::channel(2 * DEPTH);
        let results = group.raft().stream_append(ReceiverStream::new(incoming));
        let leader = Leader { group: group.clone(), run };
        brief("append answers", answer_in_order(results, numbers, leader, answers.clone()));
        *self = Self { stream, requests: Some(requests), calls: Some(calls) };
    }
}

/// Whether there are commands in it behind the last entry of this log. What a group needs to go on is taken in even by a
/// node whose disk is nearly full; so is what it has already, which a new leader sends to find out.
fn brings_data(request: &AppendEntriesRequest, last: Option<u64>) -> bool {
    let is_new = |entry: &&Entry| Some(entry.log_id().index()) > last;
    request.entries.iter().filter(is_new).any(|entry| matches!(entry.payload, EntryPayload::Normal(_)))
}

/// Whether it lacks so little of what is committed that the reserve has room for that.
fn is_nearly_level(request: &AppendEntriesRequest, last: Option<u64>) -> bool {
    let committed = request.leader_commit.map_or(0, |id| id.index());
    committed.saturating_sub(last.unwrap_or(0)) <= LAST_FEW
}

/// Whose appends they are.
struct Leader {
    group: Group,
    run: u64,
}

async fn answer_in_order<S, E>(
    results: S,
    mut calls: mpsc::Receiver<Call>,
    leader: Leader,
    answers: mpsc::Sender<RaftMessage>,
) where
    S: futures::Stream<Item = Result<StreamAppendResult<TypeConfig>, E>>,
    E: std::fmt::Display,
{
    let mut results = std::pin::pin!(results);
    while let Some(result) = results.next().await {
        let Some(Call { number: call, term }) = calls.recv().await else { return };
        if matches!(result, Ok(Ok(_))) {
            leader.group.leader_run().hear(term, leader.run);
        }
        let message = match result {
            Ok(Ok(_)) => answer::answer(call, encode(&AppendEntriesResponse::<TypeConfig>::Success)),
            Ok(Err(StreamAppendError::Conflict(_))) => {
                answer::answer(call, encode(&AppendEntriesResponse::<TypeConfig>::Conflict))
            }
            Ok(Err(StreamAppendError::HigherVote(vote))) => {
                answer::answer(call, encode(&AppendEntriesResponse::<TypeConfig>::HigherVote(vote)))
            }
            Err(fatal) => answer::error(call, &fatal.to_string()),
        };
        if answers.send(message).await.is_err() {
            return;
        }
    }
}
