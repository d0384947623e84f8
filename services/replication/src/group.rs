//! One replica of one shard: the handle that the node works with.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use holdfast_storage::ReplicaStore;
use holdfast_supervise::{TaskOwner, TaskSet};
use openraft::async_runtime::watch::WatchReceiver;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::clock::WallClock;
use crate::config::raft_config;
use crate::entry::FIRST_RULES;
use crate::error::{NotLeader, ProposeError, ReplicationError};
use crate::leader_death::LeaderRun;
use crate::leadership::{self, ClockFloor, Leadership, ObservedClock};
use crate::lease::LeaseTracker;
use crate::log_compaction::LogLimits;
use crate::log_store::{LogStore, VotedTerm};
use crate::membership;
use crate::network::{MemberLocations, MemberLocationsReceiver, PeerConnections, RaftNetwork};
use crate::proposal_queue::{Proposal, ProposalQueue, ProposalResult, ProposalState};
use crate::proposer::{self, HeaderSource, InFlightEntries, Proposer};
use crate::rules::{GroupState, KnownRules};
use crate::state_machine::{CommandCost, StateMachine};
use crate::state_machine_adapter::{AdapterHandle, StateMachineAdapter};
use crate::timing::Timing;
use crate::types::TypeConfig;

pub(crate) type Raft = openraft::Raft<TypeConfig, StateMachineAdapter>;

/// Largest command, in bytes: an entry with it must fit into a message between nodes, or it would never get through.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// Why a node takes in no data.
pub(crate) const DISK_IS_FULL: &str = "the disk of the shard's node is nearly full; free some space on it";

/// For how long a replica may hear nothing of its leader until it says so: a few elections.
const LEADER_CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a command that waits for its answer looks whether its leader still has a quorum.
const QUORUM_POLL_INTERVAL: Duration = Duration::from_millis(500);

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
    pub snapshot_interval_entries: u64,
    /// Entries kept behind a snapshot for followers that lag a little.
    pub retain_entries: u64,
    /// The same in bytes; whichever limit is met first counts.
    pub log_limits: LogLimits,
    /// For display with grants.
    pub wall_clock: WallClock,
}

/// What the replicas of a node share.
pub(crate) struct NodeContext {
    pub(crate) timing: Timing,
    pub(crate) peer_connections: PeerConnections,
    pub(crate) in_flight: InFlightEntries,
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
    locations: watch::Sender<MemberLocations>,
    raft: Raft,
    queue: Arc<ProposalQueue>,
    leadership: watch::Receiver<Option<Leadership>>,
    relinquished_term: watch::Sender<u64>,
    rejected_candidates: watch::Sender<u64>,
    lease_tracker: Arc<LeaseTracker>,
    leader_run: LeaderRun,
    voted: VotedTerm,
    observed_clock: ObservedClock,
    adapter: AdapterHandle,
    store: ReplicaStore,
    peer_connections: PeerConnections,
    /// Until it does, the replica does not stand either.
    may_vote: Arc<AtomicBool>,
    was_pristine: bool,
    known_rules: KnownRules,
    /// Kept by what applies to it.
    machine: Weak<dyn StateMachine>,
}

