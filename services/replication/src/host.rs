//! All replicas of one node, and how they find their peers.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::stream::{BoxStream, StreamExt};
use holdfast_proto::internal::raft_service_server::RaftServiceServer;
use holdfast_storage::NodeStore;
use holdfast_supervise::{Owner, TaskSet};
use parking_lot::RwLock;
use tokio::sync::{Semaphore, SemaphorePermit, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::error::ReplicationError;
use crate::group::{Group, GroupOptions, OfNode};
use crate::introductions::Introductions;
use crate::machine::Machine;
use crate::membership;
use crate::network::{Connections, Credentials, Dialer, Link, LinkOptions, Links, PeerService};
use crate::proposer::UnderWay;
use crate::raising::{self, Said};
use crate::rules::KnownRules;
use crate::ticks::Moments;
use crate::timing::Timing;

/// How often a node looks whether its disk is so full that another one should lead.
const LOOK_AT_DISK: Duration = Duration::from_secs(1);
/// How long what replicas were doing may take to come to its end, when all are stopped.
const ENDS_WITHIN: Duration = Duration::from_secs(10);
/// Snapshots taken in at a time.
const SNAPSHOTS: usize = 4;
/// How long the connection that a node made may outlive the port that it listened at.
const LAST_WORDS: Duration = Duration::from_millis(100);

/// Another node of the cluster.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its id.
    pub node: String,
    /// `host:port`.
    pub address: String,
    /// The replicas that the configuration gives it.
    pub replicas: Vec<u64>,
}

/// How a host is set up.
pub struct HostOptions {
    /// This node.
    pub node: String,
    /// Which cluster; peers of another are refused.
    pub cluster_id: String,
    /// The replicas that the configuration gives this node.
    pub replicas: Vec<u64>,
    /// The rules that this program knows.
    pub rules: KnownRules,
    /// The highest rules that the configuration allows groups to be raised to, if it says so.
    pub allowed_rules: Option<u16>,
    /// The backup that the data of this node came from. Nodes that came from another one are refused.
    pub restored_from: Option<String>,
    /// Every other node.
    pub peers: Vec<Peer>,
    /// The node's store.
    pub store: NodeStore,
    /// Opens connections.
    pub dialer: Dialer,
    /// Service tokens.
    pub credentials: Arc<dyn Credentials>,
    /// Heartbeats, elections and leases of all replicas of this node.
    pub timing: Timing,
}

/// The replicas of one node. Clones share it.
#[derive(Clone)]
pub struct Host {
    inner: Arc<Inner>,
}

struct Inner {
    /// First, so that tasks end before what they work with.
    tasks: TaskSet,
    groups: Arc<RwLock<HashMap<u64, Group>>>,
    links: Links,
    introductions: Arc<Introductions>,
    connections: Arc<Connections>,
    snapshots: Semaphore,
    closing: CancellationToken,
    credentials: Arc<dyn Credentials>,
    dialer: Dialer,
    store: NodeStore,
    moments: Moments,
    under_way: UnderWay,
    timing: Timing,
    rules: KnownRules,
    allowed_rules: watch::Sender<Option<u16>>,
}

impl Host {
    /// Starts connecting to the peers. No replica runs yet.
    ///
    /// # Errors
    /// When the store can't be read.
    pub fn start(options: HostOptions) -> Result<Self, ReplicationError> {
        let groups = Arc::<RwLock<HashMap<u64, Group>>>::default();
        let introductions = Arc::new(Introductions::new(&options, Arc::downgrade(&groups))?);
        let closing = CancellationToken::new();
        let inner = Arc::new(Inner {
            tasks: TaskSet::new(Owner::process()),
            groups,
            links: Links::default(),
            introductions,
            connections: Arc::new(Connections::new(closing.clone())),
            snapshots: Semaphore::new(SNAPSHOTS),
            closing,
            credentials: options.credentials,
            dialer: options.dialer,
            store: options.store,
            moments: Moments::of(&options.node),
            under_way: UnderWay::default(),
            timing: options.timing,
            rules: options.rules,
            allowed_rules: watch::Sender::new(options.allowed_rules),
        });
        for peer in &options.peers {
            inner.connect(peer);
        }
        let weak = Arc::downgrade(&inner);
        inner.tasks.keep("disk", move || yield_when_full(Weak::clone(&weak)));
        Ok(Self { inner })
    }

    /// The gRPC service that peers call.
    pub fn service(&self) -> RaftServiceServer<impl holdfast_proto::internal::raft_service_server::RaftService> {
        PeerService::new(self.clone())
    }

