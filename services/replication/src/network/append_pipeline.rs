//! The appends of a leader to one follower: sent as they come, answered in order.
//!
//! An append without entries only says that what was sent before is committed. On a busy shard the next entries say it
//! as well, a moment later, and spare both ends a message with its answer; so it is held back for that moment. openraft
//! takes an answer as one to all appends before it, so that nothing has to be made up for one that was never sent.

use std::collections::VecDeque;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{Fuse, Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesResponse, StreamAppendResult};
use tokio::sync::oneshot;
use tokio::time::error::Elapsed;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::client::{ReplicaClient, RpcResult, unreachable};
use super::peer_connection::RpcError;
use crate::types::{AppendEntriesRequest, LogId, TypeConfig, decode};

/// Appends under way to one follower, and their bytes, before the next one is made: a follower that is slow keeps so much
/// of the sending and the receiving node's memory, and of the way that it shares with all other groups.
const MAX_IN_FLIGHT: usize = 16;
const MAX_IN_FLIGHT_BYTES: usize = 4 * 1024 * 1024;
/// How long entries may take to come before a notice goes without them. Only followers wait for it, and nobody for
/// them: what is committed is answered by the leader.
const COMMIT_NOTICE_DELAY: Duration = Duration::from_millis(10);

/// An append whose answer is awaited, with what its success means.
struct InFlightAppend {
    receiver: oneshot::Receiver<Result<Bytes, RpcError>>,
    term: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    sent: Instant,
    bytes: usize,
}

/// One append stream of openraft.
pub(crate) struct AppendPipeline<'s, S> {
    peer: &'s ReplicaClient,
    input: Fuse<S>,
    in_flight: VecDeque<InFlightAppend>,
    stream: u64,
    timeout: Duration,
    /// When the last answer came. An append waits for those before it, so the time allowed counts from there.
    last_response_at: Instant,
    failed: Option<RPCError<TypeConfig>>,
    /// The last entry that was sent on this stream.
    last_sent: Option<LogId>,
    /// A notice that waits for entries to go with, and until when.
    delayed: Option<(AppendEntriesRequest, Instant)>,
}

impl<'s, S> AppendPipeline<'s, S>
where
    S: Stream<Item = AppendEntriesRequest> + Unpin,
{
    /// Each append is to be answered within that time, once those before it are.
    pub(crate) fn new(peer: &'s ReplicaClient, input: S, stream: u64, timeout: Duration) -> Self {
        Self {
            peer,
            input: input.fuse(),
            in_flight: VecDeque::new(),
            stream,
            timeout,
            last_response_at: Instant::now(),
            failed: None,
            last_sent: None,
            delayed: None,
        }
    }

    /// Sends it, unless it is a notice that can wait. One that waits is out of date as soon as anything comes after it.
    fn on_request(&mut self, request: AppendEntriesRequest) {
        let is_notice = request.entries.is_empty() && self.last_sent.is_some() && request.prev_log_id == self.last_sent;
        let held_until = self.delayed.take().map(|(_, until)| until);
        if is_notice {
            self.delayed = Some((request, held_until.unwrap_or_else(|| Instant::now() + COMMIT_NOTICE_DELAY)));
        } else {
            self.send(&request);
        }
    }

    fn send_delayed(&mut self) {
        if let Some((request, _)) = self.delayed.take() {
            self.send(&request);
        }
    }

    fn send(&mut self, request: &AppendEntriesRequest) {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(RaftEntry::log_id).or(prev);
        self.last_sent = last;
        let sent = Instant::now();
        match self.peer.send_append(self.stream, request) {
            Ok((receiver, bytes)) => {
                let term = request.vote.leader_id.term;
                self.in_flight.push_back(InFlightAppend { receiver, term, prev, last, sent, bytes });
            }
            Err(error) => self.failed = Some(unreachable(error)),
        }
    }

    /// The next answer, in the order of the requests; requests that arrive meanwhile are sent at once. Nothing once the
    /// input has ended and everything is answered.
    pub(crate) async fn next(&mut self) -> Option<RpcResult<StreamAppendResult<TypeConfig>>> {
        loop {
            if let Some(error) = self.failed.take() {
                return Some(Err(error));
            }
            if self.in_flight.is_empty() && self.delayed.is_none() {
                let request = self.input.next().await?;
                self.on_request(request);
                continue;
            }
            let room = self.has_capacity() && !self.input.is_done();
            let hold_until = self.delayed.as_ref().map(|(_, until)| *until);
            tokio::select! {
                biased;
                answered = oldest(&mut self.in_flight, self.last_response_at, self.timeout) => {
                    let waiting = self.in_flight.pop_front()?;
                    self.last_response_at = Instant::now();
                    let answered = match answered {
                        Ok(Ok(answered)) => answered.map_err(unreachable),
                        Ok(Err(_)) => Err(unreachable(RpcError::ConnectionLost(self.peer.name()))),
                        Err(_) => Err(self.peer.timeout_error(self.timeout)),
                    };
                    return Some(answered.and_then(|bytes| self.on_response(&bytes, &waiting)));
                }
                request = self.input.next(), if room => match request {
                    Some(request) => self.on_request(request),
                    None => self.send_delayed(),
                },
                () = maybe_sleep_until(hold_until) => self.send_delayed(),
            }
        }
    }

    fn has_capacity(&self) -> bool {
        let bytes: usize = self.in_flight.iter().map(|waiting| waiting.bytes).sum();
        self.in_flight.len() < MAX_IN_FLIGHT && bytes < MAX_IN_FLIGHT_BYTES
    }

    fn on_response(&self, bytes: &[u8], waiting: &InFlightAppend) -> RpcResult<StreamAppendResult<TypeConfig>> {
        let response: AppendEntriesResponse<TypeConfig> =
            decode(bytes).map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        match response {
            // Without an entry before it there is nothing that could conflict; the peer is not making sense.
            AppendEntriesResponse::Conflict if waiting.prev.is_none() => {
                return Err(unreachable(RpcError::Rejected(self.peer.name(), "conflict at 0".into())));
            }
            AppendEntriesResponse::Conflict => {
                if let Some(lost) =
                    waiting.prev.filter(|prev| self.peer.is_lost(waiting.term, prev.index(), waiting.sent))
                {
                    self.peer.reject_rolled_back(lost.index());
                    let reason = "it lost what it had acknowledged".into();
                    return Err(unreachable(RpcError::Rejected(self.peer.name(), reason)));
                }
            }
            AppendEntriesResponse::Success => {
                self.peer.record_ack(waiting.term, waiting.sent, waiting.last.map(|last| last.index()));
            }
            _ => {}
        }
        Ok(response.into_stream_result(waiting.prev, waiting.last))
    }
}

type ResponseOutcome = Result<Result<Result<Bytes, RpcError>, oneshot::error::RecvError>, Elapsed>;

/// The answer to the first append that waits for one. Each is to be answered within that time, once those before it are.
async fn oldest(waiting: &mut VecDeque<InFlightAppend>, answered: Instant, within: Duration) -> ResponseOutcome {
    match waiting.front_mut() {
        Some(front) => timeout_at(front.sent.max(answered) + within, &mut front.receiver).await,
        None => pending().await,
    }
}

async fn maybe_sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
