//! The cancels of one shard that wait for an entry. Thousands of callers may leave together, so many cancels share a
//! command; and accounts take turns, so that one account's cancels delay no other's.
//!
//! A cancel that finds no room is dropped: its request stays a pending wait of the leader, which cancels it later. The
//! call of a request that did not wait cancels it again.

use holdfast_core::{AccountId, Command, LocksCommand, codec};
use holdfast_fair_queue::{Decision, FairQueue, QueueLimits};
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Bytes of all queued cancels, and of the cancels of one account.
const LIMITS: QueueLimits = QueueLimits { total: 64 << 20, lane: 16 << 20 };
/// Minimum bytes that a cancel counts for.
const MIN_CANCEL_BYTES: usize = 256;
/// Bytes of one command, once it has one cancel: half of what the leader's own commands may have in an entry.
const MAX_BATCH_BYTES: usize = 256 << 10;
/// Expected units of one command, once it has one cancel: some 100 cancels. Everybody of the group waits while they are
/// applied, for 1 or 2 ms.
const MAX_BATCH_UNITS: u64 = 1_024;

/// The queue of a shard. Any number of tasks push; one task of the leader takes batches.
pub(crate) struct CancelQueue {
    queue: Mutex<FairQueue<AccountId, QueuedCancel>>,
    pushed: Notify,
}

struct QueuedCancel {
    /// The term of the leader that it is for.
    term: u64,
    command: LocksCommand,
    bytes: usize,
    units: u64,
    done: oneshot::Sender<bool>,
}

/// Cancels that share a command.
pub(crate) struct CancelBatch {
    commands: Vec<LocksCommand>,
    sinks: Vec<oneshot::Sender<bool>>,
}

impl CancelQueue {
    pub(crate) fn new() -> Self {
        Self { queue: Mutex::new(FairQueue::new(LIMITS)), pushed: Notify::new() }
    }

    /// Queues a cancel for the leader of a term. The receiver gets whether it was applied, or is closed if it was not
    /// proposed.
    pub(crate) fn push(&self, term: u64, account: AccountId, command: LocksCommand) -> oneshot::Receiver<bool> {
        let (done, receiver) = oneshot::channel();
        let (bytes, units) = (codec::size(&command).max(MIN_CANCEL_BYTES), command.min_units());
        let queued = QueuedCancel { term, command, bytes, units, done };
        // What does not fit, and what makes room, is dropped with its sender.
        drop(self.queue.lock().push(account, bytes, queued));
        self.pushed.notify_one();
        receiver
    }

    /// Waits for the cancels of the next command of the leader of a term. Cancels of other terms are dropped: their
    /// leaders are gone. Cancellation loses nothing.
    pub(crate) async fn next_batch(&self, term: u64) -> CancelBatch {
        loop {
            let batch = self.take_batch(term);
            if !batch.commands.is_empty() {
                return batch;
            }
            self.pushed.notified().await;
        }
    }

    fn take_batch(&self, term: u64) -> CancelBatch {
        let (mut count, mut bytes, mut units) = (0, 0, 0);
        let served = self.queue.lock().serve(|_, next| {
            if next.term != term {
                return Decision::Drop;
            }
            let fits = bytes + next.bytes <= MAX_BATCH_BYTES && units + next.units <= MAX_BATCH_UNITS;
            if count > 0 && !fits {
                return Decision::Stop;
            }
            (count, bytes, units) = (count + 1, bytes + next.bytes, units + next.units);
            Decision::Serve(next.units)
        });
        let (commands, sinks) = served.into_iter().map(|queued| (queued.command, queued.done)).unzip();
        CancelBatch { commands, sinks }
    }
}

impl CancelBatch {
    /// Returns the command that does all of them, each with its own outcome.
    pub(crate) fn take_command(&mut self) -> Command {
        let mut commands = std::mem::take(&mut self.commands);
        match (commands.pop(), commands.is_empty()) {
            (Some(single), true) => Command::Locks(single),
            (last, _) => {
                commands.extend(last);
                Command::Locks(LocksCommand::Batch(commands))
            }
        }
    }