    /// Starts a replica from what the store holds.
    ///
    /// # Errors
    /// When its data can't be read, or the lease that it will promise can't be remembered.
    pub async fn start_group(
        &self,
        options: GroupOptions,
        machine: Arc<dyn Machine>,
    ) -> Result<Group, ReplicationError> {
        let longest_lease = self.inner.introductions.longest_lease();
        longest_lease.meet(self.inner.timing.lease()).await?;
        let store = self.inner.store.replica(options.replica);
        let node = OfNode {
            timing: self.inner.timing,
            links: self.inner.links.clone(),
            under_way: self.inner.under_way.clone(),
            rules: self.inner.rules,
            longest_lease: longest_lease.follow(),
        };
        let starting = Group::start(options, store, machine, node);
        let group = self.inner.moments.start(starting).await?;
        self.inner.groups.write().insert(group.replica(), group.clone());
        let weak = Arc::downgrade(&self.inner);
        let allowed = self.inner.allowed_rules.subscribe();
        group.tasks().run("rules", raising::keep_raised(group.clone(), weak.clone(), allowed));
        group.tasks().run("members", membership::keep_as_configured(group.clone(), weak));
        Ok(group)
    }

    /// Forms a new group when this replica is the one to do so. Waits until all of the group's other nodes have been
    /// met, and does nothing when one of them already has data: then the group was formed before, and its leader takes
    /// this replica in if it is a new one. One that has lost its data, under its old id, is refused by the others. A majority would not do: the group may have been formed with the node that is away now, while one
    /// of those present never ran.
    ///
    /// # Errors
    /// When the replica has stopped.
    pub async fn form(&self, group: &Group) -> Result<(), ReplicationError> {
        if !group.was_pristine() || group.is_formed().await {
            return Ok(());
        }
        let others: BTreeMap<u64, String> =
            group.members().iter().filter(|(id, _)| **id != group.replica()).map(|(id, n)| (*id, n.clone())).collect();
        let mut met = self.inner.introductions.met();
        loop {
            let seen = self.inner.introductions.seen_replicas(&others);
            if let Some((replica, _)) = seen.iter().find(|(_, pristine)| !**pristine) {
                tracing::info!(
                    shard = group.shard(),
                    replica = group.replica(),
                    peer = replica,
                    "this replica has no data, but its group was formed before: it waits until the others take it in"
                );
                return Ok(());
            }
            if seen.len() == others.len() {
                return group.form().await;
            }
            tokio::select! {
                met = met.changed() => if met.is_err() { return Ok(()) },
                () = self.inner.closing.cancelled() => return Ok(()),
            }
        }
    }

    /// Takes the nodes and replicas of a later configuration. Groups are started, stopped and told of their members by
    /// whoever calls this, afterwards.
    pub async fn reconfigure(&self, replicas: Vec<u64>, peers: &[Peer]) {
        let store_of = |node: &str| self.inner.links.get(node).and_then(|link| link.store());
        self.inner.introductions.reconfigure(replicas, peers, store_of).await;
        let stays =
            |node: &str, link: &Link| peers.iter().any(|peer| peer.node == node && peer.address == link.address());
        self.inner.links.retain(stays);
        for peer in peers {
            if self.inner.links.get(&peer.node).is_none() {
                self.inner.connect(peer);
            }
        }
    }

    /// The highest rules that groups may be raised to from now on, if the configuration says so.
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

    /// A replica of this node.
    pub fn group(&self, replica: u64) -> Option<Group> {
        self.inner.groups.read().get(&replica).cloned()
    }

    /// Every replica of this node.
    pub fn groups(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.inner.groups.read().values().cloned().collect();
        groups.sort_by_key(Group::replica);
        groups
    }

    /// Stops every replica and ends every connection. Leadership is not handed over; [`Group::hand_over`] does that.
    pub async fn shutdown(&self) {
        let groups = std::mem::take(&mut *self.inner.groups.write());
        let ending = futures::future::join_all(groups.values().map(Group::shutdown));
        if timeout(ENDS_WITHIN, ending).await.is_err() {
            tracing::warn!("replicas are cut off in what they were doing: they did not end in time");
        }
        self.inner.closing.cancel();
        self.inner.tasks.end();
        self.inner.links.end();
    }

    /// What is wrong now with the tasks of no replica in particular.
    pub fn trouble(&self) -> Option<String> {
        self.inner.tasks.trouble().or_else(|| self.inner.links.trouble())
    }

