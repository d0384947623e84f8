//! What tests see and do beyond the public face: openraft's own storage suite, damaged bytes, and orders and answers that
//! come later than the moment that they were meant for.

use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::VoteRequest;
use tokio::time::Instant;

pub use crate::entry::EntryData;
pub use crate::fuzz_support::{read_message, read_stored, stored_samples};
use crate::group::Group;
pub use crate::log_store::LogStore;
pub use crate::state_machine_adapter::StateMachineAdapter;
pub use crate::types::TypeConfig;
use crate::types::Vote;

/// Whether this replica has seen for itself that the process of that one, which may have led, is gone; whichever is there
/// now.
pub fn has_found_dead(group: &Group, replica: u64) -> bool {
    group.connection_to(replica).is_some_and(|link| link.dead_run().is_some())
}

/// Whether this replica's node is connected with that of the other one, and knows its process.
pub fn is_connected(group: &Group, replica: u64) -> bool {
    group.connection_to(replica).is_some_and(|link| link.store_id().is_some())
}

/// The order to stand again arrives, however long ago its replica looked whether it is still a candidate.
pub async fn late_election_trigger(group: &Group) {
    group.trigger_election().await;
}

/// That replica, with the same log as this one, asks for its vote in the next term. Whether it got it.
pub async fn request_vote(group: &Group, candidate: u64) -> bool {
    let known = group.raft().with_raft_state(|state| state.vote_ref().leader_id.term);
    let Ok(term) = known.await else { return false };
    let last = group.raft().data_metrics().borrow_watched().last_log;
    let request = VoteRequest::new(Vote::new(term + 1, candidate), last);
    group.raft().vote(request).await.is_ok_and(|response| response.vote_granted)
}

/// The answer of a follower to something that this replica, as the leader of that term, sent it just before.
pub fn late_ack(group: &Group, term: u64, follower: u64) {
    group.lease_tracker().record(term, follower, group.timing().lease(), Instant::now(), None);
}
