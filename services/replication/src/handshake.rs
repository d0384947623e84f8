//! This node's identity and the peers that it has met. A wrong address must cause an error and not a corrupted group.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Weak;
use std::time::Duration;

use holdfast_proto::internal::{Hello, HelloReplica};
use holdfast_storage::NodeStore;
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

use crate::error::ReplicationError;
use crate::group::Group;
use crate::longest_lease::LongestLease;
use crate::options::{GroupManagerOptions, PeerConfig};
use crate::rules::KnownRules;
use crate::timing::{DEFAULT_PEER_LEASE, MAX_LEASE};

/// Pin of a replica whose data is older than what it acknowledged: no store has this id.
const ROLLED_BACK: &str = "rolled back";

/// This node's identity, and the identities that its peers presented.
pub(crate) struct PeerRegistry {
    node: String,
    /// Drawn at random at each start.
    run: u64,
    cluster_id: String,
    restored_from: String,
    /// Replicas of this node and of the others by configuration.
    configured: RwLock<Configured>,
    store: NodeStore,
    /// This node's lease.
    lease: Duration,
    longest_lease: LongestLease,
    /// Replicas that peers have presented since this process started.
    known: Mutex<BTreeMap<u64, PeerReplica>>,
    admissions: watch::Sender<u64>,
    /// Data directories older than what was acknowledged from them.
    rejected_stores: watch::Sender<BTreeSet<String>>,
    /// The rules that this program knows.
    rules: KnownRules,
    /// The rules known to each node, as last presented by its process.
    peer_rules: Mutex<HashMap<String, KnownRules>>,
    /// This node's groups, whose rules the peers must know.
    groups: Weak<RwLock<HashMap<u64, Group>>>,
}

#[derive(Clone, Default)]
struct Configured {
    replicas: Vec<u64>,
    peers: HashMap<String, Vec<u64>>,
}

/// A replica of a peer.
struct PeerReplica {
    store_id: String,
    /// True if it had no data at that time.
    pristine: bool,
}

impl PeerRegistry {
    /// # Errors
    /// When the store can't be read.
    pub(crate) fn new(
        options: &GroupManagerOptions,
        groups: Weak<RwLock<HashMap<u64, Group>>>,
    ) -> Result<Self, ReplicationError> {
        Ok(Self {
            node: options.node.clone(),
            run: options.identity.run(),
            cluster_id: options.cluster_id.clone(),
            restored_from: options.restored_from.clone().unwrap_or_default(),
            configured: RwLock::new(Configured {
                replicas: options.replicas.clone(),
                peers: options.peers.iter().map(|peer| (peer.node.clone(), peer.replicas.clone())).collect(),
            }),
            store: options.store.clone(),
            lease: options.timing.lease(),
            longest_lease: LongestLease::open(options.store.clone())?,
            known: Mutex::default(),
            admissions: watch::Sender::new(0),
            rejected_stores: watch::Sender::default(),
            rules: options.rules,
            peer_rules: Mutex::default(),
            groups,
        })
    }

    /// Returns this node's current identity. Whether a replica is pristine is read each time: it distinguishes a group
    /// that was never bootstrapped from an existing one.
    pub(crate) fn hello(&self) -> Result<Hello, String> {
        let own = self.configured.read().replicas.clone();
        let mut replicas = Vec::with_capacity(own.len());
        for id in own {
            let pristine = self.store.replica(id).is_pristine().map_err(|error| error.to_string())?;
            replicas.push(HelloReplica { id, pristine });
        }
        Ok(Hello {
            cluster_id: self.cluster_id.clone(),
            node_id: self.node.clone(),
            store_id: self.store.store_id().to_owned(),
            replicas,
            restored_from: self.restored_from.clone(),
            run: self.run,
            lease_ms: u32::try_from(self.lease.as_millis()).unwrap_or(u32::MAX),
            lowest_rules: self.rules.lowest.into(),
            highest_rules: self.rules.highest.into(),
        })
    }

    /// Returns the longest lease that this node has seen; its own is recorded before a replica starts.
    pub(crate) fn longest_lease(&self) -> &LongestLease {
        &self.longest_lease
    }

    /// Returns true if this node's disk has space for data.
    pub(crate) fn has_disk_space(&self) -> bool {
        self.store.has_space()
    }

