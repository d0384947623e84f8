//! Checkpoints of a shard: what replicas agree on, so that one where the shard has failed can take its state from
//! another.
//!
//! A checkpoint is an entry. Every replica where the shard serves digests its state exactly there. A replica where it
//! has failed asks the others for their digests, and takes the state from one of a majority of the voters with the same
//! digest: a single one may be the one that is wrong. Nothing is replaced while there is no such majority, unless an
//! operator names the replica to believe. What came after the checkpoint is in its own log.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use futures::future::join_all;
use holdfast_mutations::{Mutation, is_enabled};
use holdfast_proto::internal::{Kind, PartRequest};
use holdfast_storage::SnapshotPart;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep, timeout};

use crate::entry::GroupCommand;
use crate::error::ProposeError;
use crate::group::Group;
use crate::leader_death::is_majority;
use crate::network::snapshot::fetch_part;
use crate::types::decode;

/// Shortest time between two checkpoints of a shard that replicas request. Each has every replica encode it.
const MIN_CHECKPOINT_INTERVAL: Duration = Duration::from_secs(5);
/// Timeout of the entry of a checkpoint, and of a question to a peer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);
/// How long replicas may take to apply the entry and digest their states.
const DIGEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How often a replica asks those again that have no digest yet.
const DIGEST_POLL_INTERVAL: Duration = Duration::from_millis(100);

/// A question of a replica about a shard that has failed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum RebuildQuery {
    /// To the leader: log a checkpoint of the shard of this number. The answer is empty, or none if it can't.
    Checkpoint { shard: u32 },
    /// The answer is the digest of its state at the checkpoint of this index, or none.
    Digest { shard: u32, index: u64 },
}

/// The checkpoints of the shards of a replica.
#[derive(Default)]
pub(crate) struct Checkpoints {
    /// When this replica, as the leader, last logged one that a replica requested; of the latest ones.
    requested: Mutex<BTreeMap<u32, Instant>>,
    /// Whoever fetches a part: one at a time, so that they leave room for everything else.
    fetching: tokio::sync::Mutex<()>,
}

/// The state of a shard at a checkpoint, as another replica has sent it.
#[derive(Debug, Clone)]
pub struct CheckpointPart {
    /// The replica that sent it.
    pub replica: u64,
    /// The digest that the replicas agree on. Whoever uses the state checks whether its chunks have it.
    pub digest: Bytes,
    /// The chunks: see [`crate::StateMachine::checkpoint_state`]. They are stored as long as there is a handle.
    pub state: SnapshotPart,
}

/// Why the state of a shard can't be taken from other replicas.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CheckpointError {
    /// There is no leader, or it has logged no checkpoint.
    #[error("no leader logs a checkpoint")]
    NotLogged,
    /// Of the replicas that answered, no majority of the voters has the same state.
    #[error("no majority of the voters has the same state at entry {index}: {found}")]
    NoMajority {
        /// The index of the checkpoint.
        index: u64,
        /// What the replicas have.
        found: String,
    },
    /// A replica did not send its state.
    #[error("replica {replica} does not send its state: {reason}")]
    NotSent {
        /// The replica.
        replica: u64,
        /// The reason.
        reason: String,
    },
}

impl Group {
    /// Has the leader log a checkpoint of the shard of this number. It logs none if it did so for another replica in
    /// the last five seconds: that one counts for all.
    ///
    /// # Errors
    /// When no leader is known, or it does not log it in time.
    pub async fn request_checkpoint(&self, shard: u32) -> Result<(), CheckpointError> {
        let is_logged = if self.leadership().is_some() {
            self.log_requested_checkpoint(shard).await
        } else {
            let Some(leader) = self.not_leader().leader else { return Err(CheckpointError::NotLogged) };
            self.query_rebuild(leader, RebuildQuery::Checkpoint { shard }).await.is_some()
        };
        if is_logged { Ok(()) } else { Err(CheckpointError::NotLogged) }
    }

    /// Logs a checkpoint of the shard of this number; returns once it is applied here. Where the shard has failed, it
    /// is built again from the state of the replica `from`, if one is given, whatever others have.
    ///
    /// # Errors
    /// When this replica does not lead, or the outcome is unknown.
    pub async fn log_checkpoint(&self, shard: u32, from: Option<u64>) -> Result<(), ProposeError> {
        let Some(leads) = self.leadership() else { return Err(self.not_leader().into()) };
        let command = GroupCommand::Checkpoint { shard, from };
        let logged = timeout(ANSWER_TIMEOUT, self.propose_structural(leads.term, command)).await;
        logged.unwrap_or(Err(ProposeError::Unknown("the checkpoint was not applied in time")))
    }

    /// Returns true if that replica of the group says that the shard of this number does not serve there.
    pub fn has_failed_shard(&self, replica: u64, shard: u32) -> bool {
        if replica == self.replica() {
            return self.failed_shards().contains_key(&shard);
        }
        self.replica_report(replica).failed_shards.contains(&shard)
    }

