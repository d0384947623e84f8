//! All replicas of one node, and their connections to peers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use holdfast_rpc::{Acceptor, Callers, Dialer, Identity};
use holdfast_storage::NodeStore;
use holdfast_supervise::{TaskOwner, TaskSet};
use parking_lot::RwLock;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::ReplicationError;
use crate::group::{Group, NodeContext};
use crate::handshake::PeerRegistry;
use crate::membership;
use crate::network::{
    PeerConnection, PeerConnectionOptions, PeerConnections, PeerServer, Raft, SnapshotServer, SnapshotTransfers,
};
use crate::options::{GroupManagerOptions, GroupOptions, PeerConfig};
use crate::proposer::InFlightEntries;
use crate::raise_rules::{self, AdvertisedRules};
use crate::rules::KnownRules;
use crate::shard_failures::LocalFailures;
use crate::state_machine::StateMachine;
use crate::ticks::TickSchedule;
use crate::timing::Timing;

/// How often a node checks whether its disk is so full that another node should lead.
const DISK_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout for replicas' pending work when all are stopped.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(10);
/// Snapshots received and installed concurrently.
const MAX_CONCURRENT_SNAPSHOTS: usize = 4;
/// How long a node's outbound connection may outlive its listening port.
const FINAL_FRAMES_GRACE: Duration = Duration::from_millis(100);

/// The replicas of one node. Clones share it.
#[derive(Clone)]
pub struct GroupManager {
    inner: Arc<Inner>,
}

struct Inner {
    /// First, so that tasks end before the state that they use.
    tasks: TaskSet,
    groups: Arc<RwLock<HashMap<u64, Group>>>,
    peer_connections: PeerConnections,
    peer_registry: Arc<PeerRegistry>,
    callers: Arc<Callers>,
    snapshot_permits: Semaphore,
    closing: CancellationToken,
    identity: Arc<Identity>,
    dialer: Arc<dyn Dialer>,
    store: NodeStore,
    tick_schedule: TickSchedule,
    in_flight: InFlightEntries,
    failures: LocalFailures,
    timing: Timing,
    rules: KnownRules,
    allowed_rules: watch::Sender<Option<u16>>,
}

