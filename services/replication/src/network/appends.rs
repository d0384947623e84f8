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

use super::client::{Peer, RpcResult, unreachable};
use super::link::LinkError;
use crate::types::{AppendEntriesRequest, LogId, TypeConfig, decode};

/// Appends under way to one follower, and their bytes, before the next one is made: a follower that is slow keeps so much
/// of the sending and the receiving node's memory, and of the way that it shares with all other groups.
const PIPELINE: usize = 16;
const PIPELINE_BYTES: usize = 4 * 1024 * 1024;
/// How long entries may take to come before a notice goes without them. Only followers wait for it, and nobody for
/// them: what is committed is answered by the leader.
const HOLD_NOTICE: Duration = Duration::from_millis(10);

/// An append whose answer is awaited, with what its success means.
struct Waiting {
    receiver: oneshot::Receiver<Result<Bytes, LinkError>>,
    term: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    sent: Instant,
    bytes: usize,
}

/// One append stream of openraft.
pub(crate) struct Appends<'s, S> {
    peer: &'s Peer,
    input: Fuse<S>,
    waiting: VecDeque<Waiting>,
    stream: u64,
    within: Duration,
    /// When the last answer came. An append waits for those before it, so the time allowed counts from there.
    answered: Instant,
    failed: Option<RPCError<TypeConfig>>,
    /// The last entry that was sent on this stream.
    sent: Option<LogId>,
    /// A notice that waits for entries to go with, and until when.
    held: Option<(AppendEntriesRequest, Instant)>,
}

impl<'s, S> Appends<'s, S>
where
    S: Stream<Item = AppendEntriesRequest> + Unpin,
{
    /// Each append is to be answered within that time, once those before it are.
    pub(crate) fn new(peer: &'s Peer, input: S, stream: u64, within: Duration) -> Self {
        Self {
            peer,
            input: input.fuse(),
            waiting: VecDeque::new(),
            stream,
            within,
            answered: Instant::now(),
            failed: None,
            sent: None,
            held: None,
        }
    }

    /// Sends it, unless it is a notice that can wait. One that waits is out of date as soon as anything comes after it.
    fn take(&mut self, request: AppendEntriesRequest) {
        let is_notice = request.entries.is_empty() && self.sent.is_some() && request.prev_log_id == self.sent;
        let held_until = self.held.take().map(|(_, until)| until);
        if is_notice {
            self.held = Some((request, held_until.unwrap_or_else(|| Instant::now() + HOLD_NOTICE)));
        } else {
            self.send(&request);
        }
    }

    fn send_held(&mut self) {
        if let Some((request, _)) = self.held.take() {
            self.send(&request);
        }
    }

    fn send(&mut self, request: &AppendEntriesRequest) {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(RaftEntry::log_id).or(prev);
        self.sent = last;
        let sent = Instant::now();
        match self.peer.ask_append(self.stream, request) {
            Ok((receiver, bytes)) => {
                let term = request.vote.leader_id.term;
                self.waiting.push_back(Waiting { receiver, term, prev, last, sent, bytes });
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
            if self.waiting.is_empty() && self.held.is_none() {
                let request = self.input.next().await?;
                self.take(request);
                continue;
            }
            let room = self.has_room() && !self.input.is_done();
            let hold_until = self.held.as_ref().map(|(_, until)| *until);
            tokio::select! {
                biased;
                answered = front(&mut self.waiting, self.answered, self.within) => {
                    let waiting = self.waiting.pop_front()?;
                    self.answered = Instant::now();
                    let answered = match answered {
                        Ok(Ok(answered)) => answered.map_err(unreachable),
                        Ok(Err(_)) => Err(unreachable(LinkError::Broken(self.peer.name()))),
                        Err(_) => Err(self.peer.timed_out(self.within)),
                    };
                    return Some(answered.and_then(|bytes| self.judge(&bytes, &waiting)));
                }
                request = self.input.next(), if room => match request {
                    Some(request) => self.take(request),
                    None => self.send_held(),
                },
                () = at(hold_until) => self.send_held(),
            }
        }
    }

    fn has_room(&self) -> bool {
        let bytes: usize = self.waiting.iter().map(|waiting| waiting.bytes).sum();
        self.waiting.len() < PIPELINE && bytes < PIPELINE_BYTES
    }

    fn judge(&self, bytes: &[u8], waiting: &Waiting) -> RpcResult<StreamAppendResult<TypeConfig>> {
        let response: AppendEntriesResponse<TypeConfig> =
            decode(bytes).map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        match response {
            // Without an entry before it there is nothing that could conflict; the peer is not making sense.
            AppendEntriesResponse::Conflict if waiting.prev.is_none() => {
                return Err(unreachable(LinkError::Refused(self.peer.name(), "conflict at 0".into())));
            }
            AppendEntriesResponse::Conflict => {
                if let Some(lost) =
                    waiting.prev.filter(|prev| self.peer.is_lost(waiting.term, prev.index(), waiting.sent))
                {
                    self.peer.refuse_rolled_back(lost.index());
                    let reason = "it lost what it had acknowledged".into();
                    return Err(unreachable(LinkError::Refused(self.peer.name(), reason)));
                }
            }
            AppendEntriesResponse::Success => {
                self.peer.acknowledged(waiting.term, waiting.sent, waiting.last.map(|last| last.index()));
            }
            _ => {}
        }
        Ok(response.into_stream_result(waiting.prev, waiting.last))
    }
}

type Answered = Result<Result<Result<Bytes, LinkError>, oneshot::error::RecvError>, Elapsed>;

/// The answer to the first append that waits for one. Each is to be answered within that time, once those before it are.
async fn front(waiting: &mut VecDeque<Waiting>, answered: Instant, within: Duration) -> Answered {
    match waiting.front_mut() {
        Some(front) => timeout_at(front.sent.max(answered) + within, &mut front.receiver).await,
        None => pending().await,
    }
}

async fn at(instant: Option<Instant>) {
    match instant {
        Some(instant) => sleep_until(instant).await,
        None => pending().await,
    }
}
