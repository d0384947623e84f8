//! The appends of a leader to one follower: sent as they come, answered in order.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::{Fuse, Stream, StreamExt};
use openraft::entry::RaftEntry;
use openraft::errors::{NetworkError, RPCError};
use openraft::raft::{AppendEntriesRequest, AppendEntriesResponse, StreamAppendResult};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::client::{Peer, RpcResult, unreachable};
use super::link::LinkError;
use crate::types::{LogId, TypeConfig, decode};

/// Appends under way to one follower.
const PIPELINE: usize = 64;

/// An append whose answer is awaited, with what its success means.
struct Waiting {
    receiver: oneshot::Receiver<Result<Bytes, LinkError>>,
    term: u64,
    prev: Option<LogId>,
    last: Option<LogId>,
    sent: Instant,
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
}

impl<'s, S> Appends<'s, S>
where
    S: Stream<Item = AppendEntriesRequest<TypeConfig>> + Unpin,
{
    /// Each append is to be answered within that time, once those before it are.
    pub(crate) fn new(peer: &'s Peer, input: S, stream: u64, within: Duration) -> Self {
        let answered = Instant::now();
        Self { peer, input: input.fuse(), waiting: VecDeque::new(), stream, within, answered, failed: None }
    }

    fn send(&mut self, request: &AppendEntriesRequest<TypeConfig>) {
        let prev = request.prev_log_id;
        let last = request.entries.last().map(RaftEntry::log_id).or(prev);
        let sent = Instant::now();
        match self.peer.ask_append(self.stream, request) {
            Ok(receiver) => {
                let term = request.vote.leader_id.term;
                self.waiting.push_back(Waiting { receiver, term, prev, last, sent });
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
            let room = self.waiting.len() < PIPELINE && !self.input.is_done();
            let Some(front) = self.waiting.front_mut() else {
                let request = self.input.next().await?;
                self.send(&request);
                continue;
            };
            let deadline = front.sent.max(self.answered) + self.within;
            tokio::select! {
                biased;
                answered = timeout_at(deadline, &mut front.receiver) => {
                    let waiting = self.waiting.pop_front()?;
                    self.answered = Instant::now();
                    let answered = match answered {
                        Ok(Ok(answered)) => answered.map_err(unreachable),
                        Ok(Err(_)) => Err(unreachable(LinkError::Broken(self.peer.name()))),
                        Err(_) => Err(self.peer.timed_out(self.within)),
                    };
                    return Some(answered.and_then(|bytes| self.judge(&bytes, &waiting)));
                }
                request = self.input.next(), if room => {
                    if let Some(request) = request {
                        self.send(&request);
                    }
                }
            }
        }
    }

    fn judge(&self, bytes: &[u8], waiting: &Waiting) -> RpcResult<StreamAppendResult<TypeConfig>> {
        let response: AppendEntriesResponse<TypeConfig> =
            decode(bytes).map_err(|error| RPCError::Network(NetworkError::new(&error)))?;
        match response {
            // Without an entry before it there is nothing that could conflict; the peer is not making sense.
            AppendEntriesResponse::Conflict if waiting.prev.is_none() => {
                return Err(unreachable(LinkError::Refused(self.peer.name(), "conflict at 0".into())));
            }
            AppendEntriesResponse::Success => self.peer.acknowledged(waiting.term, waiting.sent),
            _ => {}
        }
        Ok(response.into_stream_result(waiting.prev, waiting.last))
    }
}