    /// Checks a peer's identity and pins the data directory of its replicas: a replica that returns with another
    /// directory has lost its votes and must not take part under its old id.
    pub(crate) async fn check(&self, theirs: &Hello, expected: Option<&str>) -> Result<(), String> {
        if theirs.cluster_id != self.cluster_id {
            return Err(format!(
                "node {} belongs to cluster {}, node {} to {}; give both the same cluster secret",
                theirs.node_id, theirs.cluster_id, self.node, self.cluster_id
            ));
        }
        let differs = theirs.restored_from != self.restored_from;
        if differs && !theirs.restored_from.is_empty() && !self.restored_from.is_empty() {
            return Err(format!(
                "node {} was restored from backup {}, node {} from {}; restore every node from the same one",
                theirs.node_id, theirs.restored_from, self.node, self.restored_from
            ));
        }
        if let Some(expected) = expected.filter(|expected| *expected != theirs.node_id) {
            return Err(format!("the address of node {expected} is answered by node {}", theirs.node_id));
        }
        let lease = lease_of(theirs);
        if lease > MAX_LEASE {
            return Err(format!(
                "node {} has leases of {lease:?}, and {MAX_LEASE:?} are the most; give it a release whose timing is \
                 that of the others",
                theirs.node_id
            ));
        }
        if self.rejected_stores.borrow().contains(&theirs.store_id) {
            return Err(lost_data_error(&theirs.node_id, "its replicas need new ids and an empty data directory"));
        }
        let Some(configured) = self.configured.read().peers.get(&theirs.node_id).cloned() else {
            return Err(format!(
                "node {} is not in the cluster config of node {}; add it there (`holdfast-admin node add`)",
                theirs.node_id, self.node
            ));
        };
        let known = self.check_rules(theirs)?;
        self.longest_lease.record(lease).await.map_err(|error| error.to_string())?;
        for replica in theirs.replicas.iter().filter(|replica| configured.contains(&replica.id)) {
            self.check_pin(replica.id, &theirs.node_id, &theirs.store_id).await?;
            let seen = PeerReplica { store_id: theirs.store_id.clone(), pristine: replica.pristine };
            self.known.lock().insert(replica.id, seen);
        }
        self.peer_rules.lock().insert(theirs.node_id.clone(), known);
        self.admissions.send_modify(|count| *count += 1);
        Ok(())
    }

    /// Checks that the peer knows the rules of all groups shared with this node; otherwise it would stop at the next
    /// entry.
    fn check_rules(&self, theirs: &Hello) -> Result<KnownRules, String> {
        let node = &theirs.node_id;
        let numbers = (u16::try_from(theirs.lowest_rules), u16::try_from(theirs.highest_rules));
        let (Ok(lowest @ 1..), Ok(highest)) = numbers else {
            return Err(format!(
                "node {node} runs a release that does not say which rules it knows, node {} one that knows rules {}; \
                 start {node} with the same release",
                self.node, self.rules
            ));
        };
        let known = KnownRules { lowest, highest };
        let groups = self.groups.upgrade();
        let groups: Vec<Group> = groups.map(|groups| groups.read().values().cloned().collect()).unwrap_or_default();
        let beyond = groups.iter().find(|group| {
            let is_there = group.locations().values().any(|place| place == node);
            is_there && group.group_state().rules.is_some_and(|rules| !known.contains(rules))
        });
        if let Some(group) = beyond {
            return Err(format!(
                "node {node} knows rules {known}, and group {} on node {} goes by rules {}; start {node} with the \
                 release of the other nodes, or a later one",
                group.id(),
                self.node,
                group.rules()
            ));
        }
        Ok(known)
    }

    /// Returns the rules that the node's last process knows.
    pub(crate) fn peer_rules(&self, node: &str) -> Option<KnownRules> {
        self.peer_rules.lock().get(node).copied()
    }

