//! Starts a replica from a given state instead of an empty one.

use holdfast_storage::{PartUpdate, ReplicaStore, SnapshotPart};
use openraft::Membership;
use openraft::vote::RaftLeaderId;
use tokio::sync::oneshot;

use crate::error::ReplicationError;
use crate::rules::GroupState;
use crate::types::{LogId, SnapshotMeta, StoredMembership, Vote, encode, encode_meta};

/// The initial state of a replica; identical for every replica of its group.
#[derive(Debug, Clone)]
pub struct InitialSnapshot {
    /// The group's id.
    pub group: String,
    /// The replica id.
    pub replica: u64,
    /// Every replica of the group.
    pub members: Vec<u64>,
    /// The term of the last entry in the state. Leaders of the new group have later terms.
    pub term: u64,
    /// The index of the last entry in the state.
    pub index: u64,
    /// The rules of the group.
    pub rules: u16,
    /// The parts that [`crate::StateMachine::restore`] is given.
    pub parts: Vec<SnapshotPart>,
}

/// Writes the snapshot of a replica without data. Its group is then bootstrapped, and elects a leader once a majority
/// of its replicas has its snapshot.
///
/// # Errors
/// When the replica has data, or the snapshot can't be written.
pub async fn bootstrap_from_snapshot(store: &ReplicaStore, snapshot: InitialSnapshot) -> Result<(), ReplicationError> {
    let stopped =
        |reason: String| ReplicationError::Stopped { group: snapshot.group.clone(), replica: snapshot.replica, reason };
    if !store.is_pristine()? {
        return Err(stopped("it has data already".to_owned()));
    }
    let vote = Vote::new(snapshot.term.max(1), snapshot.replica);
    let last = LogId::new(RaftLeaderId::to_committed(&vote.leader_id), snapshot.index.max(1));
    let members = Membership::new_with_defaults(vec![snapshot.members.iter().copied().collect()], []);
    let meta = SnapshotMeta { last_log_id: Some(last), last_membership: StoredMembership::new(Some(last), members) };
    let group = GroupState { rules: Some(snapshot.rules), ..GroupState::default() };
    let parts = snapshot.parts.iter().cloned().map(PartUpdate::Write).collect();
    store.save_snapshot(encode_meta(&meta, &group), parts).await?;
    let (done, purged) = oneshot::channel();
    store.purge_to(last.index, encode(&last), Box::new(move |result| drop(done.send(result))));
    purged.await.map_err(|_| stopped("the store was closed".to_owned()))??;
    let (done, voted) = oneshot::channel();
    store.save_vote(encode(&vote), Box::new(move |result| drop(done.send(result))));
    voted.await.map_err(|_| stopped("the store was closed".to_owned()))??;
    Ok(())
}
