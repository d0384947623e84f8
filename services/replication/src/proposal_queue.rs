//! Commands queued for an entry: a lane for each account, served in equal shares of the shard's work.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};

use holdfast_fair_queue::{Decision, FairQueue, Full, QueueLimits};
use holdfast_mutations::{Mutation, is_enabled};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::entry_batch::{EntryBatch, MAX_BATCH_COMMANDS_OF_ACCOUNT, MAX_BATCH_UNITS};
use crate::error::{ProposeError, QueueLimit};
use crate::proposal::Proposal;

/// Minimum bytes that a command counts for in the queue.
const MIN_COMMAND_BYTES: usize = 4 * 1024;
/// 16,384 small commands, 1,024 of one account.
const LIMITS: QueueLimits = QueueLimits { total: 64 * 1024 * 1024, lane: 4 * 1024 * 1024 };
/// Queued commands of accounts for one shard, beyond which it takes only those of accounts with few of them: 2,048 small
/// ones. A shard that stands still leaves the queue of its group to the others.
const MAX_BYTES_OF_SHARD: usize = 8 * 1024 * 1024;
/// Commands of an account that a shard takes all the same: as many as one entry.
const MIN_COMMANDS_OF_ACCOUNT: usize = MAX_BATCH_COMMANDS_OF_ACCOUNT;
/// Queued commands of the leader itself; it has few, each after the other.
const MAX_OWN_COMMANDS: usize = 1_024;

const LANE_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands of an account in the queue of a group, and their size in units of 4 KiB,",
    max: LIMITS.lane / MIN_COMMAND_BYTES,
};
const SHARD_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands for a shard in the queue of its group, and their size in units of 4 KiB,",
    max: MAX_BYTES_OF_SHARD / MIN_COMMAND_BYTES,
};
const QUEUE_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands in the queue of a group, and their size in units of 4 KiB,",
    max: LIMITS.total / MIN_COMMAND_BYTES,
};
const OWN_QUEUE_IS_FULL: &str = "the leader's own commands wait already; try again later";
/// What may wait for the log of a group: commands of an account, of a shard, and all.
pub const QUEUE_LIMITS: [QueueLimit; 3] = [LANE_IS_FULL, SHARD_IS_FULL, QUEUE_IS_FULL];

struct State {
    /// Commands of the leader itself, on behalf of all accounts.
    own: VecDeque<Proposal>,
    queue: FairQueue<u64, QueuedProposal>,
    /// What each shard has in both.
    of_shard: HashMap<u32, ShardQueue>,
    is_closed: bool,
}

/// A command in the lane of its account.
struct QueuedProposal {
    lane: u64,
    proposal: Proposal,
}

impl QueuedProposal {
    /// Returns the bytes that it counts for.
    fn counted_bytes(&self) -> usize {
        self.proposal.bytes().max(MIN_COMMAND_BYTES)
    }
}

/// The queued commands of one shard.
#[derive(Default)]
struct ShardQueue {
    /// Of the leader itself, and of accounts.
    commands: usize,
    /// Of accounts.
    bytes: usize,
    lanes: HashMap<u64, usize>,
}

impl ShardQueue {
    /// Returns whether it takes another command of the account.
    fn admits(&self, queued: &QueuedProposal) -> bool {
        self.bytes + queued.counted_bytes() <= MAX_BYTES_OF_SHARD
            || self.lanes.get(&queued.lane).is_none_or(|commands| *commands < MIN_COMMANDS_OF_ACCOUNT)
    }
}

impl State {
    /// Queues a command in the lane of its account; returns those that made room.
    fn push(&mut self, queued: QueuedProposal) -> Result<Vec<QueuedProposal>, QueueLimit> {
        let (lane, shard, bytes) = (queued.lane, queued.proposal.shard, queued.counted_bytes());
        if self.of_shard.get(&shard).is_some_and(|of_shard| !of_shard.admits(&queued)) {
            return Err(SHARD_IS_FULL);
        }
        let evicted = self.queue.push(lane, bytes, queued).map_err(|full| match full {
            Full::Lane => LANE_IS_FULL,
            Full::Queue => QUEUE_IS_FULL,
        })?;
        let of_shard = self.of_shard.entry(shard).or_default();
        of_shard.commands += 1;
        of_shard.bytes += bytes;
        *of_shard.lanes.entry(lane).or_default() += 1;
        evicted.iter().for_each(|evicted| self.uncount(evicted.proposal.shard, evicted.lane, evicted.counted_bytes()));
        Ok(evicted)
    }

