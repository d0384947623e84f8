//! The replicas of groups on this node, and the shards in them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use holdfast_cluster::{GroupConfig, GroupShard};
use holdfast_core::{AccountId, Application, Command, LeftOut, LocksCommand, codec};
use holdfast_replication::{
    CheckpointError, CheckpointPart, Exception, FailedEntry, Group, HistoryStep, Poison, ProposeError, ReadMode,
    ReplayError, StateMachineError,
};
use parking_lot::Mutex;
use tokio::time::{Duration, Instant, sleep, timeout};

use crate::machine::{Checkpoint, ShardMachine, encode_left_out};
use crate::open_calls::{OpenCall, OpenCalls};
use crate::outbox_sender::OutboxSender;
use crate::table_waits::TableWaits;
use crate::{shard_health, tasks};

/// Timeout of a cancel. After it, the wait reaper cancels the orphaned request.
const CANCEL_TIMEOUT: Duration = Duration::from_secs(5);
/// Timeout of an entry that follows everything proposed before.
const BARRIER_TIMEOUT: Duration = Duration::from_secs(2);
/// Delay between attempts to write that entry.
const RETRY_DELAY: Duration = Duration::from_millis(20);

/// The replica to start.
pub(crate) struct ReplicaSpec<'a> {
    pub(crate) group: &'a GroupConfig,
    /// In order of their numbers.
    pub(crate) shards: Vec<GroupShard<'a>>,
    pub(crate) replica: u64,
    /// Whether it may bootstrap the group.
    pub(crate) may_bootstrap: bool,
}

/// One replica of a group on this node.
pub(crate) struct Replica {
    pub(crate) group: Group,
    /// In order of their numbers.
    pub(crate) shards: Vec<Arc<ShardReplica>>,
    pub(crate) may_bootstrap: bool,
    is_decommissioned: AtomicBool,
    /// Why it could not be restarted after it stopped.
    restart_failure: Mutex<Option<String>>,
}

/// A shard of a group, as one replica of the group has it.
pub(crate) struct ShardReplica {
    pub(crate) application: Application,
    pub(crate) id: String,
    /// Its number in the log of the group.
    number: u32,
    /// The first and the last key that it owns.
    bounds: (u32, u32),
    pub(crate) group: Group,
    pub(crate) machine: Arc<ShardMachine>,
    pub(crate) reads: ReadMode,
    open_calls: OpenCalls,
    /// The calls that wait for a lock table.
    pub(crate) table_waits: TableWaits,
    /// The release of this program.
    pub(crate) release: Arc<str>,
    /// The stored record of what it failed at.
    poison: Mutex<Option<Poison>>,
    /// Why its state can't be taken from other replicas.
    rebuild_problem: Mutex<Option<String>>,
}

/// How the states of a shard on replicas compare with that of one of them.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct StateComparison {
    /// The replicas with another state.
    pub(crate) differing: Vec<u64>,
    /// The replicas whose state is unknown. If the source replica is among them, no other is known to differ.
    pub(crate) unknown: Vec<u64>,
}

impl StateComparison {
    /// Compares the digests of states with that of `right`; `serving` are the replicas that should have one.
    fn new(digests: &BTreeMap<u64, Bytes>, right: u64, serving: &BTreeSet<u64>) -> Self {
        let right = digests.get(&right);
        let differs = |digest: &Bytes| right.is_some_and(|right| right != digest);
        let differing = digests.iter().filter(|(_, digest)| differs(digest)).map(|(replica, _)| *replica).collect();
        let unknown = serving.iter().copied().filter(|replica| !digests.contains_key(replica)).collect();
        Self { differing, unknown }
    }
}

impl Replica {
    /// Starts the supervisor of the leader tasks, which runs them whenever the replica leads.
    pub(crate) fn start(
        group: Group,
        shards: Vec<Arc<ShardReplica>>,
        may_bootstrap: bool,
        outbox_sender: OutboxSender,
        is_serving: Arc<AtomicBool>,
    ) -> Self {
        let leader_tasks = tasks::run(group.clone(), shards.clone(), outbox_sender, is_serving);
        group.tasks().spawn_essential("leader_tasks", leader_tasks);
        for shard in &shards {
            group.tasks().spawn_essential("shard_health", shard_health::run(Arc::clone(shard)));
        }
        let (is_decommissioned, restart_failure) = (AtomicBool::new(false), Mutex::default());
        Self { group, shards, may_bootstrap, is_decommissioned, restart_failure }
    }

    /// Returns the shard of an application that owns a key.
    pub(crate) fn shard_for(&self, application: Application, key: u32) -> Option<&ShardReplica> {
        let owns = |shard: &&Arc<ShardReplica>| shard.application == application && shard.owns(key);
        self.shards.iter().find(owns).map(Arc::as_ref)
    }

    /// Returns the shard with this id.
    pub(crate) fn shard(&self, id: &str) -> Option<&ShardReplica> {
        self.shards.iter().find(|shard| shard.id == id).map(Arc::as_ref)
    }

