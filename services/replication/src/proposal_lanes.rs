//! What is queued for the log of a group: for each account and shard a lane.
//!
//! An account shares the log with the others as one, in however many shards it has something: it pays for each command
//! as many times as it has lanes. Only when the queue of the group is full, lanes are compared one by one: the newest
//! command of the largest makes room.

use std::collections::hash_map::Entry;
use std::collections::{HashSet, VecDeque};

use holdfast_fair_queue::{Decision, FairQueue, Full, KeyMap, QueueLimits};

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
pub(crate) const MIN_COMMANDS_OF_ACCOUNT: usize = MAX_BATCH_COMMANDS_OF_ACCOUNT;
/// Queued commands of the leader itself; it has few, each after the other.
const MAX_OWN_COMMANDS: usize = 1_024;

pub(crate) const LANE_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands of an account in the queue of a group, and their size in units of 4 KiB,",
    max: LIMITS.lane / MIN_COMMAND_BYTES,
};
pub(crate) const SHARD_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands for a shard in the queue of its group, and their size in units of 4 KiB,",
    max: MAX_BYTES_OF_SHARD / MIN_COMMAND_BYTES,
};
pub(crate) const QUEUE_IS_FULL: QueueLimit = QueueLimit {
    what: "the number of commands in the queue of a group, and their size in units of 4 KiB,",
    max: LIMITS.total / MIN_COMMAND_BYTES,
};
/// Of so many commands of an account that find no room, one looks for those that are cancelled.
const LOOKS_APART: u32 = 16;
const OWN_QUEUE_IS_FULL: &str = "the leader's own commands wait already; try again later";
/// What may wait for the log of a group: commands of an account, of a shard, and all.
pub const QUEUE_LIMITS: [QueueLimit; 3] = [LANE_IS_FULL, SHARD_IS_FULL, QUEUE_IS_FULL];

/// The lane of an account for a shard.
type LaneKey = (u64, u32);

/// Commands that wait for their entry.
pub(crate) struct ProposalLanes {
    /// Commands of the leader itself, on behalf of all accounts.
    own: VecDeque<Proposal>,
    queue: FairQueue<LaneKey, QueuedProposal>,
    counts: Counts,
    /// Shards whose lanes are parked: they were busy.
    parked: HashSet<u32>,
}

/// What is queued.
#[derive(Default)]
struct Counts {
    /// Of the leader itself, and of accounts.
    of_shard: KeyMap<u32, ShardQueue>,
    of_account: KeyMap<u64, AccountQueue>,
}

/// A command in the lane of its account.
struct QueuedProposal {
    account: u64,
    proposal: Proposal,
}

impl QueuedProposal {
    fn new(account: u64, proposal: Proposal) -> Self {
        Self { account, proposal }
    }

    /// Returns the bytes that it counts for.
    fn counted_bytes(&self) -> usize {
        self.proposal.bytes().max(MIN_COMMAND_BYTES)
    }

    fn origin(&self) -> Origin {
        Origin { account: self.account, shard: self.proposal.shard, bytes: self.counted_bytes() }
    }
}

/// Where a queued command counts, and for how many bytes.
#[derive(Clone, Copy)]
struct Origin {
    account: u64,
    shard: u32,
    bytes: usize,
}

/// The queued commands of one shard.
#[derive(Default)]
struct ShardQueue {
    /// Of the leader itself, and of accounts.
    commands: usize,
    /// Of accounts.
    bytes: usize,
    lanes: KeyMap<u64, usize>,
}

impl ShardQueue {
    /// Returns whether it takes another command of the account.
    fn admits(&self, next: Origin) -> bool {
        self.bytes + next.bytes <= MAX_BYTES_OF_SHARD
            || self.lanes.get(&next.account).is_none_or(|commands| *commands < MIN_COMMANDS_OF_ACCOUNT)
    }
}

/// The queued commands of one account.
#[derive(Default)]
struct AccountQueue {
    bytes: usize,
    lanes: u64,
    /// Commands that found no room.
    refused: u32,
}

