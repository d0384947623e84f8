//! Brings a shard back that failed at an entry on this replica, while the others of its group go on.
//!
//! Its state is a function of its snapshot and its sections, so it is built again from them, once. A fault that does not
//! come again is healed by that. At a fault that does, the shard is out of service here until other replicas agree on its
//! state at a later entry: it goes on from there.

use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::{FailedEntry, Poison};
use metrics::counter;
use tokio::time::{Instant, sleep, sleep_until};

use crate::machine::{Checkpoint, FailedHistory, Outage, ShardHealth};
use crate::replica::ShardReplica;
use crate::shard_rebuild::{RebuildError, rebuild, rebuild_from_others};

/// How long a leader waits for a follower that has applied the entry and serves the shard, before it builds the state
/// again itself. Calls that are sent to the next leader are answered; here they may stay unknown.
const TRANSFER_MAX_WAIT: Duration = Duration::from_secs(1);
/// How often a leader with a shard that failed for good looks for such a follower.
const TRANSFER_RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);
/// Delay between attempts to read the history.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// Maximum attempts to read the history while later snapshots replace it.
const MAX_READS: usize = 5;

/// Delay between the first two requests for a checkpoint; it doubles with each further one.
const FIRST_REQUEST_DELAY: Duration = Duration::from_secs(5);
/// Longest delay between two. Each may cost every replica an encoded copy of the state.
const MAX_REQUEST_DELAY: Duration = Duration::from_secs(30);

/// Time between two looks at whether a snapshot is past a step that ends the process.
const SNAPSHOT_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// When the leader is next asked for a checkpoint of a shard that has failed for good.
#[derive(Default)]
struct RequestSchedule {
    next: Option<Instant>,
    delay: Duration,
}

impl RequestSchedule {
    /// Returns the time of the next request: now for the first. There is none if the shard has not failed for good.
    fn next(&mut self, has_failed: bool) -> Option<Instant> {
        if !has_failed {
            *self = Self::default();
            return None;
        }
        Some(*self.next.get_or_insert_with(Instant::now))
    }

    fn record_request(&mut self) {
        self.delay = (2 * self.delay).clamp(FIRST_REQUEST_DELAY, MAX_REQUEST_DELAY);
        self.next = Some(Instant::now() + self.delay);
    }
}

/// Supervises one shard until the replica stops.
pub(crate) async fn run(shard: Arc<ShardReplica>) {
    let (mut health, mut leadership) = (shard.machine.health(), shard.group.subscribe_leadership());
    let (mut checkpoints, mut requests) = (shard.machine.checkpoints(), RequestSchedule::default());
    clear_other_release(&shard).await;
    let (mut recovery, mut last_checkpoint) = (Recovery::of_record(shard.poison()), 0);
    loop {
        let state = health.borrow_and_update().clone();
        let is_recorded = record_health(&shard, &state, &mut recovery).await;
        shard.group.publish_failed_shards();
        let leads = leadership.borrow_and_update().is_some();
        let max_wait = transfer_max_wait(&state).filter(|_| leads);
        if let Some(max_wait) = max_wait
            && shard.group.transfer_from_failed_shards(max_wait, TRANSFER_TIMEOUT).await
        {
            let (shard, group) = (shard.id.as_str(), shard.group.id());
            tracing::warn!(shard, group, "leadership transferred: shard failed on this replica");
        }
        if let Some(outage) = shard.machine.broken() {
            bring_back(&shard, outage).await;
            continue;
        }
        let checkpoint = checkpoints.borrow_and_update().clone();
        if let Some(checkpoint) = checkpoint.filter(|checkpoint| checkpoint.index > last_checkpoint) {
            last_checkpoint = checkpoint.index;
            on_checkpoint(&shard, &checkpoint).await;
            continue;
        }
        let request_at = requests.next(matches!(state, ShardHealth::Failed(_)));
        let changed = tokio::select! {
            changed = health.changed() => changed.is_ok(),
            changed = leadership.changed() => changed.is_ok(),
            changed = checkpoints.changed() => changed.is_ok(),
            () = sleep(TRANSFER_RETRY_INTERVAL), if max_wait.is_some() => true,
            () = sleep(SNAPSHOT_CHECK_INTERVAL), if !is_recorded => true,
            () = sleep_until(request_at.unwrap_or_else(Instant::now)), if request_at.is_some() => {
                request_checkpoint(&shard).await;
                requests.record_request();
                true
            }
        };
        if !changed {
            return;
        }
    }
}

/// Whether a shard serves again after it had failed.
struct Recovery {
    has_failed: bool,
    /// The last entry that was applied when it was seen to serve again.
    healed_at: Option<u64>,
}

impl Recovery {
    const FAILED: Self = Self { has_failed: true, healed_at: None };

    /// Returns that of a shard with this record when its replica starts. It may serve, if a snapshot is past what it
    /// failed at.
    fn of_record(poison: Option<Poison>) -> Self {
        let ended_process = poison.filter(|poison| poison.ended_process.is_some());
        let healed_at = ended_process.map(|poison| poison.failed_entry.index);
        Self { has_failed: healed_at.is_some(), healed_at }
    }
}

