//! Redirects waiting callers when the leader is cut off, so that they find the leader of the majority.

use tokio::time::{Duration, sleep};

use super::LeaderContext;

/// How often the quorum is checked while callers wait.
const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Runs for one leadership.
pub(super) async fn run(leading: LeaderContext) {
    let LeaderContext { ref shard, leads, .. } = leading;
    let machine = &shard.machine;
    loop {
        let mut changed = std::pin::pin!(machine.leader_state_changed().notified());
        changed.as_mut().enable();
        if !machine.inspect_as_leader(leads.term, |_, table| table.update_quorum_guard()).unwrap_or(false) {
            changed.await;
            continue;
        }
        sleep(POLL_INTERVAL).await;
        if !shard.group.has_recent_quorum(leads.term) {
            machine.with_leader_state(leads.term, |_, table| table.redirect_callers());
        }
    }
}