impl Counts {
    fn has_capacity(&self, next: Origin) -> bool {
        self.of_account.get(&next.account).is_none_or(|of_account| of_account.bytes + next.bytes <= LIMITS.lane)
    }

    /// Returns the number of lanes of an account, without those for busy shards.
    fn lanes(&self, account: u64, busy: &HashSet<u32>) -> u64 {
        let waits = |shard: &&u32| self.of_shard.get(shard).is_some_and(|queue| queue.lanes.contains_key(&account));
        let waiting = busy.iter().filter(waits).count() as u64;
        self.of_account.get(&account).map_or(1, |of_account| of_account.lanes.saturating_sub(waiting).max(1))
    }

    fn count(&mut self, Origin { account, shard, bytes }: Origin) {
        let of_account = self.of_account.entry(account).or_default();
        of_account.bytes += bytes;
        let of_shard = self.of_shard.entry(shard).or_default();
        of_shard.commands += 1;
        of_shard.bytes += bytes;
        let commands = of_shard.lanes.entry(account).or_default();
        of_account.lanes += u64::from(*commands == 0);
        *commands += 1;
    }

    /// Notes that a command of an account has left the queue.
    fn uncount(&mut self, Origin { account, shard, bytes }: Origin) {
        let (Entry::Occupied(mut of_shard), Entry::Occupied(mut of_account)) =
            (self.of_shard.entry(shard), self.of_account.entry(account))
        else {
            return;
        };
        let (counts, sums) = (of_shard.get_mut(), of_account.get_mut());
        counts.commands -= 1;
        counts.bytes -= bytes;
        sums.bytes -= bytes;
        if let Entry::Occupied(mut commands) = counts.lanes.entry(account) {
            *commands.get_mut() -= 1;
            if *commands.get() == 0 {
                commands.remove();
                sums.lanes -= 1;
            }
        }
        if counts.commands == 0 {
            of_shard.remove();
        }
        if of_account.get().lanes == 0 {
            of_account.remove();
        }
    }
}

impl ProposalLanes {
    pub(crate) fn new() -> Self {
        Self { own: VecDeque::new(), queue: FairQueue::new(LIMITS), counts: Counts::default(), parked: HashSet::new() }
    }

