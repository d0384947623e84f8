//! Leader tasks. Each starts and ends with a leadership.

mod cancel_sender;
mod expiry;
mod outbox_dispatcher;
mod quorum_guard;
mod session_reaper;
mod table_epochs;
mod wait_reaper;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::future::join_all;
use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_replication::{Group, Leadership};
use holdfast_supervise::TaskSet;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use expiry::TickRounds;

use crate::outbox_sender::OutboxSender;
use crate::replica::ShardReplica;

/// A leader with a shard whose tasks fail this often within the window transfers its leadership.
const MAX_TASK_FAILURES: usize = 3;
/// The same for a shard whose leader state fails.
const MAX_LEADER_STATE_FAILURES: usize = 2;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Delay before a leader state that fails again is built again, if no other replica took over.
const LEADER_STATE_BACKOFF: Duration = Duration::from_secs(1);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the leader tasks of all shards of a group, in each leadership of this replica. Each runs as a separate task and
/// is restarted when it fails.
///
/// While `is_serving`, each change is logged for operators; the start and the stop of a node log one line for all groups.
pub(crate) async fn run(
    group: Group,
    shards: Vec<Arc<ShardReplica>>,
    outbox_sender: OutboxSender,
    is_serving: Arc<AtomicBool>,
) {
    let mut leadership = group.subscribe_leadership();
    let mut failures: Vec<ShardFailures> = shards.iter().map(|_| ShardFailures::new()).collect();
    loop {
        let Some(leads) = *leadership.borrow_and_update() else {
            if leadership.changed().await.is_err() {
                return;
            }
            continue;
        };
        log_change(&group, leads, is_serving.load(Ordering::Relaxed), "leads");
        metrics::counter!("holdfast_leader_elections_total").increment(1);
        let tick_rounds = Arc::<TickRounds>::default();
        let context = |shard: &Arc<ShardReplica>| LeaderContext {
            shard: Arc::clone(shard),
            outbox_sender: outbox_sender.clone(),
            tick_rounds: Arc::clone(&tick_rounds),
            leads,
        };
        let contexts: Vec<LeaderContext> = shards.iter().map(context).collect();
        let mut tasks: Vec<TaskSet> = contexts.iter().map(start).collect();
        let watched = contexts.iter().zip(&mut tasks).zip(&mut failures);
        let mut watched: FuturesUnordered<_> =
            watched.map(|((leading, tasks), recent)| watch_shard(leading, tasks, recent)).collect();
        let changed = tokio::select! {
            changed = leadership.changed() => changed,
            _ = watched.next() => leadership.changed().await,
        };
        drop(watched);
        join_all(tasks.iter().map(TaskSet::shutdown)).await;
        log_change(&group, leads, is_serving.load(Ordering::Relaxed), "no longer leads");
        if changed.is_err() {
            return;
        }
    }
}

fn log_change(group: &Group, leads: Leadership, is_serving: bool, change: &'static str) {
    let (group, replica, term) = (group.id(), group.replica(), leads.term);
    if is_serving {
        tracing::info!(group, replica, term, "{change}");
    } else {
        tracing::debug!(group, replica, term, "{change}");
    }
}

/// The context of a leader task.
#[derive(Clone)]
struct LeaderContext {
    shard: Arc<ShardReplica>,
    outbox_sender: OutboxSender,
    /// Shared by all shards of the group.
    tick_rounds: Arc<TickRounds>,
    leads: Leadership,
}

/// Starts the tasks of one shard for a leadership.
fn start(leading: &LeaderContext) -> TaskSet {
    let tasks = leading.shard.group.tasks().child();
    spawn(&tasks, "expiry", leading, expiry::run);
    spawn(&tasks, "outbox_dispatcher", leading, outbox_dispatcher::run);
    spawn(&tasks, "session_reaper", leading, session_reaper::run);
    spawn(&tasks, "table_epochs", leading, table_epochs::run);
    spawn(&tasks, "wait_reaper", leading, wait_reaper::run);
    spawn(&tasks, "cancel_sender", leading, cancel_sender::run);
    spawn(&tasks, "quorum_guard", leading, quorum_guard::run);
    tasks
}

fn spawn<F>(
    tasks: &TaskSet,
    name: &'static str,
    leading: &LeaderContext,
    run: impl Fn(LeaderContext) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let leading = leading.clone();
    tasks.spawn_restarting(name, move || run(leading.clone()));
}

/// When something failed lately.
struct RecentFailures {
    times: VecDeque<Instant>,
    /// As many within the window are too many.
    limit: usize,
}