/// Nobody can propose any more.
impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Group {
    /// Starts the replica from what its store holds.
    pub(crate) async fn start(
        options: GroupOptions,
        store: ReplicaStore,
        machine: Arc<dyn StateMachine>,
        node: NodeContext,
    ) -> Result<Self, ReplicationError> {
        let NodeContext { timing, peer_connections, in_flight, rules: known_rules, longest_lease } = node;
        let stopped = |reason: String| options.stopped(reason);
        let was_pristine = store.is_pristine()?;
        let holds_back = leadership::needs_election_holdoff(was_pristine, options.members.len());
        let may_vote = Arc::new(AtomicBool::new(!holds_back));
        let log = LogStore::open(store.clone()).map_err(|error| stopped(error.to_string()))?;
        let voted = log.voted();
        let (state_machine, term_start) =
            StateMachineAdapter::new(Arc::clone(&machine), store.clone(), options.log_limits, known_rules)
                .map_err(|error| stopped(error.to_string()))?;
        let (adapter, compactor) = (state_machine.handle(), state_machine.compactor());
        let header_source = HeaderSource { wall: options.wall_clock.clone(), group: adapter.group_state.clone() };
        let config = raft_config(&options, timing, !holds_back).map_err(|error| stopped(error.to_string()))?;
        let (leadership_sender, leadership) = watch::channel(None);
        let lease_tracker = Arc::new(LeaseTracker::new(options.replica, options.members.keys().copied().collect()));
        let configured = Arc::new(options.members.clone());
        let locations = watch::Sender::new(MemberLocations { configured: Arc::clone(&configured), known: configured });
        let (links, tracker) = (peer_connections.clone(), Arc::clone(&lease_tracker));
        let network = RaftNetwork::new(options.replica, locations.subscribe(), links, leadership.clone(), tracker);
        let raft = Raft::new(options.replica, Arc::new(config), network, log, state_machine)
            .await
            .map_err(|error| stopped(error.to_string()))?;
        let queue = Arc::new(ProposalQueue::new());
        let observed_clock = ObservedClock::new();
        let (relinquished_term, relinquished) = watch::channel(0);
        let floor = ClockFloor { machine: Arc::clone(&machine), observed: observed_clock.clone() };
        let tasks = TaskSet::new(TaskOwner::replica(&options.shard, options.replica));
        let leads = leadership::watch_leadership(raft.clone(), floor, term_start, relinquished, leadership_sender);
        tasks.spawn_essential("leadership", leads);
        let proposer = Proposer::new(
            raft.clone(),
            Arc::clone(&queue),
            Arc::downgrade(&machine),
            leadership.clone(),
            header_source,
            in_flight,
        );
        tasks.spawn_essential("proposer", proposer.run());
        tasks.spawn_essential("log_compaction", compactor.run(raft.clone()));
        if holds_back {
            let (raft, votes) = (raft.clone(), Arc::clone(&may_vote));
            let vote = move || leadership::enable_voting_after(raft.clone(), longest_lease.clone(), Arc::clone(&votes));
            tasks.spawn_until_done("vote", vote);
        }
        let inner = Inner {
            tasks,
            options,
            timing,
            locations,
            raft,
            queue,
            leadership,
            relinquished_term,
            rejected_candidates: watch::Sender::new(0),
            lease_tracker,
            leader_run: LeaderRun::default(),
            voted,
            observed_clock,
            adapter,
            store,
            peer_connections,
            may_vote,
            was_pristine,
            known_rules,
            machine: Arc::downgrade(&machine),
        };
        let group = Self { inner: Arc::new(inner) };
        group.tasks().spawn_essential("voters", membership::track_voters(group.clone()));
        Ok(group)
    }

    /// Forms the group. Called on one of its replicas, once in the group's life; later calls change nothing.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn bootstrap(&self) -> Result<(), ReplicationError> {
        let members: BTreeSet<u64> = self.members().keys().copied().collect();
        match self.inner.raft.initialize(members).await {
            Ok(()) => Ok(()),
            Err(openraft::errors::RaftError::APIError(_)) => Ok(()),
            Err(error) => Err(self.stopped(&error.to_string())),
        }
    }

    /// Whether the group has ever been formed, as far as this replica knows.
    pub async fn is_bootstrapped(&self) -> bool {
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
        Arc::clone(&self.inner.locations.borrow().configured)
    }

    /// Takes the replicas of a later configuration; while this replica leads it brings the group there.
    pub fn set_members(&self, members: BTreeMap<u64, String>) {
        self.inner.locations.send_if_modified(|placement| {
            let differs = *placement.configured != members;
            if differs {
                let mut known = placement.known.as_ref().clone();
                known.extend(members.clone());
                *placement = MemberLocations { configured: Arc::new(members), known: Arc::new(known) };
            }
            differs
        });
    }

    /// Where replicas are, those included that are leaving or have left.
    pub fn locations(&self) -> Arc<BTreeMap<u64, String>> {
        Arc::clone(&self.inner.locations.borrow().known)
    }

    /// Follows the configured replicas.
    pub(crate) fn subscribe_locations(&self) -> MemberLocationsReceiver {
        self.inner.locations.subscribe()
    }

    /// Follows this replica's leadership.
    pub fn subscribe_leadership(&self) -> watch::Receiver<Option<Leadership>> {
        self.inner.leadership.clone()
    }

    /// Writes a command to the log and answers with its reply, once its entry is durable on a quorum and applied here.
    ///
    /// # Errors
    /// `NotLeader` and `NotProposed`: nothing was done. `Unknown`: it may have been done, or may still be.
    pub async fn propose(&self, term: u64, command: Bytes, deadline: Instant) -> Result<Bytes, ProposeError> {
        self.propose_as(None, term, command, deadline).await
    }

    /// The same for what a leader does by itself, which goes before what accounts have sent. Whoever calls it bounds how
    /// many it has in flight.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_own(&self, term: u64, command: Bytes, deadline: Instant) -> Result<Bytes, ProposeError> {
        self.propose_as(Some(0), term, command, deadline).await
    }

    async fn propose_as(
        &self,
        account: Option<u64>,
        term: u64,
        command: Bytes,
        deadline: Instant,
    ) -> Result<Bytes, ProposeError> {
        if self.leadership().is_none_or(|leads| leads.term != term) {
            return Err(self.not_leader().into());
        }
        if !self.has_quorum(term, self.timing().lease()) {
            // Others may lead by now, or soon will.
            return Err(NotLeader { leader: None, term: 0 }.into());
        }
        if !self.has_disk_space() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        if command.len() > MAX_COMMAND_BYTES {
            return Err(ProposeError::NotProposed("the command is too large"));
        }
        let cost = self.assess(&command)?;
        let state = ProposalState::default();
        let (reply, receiver) = oneshot::channel();
        let proposal = Proposal { term, command, min_units: cost.units, state: state.clone(), reply };
        self.inner.queue.push(account.unwrap_or(cost.account), proposal)?;
        match self.wait_for_reply(term, receiver, deadline).await {
            Ok(reply) => reply,
            Err(reason) if state.cancel() => Err(ProposeError::NotProposed(reason)),
            Err(reason) => Err(ProposeError::Unknown(reason)),
        }
    }

    /// Whether every replica of the group can apply the command, and what it costs.
    fn assess(&self, command: &[u8]) -> Result<CommandCost, ProposeError> {
        let machine = self.inner.machine.upgrade().ok_or(ProposeError::NotProposed("the replica is stopping"))?;
        machine.assess(self.rules(), command).map_err(|error| ProposeError::UnsupportedCommand(error.to_string()))
    }

    /// The rules by which the next entry is applied, as far as this replica knows.
    pub fn rules(&self) -> u16 {
        self.group_state().rules.unwrap_or(FIRST_RULES)
    }

    /// What is replicated of the group itself, as far as this replica has applied it.
    pub(crate) fn group_state(&self) -> GroupState {
        *self.inner.adapter.group_state.borrow()
    }

    /// Follows what is replicated of the group itself.
    pub(crate) fn subscribe_group_state(&self) -> watch::Receiver<GroupState> {
        self.inner.adapter.group_state.clone()
    }

    /// The rules that this program knows.
    pub(crate) fn known_rules(&self) -> KnownRules {
        self.inner.known_rules
    }

    /// Waits for the answer, or for the reason why none will come in time. A leader that is cut off would keep callers
    /// waiting until their deadlines, so that they would not find the other side; so they are sent away earlier.
    async fn wait_for_reply(
        &self,
        term: u64,
        mut receiver: oneshot::Receiver<ProposalResult>,
        deadline: Instant,
    ) -> Result<ProposalResult, &'static str> {
        loop {
            let look = deadline.min(Instant::now() + QUORUM_POLL_INTERVAL);
            match timeout_at(look, &mut receiver).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(_)) => return Err("the replica is stopping"),
                Err(_) if look == deadline => return Err("the deadline passed before the entry was committed"),
                Err(_) if !self.has_recent_quorum(term) => {
                    return Err("the leader has lost its quorum");
                }
                Err(_) => {}
            }
        }
    }

    /// Whether this leader still hears of a quorum, if late: a group under much load is no group that is cut off.
    pub fn has_recent_quorum(&self, term: u64) -> bool {
        self.inner.lease_tracker.quorum_heard_at(term).is_some_and(|heard| heard.elapsed() < 2 * self.timing().lease())
    }

    /// Whether this replica and its leader have heard of each other lately: a leader of a quorum, any other replica of
    /// the leader.
    pub fn is_in_contact(&self) -> bool {
        match self.leadership() {
            Some(leads) => self.has_recent_quorum(leads.term),
            None => self.inner.observed_clock.is_recent(LEADER_CONTACT_TIMEOUT),
        }
    }

    /// Writes an entry without commands: its stamp moves the clock, and with it ends what is due.
    ///
    /// # Errors
    /// As [`Self::propose`].
    pub async fn propose_clock_tick(&self, term: u64, deadline: Instant) -> Result<(), ProposeError> {
        let Some(leads) = self.leadership().filter(|leads| leads.term == term) else {
            return Err(self.not_leader().into());
        };
        if !self.has_disk_space() {
            return Err(ProposeError::NotProposed(DISK_IS_FULL));
        }
        let (wall, group) = (self.inner.options.wall_clock.clone(), self.subscribe_group_state());
        let stamps = HeaderSource { wall, group };
        let writing = async {
            let written = proposer::write(&self.inner.raft, leads, &stamps, &[]).await?;
            proposer::entry_replies(written.await).map(|_| ())
        };
        match timeout_at(deadline, writing).await {
            Ok(result) => result,
            Err(_) => Err(ProposeError::Unknown("the deadline passed before the entry was committed")),
        }
    }

    /// Who leads, as far as this replica knows.
    pub fn not_leader(&self) -> NotLeader {
        match self.leadership() {
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
        self.inner.may_vote.load(Ordering::Relaxed)
    }

    /// The running clock of the leader of a term, as heard in an accepted heartbeat.
    pub(crate) fn observe_clock(&self, term: u64, clock_ms: u64) {
        self.inner.observed_clock.observe(term, clock_ms);
    }

    /// This replica's leadership now.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        *self.inner.leadership.borrow()
    }

    /// A candidate of that term was refused, since this replica has more of the log.
    pub(crate) fn record_rejected_candidate(&self, term: u64) {
        self.inner.rejected_candidates.send_if_modified(|latest| {
            let is_later = term > *latest;
            *latest = term.max(*latest);
            is_later
        });
    }

    /// The latest term in which a candidate was refused, since this replica has more of the log.
    pub(crate) fn rejected_candidates(&self) -> watch::Receiver<u64> {
        self.inner.rejected_candidates.subscribe()
    }

    /// Ends the leadership of a term for good, before another replica takes over.
    pub(crate) fn relinquish(&self, term: u64) {
        self.inner.relinquished_term.send_replace(term);
    }

    /// Commands that wait for their entry.
    pub(crate) fn queued_commands(&self) -> usize {
        self.inner.queue.len()
    }

    /// The index that the machine's state is of, unless it is changing: what is read of the machine between two calls
    /// that gave the same is of that index.
    pub fn applied_index(&self) -> Option<u64> {
        self.inner.adapter.applied_index.get()
    }

    pub(crate) fn snapshot_age(&self) -> Duration {
        self.inner.adapter.snapshot_age.get()
    }

    pub(crate) fn store(&self) -> &ReplicaStore {
        &self.inner.store
    }

    pub(crate) fn adapter(&self) -> &AdapterHandle {
        &self.inner.adapter
    }

    /// Whether the disk of this node has room for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        self.inner.store.has_space()
    }

    /// The last entry of this replica's log, committed or not.
    pub(crate) fn last_log_index(&self) -> Option<u64> {
        self.inner.raft.metrics().borrow_watched().last_log_index
    }

    /// Whether the node of that replica has room for data, as far as it has said.
    pub(crate) fn peer_has_disk_space(&self, replica: u64) -> bool {
        let places = self.locations();
        places
            .get(&replica)
            .and_then(|node| self.inner.peer_connections.get(node))
            .is_some_and(|link| link.has_disk_space())
    }

    pub(crate) fn lease_tracker(&self) -> &LeaseTracker {
        &self.inner.lease_tracker
    }

    /// Which process leads in the latest term.
    pub(crate) fn leader_run(&self) -> &LeaderRun {
        &self.inner.leader_run
    }

    /// The ways to all nodes.
    pub(crate) fn peer_connections(&self) -> &PeerConnections {
        &self.inner.peer_connections
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
        self.inner.options.stopped(reason.into())
    }
}

impl GroupOptions {
    fn stopped(&self, reason: String) -> ReplicationError {
        ReplicationError::Stopped { shard: self.shard.clone(), replica: self.replica, reason }
    }
}
