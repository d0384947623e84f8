//! A leader that is cut off sends those who wait away, so that they find the other side.

use holdfast_replication::{Group, Leadership};
use tokio::time::{Duration, sleep};

use crate::machine::ShardMachine;

/// How often the quorum is looked at while somebody waits.
const LOOK: Duration = Duration::from_millis(500);

/// Runs for one leadership.
pub(super) async fn run(group: &Group, machine: &ShardMachine, leads: Leadership) {
    loop {
        let mut changed = std::pin::pin!(machine.table_changed().notified());
        changed.as_mut().enable();
        if !machine.look_as_leader(leads.term, |_, table| table.look_after_callers()).unwrap_or(false) {
            changed.await;
            continue;
        }
        sleep(LOOK).await;
        if !group.hears_quorum(leads.term) {
            machine.as_leader(leads.term, |_, table| table.send_callers_away());
        }
    }
}
