//! Taking over from a leader whose process is known to be gone.
//!
//! A leader's lease protects what it answers from memory, so nobody else is elected before it ends. A process that is
//! gone answers nothing. That it is gone is known when its address refuses a new connection after the old one broke:
//! the host is there, and nobody listens. A broken connection alone says nothing, nor does silence. (A firewall that
//! *rejects* connections between nodes, rather than dropping them, would pretend as much; see ARCHITECTURE.md.)
//!
//! openraft's transfer of leadership is what makes voters overlook the lease. It is meant for a leader that names its
//! successor; here the survivors agree on one without asking each other, since all know the same members.

use std::time::Duration;

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::time::{Instant, sleep};

use crate::group::Group;
use crate::types::Vote;

/// How long the next survivor waits for the one before it: a vote takes a few milliseconds, and fails when that one has
/// less of the log. Two that stand at the same time may keep each other from winning.
const TURN: Duration = Duration::from_millis(60);

impl Group {
    /// The process that hosts that replica refused a connection at that time: if it led, a survivor takes over.
    pub(crate) async fn succeed(&self, gone: u64, refused_at: Instant) {
        // A replica that is only being taken in has no vote to win with.
        let Some(vote) = self.led_by(gone).filter(|_| self.is_member()) else { return };
        sleep(TURN * self.turn(gone)).await;
        // A replica that was started again does not lead within a lease, so that within half of one it is still the
        // process that is gone which led.
        if refused_at.elapsed() > self.timing().lease() / 2 || self.led_by(gone).as_ref() != Some(&vote) {
            return;
        }
        tracing::info!(shard = self.shard(), replica = self.replica(), gone, "the leader's process is gone; standing");
        metrics::counter!("holdfast_successions_total").increment(1);
        let request = TransferLeaderRequest::new(vote, self.replica(), None);
        // It fails only when the replica has stopped.
        let _ = self.raft().handle_transfer_leader(request).await;
    }

    /// The vote by which that replica leads, as far as this one knows.
    fn led_by(&self, replica: u64) -> Option<Vote> {
        let metrics = self.raft().server_metrics();
        let now = metrics.borrow_watched();
        let leads = now.current_leader == Some(replica) && now.vote.is_committed();
        leads.then_some(now.vote)
    }

    /// How many other survivors stand before this one. Another one begins in each shard, so that they share the load.
    fn turn(&self, gone: u64) -> u32 {
        let survivors: Vec<u64> = self.members().keys().copied().filter(|replica| *replica != gone).collect();
        let first = self.shard().bytes().map(usize::from).sum::<usize>() % survivors.len().max(1);
        let own = survivors.iter().position(|replica| *replica == self.replica()).unwrap_or(0);
        let turn = (own + survivors.len() - first) % survivors.len().max(1);
        u32::try_from(turn).unwrap_or(u32::MAX)
    }
}
