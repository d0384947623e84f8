//! One replica of one group: the node's handle to it.

mod propose;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_storage::ReplicaStore;
use holdfast_supervise::{TaskOwner, TaskSet};
use openraft::async_runtime::watch::WatchReceiver;
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::checkpoints::Checkpoints;
use crate::config::raft_config;
use crate::entry::FIRST_RULES;
use crate::error::{NotLeader, ReplicationError};
use crate::leadership::{self, ClockFloor, LeaderRun, Leadership, ObservedClock};
use crate::leadership_transfer::FailureTransfers;
use crate::lease::{self, LeaseTracker};
use crate::log_compaction::EntryLimits;
use crate::log_store::{LogStore, VotedTerm};
use crate::network::{MemberLocations, MemberLocationsReceiver, PeerConnections, RaftNetwork};
use crate::operator_move::OperatorMove;
use crate::options::GroupOptions;
use crate::proposal_queue::ProposalQueue;
use crate::proposer::{HeaderSource, InFlightEntries, Proposer};
use crate::rules::{GroupState, KnownRules};
use crate::shard_failures::{LocalFailures, ReplicaReport};
use crate::state_machine::{FailedShards, StateMachine};
use crate::state_machine_adapter::{AdapterHandle, Raft, StateMachineAdapter, TermStart};
use crate::timing::Timing;
use crate::types::Entry;

/// Largest command, in bytes. An entry with it must fit into a message between nodes, or it could never be replicated.
const MAX_COMMAND_BYTES: usize = 1024 * 1024;

/// Reason for rejecting writes on a full disk.
pub(crate) const DISK_IS_FULL: &str = "the disk of the leader's node is nearly full; free some space on it";

/// How long a replica may lack contact with its leader before it reports so: a few elections.
const LEADER_CONTACT_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a command that awaits its reply checks whether its leader still has a quorum.
const QUORUM_POLL_INTERVAL: Duration = Duration::from_millis(500);

/// State shared by the replicas of a node.
pub(crate) struct NodeContext {
    pub(crate) timing: Timing,
    pub(crate) peer_connections: PeerConnections,
    pub(crate) in_flight: InFlightEntries,
    /// The rules that this program knows.
    pub(crate) rules: KnownRules,
    /// The longest lease that the node has seen.
    pub(crate) longest_lease: watch::Receiver<Duration>,
    /// The failed shards of all replicas.
    pub(crate) failures: LocalFailures,
}

/// A running replica. Clones share it. It runs until [`Group::shutdown`], even without handles.
#[derive(Clone)]
pub struct Group {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    /// First, so that tasks end before the state that they use.
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
    log: LogStore,
    peer_connections: PeerConnections,
    failures: LocalFailures,
    transfers: Transfers,
    poison_lock: tokio::sync::Mutex<()>,
    checkpoints: Checkpoints,
    /// While false, the replica does not stand for election either.
    may_vote: Arc<AtomicBool>,
    was_pristine: bool,
    known_rules: KnownRules,
    /// The adapter owns it.
    machine: Weak<dyn StateMachine>,
}

/// Transfers of the leadership, as far as later ones depend on them.
#[derive(Default)]
struct Transfers {
    because_of_failures: tokio::sync::Mutex<FailureTransfers>,
    latest_move: Mutex<Option<OperatorMove>>,
}

/// No handle is left that could propose.
impl Drop for Inner {
    fn drop(&mut self) {
        self.queue.close();
    }
}

