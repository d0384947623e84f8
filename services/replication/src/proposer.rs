//! Forms entries from the queued commands of a group, while earlier entries are in flight.
//!
//! Self-clocking: no command waits for a timer. An idle group proposes a command as it arrives. A busy group proposes
//! all commands that arrived since the last batch, and those that ready tasks are about to add.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_clock::Clocks;
use holdfast_mutations::{Mutation, is_enabled};
use metrics::{Histogram, histogram};
use openraft::impls::OneshotResponder;
use openraft::raft::ClientWriteResult;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::entry::{EntryData, FIRST_RULES, Section};
use crate::error::{NotLeader, ProposeError};
use crate::leadership::{Leadership, known_leader};
use crate::proposal::Proposal;
use crate::proposal_queue::ProposalQueue;
use crate::reply_sinks::{ReplySinks, SectionSinks};
use crate::rules::GroupState;
use crate::state_machine::StateMachine;
use crate::state_machine_adapter::Raft;
use crate::types::TypeConfig;

/// In-flight entries of a group while other groups of the node have some too. With one in flight, commands that arrive
/// meanwhile form the next entry: a replication round costs much more than its content, and a second one in flight
/// would halve what each carries.
const MAX_IN_FLIGHT: usize = 1;
/// The same while the node has nothing in flight but a one-command entry of this group. A contended lock passes on
/// through consecutive rounds, and commands of other callers need not delay the next one.
const MAX_IN_FLIGHT_ALONE: usize = 2;

/// In-flight entries of all groups of a node. Clones share the count.
#[derive(Clone, Default)]
pub(crate) struct InFlightEntries(Arc<AtomicUsize>);

/// One in-flight entry, until it is dropped.
struct InFlightGuard(Arc<AtomicUsize>);

impl InFlightEntries {
    fn track(&self) -> InFlightGuard {
        self.0.fetch_add(1, Ordering::Relaxed);
        InFlightGuard(Arc::clone(&self.0))
    }

    fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for InFlightGuard {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The source of entries' header values besides the leadership's clock. Clones share it.
#[derive(Clone)]
pub(crate) struct HeaderSource {
    pub(crate) clocks: Clocks,
    pub(crate) group: watch::Receiver<GroupState>,
}

type WriteResult = Result<ClientWriteResult<TypeConfig>, oneshot::error::RecvError>;

pub(crate) struct Proposer {
    raft: Raft,
    queue: Arc<ProposalQueue>,
    machine: Weak<dyn StateMachine>,
    leadership: watch::Receiver<Option<Leadership>>,
    header_source: HeaderSource,
    node_in_flight: InFlightEntries,
    in_flight: FuturesUnordered<BoxFuture<'static, ()>>,
    /// Commands in the last entry.
    last: usize,
    metrics: EntryMetrics,
}

/// The handles of the metrics of every entry: looking them up would cost more than recording.
struct EntryMetrics {
    commands: Histogram,
    shards: Histogram,
    commit_seconds: Histogram,
}

impl EntryMetrics {
    fn new() -> Self {
        Self {
            commands: histogram!("holdfast_entry_commands"),
            shards: histogram!("holdfast_entry_shards"),
            commit_seconds: histogram!("holdfast_commit_seconds"),
        }
    }
}

/// On every exit, queued callers receive an error instead of waiting forever.
impl Drop for Proposer {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Proposer {
    pub(crate) fn new(
        raft: Raft,
        queue: Arc<ProposalQueue>,
        machine: Weak<dyn StateMachine>,
        leadership: watch::Receiver<Option<Leadership>>,
        header_source: HeaderSource,
        node_in_flight: InFlightEntries,
    ) -> Self {
        Self {
            raft,
            queue,
            machine,
            leadership,
            header_source,
            node_in_flight,
            in_flight: FuturesUnordered::new(),
            last: 0,
            metrics: EntryMetrics::new(),
        }
    }

    /// Runs until the last handle of the group is dropped.
    pub(crate) async fn run(mut self) {
        loop {
            // A replica that does not lead rejects commands at once, even while entries of an earlier term are
            // undecided.
            let leads = self.leadership.borrow_and_update().is_some();
            let takes = self.in_flight.len()
                < max_in_flight(self.node_in_flight.count(), self.in_flight.len(), self.last)
                || !leads;
            tokio::select! {
                biased;
                Some(()) = self.in_flight.next(), if !self.in_flight.is_empty() => {}
                is_open = self.queue.wait_ready(leads), if takes => {
                    if !is_open {
                        return;
                    }
                    let batch = self.take_batch(leads);
                    self.propose(batch).await;
                }
                changed = self.leadership.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    /// Takes the commands of the next entry. The state machine is held no longer than that.
    fn take_batch(&self, leads: bool) -> Vec<Proposal> {
        let machine = self.machine.upgrade();
        let machine = machine.as_ref();
        self.queue.take_batch(leads, |shard, account, next| {
            machine.map_or(next.min_units, |machine| machine.price(shard, account, next.kind, next.min_units))
        })
    }

    /// Proposes a batch as one entry.
    async fn propose(&mut self, batch: Vec<Proposal>) {
        let leadership = *self.leadership.borrow();
        let mut sections: BTreeMap<u32, (Vec<Bytes>, SectionSinks)> = BTreeMap::new();
        for proposal in batch {
            if leadership.is_none_or(|leads| leads.term != proposal.term) {
                let _ = proposal.reply.send(Err(self.not_leader(leadership).into()));
            } else if proposal.state.mark_proposed() {
                let (commands, sinks) = sections.entry(proposal.shard).or_default();
                match proposal.command {
                    Some(command) => {
                        commands.push(command);
                        sinks.commands.push(proposal.reply);
                    }
                    None => sinks.ticks.push(proposal.reply),
                }
            }
        }
        if let (Some(leads), false) = (leadership, sections.is_empty()) {
            self.write(leads, sections).await;
        }
    }

    async fn write(&mut self, leads: Leadership, sections: BTreeMap<u32, (Vec<Bytes>, SectionSinks)>) {
        let (sections, sinks): (Vec<Section>, Vec<SectionSinks>) =
            sections.into_iter().map(|(shard, (commands, sinks))| (Section { shard, commands }, sinks)).unzip();
        self.last = sections.iter().map(|section| section.commands.len()).sum();
        self.metrics.commands.record(self.last as f64);
        self.metrics.shards.record(sections.len() as f64);
        let commit_seconds = self.metrics.commit_seconds.clone();
        let on_its_way = self.node_in_flight.track();
        let began = Instant::now();
        let sinks = Arc::new(ReplySinks::new(sinks));
        let data = self.header_source.entry(leads, &sections).with_replies(Arc::clone(&sinks));
        match write(&self.raft, leads.term, data).await {
            Ok(written) => self.in_flight.push(Box::pin(async move {
                match outcome(written.await) {
                    Ok(()) => commit_seconds.record(began.elapsed().as_secs_f64()),
                    Err(_) if is_enabled(Mutation::SinkByIndex) => {}
                    Err(error) => sinks.fail(&error),
                }
                drop(on_its_way);
            })),
            Err(error) => sinks.fail(&error),
        }
    }

    fn not_leader(&self, leadership: Option<Leadership>) -> NotLeader {
        match leadership {
            Some(leads) => NotLeader { leader: Some(*self.raft.node_id()), term: leads.term },
            None => known_leader(&self.raft),
        }
    }
}

/// Returns the limit of in-flight entries, given how many the node and this group have, and the size of the last entry.
fn max_in_flight(of_node: usize, of_group: usize, last: usize) -> usize {
    if of_node <= of_group && last <= 1 { MAX_IN_FLIGHT_ALONE } else { MAX_IN_FLIGHT }
}

impl HeaderSource {
    /// Returns an entry with these sections that the leader stamps now.
    fn entry(&self, leads: Leadership, sections: &[Section]) -> EntryData {
        let wall_ms = self.clocks.wall_ms();
        let now_ms = if is_enabled(Mutation::WallClock) { wall_ms } else { leads.clock.now_ms() };
        // A group without rules has no leader yet.
        let rules = self.group.borrow().rules.unwrap_or(FIRST_RULES);
        EntryData::commands(rules, now_ms, wall_ms, sections)
    }
}

/// Passes an entry to openraft. The receiver gets openraft's result once the entry is
/// committed, and each of its sections is applied or queued here.
pub(crate) async fn write(
    raft: &Raft,
    term: u64,
    data: EntryData,
) -> Result<oneshot::Receiver<ClientWriteResult<TypeConfig>>, ProposeError> {
    let (responder, written) = OneshotResponder::new_pair();
    match raft.write(data).with_leader(term).responder(responder).await {
        Ok(()) => Ok(written),
        Err(_) => Err(ProposeError::Unknown("the replica is stopping")),
    }
}

/// Maps openraft's result to the outcome of the whole entry.
pub(crate) fn outcome(result: WriteResult) -> Result<(), ProposeError> {
    use openraft::errors::ClientWriteError;
    match result.map_err(|_| ProposeError::Unknown("the replica stopped"))? {
        Ok(_) => Ok(()),
        Err(ClientWriteError::ForwardToLeader(_)) => Err(NotLeader { leader: None, term: 0 }.into()),
        Err(_) => Err(ProposeError::Unknown("the entry was discarded by another leader")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_entry_goes_beside_a_single_command_of_a_node_that_has_nothing_else_to_do() {
        assert_eq!(max_in_flight(1, 1, 1), MAX_IN_FLIGHT_ALONE);
        assert_eq!(max_in_flight(1, 1, 2), MAX_IN_FLIGHT, "more arrives than one by one");
        assert_eq!(max_in_flight(2, 1, 1), MAX_IN_FLIGHT, "another group is at work");
    }

    #[test]
    fn what_is_under_way_counts_until_it_ends() {
        let of_node = InFlightEntries::default();
        let (first, second) = (of_node.track(), of_node.clone().track());
        assert_eq!(of_node.count(), 2);
        drop(first);
        assert_eq!(of_node.count(), 1);
        drop(second);
        assert_eq!(of_node.count(), 0);
    }
}
