//! Giving leadership away before a stop.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, timeout_at};

use crate::group::Group;

impl Group {
    /// Hands leadership to the follower that has most of the log, and waits until what was proposed here has been
    /// answered. True when this replica does not lead in the end; it keeps its leadership when no follower answers.
    ///
    /// From the beginning of the hand-over it neither proposes nor reads: the next leader's voters do not wait for the
    /// end of this one's lease.
    pub async fn hand_over(&self, within: Duration) -> bool {
        let deadline = Instant::now() + within;
        let Some(leads) = self.leads() else { return true };
        let Some(target) = self.successor(leads.term) else { return false };
        self.give_away(leads.term);
        let mut leadership = self.leadership();
        let withdrawn = leadership.wait_for(|leads| leads.is_none());
        if !matches!(timeout_at(deadline, withdrawn).await, Ok(Ok(_))) {
            return self.leads().is_none();
        }
        drop(leadership);
        if self.raft().trigger().transfer_leader(target).await.is_err() {
            return true;
        }
        timeout_at(deadline, self.succeeded()).await.is_ok()
    }

    /// The follower with most of the log among those that answer.
    fn successor(&self, term: u64) -> Option<u64> {
        let alive = self.acks().since(term, Instant::now().checked_sub(self.timing().usable_lease())?);
        let metrics = self.raft().metrics();
        let matched = metrics.borrow_watched().replication.clone().unwrap_or_default();
        let candidates = matched.into_iter().filter(|(id, _)| alive.contains(id));
        candidates.max_by_key(|(_, log)| *log).map(|(id, _)| id)
    }

    /// Waits for another leader, and until everything that this one wrote is applied here and thereby answered.
    async fn succeeded(&self) {
        let mut metrics = self.raft().metrics();
        let written = metrics.borrow_watched().last_log_index;
        loop {
            {
                let now = metrics.borrow_and_update();
                let led_by_another = now.current_leader.is_some_and(|leader| leader != self.replica());
                if led_by_another && now.last_applied.map(|id| id.index) >= written {
                    return;
                }
            }
            if metrics.changed().await.is_err() {
                return;
            }
        }
    }
}