    /// Returns the reason why the replica does not run, if any.
    pub(crate) fn failure(&self) -> Option<String> {
        self.restart_failure.lock().clone().or_else(|| self.group.failure().map(|failure| failure.to_string()))
    }

    /// Records why the replica can't be restarted.
    pub(crate) fn record_failure(&self, reason: String) {
        *self.restart_failure.lock() = Some(reason);
    }

    /// Marks a replica that left the config: it runs until its group works without it.
    pub(crate) fn decommission(&self) {
        self.is_decommissioned.store(true, Ordering::Release);
    }

    /// Returns true if the replica left the config.
    pub(crate) fn is_decommissioned(&self) -> bool {
        self.is_decommissioned.load(Ordering::Acquire)
    }
}

impl ShardReplica {
    pub(crate) fn new(
        shard: &GroupShard<'_>,
        group: Group,
        machine: Arc<ShardMachine>,
        reads: ReadMode,
        release: Arc<str>,
    ) -> Self {
        let GroupShard { number, application, shard } = *shard;
        let (id, bounds) = (shard.id.clone(), (shard.lower_bound, shard.upper_bound));
        let poison = group.shard_poison(&id).unwrap_or_else(|error| {
            tracing::error!(shard = id, %error, "shard poison record unreadable");
            None
        });
        let (open_calls, poison, rebuild_problem) = (OpenCalls::default(), Mutex::new(poison), Mutex::default());
        Self {
            application,
            id,
            number,
            bounds,
            group,
            machine,
            reads,
            open_calls,
            table_waits: TableWaits::default(),
            release,
            poison,
            rebuild_problem,
        }
    }

