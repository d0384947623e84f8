//! Fast failover from a leader whose process is dead.
//!
//! A leader's lease protects its answers from memory, so no other leader is elected before the lease ends. A dead
//! process answers nothing. It is dead if its address refuses a new connection after the old one broke, and none of its
//! inbound connections is open: the machine is up, and no process listens. Neither a broken connection nor silence
//! alone is proof. One replica may be mistaken, so as many replicas must observe the death as an election needs votes
//! (`leader_death.rs`). The observation concerns one process: the one whose connection carried the leader's appends. A
//! dead process stays dead, so the age of an observation does not matter.
//!
//! openraft's leadership transfer makes voters ignore the lease. It is meant for a leader that names its successor;
//! here the survivors stand in a fixed order, since all know the same members.

use std::time::Duration;

use holdfast_mutations::{Mutation, is_enabled};
use openraft::raft::TransferLeaderRequest;
use tokio::sync::watch;
use tokio::time::sleep;

use crate::group::Group;
use crate::leader_death::LeaderDeath;

/// Delay between the elections of successive survivors; a vote takes a few milliseconds.
const STAGGER: Duration = Duration::from_millis(60);

/// How often an unelected survivor stands again before it falls back to the ordinary election.
const MAX_RETRIES: u32 = 4;

impl Group {
    /// Reacts to the death of process run `run`, which hosts replica `gone`: if that replica led, a survivor takes over
    /// once others confirm the death.
    pub(crate) async fn take_over(&self, gone: u64, run: u64) {
        // A learner can't win. A replica that restarted just now most likely lacks part of the log; its vote for itself
        // would be missing from an ordinary election.
        let Some(vote) = self.leader_vote(gone).filter(|_| self.is_member() && self.may_vote()) else { return };
        let death = LeaderDeath { leader: gone, term: vote.leader_id.term, run };
        if !self.has_observed(&death) {
            return;
        }
        let rank = self.candidate_rank(gone);
        let mut lesser = self.rejected_candidates();
        // Even a zero timer would take up to two milliseconds.
        if rank > 0 {
            tokio::select! {
                () = sleep(STAGGER * rank) => {}
                // Voters rejected the preceding candidate because its log is shorter: there is no other survivor to
                // wait for.
                _ = lesser.wait_for(|term| *term > death.term) => {}
            }
        }
        // Checked again each time, because the process may have reconnected meanwhile.
        if !self.has_observed(&death) || !self.is_confirmed_by_quorum(&death).await || !self.has_observed(&death) {
            return;
        }
        tracing::info!(group = self.id(), replica = self.replica(), gone, "leader process dead; standing for election");
        metrics::counter!("holdfast_fast_failovers_total").increment(1);
        // openraft compares the vote when it starts the election: it does nothing if this replica has voted otherwise.
        let request = TransferLeaderRequest::new(vote, self.replica(), None);
        // It fails only when the replica has stopped.
        let _ = self.raft().handle_transfer_leader(request).await;
        self.retry_election(rank, lesser).await;
    }

    /// Two survivors that stand in the same term block each other, even if voters rejected one of them for its shorter
    /// log. A replica that is still a candidate therefore stands in a later term, staggered as before, or at once after
    /// it rejects another candidate for its log. These are ordinary elections: the lease of a leader elected meanwhile
    /// stays protected, and candidates have no lease.
    async fn retry_election(&self, rank: u32, mut lesser: watch::Receiver<u64>) {
        for _ in 0..MAX_RETRIES {
            let Some(term) = self.candidate_term().await else { return };
            tokio::select! {
                () = sleep(STAGGER * (rank + 1)) => {}
                _ = lesser.wait_for(|other| *other >= term) => {}
            }
            if !self.may_vote() || self.candidate_term().await != Some(term) {
                return;
            }
            tracing::info!(group = self.id(), replica = self.replica(), term, "not elected; standing again");
            self.trigger_election().await;
        }
    }

    /// Runs a pre-vote and stands if a majority would vote for this replica. Since the term was checked, another
    /// candidate may have been elected with this replica's vote, and its lease may depend on that vote. A pre-vote ends
    /// with the next append of a leader and does not start within a lease; standing directly would break the lease.
    pub(crate) async fn trigger_election(&self) {
        // It fails only when the replica has stopped.
        let _ = self.raft().trigger().elect(!is_enabled(Mutation::RetryUnchecked)).await;
    }

    /// Returns the term in which this replica is an unelected candidate.
    async fn candidate_term(&self) -> Option<u64> {
        // Read from openraft directly, since the metrics may lag behind a candidacy that just began.
        let vote = self.raft().with_raft_state(|state| *state.vote_ref()).await.ok()?;
        let is_candidate = vote.leader_id.voted_for == self.replica() && !vote.is_committed();
        is_candidate.then_some(vote.leader_id.term)
    }

    /// Returns how many other survivors stand before this one. The first differs by group, which spreads the load.
    fn candidate_rank(&self, gone: u64) -> u32 {
        let survivors: Vec<u64> = self.members().keys().copied().filter(|replica| *replica != gone).collect();
        let first = self.id().bytes().map(usize::from).sum::<usize>() % survivors.len().max(1);
        let own = survivors.iter().position(|replica| *replica == self.replica()).unwrap_or(0);
        let rank = (own + survivors.len() - first) % survivors.len().max(1);
        u32::try_from(rank).unwrap_or(u32::MAX)
    }
}