impl GroupManager {
    /// Starts connecting to the peers. No replica runs yet.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn start(options: GroupManagerOptions) -> Result<Self, ReplicationError> {
        let groups = Arc::<RwLock<HashMap<u64, Group>>>::default();
        let peer_registry = Arc::new(PeerRegistry::new(&options, Arc::downgrade(&groups))?);
        let closing = CancellationToken::new();
        let inner = Arc::new(Inner {
            tasks: TaskSet::new(TaskOwner::process()),
            groups,
            peer_connections: PeerConnections::default(),
            peer_registry,
            callers: options.callers,
            snapshot_permits: Semaphore::new(MAX_CONCURRENT_SNAPSHOTS),
            closing,
            identity: options.identity,
            dialer: options.dialer,
            store: options.store,
            tick_schedule: TickSchedule::for_node(&options.node),
            in_flight: InFlightEntries::default(),
            failures: LocalFailures::default(),
            timing: options.timing,
            rules: options.rules,
            allowed_rules: watch::Sender::new(options.allowed_rules),
        });
        for peer in &options.peers {
            inner.connect(peer);
        }
        let weak = Arc::downgrade(&inner);
        inner.tasks.spawn_restarting("disk_space", move || watch_disk_space(Weak::clone(&weak)));
        Ok(Self { inner })
    }

    /// Adds the protocols that peers speak.
    #[must_use]
    pub fn accept_on(&self, acceptor: Acceptor) -> Acceptor {
        acceptor.with(PeerServer(self.clone())).with(SnapshotServer(self.clone()))
    }

    /// Starts a replica from the store.
    ///
    /// # Errors
    /// When its data can't be read, or its promised lease can't be stored.
    pub async fn start_group(
        &self,
        options: GroupOptions,
        machine: Arc<dyn StateMachine>,
    ) -> Result<Group, ReplicationError> {
        let longest_lease = self.inner.peer_registry.longest_lease();
        longest_lease.record(self.inner.timing.lease()).await?;
        let store = self.inner.store.replica(options.replica);
        let node = NodeContext {
            timing: self.inner.timing,
            peer_connections: self.inner.peer_connections.clone(),
            in_flight: self.inner.in_flight.clone(),
            rules: self.inner.rules,
            longest_lease: longest_lease.subscribe(),
            failures: self.inner.failures.clone(),
        };
        let starting = Group::start(options, store, machine, node);
        let group = self.inner.tick_schedule.scope(starting).await?;
        self.inner.groups.write().insert(group.replica(), group.clone());
        let weak = Arc::downgrade(&self.inner);
        let allowed = self.inner.allowed_rules.subscribe();
        group.tasks().spawn_essential("rules", raise_rules::run(group.clone(), weak.clone(), allowed));
        group.tasks().spawn_essential("membership", membership::reconcile_membership(group.clone(), weak));
        Ok(group)
    }

    /// Bootstraps a new group if this replica is the one to do so. It waits until it has met all other nodes of the
    /// group, and does nothing if one already has data: then the group exists, and its leader adds this replica if it
    /// is new. The other nodes reject a replica that lost its data and returns under its old id. A majority would not
    /// suffice: the group may have been bootstrapped with the absent node, while one of the present nodes never ran.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn bootstrap(&self, group: &Group) -> Result<(), ReplicationError> {
        if !group.was_pristine() || group.is_bootstrapped().await {
            return Ok(());
        }
        let others: BTreeMap<u64, String> =
            group.members().iter().filter(|(id, _)| **id != group.replica()).map(|(id, n)| (*id, n.clone())).collect();
        let mut met = self.inner.peer_registry.admissions();
        loop {
            let seen = self.inner.peer_registry.known_replicas(&others);
            if let Some((replica, _)) = seen.iter().find(|(_, pristine)| !**pristine) {
                tracing::info!(
                    group = group.id(),
                    replica = group.replica(),
                    peer = replica,
                    "replica without data waiting to be added to its existing group"
                );
                return Ok(());
            }
            if seen.len() == others.len() {
                return group.bootstrap().await;
            }
            tokio::select! {
                met = met.changed() => if met.is_err() { return Ok(()) },
                () = self.inner.closing.cancelled() => return Ok(()),
            }
        }
    }

    /// Applies the nodes and replicas of a later configuration. The caller then starts, stops and updates the groups.
    pub async fn reconfigure(&self, replicas: Vec<u64>, peers: &[PeerConfig]) {
        let store_of = |node: &str| self.inner.peer_connections.get(node).and_then(|link| link.store_id());
        self.inner.peer_registry.reconfigure(replicas, peers, store_of).await;
        let stays = |node: &str, link: &PeerConnection| {
            peers.iter().any(|peer| peer.node == node && peer.address == link.address())
        };
        self.inner.peer_connections.retain(stays);
        for peer in peers {
            if self.inner.peer_connections.get(&peer.node).is_none() {
                self.inner.connect(peer);
            }
        }
    }

    /// Sets the highest rules that groups may be raised to, if the configuration limits them.
    pub fn allow_rules(&self, rules: Option<u16>) {
        self.inner.allowed_rules.send_if_modified(|allowed| std::mem::replace(allowed, rules) != rules);
    }

    /// Stops one replica, for good.
    pub async fn stop_group(&self, replica: u64) {
        let group = self.inner.groups.write().remove(&replica);
        if let Some(group) = group {
            group.shutdown().await;
        }
    }

    /// Returns a replica of this node.
    pub fn group(&self, replica: u64) -> Option<Group> {
        self.inner.groups.read().get(&replica).cloned()
    }

    /// Returns every replica of this node.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.inner.groups.read().values().cloned().collect();
        groups.sort_by_key(Group::replica);
        groups
    }

    /// Stops every replica and closes every connection. It does not transfer leaderships;
    /// [`Group::transfer_leadership`] does.
    pub async fn shutdown(&self) {
        let groups = std::mem::take(&mut *self.inner.groups.write());
        let ending = futures::future::join_all(groups.values().map(Group::shutdown));
        if timeout(SHUTDOWN_TIMEOUT, ending).await.is_err() {
            tracing::warn!("replica shutdown timed out");
        }
        self.inner.closing.cancel();
        self.inner.callers.close::<Raft>();
        self.inner.callers.close::<SnapshotTransfers>();
        self.inner.tasks.cancel();
        self.inner.peer_connections.end();
    }

    /// Returns a problem with tasks that belong to no replica, if any.
    pub fn failing_task(&self) -> Option<String> {
        self.inner.tasks.unhealthy_reason().or_else(|| self.inner.peer_connections.failing_task())
    }

    /// Waits for a permit to receive a snapshot; permits are few, since each state is decoded beside the one that it replaces.
    pub(crate) async fn snapshot_permit(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.inner.snapshot_permits.acquire().await.ok()
    }

    /// Returns the failed shards of this node's replicas.
    pub(crate) fn failures(&self) -> &LocalFailures {
        &self.inner.failures
    }

    /// Returns true if this node's disk has space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        self.inner.store.has_space()
    }

    /// Records that this run of the node has connected.
    pub(crate) fn mark_run_alive(&self, node: &str, run: u64) {
        if let Some(link) = self.inner.peer_connections.get(node) {
            link.mark_alive(run);
        }
    }

    pub(crate) fn peer_registry(&self) -> &PeerRegistry {
        &self.inner.peer_registry
    }
}