impl RecentFailures {
    fn new(limit: usize) -> Self {
        Self { times: VecDeque::new(), limit }
    }

    /// Records more failures. Returns true, and begins anew, once there are too many.
    fn record(&mut self, count: u64) -> bool {
        self.times.extend((0..count).map(|_| Instant::now()));
        self.times.retain(|time| time.elapsed() < FAILURE_WINDOW);
        let are_too_many = self.times.len() >= self.limit;
        if are_too_many {
            self.times.clear();
        }
        are_too_many
    }
}

/// The latest failures in the leaderships of a shard.
struct ShardFailures {
    tasks: RecentFailures,
    leader_state: RecentFailures,
}

impl ShardFailures {
    fn new() -> Self {
        let (tasks, leader_state) = (MAX_TASK_FAILURES, MAX_LEADER_STATE_FAILURES);
        Self { tasks: RecentFailures::new(tasks), leader_state: RecentFailures::new(leader_state) }
    }
}

/// Returns once this replica has transferred its leadership because the leader tasks or the leader state of a shard
/// failed too often. A leader state that fails is built again.
async fn watch_shard(leading: &LeaderContext, tasks: &mut TaskSet, recent: &mut ShardFailures) {
    let mut state_failed = leading.shard.machine.leader_state_failed();
    loop {
        let reason = tokio::select! {
            () = transfer_on_failures(&leading.shard, tasks.failures(), &mut recent.tasks) => return,
            reason = wait_for_failure(&mut state_failed) => reason,
        };
        log_leader_state_failure(&leading.shard, &reason);
        if recent.leader_state.record(1) {
            if transfer(&leading.shard, "leadership transfer attempted: repeated leader state failures").await {
                return;
            }
            sleep(LEADER_STATE_BACKOFF).await;
        }
        rebuild_leader_state(leading, tasks).await;
    }
}

fn log_leader_state_failure(shard: &ShardReplica, reason: &str) {
    metrics::counter!("holdfast_task_failures_total", "task" => "leader_state").increment(1);
    let (group, replica) = (shard.group.id(), shard.group.replica());
    tracing::error!(group, shard = shard.id, replica, reason, "leader state failed; rebuilding");
}

/// Builds the leader state of a shard again. Its successor knows nothing of what the lost one and the leader tasks have
/// decided, above all which sessions expire: that is applied first, and no task goes on with it.
async fn rebuild_leader_state(leading: &LeaderContext, tasks: &mut TaskSet) {
    tasks.shutdown().await;
    leading.shard.propose_barrier().await;
    leading.shard.machine.rebuild_leader_state(leading.leads.term);
    *tasks = start(leading);
}

async fn wait_for_failure(failed: &mut watch::Receiver<Option<String>>) -> String {
    let failed = failed.wait_for(Option::is_some).await;
    // The machine outlives its leader tasks, so the sender exists.
    failed.ok().and_then(|reason| reason.clone()).unwrap_or_default()
}

/// Transfers the leadership of the group. Returns true if this replica no longer leads.
async fn transfer(shard: &ShardReplica, reason: &'static str) -> bool {
    let is_over = shard.group.transfer_leadership(TRANSFER_TIMEOUT).await;
    let (group, replica) = (shard.group.id(), shard.group.replica());
    tracing::error!(group, shard = shard.id, replica, is_over, "{reason}");
    is_over
}

/// Returns once this replica has transferred its leadership because the leader tasks failed too often.
async fn transfer_on_failures(shard: &ShardReplica, mut failures: watch::Receiver<u64>, recent: &mut RecentFailures) {
    let mut seen = *failures.borrow_and_update();
    while failures.changed().await.is_ok() {
        let count = *failures.borrow_and_update();
        let more = count.saturating_sub(std::mem::replace(&mut seen, count));
        if !recent.record(more) {
            continue;
        }
        if transfer(shard, "leadership transfer attempted: repeated leader task failures").await {
            return;
        }
    }
    // The task set outlives this future, so its sender is not dropped first.
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn failures_are_too_many_within_a_minute_only() {
        let mut recent = ShardFailures::new();
        assert!(!recent.leader_state.record(1));
        tokio::time::advance(FAILURE_WINDOW).await;
        assert!(!recent.leader_state.record(1), "the first is forgotten");
        tokio::time::advance(FAILURE_WINDOW / 2).await;
        assert!(recent.leader_state.record(1));
        assert!(!recent.leader_state.record(1), "it begins anew");
        assert_eq!([2, 1].map(|count| recent.tasks.record(count)), [false, true]);
    }
}
