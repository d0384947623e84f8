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
use tokio::time::sleep;

use crate::group_machine::ShardPart;
use crate::machine::{FailedHistory, FailedSection, ReadPart, ShardHealth, ShardMachine};
use crate::replica::ShardReplica;

/// How long a leader waits for a follower that has applied the entry and serves the shard, before it builds the state
/// again itself. Calls that are sent to the next leader are answered; here they may stay unknown.
const TRANSFER_PATIENCE: Duration = Duration::from_secs(1);
/// How often a leader with a shard that failed for good looks for such a follower.
const TRANSFER_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between attempts to read the history.
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
    forget_other_release(&shard).await;
    let mut has_failed = false;
    loop {
        let state = health.borrow_and_update().clone();
        match &state {
            ShardHealth::Healthy if has_failed => shard.save_poison(None).await,
            ShardHealth::Healthy => {}
            ShardHealth::Broken(_) => has_failed = true,
            ShardHealth::Failed(failed) => {
                has_failed = true;
                shard.save_poison(Some(shard.poison_at(failed))).await;
            }
        }
        let patience = match state {
            ShardHealth::Healthy => None,
            ShardHealth::Broken(_) => Some(TRANSFER_PATIENCE),
            ShardHealth::Failed(_) => Some(Duration::ZERO),
        };
        shard.group.publish_failed_shards();
        let leads = leadership.borrow_and_update().is_some();
        let patience = patience.filter(|_| leads);
        if let Some(patience) = patience
            && shard.group.transfer_from_failed_shards(patience, TRANSFER_TIMEOUT).await
        {
            let (shard, group) = (shard.id.as_str(), shard.group.id());
            tracing::warn!(shard, group, "the shard failed here; the group is handed over");
        }
        if let Some((failed, epoch)) = shard.machine.broken() {
            bring_back(&shard, failed, epoch).await;
            continue;
        }
        let changed = tokio::select! {
            changed = health.changed() => changed.is_ok(),
            changed = leadership.changed() => changed.is_ok(),
            () = sleep(TRANSFER_RETRY_INTERVAL), if patience.is_some() => true,
        };
        if !changed {
            return;
        }
    }
}

/// Forgets what another release failed at: this one tries it again.
async fn forget_other_release(shard: &ShardReplica) {
    if let Some(poison) = shard.poison().filter(|poison| poison.release != *shard.release) {
        let (id, release) = (shard.id.as_str(), &*shard.release);
        tracing::warn!(shard = id, ?poison, release, "an entry is tried again that another release failed at");
        shard.save_poison(None).await;
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
                let ReadPart { core, sections, failed_at } = self.machine.read_part(&part)?;
                self.machine.install(core);
                self.kept.state = part.state;
                for (header, commands) in sections {
                    let failed_at = failed_at.filter(|failed_at| failed_at.position == self.kept.since.next_position());
                    let (term, index) = failed_at.map_or((0, self.failed_index), |at| (at.term, at.index));
                    self.apply(term, index, header, &commands);
                }
            }
        }
        Ok(())
    }

    /// Applies a section, unless an earlier one failed, and keeps it.
    fn apply(&mut self, term: u64, index: u64, header: EntryHeader, commands: &[Bytes]) {
        if self.failed.is_none()
            && let Err(failure) = self.machine.apply_whole(header, commands)
        {
            let position = self.kept.since.next_position();
            // An entry of no term is one whose term is not known.
            self.kept.failed_at = (term > 0).then_some(FailedSection { position, term, index });
            self.failed = Some(FailedEntry { term, index, failure });
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
    // A leader state that is gone may have proposed what its successor would not expect.
    shard.propose_barrier().await;
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
