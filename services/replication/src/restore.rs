//! A replica that begins with a state instead of an empty one.

use bytes::Bytes;
use holdfast_storage::ReplicaStore;
use openraft::Membership;
use openraft::vote::RaftLeaderId;
use tokio::sync::oneshot;

use crate::error::ReplicationError;
use crate::rules::GroupState;
use crate::types::{LogId, SnapshotMeta, StoredMembership, Vote, encode, encode_meta};

/// What a replica begins with; the same for every replica of its shard.
#[derive(Debug, Clone)]
pub struct InitialSnapshot {
    /// The shard's id.
    pub shard: String,
    /// The replica.
    pub replica: u64,
    /// Every replica of the shard.
    pub members: Vec<u64>,
    /// The term and the index of the last entry that the state contains. Leaders of the new group have later terms.
    pub term: u64,
    /// See `term`.
    pub index: u64,
    /// The rules by which the group goes on.
    pub rules: u16,
    /// As [`crate::StateMachine::freeze`] gives it.
    pub chunks: Vec<Bytes>,
}

/// Writes the snapshot of a replica that has no data. Its group is then one that was formed, and elects a leader once a
/// majority of its replicas has been seeded.
///
/// # Errors
/// When the replica has data, or it can't be written.
pub async fn bootstrap_from_snapshot(store: &ReplicaStore, snapshot: InitialSnapshot) -> Result<(), ReplicationError> {
    let stopped =
        |reason: String| ReplicationError::Stopped { shard: snapshot.shard.clone(), replica: snapshot.replica, reason };
    if !store.is_pristine()? {
        return Err(stopped("it has data already".to_owned()));
    }
    let vote = Vote::new(snapshot.term.max(1), snapshot.replica);
    let last = LogId::new(RaftLeaderId::to_committed(&vote.leader_id), snapshot.index.max(1));
    let members = Membership::new_with_defaults(vec![snapshot.members.iter().copied().collect()], []);
    let meta = SnapshotMeta { last_log_id: Some(last), last_membership: StoredMembership::new(Some(last), members) };
    let group = GroupState { rules: Some(snapshot.rules) };
    store.save_snapshot(encode_meta(&meta, group), snapshot.chunks.clone()).await?;
    let (done, purged) = oneshot::channel();
    store.purge_to(last.index, encode(&last), Box::new(move |result| drop(done.send(result))));
    purged.await.map_err(|_| stopped("the store was closed".to_owned()))??;
    let (done, voted) = oneshot::channel();
    store.save_vote(encode(&vote), Box::new(move |result| drop(done.send(result))));
    voted.await.map_err(|_| stopped("the store was closed".to_owned()))??;
    Ok(())
}
