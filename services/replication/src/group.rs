//! One replica of one shard: the handle that the node works with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use holdfast_storage::ReplicaStore;
use holdfast_supervise::{Owner, TaskSet};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::clock::WallClock;
use crate::config::raft_config;
use crate::driver::{Driven, Driver};
use crate::entry::FIRST_RULES;
use crate::error::{NotLeader, ProposeError, ReplicationError};
use crate::leadership::{self, ClockBase, HeardClock, Leadership};
use crate::lease::Acks;
use crate::log_bytes::LogLimits;
use crate::log_store::{LogStore, VotedTerm};
use crate::machine::Machine;
use crate::membership;
use crate::network::{Links, Members, Network, Placement};
use crate::proposer::{self, Progress, Proposal, Proposer, QUEUE, Stamps, UnderWay};
use crate::rules::{GroupState, KnownRules};
use crate::timing::Timing;
use crate::types::TypeConfig;
use crate::witness::LeaderRun;

pub(crate) type Raft = openraft::Raft<TypeConfig, Driver>;

/// Largest command, in bytes: an entry with it must fit into a message between nodes, or it would never get through.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// Why a node takes in no data.
pub(crate) const DISK_IS_FULL: &str = "the disk of the shard's node is nearly full; free some space on it";

/// For how long a replica may hear nothing of its leader until it says so: a few elections.
const SILENCE: Duration = Duration::from_secs(5);

/// How often a command that waits for its answer looks whether its leader still has a quorum.
const QUORUM_LOOK: Duration = Duration::from_millis(500);

/// How a replica is set up.
#[derive(Debug, Clone)]
pub struct GroupOptions {
    /// The shard's id.
    pub shard: String,
    /// This replica.
    pub replica: u64,
    /// Every replica of the shard with its node, this one included, at first.
    pub members: BTreeMap<u64, String>,
    /// Entries after which a snapshot is made.
    pub snapshot_after: u64,
    /// Entries kept behind a snapshot for followers that lag a little.
    pub keep_entries: u64,
    /// The same in bytes; whichever limit is met first counts.
    pub log_limits: LogLimits,
    /// For display with grants.
    pub wall_clock: WallClock,
}

/// What the replicas of a node share.
pub(crate) struct OfNode {
    pub(crate) timing: Timing,
    pub(crate) links: Links,
    pub(crate) under_way: UnderWay,
    /// Those that this program knows.
    pub(crate) rules: KnownRules,
    /// The longest lease that the node has met.
    pub(crate) longest_lease: watch::Receiver<Duration>,
}

/// A running replica. Clones share it. It runs until [`Group::shutdown`], also when every handle is gone.
#[derive(Clone)]
pub struct Group {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// First, so that tasks end before what they work with.
    pub(crate) tasks: TaskSet,
    options: GroupOptions,
    timing: Timing,
    placement: watch::Sender<Placement>,
    raft: Raft,
    queue: mpsc::Sender<Proposal>,
    leadership: watch::Receiver<Option<Leadership>>,
    given_away: watch::Sender<u64>,
    lesser_candidates: watch::Sender<u64>,
    acks: Arc<Acks>,
    leader_run: LeaderRun,
    voted: VotedTerm,
    heard: HeardClock,
    driven: Driven,
    store: ReplicaStore,
    links: Links,
    /// Until it does, the replica does not stand either.
    votes: Arc<AtomicBool>,
    was_pristine: bool,
    known: KnownRules,
    /// Kept by what applies to it.
    machine: Weak<dyn Machine>,
}