    /// Tells the waiting callers whether the cancels were applied.
    pub(crate) fn finish(self, is_applied: bool) {
        for sink in self.sinks {
            // Its caller may have stopped waiting.
            let _ = sink.send(is_applied);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use holdfast_core::{Cancel, Claim, Mode, Owner, Path};

    use super::*;
    use crate::testing::namespace;

    const TERM: u64 = 3;

    fn cancel(claims: usize, number: u64) -> LocksCommand {
        let claim = |claim| Claim { path: Path(vec![format!("{claim}")]), mode: Mode::Write };
        LocksCommand::Cancel(Cancel {
            namespace: namespace(),
            owner: Owner::Process("p".into()),
            request_id: None,
            claims: (0..claims).map(claim).collect(),
            attempt: number,
        })
    }

    fn attempts(mut batch: CancelBatch) -> Vec<u64> {
        let attempt = |command: &LocksCommand| match command {
            LocksCommand::Cancel(cancel) => cancel.attempt,
            other => panic!("not a cancel: {other:?}"),
        };
        match batch.take_command() {
            Command::Locks(LocksCommand::Batch(commands)) => commands.iter().map(attempt).collect(),
            Command::Locks(single) => vec![attempt(&single)],
            other => panic!("not of locks: {other:?}"),
        }
    }

    #[tokio::test]
    async fn a_storm_of_cancels_takes_few_commands_and_delays_no_other_account() {
        let queue = CancelQueue::new();
        let mut waiting: Vec<_> = (0..10_000).map(|number| queue.push(TERM, AccountId(1), cancel(1, number))).collect();
        waiting.push(queue.push(TERM, AccountId(2), cancel(1, 20_000)));
        let first = attempts(queue.next_batch(TERM).await);
        assert_eq!(first.len() as u64, MAX_BATCH_UNITS / 10);
        assert!(first.contains(&20_000), "it is in the first command");
        let mut done = first.len();
        while let Some(batch) = queue.next_batch(TERM).now_or_never() {
            done += attempts(batch).len();
        }
        assert_eq!(done, 10_001);
    }

    #[tokio::test]
    async fn each_caller_learns_whether_its_cancel_was_applied() {
        let queue = CancelQueue::new();
        let receiver = queue.push(TERM, AccountId(1), cancel(1, 1));
        queue.next_batch(TERM).await.finish(true);
        assert_eq!(receiver.await, Ok(true));
        let receiver = queue.push(TERM, AccountId(1), cancel(1, 2));
        queue.next_batch(TERM).await.finish(false);
        assert_eq!(receiver.await, Ok(false));
        // Of another term.
        let stale = queue.push(TERM - 1, AccountId(1), cancel(1, 3));
        assert!(queue.next_batch(TERM).now_or_never().is_none());
        assert!(stale.await.is_err());
    }

    #[tokio::test]
    async fn costly_cancels_share_a_command_with_few_and_the_queue_has_an_end() {
        let queue = CancelQueue::new();
        let waiting: Vec<_> = (0..40).map(|number| queue.push(TERM, AccountId(1), cancel(64, number))).collect();
        // 8 units, and 2 for each claim.
        assert_eq!(attempts(queue.next_batch(TERM).await).len() as u64, MAX_BATCH_UNITS / (8 + 2 * 64));
        drop(waiting);
        while queue.next_batch(TERM).now_or_never().is_some() {}
        let mut waiting: Vec<_> = (0..LIMITS.lane / MIN_CANCEL_BYTES)
            .map(|number| queue.push(TERM, AccountId(1), cancel(1, number as u64)))
            .collect();
        let refused = queue.push(TERM, AccountId(1), cancel(1, 0));
        assert!(refused.await.is_err());
        let _other = queue.push(TERM, AccountId(2), cancel(1, 0));
        assert!(waiting.iter_mut().all(|one| one.try_recv() == Err(oneshot::error::TryRecvError::Empty)));
    }
}
