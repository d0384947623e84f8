//! Taking over from a leader whose process is known to be gone.
//!
//! A leader's lease protects what it answers from memory, so nobody else is elected before it ends. A process that is
//! gone answers nothing. That it is gone is known when its address refuses a new connection after the old one broke, and
//! no connection that it made is there any more: the host is there, and nobody listens. A broken connection alone says
//! nothing, nor does silence. And one replica alone may be mistaken: as many have to see it as an election needs votes
//! (`witness.rs`). What is seen is about one process, the one over whose connection the leader's appends came; a process
//! that is gone stays gone, so that it does not matter how long ago that was seen.
//!
//! openraft's transfer of leadership is what makes voters overlook the lease. It is meant for a leader that names its
//! successor; here the survivors take turns, since all know the same members.

use std::time::Duration;

use holdfast_mutations::{Mutation, is_enabled};
use openraft::raft::TransferLeaderRequest;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::group::Group;
use crate::leader_death::LeaderDeath;

/// How long the next survivor waits for the one before it: a vote takes a few milliseconds.
const STAGGER: Duration = Duration::from_millis(60);

/// How often a survivor that was not elected stands again before it leaves it to the ordinary election.
const MAX_RETRIES: u32 = 4;

impl Group {
    /// That run of the process that hosts that replica was found gone: if it led, a survivor takes over, once others have
    /// found it too.
    pub(crate) async fn take_over(&self, gone: u64, run: u64) {
        // A replica that is only being taken in has no vote to win with. One that restarted just now would most likely have
        // less of the log, and could not help the others to an ordinary vote after it had given its own to itself.
        let Some(vote) = self.leader_vote(gone).filter(|_| self.is_member() && self.may_vote()) else { return };
        let death = LeaderDeath { leader: gone, term: vote.leader_id.term, run };
        if !self.has_observed(&death) {
            return;
        }
        let turn = self.candidate_rank(gone);
        let mut lesser = self.rejected_candidates();
        // A timer of no time at all would take up to two milliseconds.
        if turn > 0 {
            tokio::select! {
                () = sleep(STAGGER * turn) => {}
                // The one before it was refused, for it has less of the log: nobody else is to be waited for.
                _ = lesser.wait_for(|term| *term > death.term) => {}
            }
        }
        // Looked at again each time, for it may have been met meanwhile.
        if !self.has_observed(&death) || !self.is_confirmed_by_quorum(&death).await || !self.has_observed(&death) {
            return;
        }
        tracing::info!(shard = self.shard(), replica = self.replica(), gone, "the leader's process is gone; standing");
        metrics::counter!("holdfast_fast_failovers_total").increment(1);
        // openraft compares the vote in the step in which it stands: it does nothing if this replica has given another.
        let request = TransferLeaderRequest::new(vote, self.replica(), None);
        // It fails only when the replica has stopped.
        let _ = self.raft().handle_transfer_leader(request).await;
        self.retry_election(turn, lesser).await;
    }

    /// Two survivors that stood in the same term keep each other from winning, also when one of them has less of the log
    /// and was refused. So whoever is still a candidate stands in a later term, in turns as before, or at once when it
    /// has refused another one for its log. These are ordinary elections: a lease of anybody elected meanwhile protects
    /// that one, and candidates have none to protect.
    async fn retry_election(&self, turn: u32, mut lesser: watch::Receiver<u64>) {
        for _ in 0..MAX_RETRIES {
            let Some(term) = self.candidate_term().await else { return };
            tokio::select! {
                () = sleep(STAGGER * (turn + 1)) => {}
                _ = lesser.wait_for(|other| *other >= term) => {}
            }
            if !self.may_vote() || self.candidate_term().await != Some(term) {
                return;
            }
            tracing::info!(shard = self.shard(), replica = self.replica(), term, "not elected yet; standing again");
            self.trigger_election().await;
        }
    }

    /// Asks the others whether they would vote for this replica, and stands when a majority would. Since the look at the
    /// term another candidate may have been elected with this replica's vote, and its lease may rest on this one. A round
    /// that asks first ends with the next append of a leader, and does not begin within a lease; standing at once would
    /// break the lease.
    pub(crate) async fn trigger_election(&self) {
        // It fails only when the replica has stopped.
        let _ = self.raft().trigger().elect(!is_enabled(Mutation::RetryUnchecked)).await;
    }

    /// The term in which this replica is a candidate that was not elected yet.
    async fn candidate_term(&self) -> Option<u64> {
        // Asked for, since what is watched may be a little older than what was begun just now.
        let vote = self.raft().with_raft_state(|state| *state.vote_ref()).await.ok()?;
        let is_candidate = vote.leader_id.voted_for == self.replica() && !vote.is_committed();
        is_candidate.then_some(vote.leader_id.term)
    }

    /// How many other survivors stand before this one. Another one begins in each shard, so that they share the load.
    fn candidate_rank(&self, gone: u64) -> u32 {
        let survivors: Vec<u64> = self.members().keys().copied().filter(|replica| *replica != gone).collect();
        let first = self.shard().bytes().map(usize::from).sum::<usize>() % survivors.len().max(1);
        let own = survivors.iter().position(|replica| *replica == self.replica()).unwrap_or(0);
        let turn = (own + survivors.len() - first) % survivors.len().max(1);
        u32::try_from(turn).unwrap_or(u32::MAX)
    }
}