/// Stores what the shard failed at for good, and that it serves again. Returns false as long as that is yet to be
/// stored: a step that ended the process would do so again at the next start, unless a snapshot is past it.
async fn record_health(shard: &ShardReplica, health: &ShardHealth, recovery: &mut Recovery) -> bool {
    match health {
        ShardHealth::Broken(_) => *recovery = Recovery::FAILED,
        ShardHealth::Failed(failed) => {
            *recovery = Recovery::FAILED;
            if !keeps_record(shard, failed) {
                shard.save_poison(Some(shard.poison_at(failed))).await;
            }
        }
        ShardHealth::Healthy if recovery.has_failed => {
            shard.set_rebuild_problem(None);
            let healed_at = *recovery.healed_at.get_or_insert_with(|| shard.group.last_applied_index());
            let ended_process = shard.poison().is_some_and(|poison| poison.ended_process.is_some());
            // One up to that entry may have been made before, and have the step.
            if ended_process && shard.group.snapshot_index() <= healed_at {
                if shard.group.last_applied_index() > healed_at {
                    // An error means that the replica has stopped.
                    let _ = shard.group.make_snapshot().await;
                }
                return false;
            }
            shard.save_poison(None).await;
            recovery.has_failed = false;
        }
        ShardHealth::Healthy => {}
    }
    true
}

/// Returns true if the stored record is of another step, which ends the process and which the next start would apply
/// again without the record.
fn keeps_record(shard: &ShardReplica, failed: &FailedEntry) -> bool {
    shard.poison().is_some_and(|record| {
        let index = record.failed_entry.index;
        record.ended_process.is_some() && index != failed.index && shard.group.snapshot_index() <= index
    })
}

/// Returns how long a leader waits for a follower where more shards serve, if it is to hand the group over.
fn transfer_max_wait(health: &ShardHealth) -> Option<Duration> {
    match health {
        ShardHealth::Healthy => None,
        ShardHealth::Broken(_) => Some(TRANSFER_MAX_WAIT),
        ShardHealth::Failed(_) => Some(Duration::ZERO),
    }
}

/// Forgets what another release failed at: this one tries it again.
async fn clear_other_release(shard: &ShardReplica) {
    if let Some(poison) = shard.poison().filter(|poison| poison.release != *shard.release) {
        let (id, release) = (shard.id.as_str(), &*shard.release);
        tracing::warn!(shard = id, ?poison, release, "retrying entry after release change");
        shard.save_poison(None).await;
    }
}

/// Digests the state at a checkpoint. A shard that has failed takes that of other replicas.
async fn on_checkpoint(shard: &ShardReplica, checkpoint: &Arc<Checkpoint>) {
    checkpoint.digest_in_background();
    let (id, index) = (shard.id.as_str(), checkpoint.index);
    match rebuild_from_others(shard, checkpoint).await {
        Ok(false) => {}
        Ok(true) => {
            tracing::info!(shard = id, index, "shard rebuilt from other replicas; serving");
            // Without it the next start would begin with the state that fails. An error means that the replica has
            // stopped.
            let _ = shard.group.make_snapshot().await;
        }
        Err(problem) => record_problem(shard, problem),
    }
}

async fn request_checkpoint(shard: &ShardReplica) {
    if shard.group.members().len() == 1 {
        return record_problem(shard, "the group has no other replica".to_owned());
    }
    if !shard.others_may_agree() {
        let problem = "the shard has failed on so many replicas that no majority can have the same state";
        return record_problem(shard, problem.to_owned());
    }
    match shard.request_checkpoint().await {
        Ok(()) => tracing::debug!(shard = shard.id, "checkpoint logged"),
        Err(error) => record_problem(shard, error.to_string()),
    }
}

/// Tells the operator why the state can't be taken from other replicas, unless that was said.
fn record_problem(shard: &ShardReplica, problem: String) {
    if shard.set_rebuild_problem(Some(problem.clone())) {
        tracing::error!(shard = shard.id, problem, "shard rebuild from other replicas failed");
    }
}

/// Builds the state again from its own history, or takes the shard out of service until others give it.
async fn bring_back(shard: &ShardReplica, outage: Outage) {
    log_failure(shard, &outage.failed_entry);
    match rebuild_or_fail(shard, &outage).await {
        Ok(true) => tracing::info!(shard = shard.id, "shard rebuilt from its own history; serving"),
        Ok(false) => {}
        Err((again, kept)) => {
            tracing::error!(shard = shard.id, failed = ?again, "shard failed permanently on this replica");
            shard.machine.mark_failed(&outage, again, kept);
        }
    }
}

/// Builds the state again; see [`rebuild`]. Fails with the entry that it failed at, twice in a row.
async fn rebuild_or_fail(shard: &ShardReplica, outage: &Outage) -> Result<bool, (FailedEntry, Option<FailedHistory>)> {
    let (mut failed, mut reads) = (outage.failed_entry.clone(), 0);
    loop {
        match rebuild(shard, outage).await {
            Ok(is_in_place) => return Ok(is_in_place),
            Err(RebuildError::Failed(again, kept)) if again.is_same_step(&failed) => return Err((*again, Some(kept))),
            Err(RebuildError::Failed(again, _)) => failed = *again,
            Err(RebuildError::Unreadable(reason)) if reads < MAX_READS => {
                tracing::warn!(shard = shard.id, reason, "shard rebuild failed; retrying");
                reads += 1;
                sleep(RETRY_DELAY).await;
            }
            Err(RebuildError::Unreadable(reason) | RebuildError::Unusable(reason)) => {
                tracing::error!(shard = shard.id, reason, "shard rebuild failed");
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
        "shard failed; rebuilding"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn checkpoints_are_requested_at_once_then_more_and_more_rarely() {
        let mut requests = RequestSchedule::default();
        assert_eq!(requests.next(false), None);
        assert_eq!(requests.next(true), Some(Instant::now()));
        let mut delays = Vec::new();
        for _ in 0..5 {
            requests.record_request();
            delays.push((requests.next(true).expect("it has failed") - Instant::now()).as_secs());
        }
        assert_eq!(delays, [5, 10, 20, 30, 30]);
        assert_eq!((requests.next(false), requests.next(true)), (None, Some(Instant::now())), "it serves meanwhile");
    }
}
