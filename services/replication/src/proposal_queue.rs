//! Commands queued for an entry: taken from all accounts in equal shares of the group's work.

use std::collections::HashSet;

use holdfast_mutations::{Mutation, is_enabled};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::task::yield_now;

use crate::apply_queue::ApplyQueues;
use crate::entry_batch::EntryBatch;
use crate::error::ProposeError;
use crate::proposal::Proposal;
use crate::proposal_lanes::{ProposalLanes, QUEUE_IS_FULL};

struct State {
    lanes: ProposalLanes,
    is_closed: bool,
}

/// The queue of a group. Any number of tasks push; the proposer pops.
pub(crate) struct ProposalQueue {
    state: Mutex<State>,
    pushed: Notify,
    /// A shard that has something to apply gets nothing more until that is done.
    applying: ApplyQueues,
}

impl ProposalQueue {
    pub(crate) fn new(applying: ApplyQueues) -> Self {
        let state = State { lanes: ProposalLanes::new(), is_closed: false };
        Self { state: Mutex::new(state), pushed: Notify::new(), applying }
    }

    /// Queues a command in a lane of its account or, for the leader's own, ahead of all lanes. If the queue is full, a
    /// command of a smaller lane displaces the newest ones of larger lanes, which fail.
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
                let account = if is_enabled(Mutation::OneLane) { u64::MAX } else { account };
                state.lanes.push(account, proposal).map_err(ProposeError::Limited)
            }
            None => state.lanes.push_own(proposal).map(|()| Vec::new()),
        };
        drop(state);
        self.pushed.notify_one();
        for evicted in pushed? {
            let _ = evicted.reply.send(Err(ProposeError::Limited(QUEUE_IS_FULL)));
        }
        Ok(())
    }

    /// Waits until there is a command for a shard that has nothing to apply, and until ready tasks have added theirs.
    /// Returns false once the queue is closed. A replica that does not lead takes those for all shards. Cancellation loses
    /// nothing.
    pub(crate) async fn wait_ready(&self, leads: bool) -> bool {
        let is_ready = match self.is_ready(leads) {
            Some(is_ready) => is_ready,
            None => self.wait_changed(leads).await,
        };
        if !is_ready {
            return false;
        }
        // A thread of the runtime runs a task that was just woken before tasks that were ready earlier. Without this,
        // an entry would have only the first command of a burst, and it costs much the same with one as with many.
        yield_now().await;
        true
    }

    async fn wait_changed(&self, leads: bool) -> bool {
        let mut progress = self.applying.progress();
        loop {
            progress.borrow_and_update();
            if let Some(is_ready) = self.is_ready(leads) {
                return is_ready;
            }
            tokio::select! {
                () = self.pushed.notified() => {}
                _ = progress.changed() => {}
            }
        }
    }

    /// Returns true if there is a command to take, false if there will never be one, and `None` for neither.
    fn is_ready(&self, leads: bool) -> Option<bool> {
        let busy = self.busy_shards(leads);
        let state = self.state.lock();
        if state.is_closed {
            return Some(false);
        }
        state.lanes.has_any(&busy).then_some(true)
    }

    fn busy_shards(&self, leads: bool) -> HashSet<u32> {
        if leads { self.applying.busy_shards() } else { HashSet::new() }
    }

    /// Takes the commands of one entry: the leader's own, up to half of the entry, then accounts' commands in equal
    /// shares. Those for shards that have something to apply stay, unless this replica does not lead. `price` returns the
    /// expected cost of an account's command for a shard.
    pub(crate) fn take_batch(&self, leads: bool, price: impl Fn(u32, u64, &Proposal) -> u64) -> Vec<Proposal> {
        let busy = self.busy_shards(leads);
        let mut state = self.state.lock();
        let mut batch = EntryBatch::default();
        state.lanes.take_own(&mut batch, &busy);
        let served = state.lanes.take(&mut batch, &busy, price);
        let mut proposals = batch.into_own();
        proposals.extend(served);
        proposals
    }

    /// Returns the number of queued commands of a shard.
    pub(crate) fn len_of(&self, shard: u32) -> usize {
        self.state.lock().lanes.len_of(shard)
    }

    /// Rejects further commands and drops the queued ones; their callers receive the error that the replica stopped.
    pub(crate) fn close(&self) {
        let waiting = {
            let mut state = self.state.lock();
            state.is_closed = true;
            std::mem::replace(&mut state.lanes, ProposalLanes::new())
        };
        drop(waiting);
        self.pushed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::applied::AppliedIndex;
    use crate::apply_queue::{QueuedSection, SectionCallers, SectionSize};
    use crate::entry_batch::{MAX_BATCH_COMMANDS_OF_ACCOUNT, MAX_BATCH_COMMANDS_OF_SHARD, MAX_BATCH_UNITS};
    use crate::proposal::{ProposalResult, ProposalState};
    use crate::proposal_lanes::{LANE_IS_FULL, MIN_COMMANDS_OF_ACCOUNT, SHARD_IS_FULL};

    fn queue() -> ProposalQueue {
        ProposalQueue::new(ApplyQueues::new(AppliedIndex::default()))
    }

    fn proposal(shard: u32, units: u64) -> (Proposal, oneshot::Receiver<ProposalResult>) {
        let (reply, answered) = oneshot::channel();
        let command = Some(Bytes::from_static(b"command"));
        let state = ProposalState::default();
        (Proposal { shard, term: 1, command, kind: 0, min_units: units, state, reply }, answered)
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
        let batch = queue.take_batch(true, |_, _, next| next.min_units);
        let mut counts = std::collections::BTreeMap::<u32, usize>::new();
        for proposal in batch {
            *counts.entry(proposal.shard).or_default() += 1;
        }
        counts.into_iter().collect()
    }

    #[test]
    fn a_full_shard_holds_up_no_other() {
        let queue = queue();
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
        let queue = queue();
        let loud = fill(&queue, 1, 1, 300, 1);
        let quiet = fill(&queue, 2, 1, 200, 1);
        assert_eq!(next_entry(&queue), [(1, 2 * MAX_BATCH_COMMANDS_OF_ACCOUNT)]);
        drop((loud, quiet));
    }

    #[test]
    fn costly_commands_of_one_shard_leave_half_of_the_entry_to_others() {
        let queue = queue();
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
        let queue = queue();
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
        let queue = queue();
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
        assert!(queue.state.lock().lanes.is_empty());
        let again = fill(&queue, 3, 1, 1_024, 1);
        drop((full, few, others, again));
    }

    #[test]
    fn an_account_whose_lane_is_full_is_refused_and_another_is_served() {
        let queue = queue();
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
        let queue = queue();
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
        let queue = queue();
        let (cancelled, _answered) = proposal(1, 1);
        assert!(cancelled.state.cancel());
        queue.push(Some(1), cancelled).unwrap();
        let wanted = fill(&queue, 1, 1, 1, 1);
        assert_eq!(next_entry(&queue), [(1, 1)]);
        assert_eq!(queue.len_of(1), 0);
        drop(wanted);
    }

    /// A section that takes one slice after the other.
    async fn make_busy(queue: &ProposalQueue, shard: u32) {
        let (apply, callers) = (futures::future::pending().boxed(), SectionCallers(None));
        let section = QueuedSection { shard, index: 1, size: SectionSize::default(), apply, callers };
        queue.applying.push(section).await.unwrap();
    }

    #[tokio::test]
    async fn commands_for_a_busy_shard_stay_and_those_of_the_same_account_for_others_go() {
        let queue = queue();
        make_busy(&queue, 1).await;
        let stay = fill(&queue, 1, 1, 3, 1);
        queue.push(None, proposal(1, 1).0).unwrap();
        assert_eq!(queue.is_ready(true), None, "it can't be served");
        let others = fill(&queue, 1, 2, 2, 1);
        queue.push(None, proposal(3, 1).0).unwrap();
        assert_eq!(queue.is_ready(true), Some(true));
        assert_eq!(next_entry(&queue), [(2, 2), (3, 1)]);
        assert_eq!((queue.len_of(1), next_entry(&queue)), (4, vec![]));
        let refused = queue.take_batch(false, |_, _, next| next.min_units);
        assert_eq!(refused.len(), 4, "a replica that does not lead refuses all");
        assert!(queue.state.lock().lanes.is_empty());
        drop((stay, others));
    }

    #[tokio::test]
    async fn what_is_cancelled_for_a_busy_shard_leaves_the_account_its_share_of_the_queue() {
        let queue = queue();
        make_busy(&queue, 1).await;
        let callers = fill(&queue, 1, 1, LANE_IS_FULL.max - 1, 1);
        let (cancelled, _answered) = proposal(1, 1);
        let state = cancelled.state.clone();
        queue.push(Some(1), cancelled).unwrap();
        let refused = queue.push(Some(1), proposal(2, 1).0).unwrap_err();
        assert_eq!(refused, ProposeError::Limited(LANE_IS_FULL));
        assert!(state.cancel());
        let others = (0..64).find_map(|_| {
            let (next, answered) = proposal(2, 1);
            queue.push(Some(1), next).is_ok().then_some(answered)
        });
        let others = others.expect("what is cancelled makes room");
        assert_eq!((next_entry(&queue), queue.len_of(1)), (vec![(2, 1)], LANE_IS_FULL.max - 1));
        drop((callers, others));
    }

    #[test]
    fn an_account_in_many_shards_has_the_share_of_one_account() {
        let queue = queue();
        let units = 100;
        let many: Vec<_> = (0..8).map(|shard| fill(&queue, 1, shard, 64, units)).collect();
        let one = fill(&queue, 2, 20, 128, units);
        let (mut of_many, mut of_one) = (0, 0);
        for _ in 0..2 {
            let entry = next_entry(&queue);
            of_one += entry.iter().filter(|(shard, _)| *shard == 20).map(|(_, count)| count).sum::<usize>();
            of_many += entry.iter().filter(|(shard, _)| *shard != 20).map(|(_, count)| count).sum::<usize>();
        }
        assert!(of_many.abs_diff(of_one) <= 16, "{of_many} commands beside {of_one}");
        drop((many, one));
    }
}