    /// Returns the voters besides this one that do not say that the shard of this number has failed there.
    fn other_serving_voters(&self, shard: u32, voters: &[BTreeSet<u64>]) -> BTreeSet<u64> {
        let others = voters.iter().flatten().copied().filter(|voter| *voter != self.replica());
        others.filter(|voter| !self.has_failed_shard(*voter, shard)).collect()
    }

    /// Returns true if, as far as is known, the shard of this number serves on a majority of the voters besides this
    /// one. Only then can they agree on its state at a checkpoint.
    pub fn others_may_agree(&self, shard: u32) -> bool {
        let voters = self.voters();
        is_majority(&self.other_serving_voters(shard, &voters), &voters)
    }

    /// Returns the voters, this one and those on nodes that are not connected too, that do not say that the shard of
    /// this number has failed there.
    pub fn replicas_serving(&self, shard: u32) -> BTreeSet<u64> {
        self.voters().iter().flatten().copied().filter(|voter| !self.has_failed_shard(*voter, shard)).collect()
    }

    /// Returns the voters on connected nodes, besides this one, where the shard of this number serves as far as is
    /// known.
    pub fn other_replicas_serving(&self, shard: u32) -> BTreeSet<u64> {
        let mut serving = self.other_serving_voters(shard, &self.voters());
        serving.retain(|voter| self.connection_to(*voter).is_some_and(|link| link.is_connected()));
        serving
    }

    /// Fetches the state of a shard at the checkpoint of this index from one of a majority of the voters that has the
    /// same; or from the replica `from`, if one is given, which an operator has decided to believe.
    ///
    /// # Errors
    /// When no majority has the same state, or that replica has none, or it is not sent.
    pub async fn fetch_checkpoint(
        &self,
        shard: u32,
        index: u64,
        from: Option<u64>,
    ) -> Result<CheckpointPart, CheckpointError> {
        let (replica, digest) = self.agreed_source(shard, index, from).await?;
        let not_sent = |reason: String| CheckpointError::NotSent { replica, reason };
        let link = self.connection_to(replica).ok_or_else(|| not_sent("its node is not known".to_owned()))?;
        let request = PartRequest { from: self.replica(), to: replica, shard, index };
        let _turn = self.checkpoints().fetching.lock().await;
        let state = fetch_part(&link, request, self.store()).await.map_err(|error| not_sent(error.to_string()))?;
        Ok(CheckpointPart { replica, digest, state })
    }

    /// Returns the replica to take the state from, and its digest.
    async fn agreed_source(&self, shard: u32, index: u64, from: Option<u64>) -> Result<(u64, Bytes), CheckpointError> {
        let voters = self.voters();
        let others = voters.iter().flatten().copied().filter(|voter| *voter != self.replica());
        let others: BTreeSet<u64> = from.map_or_else(|| others.collect(), |from| BTreeSet::from([from]));
        // Those where it has failed never have a digest.
        let (failed, others): (BTreeSet<u64>, BTreeSet<u64>) =
            others.into_iter().partition(|other| self.has_failed_shard(*other, shard));
        let deadline = Instant::now() + DIGEST_TIMEOUT;
        let mut digests: BTreeMap<u64, Bytes> = BTreeMap::new();
        loop {
            self.query_digests(shard, index, &others, &mut digests).await;
            let is_enough = |replicas: &BTreeSet<u64>| from.is_some() || is_majority(replicas, &voters);
            if let Some(source) = largest_agreement(&digests, is_enough) {
                return Ok(source);
            }
            if digests.len() == others.len() || Instant::now() >= deadline {
                return Err(CheckpointError::NoMajority { index, found: describe(&digests, &others, &failed) });
            }
            sleep(DIGEST_POLL_INTERVAL).await;
        }
    }

    /// Asks those for their digests at the checkpoint of this index that have not answered yet.
    async fn query_digests(&self, shard: u32, index: u64, others: &BTreeSet<u64>, digests: &mut BTreeMap<u64, Bytes>) {
        let missing: Vec<u64> = others.iter().copied().filter(|other| !digests.contains_key(other)).collect();
        let question = RebuildQuery::Digest { shard, index };
        let ask = |other| async move {
            // One that does not answer delays the others' answers no longer than this.
            let answer = timeout(ANSWER_TIMEOUT, self.query_rebuild(other, question)).await;
            Some((other, answer.ok()??))
        };
        let answers = join_all(missing.into_iter().map(ask)).await;
        digests.extend(answers.into_iter().flatten());
    }

    /// Returns the digests of a shard's state at the checkpoint of this index, by replica: of this one and of the other
    /// voters where the shard serves, as far as they have one within seconds.
    pub async fn checkpoint_digests(&self, shard: u32, index: u64) -> BTreeMap<u64, Bytes> {
        let others = self.other_replicas_serving(shard);
        let deadline = Instant::now() + ANSWER_TIMEOUT;
        let mut digests: BTreeMap<u64, Bytes> = BTreeMap::new();
        loop {
            let own = self.machine().and_then(|machine| machine.checkpoint_digest(shard, index));
            digests.extend(own.map(|digest| (self.replica(), digest)));
            self.query_digests(shard, index, &others, &mut digests).await;
            if digests.len() > others.len() || Instant::now() >= deadline {
                return digests;
            }
            sleep(DIGEST_POLL_INTERVAL).await;
        }
    }