impl membership::ReplicaLiveness for Weak<Inner> {
    async fn is_connected(&self, replica: u64, node: &str, rules: u16) -> bool {
        let Some(inner) = self.upgrade() else { return false };
        // A replica of this node itself, which may host an old and a new replica of a group.
        if inner.groups.read().contains_key(&replica) {
            return true;
        }
        if !inner.peer_registry.peer_rules(node).is_some_and(|known| known.contains(rules)) {
            return false;
        }
        match inner.peer_connections.get(node).and_then(|link| link.store_id()) {
            Some(store_id) => inner.peer_registry.admit(replica, node, &store_id).await,
            None => false,
        }
    }
}

impl raise_rules::Peers for Weak<Inner> {
    fn advertised_rules(&self, node: &str) -> Option<AdvertisedRules> {
        let inner = self.upgrade()?;
        let known = inner.peer_registry.peer_rules(node)?;
        Some(AdvertisedRules {
            known,
            is_connected: inner.peer_connections.get(node).is_some_and(|link| link.store_id().is_some()),
        })
    }
}

impl Inner {
    /// Maintains a connection to a peer and starts the tasks that react to its state.
    fn connect(self: &Arc<Self>, peer: &PeerConfig) {
        let link = PeerConnection::start(PeerConnectionOptions {
            node: peer.node.clone(),
            address: peer.address.clone(),
            dialer: Arc::clone(&self.dialer),
            identity: Arc::clone(&self.identity),
            peer_registry: Arc::clone(&self.peer_registry),
        });
        let (inner, node, connected) = (Arc::downgrade(self), peer.node.clone(), link.connected_events());
        link.tasks().spawn_restarting("peer_connected", move || {
            on_peer_connected(Weak::clone(&inner), node.clone(), connected())
        });
        let (inner, node, refusals) = (Arc::downgrade(self), peer.node.clone(), link.refusals());
        let callers = Arc::clone(&self.callers);
        link.tasks().spawn_restarting("fast_failover", move || {
            run_fast_failover(Weak::clone(&inner), Arc::clone(&callers), node.clone(), refusals())
        });
        drop(self.peer_connections.insert(&peer.node, link));
    }
}

/// Resumes replication at once when a peer node reconnects: openraft would otherwise wait out its backoff from the
/// outage.
async fn on_peer_connected(inner: Weak<Inner>, node: String, mut connections: BoxStream<'static, ()>) {
    while connections.next().await.is_some() {
        let Some(inner) = inner.upgrade() else { return };
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop(inner);
        for group in groups {
            let there: Vec<u64> =
                group.locations().iter().filter(|(_, place)| **place == node).map(|(replica, _)| *replica).collect();
            if group.leadership().is_some() && !there.is_empty() {
                // It fails only when the replica has stopped.
                let _ = group.raft().trigger().reset_backoff(there).await;
            }
        }
    }
}

/// While this node's disk is nearly full, transfers its leaderships to nodes that still accept data.
async fn watch_disk_space(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(DISK_POLL_INTERVAL).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.store.has_space() {
            continue;
        }
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop(inner);
        futures::future::join_all(groups.iter().map(Group::transfer_if_disk_full)).await;
    }
}

/// Takes over from the leaders of a node when its process is found dead.
async fn run_fast_failover(
    inner: Weak<Inner>,
    callers: Arc<Callers>,
    node: String,
    mut refusals: BoxStream<'static, u64>,
) {
    while let Some(run) = refusals.next().await {
        // The final frames of a process that was just killed may still be unread.
        if timeout(FINAL_FRAMES_GRACE, callers.wait_disconnected::<Raft>(&node, run)).await.is_err() {
            tracing::warn!(
                node,
                "peer refuses connections but its inbound connection is open; not treating it as dead"
            );
            continue;
        }
        let Some(inner) = inner.upgrade() else { return };
        let Some(link) = inner.peer_connections.get(&node) else { continue };
        link.mark_dead(run);
        if callers.is_connected::<Raft>(&node, run) {
            // It connected meanwhile.
            link.mark_alive(run);
            continue;
        }
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop((inner, link));
        let successions = groups.iter().filter_map(|group| {
            let gone = group.locations().iter().find(|(_, place)| **place == node).map(|(replica, _)| *replica)?;
            Some(group.take_over(gone, run))
        });
        futures::future::join_all(successions).await;
    }
}