    /// Notes that a command of an account has left the queue.
    fn uncount(&mut self, shard: u32, lane: u64, bytes: usize) {
        let Entry::Occupied(mut of_shard) = self.of_shard.entry(shard) else { return };
        let counts = of_shard.get_mut();
        counts.commands -= 1;
        counts.bytes -= bytes;
        if let Entry::Occupied(mut commands) = counts.lanes.entry(lane) {
            *commands.get_mut() -= 1;
            if *commands.get() == 0 {
                commands.remove();
            }
        }
        if counts.commands == 0 {
            of_shard.remove();
        }
    }

    fn push_own(&mut self, proposal: Proposal) -> Result<(), ProposeError> {
        if self.own.len() >= MAX_OWN_COMMANDS {
            return Err(ProposeError::NotProposed(OWN_QUEUE_IS_FULL));
        }
        self.of_shard.entry(proposal.shard).or_default().commands += 1;
        self.own.push_back(proposal);
        Ok(())
    }

    fn pop_own(&mut self) -> Option<Proposal> {
        let next = self.own.pop_front()?;
        if let Entry::Occupied(mut of_shard) = self.of_shard.entry(next.shard) {
            of_shard.get_mut().commands -= 1;
            if of_shard.get().commands == 0 {
                of_shard.remove();
            }
        }
        Some(next)
    }
}

/// The queue of a group. Any number of tasks push; the proposer pops.
pub(crate) struct ProposalQueue {
    state: Mutex<State>,
    pushed: Notify,
}

impl ProposalQueue {
    pub(crate) fn new() -> Self {
        let state =
            State { own: VecDeque::new(), queue: FairQueue::new(LIMITS), of_shard: HashMap::new(), is_closed: false };
        Self { state: Mutex::new(state), pushed: Notify::new() }
    }

    /// Queues a command in its account's lane or, for the leader's own, ahead of all lanes. If the queue is full, a command of
    /// a smaller lane displaces the newest ones of larger lanes, which fail.
    ///
    /// # Errors
    /// `Limited`: the account, the shard or the group has too much queued. `NotProposed`: so has the leader itself, or the
    /// replica is stopping.
    pub(crate) fn push(&self, account: Option<u64>, proposal: Proposal) -> Result<(), ProposeError> {
        let mut state = self.state.lock();
        if state.is_closed {
            return Err(ProposeError::NotProposed("the replica is stopping"));
        }
        let pushed = match account {
            Some(account) => {
                let lane = if is_enabled(Mutation::OneLane) { u64::MAX } else { account };
                state.push(QueuedProposal { lane, proposal }).map_err(ProposeError::Limited)
            }
            None => state.push_own(proposal).map(|()| Vec::new()),
        };
        drop(state);
        self.pushed.notify_one();
        for evicted in pushed? {
            let _ = evicted.proposal.reply.send(Err(ProposeError::Limited(QUEUE_IS_FULL)));
        }
        Ok(())
    }

    /// Waits until there is a command, and until ready tasks have added theirs. Returns false once the queue is closed.
    /// Cancellation loses nothing.
    pub(crate) async fn wait_nonempty(&self) -> bool {
        loop {
            let (is_empty, is_closed) = {
                let state = self.state.lock();
                (state.queue.is_empty() && state.own.is_empty(), state.is_closed)
            };
            if is_closed {
                return false;
            }
            if !is_empty {
                break;
            }
            self.pushed.notified().await;
        }
        // A thread of the runtime runs a task that was just woken before tasks that were ready earlier. Without this,
        // an entry would have only the first command of a burst, and it costs much the same with one as with many.
        yield_now().await;
        true
    }

