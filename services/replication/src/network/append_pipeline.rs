//! Pipelined appends of a leader to one follower: sent as they come, answered in order.
//!
//! An append without entries is a commit notice: it only reports that earlier entries are committed. On a busy group
//! the next entries carry the same information shortly afterwards and save a message and its response. The pipeline
//! therefore delays the notice briefly. openraft takes a response as one to all earlier appends, so an append that is
//! never sent needs no response.

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
use super::request::RpcError;
use crate::lease::SendTime;
use crate::types::{AppendEntriesRequest, LogId, TypeConfig, decode};

/// In-flight appends to one follower, and their bytes. A slow follower takes up this much memory on both nodes, and
/// this much of the connection that all groups share.
const MAX_IN_FLIGHT: usize = 16;
const MAX_IN_FLIGHT_BYTES: usize = 4 * 1024 * 1024;
/// How long a commit notice waits for entries. Only followers wait for it, and no caller waits for them: the leader
/// answers committed commands.
const COMMIT_NOTICE_DELAY: Duration = Duration::from_millis(10);

/// An append that awaits its response, and the result of its success.
struct InFlightAppend {
    receiver: oneshot::Receiver<Result<Bytes, RpcError>>,
    term: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    sent: SendTime,
    bytes: usize,
}

/// One append stream of openraft.
pub(crate) struct AppendPipeline<'s, S> {
    peer: &'s ReplicaClient,
    input: Fuse<S>,
    in_flight: VecDeque<InFlightAppend>,
    stream: u64,
    timeout: Duration,
    /// Time of the last response. An append waits for those before it, so its timeout counts from there.
    last_response_at: Instant,
    failed: Option<RPCError<TypeConfig>>,
    /// The last entry that was sent on this stream.
    last_sent: Option<LogId>,
    /// A delayed commit notice and the end of its delay.
    delayed: Option<(AppendEntriesRequest, Instant)>,
}

impl<'s, S> AppendPipeline<'s, S>
where
    S: Stream<Item = AppendEntriesRequest> + Unpin,
{
    /// Creates a pipeline. Each append must be answered within `timeout`, once those before it are.
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

    /// Sends the request, unless it is a commit notice that can wait. Any later request makes a waiting notice
    /// obsolete.
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
        let sent = self.peer.send_time();
        match self.peer.send_append(self.stream, request) {
            Ok((receiver, bytes)) => {
                let term = request.vote.leader_id.term;
                self.in_flight.push_back(InFlightAppend { receiver, term, prev, last, sent, bytes });
            }
            Err(error) => self.failed = Some(unreachable(error)),
        }
    }

    /// Returns the next response, in the order of the requests; requests that arrive meanwhile are sent at once. `None`
    /// once the input has ended and every append is answered.
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
            // Nothing precedes the entry, so nothing can conflict; the peer's response is invalid.
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

/// Waits for the response to the oldest append. Each must arrive within `within`, once those before it have.
async fn oldest(waiting: &mut VecDeque<InFlightAppend>, answered: Instant, within: Duration) -> ResponseOutcome {
    match waiting.front_mut() {
        Some(front) => timeout_at(front.sent.monotonic.max(answered) + within, &mut front.receiver).await,
        None => pending().await,
    }
}

async fn maybe_sleep_until(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
