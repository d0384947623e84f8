//! Tracks which process leads and whether it is dead, from this replica's own observations and those of others.
//!
//! A refused connection may mislead: a firewall rule, an address reassigned to another machine, a full backlog. No
//! replica therefore ignores a lease on the word of one other. The evidence concerns a *process*, not the current user
//! of its address: each process draws a random number at its start, its run. A dead process stays dead, so evidence
//! does not expire.

use std::collections::BTreeSet;
use std::time::Duration;

use futures::stream::{FuturesUnordered, StreamExt};
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::Kind;
use openraft::async_runtime::watch::WatchReceiver;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, timeout};

use crate::group::Group;
use crate::types::{Vote, decode};

/// Timeout of another replica's confirmation; it detects the death at the same time as the querying replica.
const CONFIRMATION_TIMEOUT: Duration = Duration::from_millis(60);

/// The claim that the run that leads in a term is dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeaderDeath {
    /// The leading replica.
    pub(crate) leader: u64,
    pub(crate) term: u64,
    pub(crate) run: u64,
}

impl Group {
    /// Returns true if this replica has observed the death itself.
    pub(crate) fn has_observed(&self, death: &LeaderDeath) -> bool {
        let leads = self.leader_run().leads(death.term, death.run) || is_enabled(Mutation::DeathByAddress);
        let is_led = self.leader_vote(death.leader).is_some_and(|vote| vote.leader_id.term == death.term);
        is_led && leads && self.connection_to(death.leader).is_some_and(|link| link.is_dead(death.run))
    }

    /// Returns true if as many voters have observed it as an election needs, this one included.
    pub(crate) async fn is_confirmed_by_quorum(&self, death: &LeaderDeath) -> bool {
        if is_enabled(Mutation::DeathOneWitness) {
            return true;
        }
        let asked = Instant::now();
        let voters = self.voters();
        let others: BTreeSet<u64> = voters.iter().flatten().copied().collect();
        let others = others.into_iter().filter(|other| *other != self.replica() && *other != death.leader);
        // A release that does not know the query answers no.
        let ask = async |other| {
            let answer = self.query_peer(other, Kind::IsGone, death, CONFIRMATION_TIMEOUT).await;
            (other, answer.is_some_and(|bytes| decode(&bytes).unwrap_or(false)))
        };
        let mut answers: FuturesUnordered<_> = others.map(ask).collect();
        let mut seen_by = BTreeSet::from([self.replica()]);
        while !is_majority(&seen_by, &voters) {
            match answers.next().await {
                Some((other, has_seen)) => _ = has_seen.then(|| seen_by.insert(other)),
                None => return false,
            }
        }
        metrics::histogram!("holdfast_second_witness_seconds").record(asked.elapsed().as_secs_f64());
        true
    }

    /// Answers a peer's query. This replica may be about to observe the death, so it waits briefly.
    pub(crate) async fn confirms(&self, death: &LeaderDeath) -> bool {
        let Some(link) = self.connection_to(death.leader) else { return false };
        timeout(CONFIRMATION_TIMEOUT, link.wait_dead(death.run)).await.is_ok() && self.has_observed(death)
    }

    /// Returns the vote by which that replica leads, as far as this one knows.
    pub(crate) fn leader_vote(&self, replica: u64) -> Option<Vote> {
        let metrics = self.raft().server_metrics();
        let now = metrics.borrow_watched();
        let leads = now.current_leader == Some(replica) && now.vote.is_committed();
        leads.then_some(now.vote)
    }

    /// Returns the voters; during a membership change, the old and the new set.
    pub(crate) fn voters(&self) -> Vec<BTreeSet<u64>> {
        let metrics = self.raft().server_metrics();
        let now = metrics.borrow_watched();
        now.membership_config.get_joint_config().clone()
    }
}

/// Returns true if some of the voters are a majority of them, and of each set of a membership change.
pub(crate) fn is_majority(some: &BTreeSet<u64>, voters: &[BTreeSet<u64>]) -> bool {
    voters.iter().all(|voters| 2 * voters.intersection(some).count() > voters.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_witnesses_are_needed_as_votes() {
        let ids = |ids: &[u64]| ids.iter().copied().collect::<BTreeSet<u64>>();
        assert!(!is_majority(&ids(&[1]), &[ids(&[1, 2, 3])]));
        assert!(is_majority(&ids(&[1, 2]), &[ids(&[1, 2, 3])]));
        assert!(!is_majority(&ids(&[1, 2]), &[ids(&[1, 2, 3, 4])]));
        assert!(!is_majority(&ids(&[1, 2, 3]), &[ids(&[1, 2, 3]), ids(&[3, 4, 5])]), "members change");
    }
}