    /// Takes the commands of one entry: the leader's own, up to half of the entry, then accounts' commands in equal
    /// shares. `price` returns the expected cost of an account's command for a shard, given its minimum cost.
    pub(crate) fn take_batch(&self, price: impl Fn(u32, u64, u64) -> u64) -> Vec<Proposal> {
        let mut state = self.state.lock();
        let mut batch = EntryBatch::default();
        while let Some(next) = state.own.front() {
            let units = next.min_units;
            if !next.state.is_cancelled() && !batch.fits_own(next, units) {
                break;
            }
            batch.add_own(state.pop_own(), units);
        }
        let mut cancelled = Vec::new();
        let served = state.queue.serve(|account, queued| {
            let next = &queued.proposal;
            if next.state.is_cancelled() {
                // The caller has its result, and the account is not charged.
                cancelled.push((next.shard, queued.lane, queued.counted_bytes()));
                return Decision::Drop;
            }
            // An estimate that is too high costs the account no more than one entry of the others.
            let units = price(next.shard, account, next.min_units).clamp(1, MAX_BATCH_UNITS);
            if !batch.fits(next, units) {
                return Decision::Stop;
            }
            if !batch.admits(next.shard, account, units) {
                // A full shard holds up the lanes that have a command for it next, and no other.
                return Decision::PassOver;
            }
            batch.count(next, units);
            Decision::Serve(units)
        });
        let left = served.iter().map(|queued| (queued.proposal.shard, queued.lane, queued.counted_bytes()));
        for (shard, lane, bytes) in left.chain(cancelled) {
            state.uncount(shard, lane, bytes);
        }
        let mut proposals = batch.into_own();
        proposals.extend(served.into_iter().map(|queued| queued.proposal));
        proposals
    }

    /// Returns the number of queued commands of a shard.
    pub(crate) fn len_of(&self, shard: u32) -> usize {
        self.state.lock().of_shard.get(&shard).map_or(0, |of_shard| of_shard.commands)
    }