    /// Counts a call; `None` if there are too many.
    pub(crate) fn open_call(&self) -> Option<OpenCall<'_>> {
        self.open_calls.open()
    }

    /// Returns what the shard failed at for good, and has not served since: as stored, also by an earlier process.
    pub(crate) fn poison(&self) -> Option<Poison> {
        self.poison.lock().clone()
    }

    /// Returns the record of an entry that this program failed at for good.
    pub(crate) fn poison_at(&self, failed_entry: &FailedEntry) -> Poison {
        let ended_process = self.machine.ended_process_at(failed_entry);
        Poison { failed_entry: failed_entry.clone(), release: self.release.to_string(), ended_process }
    }

    /// Stores what the shard failed at for good; nothing if it serves.
    pub(crate) async fn save_poison(&self, poison: Option<Poison>) {
        if *self.poison.lock() == poison {
            return;
        }
        match self.group.save_shard_poison(&self.id, poison.clone()).await {
            Ok(()) => *self.poison.lock() = poison,
            // A store that can't be written stops the node.
            Err(error) => tracing::error!(shard = self.id, %error, "shard poison record not saved"),
        }
    }

    /// Returns why the state of the shard, which has failed here, can't be taken from other replicas; `None` before the
    /// first attempt.
    pub(crate) fn rebuild_problem(&self) -> Option<String> {
        self.rebuild_problem.lock().clone()
    }

    /// Records why the state can't be taken from other replicas. Returns true if that is not the reason of the attempt
    /// before.
    pub(crate) fn set_rebuild_problem(&self, problem: Option<String>) -> bool {
        let mut current = self.rebuild_problem.lock();
        let differs = *current != problem;
        *current = problem;
        differs
    }

    /// Has the leader log a checkpoint of the shard: see [`Group::request_checkpoint`].
    pub(crate) async fn request_checkpoint(&self) -> Result<(), CheckpointError> {
        self.group.request_checkpoint(self.number).await
    }

    /// Logs that the numbers of the shard advance. They do where the shard serves; elsewhere the command is kept.
    ///
    /// # Errors
    /// When it is known not to be logged.
    pub(crate) async fn log_advanced_numbers(&self, term: u64) -> Result<(), ProposeError> {
        let command = codec::encode(&Command::AdvanceNumbers).into();
        match self.propose_own(term, command, Instant::now() + BARRIER_TIMEOUT).await {
            // Where the shard has failed on the leader, nobody answers.
            Ok(_) | Err(ProposeError::Unknown(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Logs a checkpoint of the shard from which replicas where it has failed take the state of one replica: see
    /// [`Group::log_checkpoint`].
    pub(crate) async fn log_checkpoint_from(&self, replica: u64) -> Result<(), ProposeError> {
        self.group.log_checkpoint(self.number, Some(replica)).await
    }

    /// Compares the states of these replicas with that of `replica` at the latest checkpoint, if that of `replica`
    /// counts there.
    pub(crate) async fn compare_with(&self, replica: u64, serving: &BTreeSet<u64>) -> StateComparison {
        let latest = self.machine.latest_checkpoint().filter(|checkpoint| checkpoint.from == Some(replica));
        let digests = match latest {
            Some(checkpoint) => self.group.checkpoint_digests(self.number, checkpoint.index).await,
            None => BTreeMap::new(),
        };
        StateComparison::new(&digests, replica, serving)
    }

    /// Logs that something is left out of the history of the shard: see [`Group::log_exception`]. An entry that is no
    /// longer in the log must be in the kept history of the shard.
    pub(crate) async fn log_exception(&self, index: u64, left_out: &LeftOut) -> Result<(), ProposeError> {
        if self.group.has_section(self.number, index).is_none() && !self.machine.has_kept_section(index) {
            return Err(ProposeError::NotProposed("it is not known whether the entry has something for the shard"));
        }
        let what = encode_left_out(left_out);
        self.group.log_exception(Exception { shard: self.number, index, what }).await
    }

    /// Fetches the state at a checkpoint from another replica: see [`Group::fetch_checkpoint`].
    pub(crate) async fn fetch_checkpoint(&self, checkpoint: &Checkpoint) -> Result<CheckpointPart, CheckpointError> {
        self.group.fetch_checkpoint(self.number, checkpoint.index, checkpoint.from).await
    }

    /// Returns true if the shard is known to have failed on that replica of the group.
    pub(crate) fn has_failed_on(&self, replica: u64) -> bool {
        self.group.has_failed_shard(replica, self.number)
    }

    /// Returns true if others may agree on the state of the shard: see [`Group::others_may_agree`].
    pub(crate) fn others_may_agree(&self) -> bool {
        self.group.others_may_agree(self.number)
    }

    /// Returns the replicas where the shard may serve: see [`Group::replicas_serving`].
    pub(crate) fn replicas_serving(&self) -> BTreeSet<u64> {
        self.group.replicas_serving(self.number)
    }

    /// Returns the other replicas where the shard serves: see [`Group::other_replicas_serving`].
    pub(crate) fn other_replicas_serving(&self) -> BTreeSet<u64> {
        self.group.other_replicas_serving(self.number)
    }

    /// Returns the number of its commands that wait for their entry.
    pub(crate) fn queued_commands(&self) -> usize {
        self.group.queued_commands(self.number)
    }

    /// Returns the number of its commands of committed entries that it has still to apply.
    pub(crate) fn apply_queue_commands(&self) -> usize {
        self.group.apply_queue_commands(self.number)
    }

    /// Returns the term in which this replica leads now.
    pub(crate) fn leads(&self) -> Option<u64> {
        self.group.subscribe_leadership().borrow().map(|leads| leads.term)
    }

    /// Passes the history of the shard up to an entry to `visit`: see [`Group::replay`].
    pub(crate) async fn replay(
        &self,
        until: u64,
        visit: impl FnMut(HistoryStep<'_>) -> Result<(), StateMachineError> + Send,
    ) -> Result<(), ReplayError> {
        self.group.replay(self.number, &self.id, until, visit).await
    }

    /// Returns true if the shard has the data of a key of its application.
    pub(crate) fn owns(&self, key: u32) -> bool {
        (self.bounds.0..=self.bounds.1).contains(&key)
    }

    /// Writes a command to the group's log: see [`Group::propose`].
    pub(crate) async fn propose(&self, term: u64, command: Bytes, deadline: Instant) -> Result<Bytes, ProposeError> {
        self.group.propose(self.number, term, command, deadline).await
    }

    /// Writes a command of the leader itself: see [`Group::propose_own`].
    pub(crate) async fn propose_own(
        &self,
        term: u64,
        command: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, ProposeError> {
        self.group.propose_own(self.number, term, command, deadline).await
    }

    /// Cancels attempts together with others'. Returns false if that is not known to be done.
    pub(crate) async fn cancel(&self, term: u64, account: AccountId, command: LocksCommand) -> bool {
        let done = self.machine.cancels().push(term, account, command);
        matches!(timeout(CANCEL_TIMEOUT, done).await, Ok(Ok(true)))
    }

    /// While this replica leads, waits until all that its leader tasks have proposed so far is applied, or never will be.
    pub(crate) async fn propose_barrier(&self) {
        while let Some(term) = self.leads() {
            if self.group.propose_barrier(self.number, term, Instant::now() + BARRIER_TIMEOUT).await.is_ok() {
                return;
            }
            sleep(RETRY_DELAY).await;
        }
    }

    /// Advances the shard's clock: see [`Group::propose_clock_tick`].
    pub(crate) async fn propose_clock_tick(&self, term: u64, deadline: Instant) -> Result<(), ProposeError> {
        self.group.propose_clock_tick(self.number, term, deadline).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_without_an_answer_is_not_taken_for_equal() {
        let digests = |of: &[(u64, &'static str)]| -> BTreeMap<u64, Bytes> {
            of.iter().map(|(replica, digest)| (*replica, Bytes::from_static(digest.as_bytes()))).collect()
        };
        let compared = |of: &[(u64, &'static str)]| {
            let StateComparison { differing, unknown } =
                StateComparison::new(&digests(of), 2, &BTreeSet::from([2, 3, 4]));
            (differing, unknown)
        };
        assert_eq!(compared(&[(2, "a"), (3, "a"), (4, "a")]), (vec![], vec![]));
        assert_eq!(compared(&[(2, "a"), (3, "b")]), (vec![3], vec![4]));
        assert_eq!(compared(&[(3, "b"), (4, "a")]), (vec![], vec![2]), "there is nothing to compare with");
        assert_eq!(compared(&[]), (vec![], vec![2, 3, 4]));
    }
}