impl Group {
    /// Starts the replica from what its store holds.
    pub(crate) async fn start(
        options: GroupOptions,
        store: ReplicaStore,
        machine: Arc<dyn Machine>,
        node: OfNode,
    ) -> Result<Self, ReplicationError> {
        let OfNode { timing, links, under_way, rules: known, longest_lease } = node;
        let stopped = |reason: String| ReplicationError::Stopped {
            shard: options.shard.clone(),
            replica: options.replica,
            reason,
        };
        let was_pristine = store.is_pristine()?;
        let holds_back = leadership::holds_back(was_pristine, options.members.len());
        let votes = Arc::new(AtomicBool::new(!holds_back));
        let log = LogStore::open(store.clone()).map_err(|error| stopped(error.to_string()))?;
        let voted = log.voted();
        let (driver, established) = Driver::new(Arc::clone(&machine), store.clone(), options.log_limits, known)
            .map_err(|error| stopped(error.to_string()))?;
        let (driven, shortening) = (driver.driven(), driver.shortening());
        let stamps = Stamps { wall: options.wall_clock.clone(), group: driven.group_state.clone() };
        let config = raft_config(&options, timing, !holds_back).map_err(|error| stopped(error.to_string()))?;
        let (leadership_sender, leadership) = watch::channel(None);
        let acks = Arc::new(Acks::new(options.replica, options.members.keys().copied().collect()));
        let configured = Arc::new(options.members.clone());
        let (placement, placed) = watch::channel(Placement { configured: Arc::clone(&configured), known: configured });
        let network = Network::new(options.replica, placed, links.clone(), leadership.clone(), Arc::clone(&acks));
        let raft = Raft::new(options.replica, Arc::new(config), network, log, driver)
            .await
            .map_err(|error| stopped(error.to_string()))?;
        let (queue, proposals) = mpsc::channel(QUEUE);
        let heard = HeardClock::silent();
        let (given_away, given) = watch::channel(0);
        let base = ClockBase { machine: Arc::clone(&machine), heard: heard.clone() };
        let tasks = TaskSet::new(Owner::replica(&options.shard, options.replica));
        tasks.run("leadership", leadership::follow(raft.clone(), base, established, given, leadership_sender));
        let proposer = Proposer::new(raft.clone(), proposals, leadership.clone(), stamps, under_way);
        tasks.run("proposer", proposer.run());
        tasks.run("shortening", shortening.run(raft.clone()));
        if holds_back {
            let (raft, votes) = (raft.clone(), Arc::clone(&votes));
            let vote = move || leadership::vote_after(raft.clone(), longest_lease.clone(), Arc::clone(&votes));
            tasks.finish("vote", vote);
        }
        let inner = Inner {
            tasks,
            options,
            timing,
            placement,
            raft,
            queue,
            leadership,
            given_away,
            lesser_candidates: watch::Sender::new(0),
            acks,
            leader_run: LeaderRun::default(),
            voted,
            heard,
            driven,
            store,
            links,
            votes,
            was_pristine,
            known,
            machine: Arc::downgrade(&machine),
        };
        let group = Self { inner: Arc::new(inner) };
        group.tasks().run("voters", membership::follow_voters(group.clone()));
        Ok(group)
    }