    /// Rejects further commands and drops the queued ones; their callers receive the error that the replica stopped.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_closed = true;
            state.of_shard.clear();
            (std::mem::take(&mut state.own), std::mem::replace(&mut state.queue, FairQueue::new(LIMITS)))
        };
        drop(waiting);
        self.pushed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use tokio::sync::oneshot;

    use super::*;
    use crate::entry_batch::MAX_BATCH_COMMANDS_OF_SHARD;
    use crate::proposal::{ProposalResult, ProposalState};

    fn proposal(shard: u32, units: u64) -> (Proposal, oneshot::Receiver<ProposalResult>) {
        let (reply, answered) = oneshot::channel();
        let command = Some(Bytes::from_static(b"command"));
        (Proposal { shard, term: 1, command, min_units: units, state: ProposalState::default(), reply }, answered)
    }

    /// Queues so many commands of an account for a shard. They stay wanted as long as the result lives.
    fn fill(
        queue: &ProposalQueue,
        account: u64,
        shard: u32,
        count: usize,
        units: u64,
    ) -> Vec<oneshot::Receiver<ProposalResult>> {
        let push = |_| {
            let (proposal, answered) = proposal(shard, units);
            queue.push(Some(account), proposal).unwrap();
            answered
        };
        (0..count).map(push).collect()
    }

    /// The commands of the next entry, counted by shard.
    fn next_entry(queue: &ProposalQueue) -> Vec<(u32, usize)> {
        let batch = queue.take_batch(|_, _, units| units);
        let mut counts = std::collections::BTreeMap::<u32, usize>::new();
        for proposal in batch {
            *counts.entry(proposal.shard).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn a_full_shard_holds_up_no_other() {
        let queue = ProposalQueue::new();
        let many: Vec<_> = (0..6).map(|account| fill(&queue, account, 1, 128, 1)).collect();
        let few = fill(&queue, 10, 2, 128, 1);
        assert_eq!(next_entry(&queue), [(1, MAX_BATCH_COMMANDS_OF_SHARD), (2, 128)]);
        assert_eq!(queue.len_of(1), 6 * 128 - MAX_BATCH_COMMANDS_OF_SHARD);
        assert_eq!(next_entry(&queue), [(1, 6 * 128 - MAX_BATCH_COMMANDS_OF_SHARD)]);
        assert_eq!((queue.len_of(1), queue.len_of(2)), (0, 0));
        drop((many, few));
    }

    #[test]
    fn an_account_at_its_limit_holds_up_no_other() {
        let queue = ProposalQueue::new();
        let loud = fill(&queue, 1, 1, 300, 1);
        let quiet = fill(&queue, 2, 1, 200, 1);
        assert_eq!(next_entry(&queue), [(1, 2 * MAX_BATCH_COMMANDS_OF_ACCOUNT)]);
        drop((loud, quiet));
    }

    #[test]
    fn costly_commands_of_one_shard_leave_half_of_the_entry_to_others() {
        let queue = ProposalQueue::new();
        let costly: Vec<_> = (0..4).map(|account| fill(&queue, account, 1, 4, 1_024)).collect();
        let others = fill(&queue, 10, 2, 4, 1_024);
        assert_eq!(next_entry(&queue), [(1, 4), (2, 4)]);
        // A single command may cost more than its shard's part.
        let huge = fill(&queue, 11, 3, 1, MAX_BATCH_UNITS);
        drop(next_entry(&queue));
        drop((costly, others, huge));
    }

    #[test]
    fn a_command_as_costly_as_an_entry_goes_beside_those_of_the_leader() {
        let queue = ProposalQueue::new();
        let callers = (fill(&queue, 1, 1, 1, MAX_BATCH_UNITS), fill(&queue, 2, 2, 1, 1));
        // The leader has a command of its own for every entry.
        for _ in 0..2 {
            let (tick, _ticked) = proposal(3, 1);
            queue.push(None, tick).unwrap();
            assert!(next_entry(&queue).len() >= 2);
        }
        assert_eq!((queue.len_of(1), queue.len_of(2)), (0, 0));
        drop(callers);
    }

    #[test]
    fn a_shard_whose_queue_is_full_takes_only_from_accounts_with_few_commands_and_others_take_all() {
        let queue = ProposalQueue::new();
        // Two accounts fill the queue of the shard.
        let full: Vec<_> = (1..=2).map(|account| fill(&queue, account, 1, 1_024, 1)).collect();
        assert_eq!(queue.len_of(1), 2_048);
        let few = fill(&queue, 3, 1, MIN_COMMANDS_OF_ACCOUNT, 1);
        let refused = queue.push(Some(3), proposal(1, 1).0).unwrap_err();
        assert_eq!(refused, ProposeError::Limited(SHARD_IS_FULL));
        let others = fill(&queue, 3, 2, 512, 1);
        // The leader's own commands have room of their own.
        queue.push(None, proposal(1, 1).0).unwrap();
        while !next_entry(&queue).is_empty() {}
        assert_eq!((queue.len_of(1), queue.len_of(2)), (0, 0));
        assert!(queue.state.lock().of_shard.is_empty());
        let again = fill(&queue, 3, 1, 1_024, 1);
        drop((full, few, others, again));
    }

    #[test]
    fn an_account_whose_lane_is_full_is_refused_and_another_is_served() {
        let queue = ProposalQueue::new();
        let max = LANE_IS_FULL.max;
        let full = fill(&queue, 1, 1, max, 1);
        let refused = queue.push(Some(1), proposal(2, 1).0).unwrap_err();
        assert_eq!((refused, max), (ProposeError::Limited(LANE_IS_FULL), 1_024));
        let others = fill(&queue, 2, 2, 1, 1);
        assert_eq!(next_entry(&queue).last(), Some(&(2, 1)));
        drop((full, others));
    }

    #[test]
    fn a_full_queue_refuses_whoever_has_most_and_takes_from_others() {
        let queue = ProposalQueue::new();
        // Each account has as much as it may, in a shard of its own.
        let accounts = QUEUE_IS_FULL.max / LANE_IS_FULL.max;
        let mut full: Vec<_> = (0..accounts)
            .flat_map(|account| fill(&queue, account as u64, account as u32, LANE_IS_FULL.max, 1))
            .collect();
        let others = fill(&queue, 100, 100, 1, 1);
        let refused = full.iter_mut().filter_map(|answered| answered.try_recv().ok()).collect::<Vec<_>>();
        assert_eq!(refused, [Err(ProposeError::Limited(QUEUE_IS_FULL))], "the newest of a full lane gave way");
        assert_eq!(queue.len_of(100), 1);
        drop((full, others));
    }

    #[test]
    fn cancelled_commands_leave_the_queue_and_take_no_room() {
        let queue = ProposalQueue::new();
        let (cancelled, _answered) = proposal(1, 1);
        assert!(cancelled.state.cancel());
        queue.push(Some(1), cancelled).unwrap();
        let wanted = fill(&queue, 1, 1, 1, 1);
        assert_eq!(next_entry(&queue), [(1, 1)]);
        assert_eq!(queue.len_of(1), 0);
        drop(wanted);
    }
}
