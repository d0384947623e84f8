//! Brings a shard back that failed at an entry on this replica, while the others of its group go on.
//!
//! Its state is a function of its snapshot and its sections, so it is built again from them, once. A fault that does not
//! come again is healed by that. At a fault that does, the shard stays out of service here.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use holdfast_replication::{EntryHeader, FailedEntry, HistoryStep, StateMachineError};
use metrics::counter;
use tokio::task::yield_now;
use tokio::time::{Instant, sleep, sleep_until};

use crate::group_machine::ShardPart;
use crate::machine::{FailedHistory, ReadPart, ShardHealth, ShardMachine};
use crate::replica::ShardReplica;

/// A leader hands its group over because of a failed shard at most once in this time: the next leader may have failed
/// at the same entry.
const TRANSFER_INTERVAL: Duration = Duration::from_secs(600);
/// When it tries again, if nobody took over.
const TRANSFER_RETRY_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of the entry that follows everything proposed before the shard failed.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts to write that entry.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Attempts to read the history while later snapshots replace what is being read.
const MAX_READS: usize = 5;

/// Why a state could not be built again.
enum RebuildError {
    /// It failed again, at an entry of the history.
    Failed(FailedEntry, FailedHistory),
    /// It failed at what came since. That is taken only once, so that there is no other attempt.
    FailedLater(FailedEntry, FailedHistory),
    /// The history could not be read, or changed meanwhile.
    Unreadable(String),
    /// Too much came since the shard failed.
    TooLate(String),
}

/// Supervises one shard until the replica stops.
pub(crate) async fn run(shard: Arc<ShardReplica>) {
    let (mut health, mut leadership) = (shard.machine.health(), shard.group.subscribe_leadership());
    let mut transfer_at = Instant::now();
    loop {
        let is_healthy = *health.borrow_and_update() == ShardHealth::Healthy;
        let should_transfer = leadership.borrow_and_update().is_some() && !is_healthy;
        if should_transfer && transfer_at <= Instant::now() {
            let is_over = shard.group.transfer_leadership(TRANSFER_TIMEOUT).await;
            transfer_at = Instant::now() + if is_over { TRANSFER_INTERVAL } else { TRANSFER_RETRY_INTERVAL };
            tracing::warn!(shard = shard.id, group = shard.group.id(), is_over, "the group is handed over");
        }
        if let Some((failed, epoch)) = shard.machine.broken() {
            bring_back(&shard, failed, epoch).await;
            continue;
        }
        let changed = tokio::select! {
            changed = health.changed() => changed.is_ok(),
            changed = leadership.changed() => changed.is_ok(),
            () = sleep_until(transfer_at), if should_transfer => true,
        };
        if !changed {
            return;
        }
    }
}

/// Builds the state again, or takes the shard out of service for good.
async fn bring_back(shard: &ShardReplica, failed: FailedEntry, epoch: u64) {
    log_failure(shard, &failed);
    match rebuild_or_fail(shard, failed, epoch).await {
        Ok(()) => tracing::info!(shard = shard.id, "the state is built again; the shard serves"),
        Err((again, kept)) => {
            tracing::error!(shard = shard.id, failed = ?again, "the shard has failed for good on this replica");
            shard.machine.mark_failed(epoch, again, kept);
        }
    }
}

/// Builds the state again. Returns the entry that it failed at, twice in a row.
async fn rebuild_or_fail(
    shard: &ShardReplica,
    first: FailedEntry,
    epoch: u64,
) -> Result<(), (FailedEntry, Option<FailedHistory>)> {
    // What came after this entry is kept aside.
    let (until, mut failed, mut reads) = (first.index, first, 0);
    loop {
        match rebuild(shard, until, epoch).await {
            Ok(()) => return Ok(()),
            Err(RebuildError::Failed(again, kept)) if again.is_same_step(&failed) => return Err((again, Some(kept))),
            Err(RebuildError::Failed(again, _)) => failed = again,
            Err(RebuildError::FailedLater(again, kept)) => return Err((again, Some(kept))),
            Err(RebuildError::Unreadable(reason)) if reads < MAX_READS => {
                tracing::warn!(shard = shard.id, reason, "the state can't be built again yet");
                reads += 1;
                sleep(RETRY_DELAY).await;
            }
            Err(RebuildError::Unreadable(reason) | RebuildError::TooLate(reason)) => {
                tracing::error!(shard = shard.id, reason, "the state can't be built again");
                return Err((failed, None));
            }
        }
    }
}

fn log_failure(shard: &ShardReplica, failed: &FailedEntry) {
    counter!("holdfast_task_failures_total", "task" => "apply").increment(1);
    let FailedEntry { term, index, failure } = failed;
    let (group, replica, backtrace) = (shard.group.id(), shard.group.replica(), failure.backtrace.as_str());
    tracing::error!(
        shard = shard.id, group, replica, term, index, reason = %failure, backtrace,
        "the shard failed; its state is built again"
    );
}

/// A machine on which the history of a shard is replayed, and what it consists of.
struct Replay {
    machine: ShardMachine,
    /// The entry that the shard failed at first.
    failed_index: u64,
    kept: FailedHistory,
    failed: Option<FailedEntry>,
}

impl Replay {
    fn visit(&mut self, step: HistoryStep<'_>) -> Result<(), StateMachineError> {
        match step {
            HistoryStep::Section { term, index, header, commands } => self.apply(term, index, header, &commands),
            HistoryStep::Snapshot(chunks) => {
                let part = ShardPart::decode(chunks)?;
                let ReadPart { core, sections } = self.machine.read_part(&part)?;
                self.machine.install(core);
                self.kept.state = part.state;
                for (header, commands) in sections {
                    self.apply(0, self.failed_index, header, &commands);
                }
            }
        }
        Ok(())
    }

    /// Applies a section, unless an earlier one failed, and keeps it.
    fn apply(&mut self, term: u64, index: u64, header: EntryHeader, commands: &[Bytes]) {
        if self.failed.is_none() {
            let failed = |failure| FailedEntry { term, index, failure };
            self.failed = self.machine.apply_whole(header, commands).map_err(failed).err();
        }
        self.kept.since.push(header, commands);
    }
}

/// Replays the history of the shard up to the entry that it failed at, then what came since, and puts the state in place.
async fn rebuild(shard: &ShardReplica, failed_index: u64, epoch: u64) -> Result<(), RebuildError> {
    let machine = shard.machine.for_rebuild();
    let mut replay = Replay { machine, failed_index, kept: FailedHistory::default(), failed: None };
    let replayed = shard.replay(failed_index, |step| replay.visit(step)).await;
    replayed.map_err(|error| RebuildError::Unreadable(error.to_string()))?;
    if let Some(failed) = replay.failed {
        return Err(RebuildError::Failed(failed, replay.kept));
    }
    // A leader state that is gone may have proposed what its successor would not expect. It is in the log before this.
    while let Some(term) = shard.leads() {
        if shard.propose_clock_tick(term, Instant::now() + BARRIER_TIMEOUT).await.is_ok() {
            break;
        }
        sleep(RETRY_DELAY).await;
    }
    loop {
        let missing = shard.machine.adopt(epoch, &replay.machine).map_err(|error| RebuildError::TooLate(error.0))?;
        if missing.is_empty() {
            return Ok(());
        }
        for (header, commands) in missing {
            replay.apply(0, failed_index, header, &commands);
            yield_now().await;
        }
        if let Some(failed) = replay.failed {
            return Err(RebuildError::FailedLater(failed, replay.kept));
        }
    }
}