    /// Waits until a snapshot may be taken in; few at a time, since each is in memory as a whole.
    pub(crate) async fn snapshot_turn(&self) -> Option<SemaphorePermit<'_>> {
        // The semaphore is never closed.
        self.inner.snapshots.acquire().await.ok()
    }

    /// Whether the disk of this node has room for data.
    pub(crate) fn has_room(&self) -> bool {
        self.inner.store.has_room()
    }

    pub(crate) fn connections(&self) -> &Connections {
        &self.inner.connections
    }

    /// A connection of that run of the node has begun.
    pub(crate) fn meet_run(&self, node: &str, run: u64) {
        if let Some(link) = self.inner.links.get(node) {
            link.meet(run);
        }
    }

    pub(crate) fn introductions(&self) -> &Introductions {
        &self.inner.introductions
    }

    pub(crate) fn credentials(&self) -> &dyn Credentials {
        self.inner.credentials.as_ref()
    }
}

impl membership::Presence for Weak<Inner> {
    async fn is_there(&self, replica: u64, node: &str, rules: u16) -> bool {
        let Some(inner) = self.upgrade() else { return false };
        // Of this node itself, which may keep an old and a new replica of a shard.
        if inner.groups.read().contains_key(&replica) {
            return true;
        }
        if !inner.introductions.rules_of(node).is_some_and(|known| known.has(rules)) {
            return false;
        }
        match inner.links.get(node).and_then(|link| link.store()) {
            Some(store_id) => inner.introductions.meet(replica, node, &store_id).await,
            None => false,
        }
    }
}

impl raising::Peers for Weak<Inner> {
    fn said(&self, node: &str) -> Option<Said> {
        let inner = self.upgrade()?;
        let known = inner.introductions.rules_of(node)?;
        Some(Said { known, is_live: inner.links.get(node).is_some_and(|link| link.store().is_some()) })
    }
}

impl Inner {
    /// Begins to keep up a connection to a peer, and to do what its coming and going asks for.
    fn connect(self: &Arc<Self>, peer: &Peer) {
        let link = Link::start(LinkOptions {
            node: peer.node.clone(),
            address: peer.address.clone(),
            dialer: Arc::clone(&self.dialer),
            credentials: Arc::clone(&self.credentials),
            introductions: Arc::clone(&self.introductions),
        });
        let (inner, node, connected) = (Arc::downgrade(self), peer.node.clone(), link.connections());
        link.tasks().keep("welcome", move || welcome(Weak::clone(&inner), node.clone(), connected()));
        let (inner, node, refusals) = (Arc::downgrade(self), peer.node.clone(), link.refusals());
        let connections = Arc::clone(&self.connections);
        link.tasks().keep("succession", move || {
            succeed(Weak::clone(&inner), Arc::clone(&connections), node.clone(), refusals())
        });
        drop(self.links.insert(&peer.node, link));
    }
}

/// Whenever a peer node is connected again, its replicas are served at once: openraft would go on waiting between
/// attempts for as long as it did while the node was away.
async fn welcome(inner: Weak<Inner>, node: String, mut connections: BoxStream<'static, ()>) {
    while connections.next().await.is_some() {
        let Some(inner) = inner.upgrade() else { return };
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop(inner);
        for group in groups {
            let there: Vec<u64> =
                group.places().iter().filter(|(_, place)| **place == node).map(|(replica, _)| *replica).collect();
            if group.leads().is_some() && !there.is_empty() {
                // It fails only when the replica has stopped.
                let _ = group.raft().trigger().reset_backoff(there).await;
            }
        }
    }
}

/// While the disk of this node is nearly full, its leaderships go to nodes that still take in data.
async fn yield_when_full(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(LOOK_AT_DISK).await;
        let Some(inner) = inner.upgrade() else { return };
        if inner.store.has_room() {
            continue;
        }
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop(inner);
        futures::future::join_all(groups.iter().map(Group::yield_for_room)).await;
    }
}

/// Takes over from the leaders of a node whenever its process is found gone.
async fn succeed(
    inner: Weak<Inner>,
    connections: Arc<Connections>,
    node: String,
    mut refusals: BoxStream<'static, u64>,
) {
    while let Some(run) = refusals.next().await {
        // The last words of a process that was killed just now may not have been read yet.
        if timeout(LAST_WORDS, connections.until_none(&node, run)).await.is_err() {
            tracing::warn!(node, "its address refuses connections, but one that it made is there: it lives");
            continue;
        }
        let Some(inner) = inner.upgrade() else { return };
        let Some(link) = inner.links.get(&node) else { continue };
        link.find_gone(run);
        if connections.is_connected(&node, run) {
            // It connected meanwhile.
            link.meet(run);
            continue;
        }
        let groups: Vec<Group> = inner.groups.read().values().cloned().collect();
        drop((inner, link));
        let successions = groups.iter().filter_map(|group| {
            let gone = group.places().iter().find(|(_, place)| **place == node).map(|(replica, _)| *replica)?;
            Some(group.succeed(gone, run))
        });
        futures::future::join_all(successions).await;
    }
}