    /// Answers the question of a replica where a shard has failed.
    pub(crate) async fn answer_rebuild(&self, question: RebuildQuery) -> Option<Bytes> {
        match question {
            RebuildQuery::Checkpoint { shard } => self.log_requested_checkpoint(shard).await.then(Bytes::new),
            RebuildQuery::Digest { shard, index } => self.machine()?.checkpoint_digest(shard, index),
        }
    }

    /// Returns the state of a shard at a checkpoint, if this replica still has it.
    pub(crate) fn checkpoint_state(&self, shard: u32, index: u64) -> Option<SnapshotPart> {
        self.machine()?.checkpoint_state(shard, index)
    }

    /// Logs a checkpoint, unless one was requested a moment ago. Returns false if that fails.
    async fn log_requested_checkpoint(&self, shard: u32) -> bool {
        if self.leadership().is_none() {
            return false;
        }
        let now = Instant::now();
        {
            let mut requested = self.checkpoints().requested.lock();
            requested.retain(|_, at| now.saturating_duration_since(*at) < MIN_CHECKPOINT_INTERVAL);
            if requested.contains_key(&shard) {
                return true;
            }
            requested.insert(shard, now);
        }
        let logged = self.log_checkpoint(shard, None).await;
        if logged.is_err() {
            self.checkpoints().requested.lock().remove(&shard);
        }
        logged.is_ok()
    }

    /// Questions a peer. A release that does not know the question has no answer.
    async fn query_rebuild(&self, other: u64, question: RebuildQuery) -> Option<Bytes> {
        // The leader takes as long as the entry.
        let bytes = self.query_peer(other, Kind::Rebuild, &question, 2 * ANSWER_TIMEOUT).await?;
        decode::<Option<Bytes>>(&bytes).ok()?
    }
}

/// Returns a replica of those with the same digest that are enough, and the digest.
fn largest_agreement(
    digests: &BTreeMap<u64, Bytes>,
    is_enough: impl Fn(&BTreeSet<u64>) -> bool,
) -> Option<(u64, Bytes)> {
    let mut by_digest: BTreeMap<&Bytes, BTreeSet<u64>> = BTreeMap::new();
    for (replica, digest) in digests {
        by_digest.entry(digest).or_default().insert(*replica);
    }
    let agreeing = by_digest.iter().max_by_key(|(_, replicas)| replicas.len());
    let (digest, replicas) =
        agreeing.filter(|(_, replicas)| is_enough(replicas) || is_enabled(Mutation::RebuildUnchecked))?;
    Some((*replicas.first()?, (*digest).clone()))
}

/// Says what each replica has, for the operator.
fn describe(digests: &BTreeMap<u64, Bytes>, asked: &BTreeSet<u64>, failed: &BTreeSet<u64>) -> String {
    let of_replica = |replica: &u64| match digests.get(replica) {
        Some(digest) => {
            let start: String = digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect();
            format!("replica {replica} has {start}")
        }
        None => format!("replica {replica} has none"),
    };
    let failed = failed.iter().map(|replica| format!("it has failed on replica {replica}"));
    asked.iter().map(of_replica).chain(failed).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digests(of: &[(u64, &'static str)]) -> BTreeMap<u64, Bytes> {
        of.iter().map(|(replica, digest)| (*replica, Bytes::from_static(digest.as_bytes()))).collect()
    }

    fn source(of: &[(u64, &'static str)], voters: &[&[u64]]) -> Option<u64> {
        let voters: Vec<BTreeSet<u64>> = voters.iter().map(|voters| voters.iter().copied().collect()).collect();
        largest_agreement(&digests(of), |replicas| is_majority(replicas, &voters)).map(|(replica, _)| replica)
    }

    #[test]
    fn a_majority_of_the_voters_decides_and_not_of_those_that_answer() {
        assert_eq!(source(&[(2, "a"), (3, "a")], &[&[1, 2, 3]]), Some(2));
        assert_eq!(source(&[(2, "a"), (3, "b")], &[&[1, 2, 3]]), None);
        assert_eq!(source(&[(2, "a")], &[&[1, 2, 3]]), None);
        assert_eq!(source(&[], &[&[1]]), None);
        assert_eq!(source(&[(2, "b"), (3, "a"), (4, "a"), (5, "a")], &[&[1, 2, 3, 4, 5]]), Some(3));
        assert_eq!(source(&[(2, "a"), (3, "a"), (4, "b"), (5, "b")], &[&[1, 2, 3, 4, 5]]), None);
        assert_eq!(source(&[(2, "a"), (3, "a")], &[&[1, 2, 3], &[3, 4, 5]]), None, "members change");
    }

    #[test]
    fn an_operator_is_told_who_has_what() {
        let found = describe(&digests(&[(2, "ab"), (3, "ac")]), &BTreeSet::from([2, 3, 4]), &BTreeSet::from([5]));
        let expected = "replica 2 has 6162, replica 3 has 6163, replica 4 has none, it has failed on replica 5";
        assert_eq!(found, expected);
    }
}