    /// Returns true if a shard that is not busy has a command.
    pub(crate) fn has_any(&self, busy: &HashSet<u32>) -> bool {
        self.counts.of_shard.keys().any(|shard| !busy.contains(shard))
    }

    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.counts.of_shard.is_empty() && self.counts.of_account.is_empty()
    }

    /// Returns the number of commands of a shard.
    pub(crate) fn len_of(&self, shard: u32) -> usize {
        self.counts.of_shard.get(&shard).map_or(0, |of_shard| of_shard.commands)
    }

    /// Queues a command of an account; returns those that made room.
    pub(crate) fn push(&mut self, account: u64, proposal: Proposal) -> Result<Vec<Proposal>, QueueLimit> {
        let queued = QueuedProposal::new(account, proposal);
        let origin @ Origin { shard, bytes, .. } = queued.origin();
        if self.counts.of_shard.get(&shard).is_some_and(|of_shard| !of_shard.admits(origin)) {
            return Err(SHARD_IS_FULL);
        }
        if !self.counts.has_capacity(origin) {
            self.drop_cancelled(account);
            if !self.counts.has_capacity(origin) {
                return Err(LANE_IS_FULL);
            }
        }
        let evicted = self.queue.push((account, shard), bytes, queued).map_err(|full| match full {
            Full::Lane => LANE_IS_FULL,
            Full::Queue => QUEUE_IS_FULL,
        })?;
        self.counts.count(origin);
        evicted.iter().for_each(|evicted| self.counts.uncount(evicted.origin()));
        Ok(evicted.into_iter().map(|evicted| evicted.proposal).collect())
    }

    /// Makes room for an account in the place of what it has cancelled: a shard that stands still would take the share of
    /// all. Looks only now and then.
    fn drop_cancelled(&mut self, account: u64) {
        let Some(of_account) = self.counts.of_account.get_mut(&account) else { return };
        of_account.refused = of_account.refused.wrapping_add(1);
        if of_account.refused % LOOKS_APART != 1 {
            return;
        }
        let mut cancelled = Vec::new();
        let shards = self.counts.of_shard.iter().filter(|(_, of_shard)| of_shard.lanes.contains_key(&account));
        for (shard, _) in shards {
            self.queue.retain((account, *shard), |queued| {
                let is_cancelled = queued.proposal.state.is_cancelled();
                cancelled.extend(is_cancelled.then(|| queued.origin()));
                !is_cancelled
            });
        }
        cancelled.into_iter().for_each(|origin| self.counts.uncount(origin));
    }

    /// Queues a command of the leader itself.
    pub(crate) fn push_own(&mut self, proposal: Proposal) -> Result<(), ProposeError> {
        if self.own.len() >= MAX_OWN_COMMANDS {
            return Err(ProposeError::NotProposed(OWN_QUEUE_IS_FULL));
        }
        self.counts.of_shard.entry(proposal.shard).or_default().commands += 1;
        self.own.push_back(proposal);
        Ok(())
    }

    fn pop_own(&mut self) -> Option<Proposal> {
        let next = self.own.pop_front()?;
        if let Entry::Occupied(mut of_shard) = self.counts.of_shard.entry(next.shard) {
            of_shard.get_mut().commands -= 1;
            if of_shard.get().commands == 0 {
                of_shard.remove();
            }
        }
        Some(next)
    }

    /// Takes commands of the leader itself, in order; those for busy shards stay.
    pub(crate) fn take_own(&mut self, batch: &mut EntryBatch, busy: &HashSet<u32>) {
        let mut stay = VecDeque::new();
        while let Some(next) = self.own.front() {
            let (units, is_cancelled) = (next.min_units, next.state.is_cancelled());
            if !is_cancelled && busy.contains(&next.shard) {
                stay.extend(self.own.pop_front());
                continue;
            }
            if !is_cancelled && !batch.fits_own(next, units) {
                break;
            }
            batch.add_own(self.pop_own(), units);
        }
        if !stay.is_empty() {
            stay.append(&mut self.own);
            self.own = stay;
        }
    }

    /// Takes commands of accounts, in equal shares; those for busy shards stay.
    pub(crate) fn take(
        &mut self,
        batch: &mut EntryBatch,
        busy: &HashSet<u32>,
        price: impl Fn(u32, u64, &Proposal) -> u64,
    ) -> Vec<Proposal> {
        self.resume(busy);
        let Self { queue, counts, parked, .. } = self;
        let served = queue.serve(|(account, shard), queued| {
            let next = &queued.proposal;
            if next.state.is_cancelled() {
                // The caller has its result, and the account is not charged.
                counts.uncount(queued.origin());
                return Decision::Drop;
            }
            if busy.contains(&shard) {
                parked.insert(shard);
                return Decision::Park;
            }
            // An estimate that is too high costs the account no more than an entry for each of its lanes.
            let units = price(shard, account, next).clamp(1, MAX_BATCH_UNITS);
            if !batch.fits(next, units) {
                return Decision::Stop;
            }
            if !batch.admits(shard, account, units) {
                // A full shard holds up the lanes for it, and no other.
                return Decision::PassOver;
            }
            batch.count(next, units);
            let lanes = counts.lanes(account, busy);
            counts.uncount(queued.origin());
            Decision::Serve(units * lanes)
        });
        served.into_iter().map(|queued| queued.proposal).collect()
    }

    /// Lets the lanes for shards be served again that are not busy any more.
    fn resume(&mut self, busy: &HashSet<u32>) {
        let Self { queue, counts, parked, .. } = self;
        parked.retain(|shard| {
            let is_busy = busy.contains(shard);
            if !is_busy && let Some(of_shard) = counts.of_shard.get(shard) {
                of_shard.lanes.keys().for_each(|account| queue.resume((*account, *shard)));
            }
            is_busy
        });
    }
}
