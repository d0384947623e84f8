//! What only a leader does. Each duty begins with a leadership and is dropped with it.

mod expiry;
mod outbox_dispatcher;
mod quorum_guard;
mod session_reaper;
mod wait_reaper;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::{Group, Leadership};
use holdfast_supervise::TaskSet;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::machine::ShardMachine;
use crate::outbox_sender::OutboxSender;

/// A leader whose duties fail so often within the time lets another replica lead.
const MAX_FAILURES: usize = 3;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
/// How long handing the leadership over may take.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(5);

/// Runs the duties of each leadership of this replica, one after the other. Each duty is a task of its own, and is started
/// again when it fails.
pub(crate) async fn run(group: Group, machine: Arc<ShardMachine>, delivery: OutboxSender) {
    let (mut leadership, mut table_failed) = (group.subscribe_leadership(), machine.leader_state_failed());
    let mut failures = VecDeque::new();
    loop {
        let Some(leads) = *leadership.borrow_and_update() else {
            if leadership.changed().await.is_err() {
                return;
            }
            continue;
        };
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "leads");
        metrics::counter!("holdfast_leader_elections_total").increment(1);
        let leading = LeaderContext {
            group: group.clone(),
            machine: Arc::clone(&machine),
            outbox_sender: delivery.clone(),
            leads,
        };
        let duties = start(&leading);
        let changed = tokio::select! {
            changed = leadership.changed() => changed,
            () = transfer_on_failures(&group, duties.failures(), &mut failures) => leadership.changed().await,
            reason = wait_for_failure(&mut table_failed) => {
                // This replica is started again, and another one leads.
                group.tasks().fail("leader table", reason);
                return;
            }
        };
        duties.shutdown().await;
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "no longer leads");
        if changed.is_err() {
            return;
        }
    }
}

/// What a duty works with.
#[derive(Clone)]
struct LeaderContext {
    group: Group,
    machine: Arc<ShardMachine>,
    outbox_sender: OutboxSender,
    leads: Leadership,
}

/// Each leadership gets new ones.
fn start(leading: &LeaderContext) -> TaskSet {
    let duties = leading.group.tasks().child();
    spawn(&duties, "expiry", leading, expiry::run);
    spawn(&duties, "outbox_dispatcher", leading, outbox_dispatcher::run);
    spawn(&duties, "session_reaper", leading, session_reaper::run);
    spawn(&duties, "wait_reaper", leading, wait_reaper::run);
    spawn(&duties, "quorum_guard", leading, quorum_guard::run);
    duties
}

fn spawn<F>(
    duties: &TaskSet,
    name: &'static str,
    leading: &LeaderContext,
    run: impl Fn(LeaderContext) -> F + Send + 'static,
) where
    F: Future<Output = ()> + Send + 'static,
{
    let leading = leading.clone();
    duties.spawn_restarting(name, move || run(leading.clone()));
}

async fn wait_for_failure(table: &mut watch::Receiver<Option<String>>) -> String {
    let failed = table.wait_for(Option::is_some).await;
    // The machine that tells of it is there for as long as its duties are.
    failed.ok().and_then(|reason| reason.clone()).unwrap_or_default()
}

/// Returns once this replica does not lead any more since its duties failed too often.
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
            "duties fail; another one should lead"
        );
        if is_over {
            return;
        }
    }
    // The set that tells of failures lives as long as this is waited for.
    std::future::pending().await
}