impl Group {
    /// Starts the replica from its store.
    pub(crate) async fn start(
        options: GroupOptions,
        store: ReplicaStore,
        machine: Arc<dyn StateMachine>,
        node: NodeContext,
    ) -> Result<Self, ReplicationError> {
        let NodeContext { timing, peer_connections, in_flight, rules: known_rules, longest_lease, failures } = node;
        let stopped = |reason: String| options.stopped(reason);
        let was_pristine = store.is_pristine()?;
        let holds_back = leadership::needs_election_holdoff(was_pristine, options.members.len());
        let may_vote = Arc::new(AtomicBool::new(!holds_back));
        let log = LogStore::open(store.clone()).map_err(|error| stopped(error.to_string()))?;
        let (voted, reader) = (log.voted(), log.clone());
        let state_machine = adapter(&options, Arc::clone(&machine), store.clone(), known_rules, failures.clone())?;
        let (adapter, compactor) = (state_machine.handle(), state_machine.compactor());
        let header_source = HeaderSource { clocks: options.clocks.clone(), group: adapter.group_state.clone() };
        let config = raft_config(&options, timing, !holds_back).map_err(|error| stopped(error.to_string()))?;
        let (leadership_sender, leadership) = watch::channel(None);
        let voters = options.members.keys().copied().collect();
        let lease_tracker = Arc::new(LeaseTracker::new(options.replica, voters, options.clocks.clone()));
        let configured = Arc::new(options.members.clone());
        let locations = watch::Sender::new(MemberLocations { configured: Arc::clone(&configured), known: configured });
        let (links, tracker) = (peer_connections.clone(), Arc::clone(&lease_tracker));
        let network = RaftNetwork::new(options.replica, locations.subscribe(), links, leadership.clone(), tracker);
        let raft = Raft::new(options.replica, Arc::new(config), network, log, state_machine).await;
        let raft = raft.map_err(|error| stopped(error.to_string()))?;
        let (queue, observed_clock) = (Arc::new(ProposalQueue::new(adapter.queues.clone())), ObservedClock::new());
        let (relinquished_term, relinquished) = watch::channel(0);
        let floor = ClockFloor { machine: Arc::clone(&machine), observed: observed_clock.clone() };
        let tasks = TaskSet::new(TaskOwner::replica(&options.group, options.replica));
        let (start, state) = (adapter.term_start.clone(), adapter.group_state.clone());
        let leads = leadership::watch_leadership(raft.clone(), floor, start, state, relinquished, leadership_sender);
        tasks.spawn_essential("leadership", leads);
        let (proposals, prices) = (Arc::clone(&queue), Arc::downgrade(&machine));
        let proposer = Proposer::new(raft.clone(), proposals, prices, leadership.clone(), header_source, in_flight);
        tasks.spawn_essential("proposer", proposer.run());
        tasks.spawn_essential("log_compaction", compactor.run(raft.clone()));
        tasks.spawn_essential("voters", lease::track_voters(raft.clone(), Arc::clone(&lease_tracker)));
        if holds_back {
            leadership::hold_back_votes(&tasks, &raft, longest_lease, &may_vote);
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
            log: reader,
            peer_connections,
            failures,
            transfers: Transfers::default(),
            poison_lock: tokio::sync::Mutex::default(),
            checkpoints: Checkpoints::default(),
            may_vote,
            was_pristine,
            known_rules,
            machine: Arc::downgrade(&machine),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Bootstraps the group. Called on one of its replicas, once in the group's life; later calls change nothing.
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

    /// Returns true if this replica knows that the group was bootstrapped.
    pub async fn is_bootstrapped(&self) -> bool {
        self.inner.raft.is_initialized().await.unwrap_or(true)
    }

    /// Returns true if this replica had no data when it was started.
    pub fn was_pristine(&self) -> bool {
        self.inner.was_pristine
    }

    /// Returns the id of the group.
    pub fn id(&self) -> &str {
        &self.inner.options.group
    }

    /// Returns the replica id.
    pub fn replica(&self) -> u64 {
        self.inner.options.replica
    }

    /// Returns the configured replicas of the group with their nodes.
    pub fn members(&self) -> Arc<BTreeMap<u64, String>> {
        Arc::clone(&self.inner.locations.borrow().configured)
    }

    /// Sets the replicas of a later configuration; while this replica leads, it changes the group's membership to
    /// match.
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

    /// Returns the nodes of all replicas, including replicas that are leaving or have left.
    pub fn locations(&self) -> Arc<BTreeMap<u64, String>> {
        Arc::clone(&self.inner.locations.borrow().known)
    }

    /// Subscribes to the configured replicas.
    pub(crate) fn subscribe_locations(&self) -> MemberLocationsReceiver {
        self.inner.locations.subscribe()
    }

    /// Subscribes to this replica's leadership.
    pub fn subscribe_leadership(&self) -> watch::Receiver<Option<Leadership>> {
        self.inner.leadership.clone()
    }

    /// Returns the rules of the next entry, as far as this replica knows.
    pub fn rules(&self) -> u16 {
        self.inner.adapter.group_state.borrow().rules.unwrap_or(FIRST_RULES)
    }

    /// Returns the replicated group state that this replica has applied.
    pub(crate) fn group_state(&self) -> GroupState {
        self.inner.adapter.group_state.borrow().clone()
    }

    /// Subscribes to the start of the latest term with an applied entry.
    pub(crate) fn subscribe_term_start(&self) -> watch::Receiver<TermStart> {
        self.inner.adapter.term_start.clone()
    }

    /// Subscribes to the replicated group state.
    pub(crate) fn subscribe_group_state(&self) -> watch::Receiver<GroupState> {
        self.inner.adapter.group_state.clone()
    }

    /// Returns the rules that this program knows.
    pub(crate) fn known_rules(&self) -> KnownRules {
        self.inner.known_rules
    }

    /// Returns true if this leader has received acknowledgements from a quorum recently, even late ones: an overloaded
    /// group is not cut off.
    pub fn has_recent_quorum(&self, term: u64) -> bool {
        self.inner.lease_tracker.quorum_silence(term).is_some_and(|silence| silence < 2 * self.timing().lease())
    }

    /// Returns true if this replica was in contact recently: a leader with a quorum, any other replica with the leader.
    pub fn is_in_contact(&self) -> bool {
        match self.leadership() {
            Some(leads) => self.has_recent_quorum(leads.term),
            None => self.inner.observed_clock.is_recent(LEADER_CONTACT_TIMEOUT),
        }
    }

    /// Returns the leader that this replica knows.
    pub fn not_leader(&self) -> NotLeader {
        match self.leadership() {
            Some(leads) => NotLeader { leader: Some(self.replica()), term: leads.term },
            None => leadership::known_leader(&self.inner.raft),
        }
    }

    /// Makes a snapshot now, unless a shard has no state to save.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn make_snapshot(&self) -> Result<(), ReplicationError> {
        if !self.can_freeze() {
            return Ok(());
        }
        self.inner.raft.trigger().snapshot().await.map_err(|error| self.stopped(&error.to_string()))
    }

    /// Returns the index of the last entry in the saved snapshot; 0 if there is none.
    pub fn snapshot_index(&self) -> u64 {
        self.inner.raft.metrics().borrow_watched().snapshot.as_ref().map_or(0, |last| last.index)
    }

    /// Returns true if this replica may vote: not within a lease after its restart.
    pub fn may_vote(&self) -> bool {
        self.inner.may_vote.load(Ordering::Relaxed)
    }

    /// Records the leader's running clock of a term from an accepted heartbeat.
    pub(crate) fn observe_clock(&self, term: u64, clock_ms: u64) {
        self.inner.observed_clock.observe(term, clock_ms);
    }

    /// Returns this replica's current leadership.
    pub(crate) fn leadership(&self) -> Option<Leadership> {
        *self.inner.leadership.borrow()
    }

    /// Records that this replica rejected a candidate of this term, because the candidate's log is shorter.
    pub(crate) fn record_rejected_candidate(&self, term: u64) {
        self.inner.rejected_candidates.send_if_modified(|latest| {
            let is_later = term > *latest;
            *latest = term.max(*latest);
            is_later
        });
    }

    /// Subscribes to the latest term in which this replica rejected a candidate for its shorter log.
    pub(crate) fn rejected_candidates(&self) -> watch::Receiver<u64> {
        self.inner.rejected_candidates.subscribe()
    }

    /// Returns true if this replica has ended its leadership of the term for good.
    pub fn has_relinquished(&self, term: u64) -> bool {
        *self.inner.relinquished_term.borrow() >= term
    }

    /// Ends the leadership of a term for good, before another replica takes over.
    pub(crate) fn relinquish(&self, term: u64) {
        self.inner.relinquished_term.send_modify(|latest| *latest = term.max(*latest));
    }

    /// Returns the index of the machine's state, unless it is changing. Data read from the machine between two calls
    /// with the same result belongs to that index.
    pub fn applied_index(&self) -> Option<u64> {
        self.inner.adapter.applied_index.get()
    }

    /// Returns the index of the last entry that is applied as a whole.
    pub fn last_applied_index(&self) -> u64 {
        self.inner.adapter.applied_index.last()
    }

    pub(crate) fn bytes_since_snapshot(&self) -> u64 {
        self.inner.adapter.log_size.bytes_since_snapshot()
    }

    pub(crate) fn snapshot_age(&self) -> Duration {
        self.inner.adapter.snapshot_age.get()
    }

    pub(crate) fn store(&self) -> &ReplicaStore {
        &self.inner.store
    }

    /// Returns the shards that do not serve on this replica.
    pub(crate) fn failed_shards(&self) -> FailedShards {
        self.machine().map(|machine| machine.failed_shards()).unwrap_or_default()
    }

    /// Tells peers which shards do not serve on this replica, if that has changed. To be called when a shard serves
    /// again; that it failed is told at once.
    pub fn publish_failed_shards(&self) {
        self.inner.failures.update(self.replica(), || self.failed_shards().into_keys().collect());
    }

    /// Returns when the group was last handed over because of failed shards; one attempt at a time has it.
    pub(crate) fn failure_transfers(&self) -> &tokio::sync::Mutex<FailureTransfers> {
        &self.inner.transfers.because_of_failures
    }

    pub(crate) fn latest_move(&self) -> &Mutex<Option<OperatorMove>> {
        &self.inner.transfers.latest_move
    }

    /// Returns the lock of whoever changes the stored records of failed shards.
    pub(crate) fn poison_lock(&self) -> &tokio::sync::Mutex<()> {
        &self.inner.poison_lock
    }

    pub(crate) fn checkpoints(&self) -> &Checkpoints {
        &self.inner.checkpoints
    }

    /// Returns the state machine; `None` once the replica has stopped.
    pub(crate) fn machine(&self) -> Option<Arc<dyn StateMachine>> {
        self.inner.machine.upgrade()
    }

    /// Returns true if all shards have a state.
    pub(crate) fn can_freeze(&self) -> bool {
        self.machine().is_some_and(|machine| machine.can_freeze())
    }

    /// Returns entries of `from..to` of the log, as far as they exist: at least one, otherwise at most `max_bytes`.
    pub(crate) fn read_log(&self, from: u64, to: u64, max_bytes: usize) -> Result<Vec<Entry>, io::Error> {
        self.inner.log.read(from, to, max_bytes)
    }

    pub(crate) fn proposals(&self) -> &ProposalQueue {
        &self.inner.queue
    }

    pub(crate) fn adapter(&self) -> &AdapterHandle {
        &self.inner.adapter
    }

    /// Returns true if this node's disk has space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        self.inner.store.has_space()
    }