    /// Forms the group. Called on one of its replicas, once in the group's life; later calls change nothing.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn form(&self) -> Result<(), ReplicationError> {
        let members: BTreeSet<u64> = self.members().keys().copied().collect();
        match self.inner.raft.initialize(members).await {
            Ok(()) => Ok(()),
            Err(openraft::errors::RaftError::APIError(_)) => Ok(()),
            Err(error) => Err(self.stopped(&error.to_string())),
        }
    }

    /// Whether the group has ever been formed, as far as this replica knows.
    pub async fn is_formed(&self) -> bool {
        self.inner.raft.is_initialized().await.unwrap_or(true)
    }

    /// Whether nothing had ever been written for this replica when it was started.
    pub fn was_pristine(&self) -> bool {
        self.inner.was_pristine
    }

    /// The shard's id.
    pub fn shard(&self) -> &str {
        &self.inner.options.shard
    }

    /// This replica's id.
    pub fn replica(&self) -> u64 {
        self.inner.options.replica
    }

    /// The replicas of the shard with their nodes, as configured.
    pub fn members(&self) -> Arc<BTreeMap<u64, String>> {
        Arc::clone(&self.inner.placement.borrow().configured)
    }

    /// Takes the replicas of a later configuration; while this replica leads it brings the group there.
    pub fn set_members(&self, members: BTreeMap<u64, String>) {
        self.inner.placement.send_if_modified(|placement| {
            let differs = *placement.configured != members;
            if differs {
                let mut known = placement.known.as_ref().clone();
                known.extend(members.clone());
                *placement = Placement { configured: Arc::new(members), known: Arc::new(known) };
            }
            differs
        });
    }

    /// Where replicas are, those included that are leaving or have left.
    pub fn places(&self) -> Arc<BTreeMap<u64, String>> {
        Arc::clone(&self.inner.placement.borrow().known)
    }

    /// Follows the configured replicas.
    pub(crate) fn configured(&self) -> Members {
        self.inner.placement.subscribe()
    }

    /// Follows this replica's leadership.
    pub fn leadership(&self) -> watch::Receiver<Option<Leadership>> {
        self.inner.leadership.clone()
    }

    /// Writes a command to the log and answers with its reply, once its entry is durable on a quorum and applied here.
    ///
    /// # Errors
    /// `NotLeader` and `NotProposed`: nothing was done. `Unknown`: it may have been done, or may still be.
    pub async fn propose(&self, term: u64, command: Bytes, deadline: Instant) -> Result<Bytes, ProposeError> {
        if self.leads().is_none_or(|leads| leads.term != term) {
            return Err(self.not_leader().into());
        }
        if !self.has_quorum(term, self.timing().lease()) {
            // Others may lead by now, or soon will.
            return Err(NotLeader { leader: None, term: 0 }.into());
        }
        if !self.has_room() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::NotProposed("the command is too large"));
        }
        self.check(&command)?;
        let progress = Progress::default();
        let (answer, receiver) = oneshot::channel();
        let proposal = Proposal { term, command, progress: progress.clone(), answer };
        match self.inner.queue.try_send(proposal) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => {
                return Err(ProposeError::NotProposed("the shard's queue is full; try again later"));
            }
            Err(mpsc::error::TrySendError::Closed(_)) => {
                return Err(ProposeError::NotProposed("the replica is stopping"));
            }
        }
        match self.answered(term, receiver, deadline).await {
            Ok(answer) => answer,
            Err(reason) if progress.give_up() => Err(ProposeError::NotProposed(reason)),
            Err(reason) => Err(ProposeError::Unknown(reason)),
        }
    }

    /// Whether every replica of the group can apply the command.
    fn check(&self, command: &[u8]) -> Result<(), ProposeError> {
        let machine = self.inner.machine.upgrade().ok_or(ProposeError::NotProposed("the replica is stopping"))?;
        machine.check(self.rules(), command).map_err(|error| ProposeError::NotUnderstood(error.to_string()))
    }

    /// The rules by which the next entry is applied, as far as this replica knows.
    pub fn rules(&self) -> u16 {
        self.group_state().rules.unwrap_or(FIRST_RULES)
    }

    /// What is replicated of the group itself, as far as this replica has applied it.
    pub(crate) fn group_state(&self) -> GroupState {
        *self.inner.driven.group_state.borrow()
    }

    /// Follows what is replicated of the group itself.
    pub(crate) fn group_states(&self) -> watch::Receiver<GroupState> {
        self.inner.driven.group_state.clone()
    }

    /// The rules that this program knows.
    pub(crate) fn known_rules(&self) -> KnownRules {
        self.inner.known
    }

    /// Waits for the answer, or for the reason why none will come in time. A leader that is cut off would keep callers
    /// waiting until their deadlines, so that they would not find the other side; so they are sent away earlier.
    async fn answered(
        &self,
        term: u64,
        mut receiver: oneshot::Receiver<proposer::Answer>,
        deadline: Instant,
    ) -> Result<proposer::Answer, &'static str> {
        loop {
            let look = deadline.min(Instant::now() + QUORUM_LOOK);
            match timeout_at(look, &mut receiver).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) => return Err("the replica is stopping"),
                Err(_) if look == deadline => return Err("the deadline passed before the entry was committed"),
                Err(_) if !self.hears_quorum(term) => {
                    return Err("the leader has lost its quorum");
                }
                Err(_) => {}
            }
        }
    }

    /// Whether this leader still hears of a quorum, if late: a group under much load is no group that is cut off.
    pub fn hears_quorum(&self, term: u64) -> bool {
        self.inner.acks.heard(term).is_some_and(|heard| heard.elapsed() < 2 * self.timing().lease())
    }

    /// Whether this replica and its leader have heard of each other lately: a leader of a quorum, any other replica of
    /// the leader.
    pub fn is_in_touch(&self) -> bool {
        match self.leads() {
            Some(leads) => self.hears_quorum(leads.term),
            None => self.inner.heard.is_within(SILENCE),
        }
    }

    /// Writes an entry without commands: its stamp moves the clock, and with it ends what is due.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn tick(&self, term: u64, deadline: Instant) -> Result<(), ProposeError> {
        let Some(leads) = self.leads().filter(|leads| leads.term == term) else {
            return Err(self.not_leader().into());
        };
        if !self.has_room() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        let (wall, group) = (self.inner.options.wall_clock.clone(), self.group_states());
        let stamps = Stamps { wall, group };
        let writing = async {
            let written = proposer::write(&self.inner.raft, leads, &stamps, &[]).await?;
            proposer::replies(written.await).map(|_| ())
        };
        match timeout_at(deadline, writing).await {
            Ok(result) => result,
            Err(_) => Err(ProposeError::Unknown("the deadline passed before the entry was committed")),
        }
    }

    /// Who leads, as far as this replica knows.
    pub fn not_leader(&self) -> NotLeader {
        match self.leads() {
            Some(leads) => NotLeader { leader: Some(self.replica()), term: leads.term },
            None => leadership::known_leader(&self.inner.raft),
        }
    }

    /// Makes a snapshot now.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn make_snapshot(&self) -> Result<(), ReplicationError> {
        self.inner.raft.trigger().snapshot().await.map_err(|error| self.stopped(&error.to_string()))
    }

    /// Whether this replica may answer a candidate: not for a lease after it was started again.
    pub fn may_vote(&self) -> bool {
        self.inner.votes.load(Ordering::Relaxed)
    }

    /// The running clock of the leader of a term, as heard in an accepted heartbeat.
    pub(crate) fn hear_clock(&self, term: u64, clock_ms: u64) {
        self.inner.heard.hear(term, clock_ms);
    }

    /// This replica's leadership now.
    pub(crate) fn leads(&self) -> Option<Leadership> {
        *self.inner.leadership.borrow()
    }

    /// A candidate of that term was refused, since this replica has more of the log.
    pub(crate) fn note_lesser_candidate(&self, term: u64) {
        self.inner.lesser_candidates.send_if_modified(|latest| {
            let is_later = term > *latest;
            *latest = term.max(*latest);
            is_later
        });
    }

    /// The latest term in which a candidate was refused, since this replica has more of the log.
    pub(crate) fn lesser_candidates(&self) -> watch::Receiver<u64> {
        self.inner.lesser_candidates.subscribe()
    }

    /// Ends the leadership of a term for good, before another replica takes over.
    pub(crate) fn give_away(&self, term: u64) {
        self.inner.given_away.send_replace(term);
    }

    /// Commands that wait for their entry.
    pub(crate) fn queued_commands(&self) -> usize {
        QUEUE.saturating_sub(self.inner.queue.capacity())
    }

    /// The index that the machine's state is of, unless it is changing: what is read of the machine between two calls
    /// that gave the same is of that index.
    pub fn applied_index(&self) -> Option<u64> {
        self.inner.driven.applied_index.get()
    }

    pub(crate) fn snapshot_age(&self) -> Duration {
        self.inner.driven.snapshot_age.get()
    }

    pub(crate) fn store(&self) -> &ReplicaStore {
        &self.inner.store
    }

    pub(crate) fn driven(&self) -> &Driven {
        &self.inner.driven
    }

    /// Whether the disk of this node has room for data.
    pub(crate) fn has_room(&self) -> bool {
        self.inner.store.has_room()
    }

    /// The last entry of this replica's log, committed or not.
    pub(crate) fn last_log_index(&self) -> Option<u64> {
        self.inner.raft.metrics().borrow_watched().last_log_index
    }

    /// Whether the node of that replica has room for data, as far as it has said.
    pub(crate) fn peer_has_room(&self, replica: u64) -> bool {
        let places = self.places();
        places.get(&replica).and_then(|node| self.inner.links.get(node)).is_some_and(|link| link.has_room())
    }

    pub(crate) fn acks(&self) -> &Acks {
        &self.inner.acks
    }

    /// Which process leads in the latest term.
    pub(crate) fn leader_run(&self) -> &LeaderRun {
        &self.inner.leader_run
    }

    /// The ways to all nodes.
    pub(crate) fn links(&self) -> &Links {
        &self.inner.links
    }

    /// Whether this replica has given no vote of a later term than that one, in which it leads.
    pub(crate) fn has_not_voted_since(&self, term: u64) -> bool {
        self.inner.voted.is_still(term)
    }

    pub(crate) fn timing(&self) -> &Timing {
        &self.inner.timing
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.inner.raft
    }

    fn stopped(&self, reason: &str) -> ReplicationError {
        ReplicationError::Stopped { shard: self.shard().into(), replica: self.replica(), reason: reason.into() }
    }
}
