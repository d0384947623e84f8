//! Taking over from a leader whose process is known to be gone.
//!
//! A leader's lease protects what it answers from memory, so nobody else is elected before it ends. A process that is
//! gone answers nothing. That it is gone is known when its address refuses a new connection after the old one broke, and
//! no connection that it made is there any more: the host is there, and nobody listens. A broken connection alone says
//! nothing, nor does silence. (A firewall that *resets* all connections between two nodes, rather than dropping what they
//! send, would pretend as much; see ARCHITECTURE.md.)
//!
//! openraft's transfer of leadership is what makes voters overlook the lease. It is meant for a leader that names its
//! successor; here the survivors agree on one without asking each other, since all know the same members.

use std::time::Duration;

use holdfast_plant::{Plant, is_planted};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::TransferLeaderRequest;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::group::Group;
use crate::types::Vote;

/// How long the next survivor waits for the one before it: a vote takes a few milliseconds.
const TURN: Duration = Duration::from_millis(60);

/// How often a survivor that was not elected stands again before it leaves it to the ordinary election.
const MORE_TRIES: u32 = 4;

impl Group {
    /// The process that hosts that replica refused a connection at that time: if it led, a survivor takes over, unless the
    /// process is found not to be gone when its turn comes.
    pub(crate) async fn succeed(&self, gone: u64, refused_at: Instant, is_gone: impl Fn() -> bool) {
        // A replica that is only being taken in has no vote to win with. One that restarted just now would most likely have
        // less of the log, and could not help the others to an ordinary vote after it had given its own to itself.
        let Some(vote) = self.led_by(gone).filter(|_| self.is_member() && self.may_vote()) else { return };
        let turn = self.turn(gone);
        let mut lesser = self.lesser_candidates();
        tokio::select! {
            () = sleep(TURN * turn) => {}
            // The one before it was refused, for it has less of the log: nobody else is to be waited for.
            _ = lesser.wait_for(|term| *term > vote.leader_id.term) => {}
        }
        // A replica that was started again does not lead within a lease, so that within half of one it is still the
        // process that is gone which led.
        let is_late = refused_at.elapsed() > self.timing().lease() / 2;
        if is_late || !is_gone() || self.led_by(gone).as_ref() != Some(&vote) {
            return;
        }
        tracing::info!(shard = self.shard(), replica = self.replica(), gone, "the leader's process is gone; standing");
        metrics::counter!("holdfast_successions_total").increment(1);
        let request = TransferLeaderRequest::new(vote, self.replica(), None);
        // It fails only when the replica has stopped.
        let _ = self.raft().handle_transfer_leader(request).await;
        self.stand_again(turn, refused_at, lesser).await;
    }

    /// Two survivors that stood in the same term keep each other from winning, also when one of them has less of the log
    /// and was refused. So whoever is still a candidate stands in a later term, in turns as before, or at once when it
    /// has refused another one for its log. These are ordinary elections: a lease of anybody elected meanwhile protects
    /// that one, and candidates have none to protect.
    async fn stand_again(&self, turn: u32, refused_at: Instant, mut lesser: watch::Receiver<u64>) {
        for _ in 0..MORE_TRIES {
            let Some(term) = self.stands_in().await else { return };
            tokio::select! {
                () = sleep(TURN * (turn + 1)) => {}
                _ = lesser.wait_for(|other| *other >= term) => {}
            }
            let is_late = refused_at.elapsed() > self.timing().lease() / 2;
            if is_late || !self.may_vote() || self.stands_in().await != Some(term) {
                return;
            }
            tracing::info!(shard = self.shard(), replica = self.replica(), term, "not elected yet; standing again");
            self.order_again().await;
        }
    }

    /// Asks the others whether they would vote for this replica, and stands when a majority would. Since the look at the
    /// term another candidate may have been elected with this replica's vote, and its lease may rest on this one. A round
    /// that asks first ends with the next append of a leader, and does not begin within a lease; standing at once would
    /// break the lease.
    pub(crate) async fn order_again(&self) {
        // It fails only when the replica has stopped.
        let _ = self.raft().trigger().elect(!is_planted(Plant::RetryUnchecked)).await;
    }

    /// The term in which this replica is a candidate that was not elected yet.
    async fn stands_in(&self) -> Option<u64> {
        // Asked for, since what is watched may be a little older than what was begun just now.
        let vote = self.raft().with_raft_state(|state| *state.vote_ref()).await.ok()?;
        let is_candidate = vote.leader_id.voted_for == self.replica() && !vote.is_committed();
        is_candidate.then_some(vote.leader_id.term)
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
