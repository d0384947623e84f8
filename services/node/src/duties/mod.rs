//! What only a leader does. Each duty begins with a leadership and is dropped with it.

mod callers;
mod expiry;
mod outbox;
mod sessions;
mod waits;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use holdfast_replication::{Group, Leadership};
use holdfast_supervise::TaskSet;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::machine::ShardMachine;
use crate::router::Delivery;

/// A leader whose duties fail so often within the time lets another replica lead.
const TOO_OFTEN: usize = 3;
const WITHIN: Duration = Duration::from_secs(60);
/// How long handing the leadership over may take.
const HAND_OVER: Duration = Duration::from_secs(5);

/// Runs the duties of each leadership of this replica, one after the other. Each duty is a task of its own, and is started
/// again when it fails.
pub(crate) async fn follow(group: Group, machine: Arc<ShardMachine>, delivery: Delivery) {
    let (mut leadership, mut table_failed) = (group.leadership(), machine.table_failed());
    let mut failures = VecDeque::new();
    loop {
        let Some(leads) = *leadership.borrow_and_update() else {
            if leadership.changed().await.is_err() {
                return;
            }
            continue;
        };
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "leads");
        metrics::counter!("holdfast_leaderships_total").increment(1);
        let leading =
            Leading { group: group.clone(), machine: Arc::clone(&machine), delivery: delivery.clone(), leads };
        let duties = begin(&leading);
        let changed = tokio::select! {
            changed = leadership.changed() => changed,
            () = hand_over_when_they_fail(&group, duties.failures(), &mut failures) => leadership.changed().await,
            reason = failure_of(&mut table_failed) => {
                // This replica is started again, and another one leads.
                group.tasks().fail("leader table", reason);
                return;
            }
        };
        duties.ended().await;
        tracing::info!(shard = group.shard(), replica = group.replica(), term = leads.term, "no longer leads");
        if changed.is_err() {
            return;
        }
    }
}

/// What a duty works with.
#[derive(Clone)]
struct Leading {
    group: Group,
    machine: Arc<ShardMachine>,
    delivery: Delivery,
    leads: Leadership,
}

/// Each leadership gets new ones.
fn begin(leading: &Leading) -> TaskSet {
    let duties = leading.group.tasks().child();
    keep(&duties, "expiry", leading, expiry::run);
    keep(&duties, "outbox", leading, outbox::run);
    keep(&duties, "sessions", leading, sessions::run);
    keep(&duties, "waits", leading, waits::run);
    keep(&duties, "callers", leading, callers::run);
    duties
}

fn keep<F>(duties: &TaskSet, name: &'static str, leading: &Leading, run: impl Fn(Leading) -> F + Send + 'static)
where
    F: Future<Output = ()> + Send + 'static,
{
    let leading = leading.clone();
    duties.keep(name, move || run(leading.clone()));
}

async fn failure_of(table: &mut watch::Receiver<Option<String>>) -> String {
    let failed = table.wait_for(Option::is_some).await;
    // The machine that tells of it is there for as long as its duties are.
    failed.ok().and_then(|reason| reason.clone()).unwrap_or_default()
}

/// Returns once this replica does not lead any more since its duties failed too often.
async fn hand_over_when_they_fail(group: &Group, mut failures: watch::Receiver<u64>, times: &mut VecDeque<Instant>) {
    let mut seen = *failures.borrow_and_update();
    while failures.changed().await.is_ok() {
        let count = *failures.borrow_and_update();
        times.extend((seen..count).map(|_| Instant::now()));
        seen = count;
        times.retain(|time| time.elapsed() < WITHIN);
        if times.len() < TOO_OFTEN {
            continue;
        }
        times.clear();
        let is_over = group.hand_over(HAND_OVER).await;
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