    /// Returns the last entry of this replica's log, committed or not.
    pub(crate) fn last_log_index(&self) -> Option<u64> {
        self.inner.raft.metrics().borrow_watched().last_log_index
    }

    /// Returns true if that replica's node last reported disk space for data.
    pub(crate) fn peer_has_disk_space(&self, replica: u64) -> bool {
        let places = self.locations();
        places
            .get(&replica)
            .and_then(|node| self.inner.peer_connections.get(node))
            .is_some_and(|link| link.has_disk_space())
    }

    /// Returns what a replica on another node last said of itself.
    pub(crate) fn replica_report(&self, replica: u64) -> ReplicaReport {
        self.connection_to(replica).map(|link| link.replica_report(replica)).unwrap_or_default()
    }

    pub(crate) fn lease_tracker(&self) -> &LeaseTracker {
        &self.inner.lease_tracker
    }

    /// Returns the process that leads in the latest term.
    pub(crate) fn leader_run(&self) -> &LeaderRun {
        &self.inner.leader_run
    }

    /// Returns the connections to all nodes.
    pub(crate) fn peer_connections(&self) -> &PeerConnections {
        &self.inner.peer_connections
    }

    /// Returns true if this replica, the leader of `term`, has not voted in a later term.
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

fn adapter(
    options: &GroupOptions,
    machine: Arc<dyn StateMachine>,
    store: ReplicaStore,
    known_rules: KnownRules,
    failures: LocalFailures,
) -> Result<StateMachineAdapter, ReplicationError> {
    let GroupOptions { snapshot_interval_entries, retain_entries, log_limits, .. } = *options;
    let entry_limits = EntryLimits { snapshot_interval: snapshot_interval_entries, retain: retain_entries };
    let adapter = StateMachineAdapter::new(machine, store, log_limits, known_rules);
    let adapter = adapter.map_err(|error| options.stopped(error.to_string()))?;
    Ok(adapter.with_entry_limits(entry_limits).with_failures(options.replica, failures))
}
