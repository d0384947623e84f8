//! Leadership transfer before a stop.

use std::time::Duration;

use holdfast_supervise::spawn_temporary;
use openraft::async_runtime::watch::WatchReceiver;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::group::Group;

/// How often the leader checks for a follower's acknowledgement.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Timeout of a transfer because of a full disk.
const TRANSFER_TIMEOUT: Duration = Duration::from_secs(3);

impl Group {
    /// Transfers leadership to the follower with disk space and the longest log, and waits until commands proposed here
    /// have their replies. Returns true if this replica no longer leads; it keeps leading if no follower responds.
    ///
    /// From the start of the transfer it neither proposes nor serves reads: the next leader's voters do not wait for
    /// the end of this lease.
    pub async fn transfer_leadership(&self, within: Duration) -> bool {
        // All others may be down, so it waits no longer than the next heartbeat takes.
        self.transfer_leadership_when_acked(|_| true, self.timing().lease() / 2, within).await
    }

    /// As above, to a suitable voter. A live voter may briefly lack a fresh acknowledgement, especially right after it
    /// became a voter, so this waits for it.
    pub async fn transfer_leadership_among(&self, is_suitable: impl Fn(u64) -> bool, within: Duration) -> bool {
        // A live follower acknowledges two heartbeats within a lease.
        self.transfer_leadership_when_acked(is_suitable, 2 * self.timing().lease(), within).await
    }

    async fn transfer_leadership_when_acked(
        &self,
        is_suitable: impl Fn(u64) -> bool,
        heard_within: Duration,
        within: Duration,
    ) -> bool {
        let deadline = Instant::now() + within;
        let heard_by = deadline.min(Instant::now() + heard_within);
        loop {
            let Some(leads) = self.leadership() else { return true };
            if let Some((target, _)) = self.transfer_target(leads.term, &is_suitable) {
                return self.transfer_leadership_to(target, leads.term, deadline).await;
            }
            if Instant::now() >= heard_by || self.members().len() == 1 {
                return false;
            }
            sleep_until(heard_by.min(Instant::now() + POLL_INTERVAL)).await;
        }
    }

    /// Continues if the caller disconnects: after it relinquished the term, this replica serves nothing, so another
    /// replica must take over.
    async fn transfer_leadership_to(&self, target: u64, term: u64, deadline: Instant) -> bool {
        let group = self.clone();
        let over = spawn_temporary("hand over", async move { group.relinquish_to(target, term).await });
        timeout_at(deadline, over).await.is_ok()
    }

    async fn relinquish_to(&self, target: u64, term: u64) {
        self.relinquish(term);
        let mut leadership = self.subscribe_leadership();
        // An error means that the replica has stopped.
        if leadership.wait_for(Option::is_none).await.is_err() {
            return;
        }
        drop(leadership);
        if self.raft().trigger().transfer_leader(target).await.is_ok() {
            self.wait_transferred().await;
        }
    }

    /// Transfers leadership if a follower has more disk space.
    pub(crate) async fn transfer_if_disk_full(&self) {
        let Some(leads) = self.leadership() else { return };
        if self.transfer_target(leads.term, |_| true).is_some_and(|(_, has_room)| has_room) {
            let is_over = self.transfer_leadership(TRANSFER_TIMEOUT).await;
            tracing::info!(group = self.id(), is_over, "the disk is nearly full; leadership is handed over");
        }
    }

    /// Returns the responding follower with the longest log, and whether its disk has space. Followers with space take
    /// precedence.
    fn transfer_target(&self, term: u64, is_suitable: impl Fn(u64) -> bool) -> Option<(u64, bool)> {
        let alive =
            self.lease_tracker().acknowledged_since(term, Instant::now().checked_sub(self.timing().usable_lease())?);
        let metrics = self.raft().metrics();
        let matched = metrics.borrow_watched().replication.clone().unwrap_or_default();
        let candidates =
            matched.into_iter().filter(|(id, _)| *id != self.replica() && alive.contains(id) && is_suitable(*id));
        let candidates = candidates.map(|(id, log)| (self.peer_has_disk_space(id), log, id));
        candidates.max().map(|(has_room, _, id)| (id, has_room))
    }

    /// Waits for another leader, and until all entries of this one are applied here and thereby answered.
    async fn wait_transferred(&self) {
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
