//! The queue of a shard: commands wait here while earlier batches are under way, and form the next log entry.
//!
//! Self-clocking: nothing waits for a timer. An idle shard proposes a command as it comes; a busy one proposes all
//! that arrived since the last batch, and what tasks that are ready to run are about to add.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_plant::{Plant, is_planted};
use metrics::histogram;
use openraft::impls::OneshotResponder;
use openraft::raft::ClientWriteResult;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;

use crate::clock::WallClock;
use crate::error::{NotLeader, ProposeError};
use crate::gather::gather;
use crate::group::Raft;
use crate::leadership::{Leadership, known_leader};
use crate::types::{EntryData, TypeConfig};

/// Entries of a shard under way at a time. With one, whatever arrives meanwhile forms the next: a round of the group
/// costs much more than what is in it, and a second one under way would halve what each carries.
const DEPTH: usize = 1;
/// Commands in one entry.
const BATCH_COMMANDS: usize = 512;
/// Bytes in one entry, as soon as it has one command.
const BATCH_BYTES: usize = 1024 * 1024;
/// Commands that wait for their entry; more are refused with "not proposed".
pub(crate) const QUEUE: usize = 8_192;

const QUEUED: u8 = 0;
const PROPOSED: u8 = 1;
const GIVEN_UP: u8 = 2;

pub(crate) type Answer = Result<Bytes, ProposeError>;

/// Whether a command has left the queue. Decides between "nothing was done" and "outcome unknown" when its caller
/// gives up.
#[derive(Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU8>);

impl Progress {
    /// The caller gives up. True when the command had not been proposed, and now never will be.
    pub(crate) fn give_up(&self) -> bool {
        self.0.compare_exchange(QUEUED, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    fn propose(&self) -> bool {
        self.0.compare_exchange(QUEUED, PROPOSED, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

/// A command on its way into the log.
pub(crate) struct Proposal {
    /// The term that it is addressed to.
    pub(crate) term: u64,
    pub(crate) command: Bytes,
    pub(crate) progress: Progress,
    pub(crate) answer: oneshot::Sender<Answer>,
}

type Written = Result<ClientWriteResult<TypeConfig>, oneshot::error::RecvError>;

pub(crate) struct Proposer {
    raft: Raft,
    queue: mpsc::Receiver<Proposal>,
    leadership: watch::Receiver<Option<Leadership>>,
    wall: WallClock,
    under_way: FuturesUnordered<BoxFuture<'static, ()>>,
}

impl Proposer {
    pub(crate) fn new(
        raft: Raft,
        queue: mpsc::Receiver<Proposal>,
        leadership: watch::Receiver<Option<Leadership>>,
        wall: WallClock,
    ) -> Self {
        Self { raft, queue, leadership, wall, under_way: FuturesUnordered::new() }
    }

    /// Runs until the last handle of the group is gone.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_COMMANDS);
        loop {
            // A replica that does not lead answers at once, also while entries of an earlier term are undecided.
            let leads = self.leadership.borrow_and_update().is_some();
            let takes = self.under_way.len() < DEPTH || !leads;
            tokio::select! {
                biased;
                Some(()) = self.under_way.next(), if !self.under_way.is_empty() => {}
                count = self.queue.recv_many(&mut batch, BATCH_COMMANDS), if takes => {
                    if count == 0 {
                        return;
                    }
                    gather(&mut self.queue, &mut batch, BATCH_COMMANDS).await;
                    self.propose(&mut batch).await;
                }
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Proposes a batch in as few entries as the bound on their bytes allows.
    async fn propose(&mut self, batch: &mut Vec<Proposal>) {
        let leadership = *self.leadership.borrow();
        let mut commands = Vec::with_capacity(batch.len());
        let mut answers = Vec::with_capacity(batch.len());
        let mut bytes = 0;
        for proposal in batch.drain(..) {
            let Some(leads) = leadership.filter(|leads| leads.term == proposal.term) else {
                let _ = proposal.answer.send(Err(self.not_leader(leadership).into()));
                continue;
            };
            if !proposal.progress.propose() {
                continue;
            }
            if bytes > 0 && bytes + proposal.command.len() > BATCH_BYTES {
                self.write(leads, std::mem::take(&mut commands), std::mem::take(&mut answers)).await;
                bytes = 0;
            }
            bytes += proposal.command.len().max(1);
            commands.push(proposal.command);
            answers.push(proposal.answer);
        }
        if let (Some(leads), false) = (leadership, commands.is_empty()) {
            self.write(leads, commands, answers).await;
        }
    }

    async fn write(&mut self, leads: Leadership, commands: Vec<Bytes>, answers: Vec<oneshot::Sender<Answer>>) {
        histogram!("holdfast_entry_commands").record(commands.len() as f64);
        let began = Instant::now();
        match write(&self.raft, leads, &self.wall, commands).await {
            Ok(written) => self.under_way.push(Box::pin(async move {
                let replies = replies(written.await);
                if replies.is_ok() {
                    histogram!("holdfast_commit_seconds").record(began.elapsed().as_secs_f64());
                }
                answer_all(answers, &replies);
            })),
            Err(error) => answer_all(answers, &Err(error)),
        }
    }

    fn not_leader(&self, leadership: Option<Leadership>) -> NotLeader {
        match leadership {
            Some(leads) => NotLeader { leader: Some(*self.raft.node_id()), term: leads.term },
            None => known_leader(&self.raft),
        }
    }
}

/// Stamps an entry and hands it to openraft. The receiver gets openraft's answer once the entry is applied here.
pub(crate) async fn write(
    raft: &Raft,
    leads: Leadership,
    wall: &WallClock,
    commands: Vec<Bytes>,
) -> Result<oneshot::Receiver<ClientWriteResult<TypeConfig>>, ProposeError> {
    let wall_ms = wall.now_ms();
    let now_ms = if is_planted(Plant::WallClock) { wall_ms } else { leads.clock.now_ms() };
    let data = EntryData { now_ms, wall_ms, commands };
    let (responder, written) = OneshotResponder::new_pair();
    match raft.write(data).with_leader(leads.term).responder(responder).await {
        Ok(()) => Ok(written),
        Err(_) => Err(ProposeError::Unknown("the replica is stopping")),
    }
}

/// What openraft's answer means for the commands of the entry.
pub(crate) fn replies(result: Written) -> Result<Vec<Bytes>, ProposeError> {
    use openraft::errors::ClientWriteError;
    match result.map_err(|_| ProposeError::Unknown("the replica stopped"))? {
        Ok(response) => Ok(response.data),
        Err(ClientWriteError::ForwardToLeader(_)) => Err(NotLeader { leader: None, term: 0 }.into()),
        Err(_) => Err(ProposeError::Unknown("the entry was discarded by another leader")),
    }
}

fn answer_all(answers: Vec<oneshot::Sender<Answer>>, result: &Result<Vec<Bytes>, ProposeError>) {
    for (position, answer) in answers.into_iter().enumerate() {
        let reply = match result {
            Ok(replies) => replies.get(position).cloned().ok_or(ProposeError::Unknown("the reply is missing")),
            Err(error) => Err(error.clone()),
        };
        // A caller that gave up no longer listens.
        let _ = answer.send(reply);
    }
}
