//! Leader tasks. Each starts and ends with a leadership.

mod expiry;
mod outbox_dispatcher;
mod quorum_guard;
mod session_reaper;
mod wait_reaper;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use holdfast_replication::{Group, Leadership};
use holdfast_supervise::TaskSet;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::machine::ShardMachine;
use crate::outbox_sender::OutboxSender;

/// A leader whose tasks fail this often within the window transfers its leadership.
const MAX_FAILURES: usize = 3;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// Timeout of a leadership transfer.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the leader tasks of each leadership of this replica. Each runs as a separate task and is restarted when it
/// fails.
///
/// While `is_serving`, each change is logged for operators; the start and the stop of a node log one line for all shards.
pub(crate) async fn run(
    group: Group,
    machine: Arc<ShardMachine>,
    outbox_sender: OutboxSender,
    is_serving: Arc<AtomicBool>,
) {
    let (mut leadership, mut table_failed) = (group.subscribe_leadership(), machine.leader_state_failed());
    let mut failures = VecDeque::new();
    loop {
        let Some(leads) = *leadership.borrow_and_update() else {
            if leadership.changed().await.is_err() {
                return;
            }
            continue;
        };
        log_change(&group, leads, is_serving.load(Ordering::Relaxed), "leads");
        metrics::counter!("holdfast_leader_elections_total").increment(1);
        let leading = LeaderContext {
            group: group.clone(),
            machine: Arc::clone(&machine),
            outbox_sender: outbox_sender.clone(),
            leads,
        };
        let tasks = start(&leading);
        let changed = tokio::select! {
            changed = leadership.changed() => changed,
            () = transfer_on_failures(&group, tasks.failures(), &mut failures) => leadership.changed().await,
            reason = wait_for_failure(&mut table_failed) => {
                // This replica is restarted, and another one leads.
                group.tasks().fail("leader table", reason);
                return;
            }
        };
        tasks.shutdown().await;
        log_change(&group, leads, is_serving.load(Ordering::Relaxed), "no longer leads");
        if changed.is_err() {
            return;
        }
    }
}

fn log_change(group: &Group, leads: Leadership, is_serving: bool, change: &'static str) {
    let (shard, replica, term) = (group.shard(), group.replica(), leads.term);
    if is_serving {
        tracing::info!(shard, replica, term, "{change}");
    } else {
        tracing::debug!(shard, replica, term, "{change}");
    }
}

/// The context of a leader task.
#[derive(Clone)]
struct LeaderContext {
    group: Group,
    machine: Arc<ShardMachine>,
    outbox_sender: OutboxSender,
    leads: Leadership,
}

/// Starts a new set of tasks for a leadership.
fn start(leading: &LeaderContext) -> TaskSet {
    let tasks = leading.group.tasks().child();
    spawn(&tasks, "expiry", leading, expiry::run);
    spawn(&tasks, "outbox_dispatcher", leading, outbox_dispatcher::run);
    spawn(&tasks, "session_reaper", leading, session_reaper::run);
    spawn(&tasks, "wait_reaper", leading, wait_reaper::run);
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

async fn wait_for_failure(table: &mut watch::Receiver<Option<String>>) -> String {
    let failed = table.wait_for(Option::is_some).await;
    // The machine outlives its leader tasks, so the sender exists.
    failed.ok().and_then(|reason| reason.clone()).unwrap_or_default()
}

/// Returns once this replica has transferred its leadership because its leader tasks failed too often.
async fn transfer_on_failures(group: &Group, mut failures: watch::Receiver<u64>, times: &mut VecDeque<Instant>) {
    let mut seen = *failures.borrow_and_update();
    while failures.changed().await.is_ok() {
        let count = *failures.borrow_and_update();
        times.extend((seen..count).map(|_| Instant::now()));
        seen = count;
        times.retain(|time| time.elapsed() < FAILURE_WINDOW);
        if times.len() < MAX_FAILURES {
            continue;
        }
        times.clear();
        let is_over = group.transfer_leadership(TRANSFER_TIMEOUT).await;
        tracing::error!(
            shard = group.shard(),
            replica = group.replica(),
            is_over,
            "leader tasks fail; another replica should lead"
        );
        if is_over {
            return;
        }
    }
    // The task set outlives this future, so its sender is not dropped first.
    std::future::pending().await
}
