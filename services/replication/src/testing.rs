//! Test-only access beyond the public API: openraft's own storage suite, corrupted bytes, and delayed triggers and
//! responses.

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::VoteRequest;

pub use crate::entry::{EntryData, Section};
pub use crate::fuzz_support::{read_message, read_stored, stored_samples};
use crate::group::Group;
pub use crate::log_store::LogStore;
pub use crate::state_machine_adapter::StateMachineAdapter;
pub use crate::types::TypeConfig;
use crate::types::Vote;

/// Returns true if this replica has itself found a process dead that hosts `replica`, which may have led; whichever
/// process is there now.
pub fn has_found_dead(group: &Group, replica: u64) -> bool {
    group.connection_to(replica).is_some_and(|link| link.dead_run().is_some())
}

/// Returns true if this replica's node is connected to the other one's, and knows its process.
pub fn is_connected(group: &Group, replica: u64) -> bool {
    group.connection_to(replica).is_some_and(|link| link.store_id().is_some())
}

/// Returns the failed shards of that replica, as its node last said.
pub fn known_failed_shards(group: &Group, replica: u64) -> Vec<u32> {
    group.replica_report(replica).failed_shards.into_iter().collect()
}

/// Delivers the election trigger late, however long ago the replica checked that it is still a candidate.
pub async fn late_election_trigger(group: &Group) {
    group.trigger_election().await;
}

/// Requests this replica's vote for `candidate`, with the same log, in the next term. Returns true if the vote is
/// granted.
pub async fn request_vote(group: &Group, candidate: u64) -> bool {
    let known = group.raft().with_raft_state(|state| state.vote_ref().leader_id.term);
    let Ok(term) = known.await else { return false };
    let last = group.raft().data_metrics().borrow_watched().last_log;
    let request = VoteRequest::new(Vote::new(term + 1, candidate), last);
    group.raft().vote(request).await.is_ok_and(|response| response.vote_granted)
}

/// Records a follower's response to a message that this replica, as leader of this term, sent just before.
pub fn late_ack(group: &Group, term: u64, follower: u64) {
    let leases = group.lease_tracker();
    leases.record(term, follower, group.timing().lease(), leases.send_time(), None);
}
