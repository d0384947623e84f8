//! The queue of a shard: commands wait here while earlier batches are under way, and form the next log entry.
//!
//! Self-clocking: nothing waits for a timer. An idle shard proposes a command as it comes; a busy one proposes all
//! that arrived since the last batch, and what tasks that are ready to run are about to add.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

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
use crate::entry::{EntryData, FIRST_RULES};
use crate::error::{NotLeader, ProposeError};
use crate::gather::gather;
use crate::group::Raft;
use crate::leadership::{Leadership, known_leader};
use crate::rules::GroupState;
use crate::types::TypeConfig;

/// Entries of a shard under way at a time, while other shards of the node have some too. With one, whatever arrives
/// meanwhile forms the next: a round of the group costs much more than what is in it, and a second one under way would
/// halve what each carries.
const DEPTH: usize = 1;
/// The same while the node has nothing else under way than one command of that shard. A lock that is fought over is
/// handed on by rounds that follow from one another, and what comes from others need not delay the next of them.
const DEPTH_ALONE: usize = 2;
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

/// Entries of all shards of a node that are under way. Clones count together.
#[derive(Clone, Default)]
pub(crate) struct UnderWay(Arc<AtomicUsize>);

/// One of them, until it is dropped.
struct OnItsWay(Arc<AtomicUsize>);

impl UnderWay {
    fn one_more(&self) -> OnItsWay {
        self.0.fetch_add(1, Ordering::Relaxed);
        OnItsWay(Arc::clone(&self.0))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for OnItsWay {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What entries are stamped with beside the clock of the leadership. Clones share it.
#[derive(Clone)]
pub(crate) struct Stamps {
    pub(crate) wall: WallClock,
    pub(crate) group: watch::Receiver<GroupState>,
}

type Written = Result<ClientWriteResult<TypeConfig>, oneshot::error::RecvError>;

pub(crate) struct Proposer {
    raft: Raft,
    queue: mpsc::Receiver<Proposal>,
    leadership: watch::Receiver<Option<Leadership>>,
    stamps: Stamps,
    of_node: UnderWay,
    under_way: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Commands in the last entry.
    last: usize,
}

impl Proposer {
    pub(crate) fn new(
        raft: Raft,
        queue: mpsc::Receiver<Proposal>,
        leadership: watch::Receiver<Option<Leadership>>,
        stamps: Stamps,
        of_node: UnderWay,
    ) -> Self {
        Self { raft, queue, leadership, stamps, of_node, under_way: FuturesUnordered::new(), last: 0 }
    }

    /// Runs until the last handle of the group is gone.
    pub(crate) async fn run(mut self) {
        let mut batch = Vec::with_capacity(BATCH_COMMANDS);
        loop {
            // A replica that does not lead answers at once, also while entries of an earlier term are undecided.
            let leads = self.leadership.borrow_and_update().is_some();
            let takes = self.under_way.len() < depth(self.of_node.count(), self.under_way.len(), self.last) || !leads;
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
        self.last = commands.len();
        let on_its_way = self.of_node.one_more();
        let began = Instant::now();
        match write(&self.raft, leads, &self.stamps, &commands).await {
            Ok(written) => self.under_way.push(Box::pin(async move {
                let replies = replies(written.await);
                if replies.is_ok() {
                    histogram!("holdfast_commit_seconds").record(began.elapsed().as_secs_f64());
                }
                drop(on_its_way);
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

/// How many entries may be under way, by how many are on the whole node and of this shard, and what the last one has.
fn depth(of_node: usize, of_shard: usize, last: usize) -> usize {
    if of_node <= of_shard && last <= 1 { DEPTH_ALONE } else { DEPTH }
}

/// Stamps an entry and hands it to openraft. The receiver gets openraft's answer once the entry is applied here.
pub(crate) async fn write(
    raft: &Raft,
    leads: Leadership,
    stamps: &Stamps,
    commands: &[Bytes],
) -> Result<oneshot::Receiver<ClientWriteResult<TypeConfig>>, ProposeError> {
    let wall_ms = stamps.wall.now_ms();
    let now_ms = if is_planted(Plant::WallClock) { wall_ms } else { leads.clock.now_ms() };
    // A group without any is not led yet.
    let rules = stamps.group.borrow().rules.unwrap_or(FIRST_RULES);
    let data = EntryData::commands(rules, now_ms, wall_ms, commands);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_entry_goes_beside_a_single_command_of_a_node_that_has_nothing_else_to_do() {
        assert_eq!(depth(1, 1, 1), DEPTH_ALONE);
        assert_eq!(depth(1, 1, 2), DEPTH, "more arrives than one by one");
        assert_eq!(depth(2, 1, 1), DEPTH, "another shard is at work");
    }

    #[test]
    fn what_is_under_way_counts_until_it_ends() {
        let of_node = UnderWay::default();
        let (first, second) = (of_node.one_more(), of_node.clone().one_more());
        assert_eq!(of_node.count(), 2);
        drop(first);
        assert_eq!(of_node.count(), 1);
        drop(second);
        assert_eq!(of_node.count(), 0);
    }
}