    async fn check_pin(&self, replica: u64, node: &str, store_id: &str) -> Result<(), String> {
        match self.store.peer_pin(replica).map_err(|error| error.to_string())? {
            Some(pinned) if pinned == store_id => Ok(()),
            Some(pinned) if pinned == ROLLED_BACK => {
                Err(lost_data_error(node, &format!("replica {replica} needs a new id")))
            }
            Some(_) => Err(format!(
                "node {node} came back with another data directory: replica {replica} has lost its data and needs a \
                 new id (`holdfast-admin node rebuild` prints the config for that); or two processes run as {node}: stop one"
            )),
            None => self.store.pin_peer(replica, store_id).await.map_err(|error| error.to_string()),
        }
    }

    /// Rejects a replica of that node that no longer has an entry that it acknowledged. As with a replaced data
    /// directory, it may have lost its votes too. The rejection is permanent. Connections with that data directory are
    /// closed, and new ones rejected; the node is accepted with new replicas in another directory.
    pub(crate) async fn reject_rolled_back(&self, node: &str, replica: u64, index: u64) {
        tracing::error!(node, replica, index, "replica rejected: acknowledged entry lost");
        if let Err(error) = self.store.pin_peer(replica, ROLLED_BACK).await {
            // A store that can't be written stops this node.
            tracing::error!(node, replica, %error, "rejection of the replica not persisted");
        }
        let Some(store_id) = self.known.lock().get(&replica).map(|seen| seen.store_id.clone()) else { return };
        self.rejected_stores.send_modify(|refused| _ = refused.insert(store_id));
    }

    /// Waits until that data directory is found to be older than what was acknowledged from it.
    pub(crate) async fn wait_rejected(&self, store_id: &str) {
        let mut refused = self.rejected_stores.subscribe();
        // The sender lives as long as this value.
        let _ = refused.wait_for(|refused| refused.contains(store_id)).await;
    }

    /// Applies a later configuration. Connected nodes need not present the replicas that they gain with it: these live
    /// in the connection's data directory, which `store_of` returns.
    pub(crate) async fn reconfigure(
        &self,
        replicas: Vec<u64>,
        peers: &[PeerConfig],
        store_of: impl Fn(&str) -> Option<String>,
    ) {
        let by_node = peers.iter().map(|peer| (peer.node.clone(), peer.replicas.clone())).collect();
        *self.configured.write() = Configured { replicas, peers: by_node };
        for peer in peers {
            let Some(store_id) = store_of(&peer.node) else { continue };
            for &replica in &peer.replicas {
                self.admit(replica, &peer.node, &store_id).await;
            }
        }
        self.admissions.send_modify(|count| *count += 1);
    }

    /// Returns true if that replica lives on that node in that data directory, as presented. If the replica came with a
    /// later configuration than the connection, it is pinned now.
    pub(crate) async fn admit(&self, replica: u64, node: &str, store_id: &str) -> bool {
        if let Some(seen) = self.known.lock().get(&replica) {
            return seen.store_id == store_id;
        }
        let lives_there = self.configured.read().peers.get(node).is_some_and(|there| there.contains(&replica));
        if !lives_there {
            return false;
        }
        if let Err(error) = self.check_pin(replica, node, store_id).await {
            tracing::warn!(node, replica, error, "new replica rejected: identity check failed");
            return false;
        }
        let seen = PeerReplica { store_id: store_id.to_owned(), pristine: false };
        self.known.lock().insert(replica, seen);
        true
    }

    /// Subscribes to the count of handshakes.
    pub(crate) fn admissions(&self) -> watch::Receiver<u64> {
        self.admissions.subscribe()
    }

    /// Returns the replicas that peers have presented, and whether they had no data.
    pub(crate) fn known_replicas(&self, others: &BTreeMap<u64, String>) -> BTreeMap<u64, bool> {
        let seen = self.known.lock();
        others.keys().filter_map(|id| seen.get(id).map(|seen| (*id, seen.pristine))).collect()
    }
}

/// Returns how long a replica of that node, after it acknowledged a leader, votes for no other.
pub(crate) fn lease_of(hello: &Hello) -> Duration {
    match hello.lease_ms {
        0 => DEFAULT_PEER_LEASE,
        ms => Duration::from_millis(ms.into()),
    }
}

fn lost_data_error(node: &str, what_to_do: &str) -> String {
    format!(
        "node {node} came back without data that it had acknowledged (an older copy, or a log that was cut off): \
         {what_to_do} (`holdfast-admin node rebuild` prints the config for that)"
    )
}
