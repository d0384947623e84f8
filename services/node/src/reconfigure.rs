//! Changes the cluster config while the node runs: adds and removes replicas without disruption.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use holdfast_cluster::{ClusterConfig, ConfigError, GroupConfig, GroupShard, ReplicaLocation, ShardMap};
use holdfast_core::Bounds;
use holdfast_proto::internal::ReplicaStatus;
use holdfast_replication::{Clocks, Group, GroupManager, GroupOptions, LogLimits, Poison, ReadMode, ReplicationError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::group_machine::GroupMachine;
use crate::machine::{ApplyObserver, ShardMachine};
use crate::node::{NodeInner, peers, replica_ids};
use crate::options::NodeOptions;
use crate::replica::{Replica, ReplicaSpec, ShardReplica};
use crate::run_markers::{FatalStep, RunMarkers};
use crate::{metrics, replica_supervisor, stored_config};

/// How often a replica that left the config checks whether its group works without it.
const DECOMMISSION_POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Timeout of status queries to the other nodes.
const STATUS_TIMEOUT: Duration = Duration::from_secs(2);

/// How replicas are started.
pub(crate) struct ReplicaOptions {
    reads: ReadMode,
    snapshot_interval_entries: u64,
    retain_entries: u64,
    log_limits: LogLimits,
    bounds: Option<Bounds>,
    slice_commands: usize,
    clocks: Clocks,
    observer: Option<Arc<dyn ApplyObserver>>,
}

/// A config that the node rejects.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReconfigureError {
    #[error(
        "it has cluster config version {current}, and version {offered} is {what}; make the change again, to the \
         config that it has"
    )]
    NotNewer { current: u64, offered: u64, what: &'static str },
    #[error(transparent)]
    Invalid(#[from] ConfigError),
    #[error("the config can't be stored: {0}")]
    NotStored(#[from] crate::NodeError),
    #[error("the node is starting or stopping; try again")]
    NotRunning,
    #[error(transparent)]
    Replica(#[from] ReplicationError),
}

impl ReplicaOptions {
    pub(crate) fn new(options: &NodeOptions, observer: Option<Arc<dyn ApplyObserver>>) -> Self {
        Self {
            reads: options.reads,
            snapshot_interval_entries: options.snapshot_interval_entries,
            retain_entries: options.retain_entries,
            log_limits: options.log_limits,
            bounds: options.bounds.clone(),
            slice_commands: options.slice_commands,
            clocks: options.clocks.clone(),
            observer,
        }
    }
}

impl NodeInner {
    /// Starts a replica from the store.
    pub(crate) async fn start_replica(
        &self,
        starting: &ReplicaOptions,
        place: ReplicaSpec<'_>,
    ) -> Result<Arc<Replica>, ReplicationError> {
        let ReplicaSpec { group: config, ref shards, replica, may_bootstrap } = place;
        let records = Poison::of_shards(&self.store.replica(replica))?;
        let steps = self.run_markers.as_ref().and_then(RunMarkers::steps);
        let machine = |shard: &GroupShard<'_>| {
            let (id, bounds, observer) = (&shard.shard.id, starting.bounds.clone(), starting.observer.clone());
            let own = records.get(id).filter(|poison| poison.release == self.release);
            let fatal = own.and_then(|poison| FatalStep::of_record(id, poison));
            let machine = ShardMachine::new(shard.application, id, bounds, observer);
            let machine = machine.with_memory(self.memory.clone()).with_table_memory(self.table_memory.clone());
            Arc::new(machine.with_slices(starting.slice_commands).with_markers(steps.cloned(), fatal))
        };
        let machines: Vec<Arc<ShardMachine>> = shards.iter().map(machine).collect();
        let options = GroupOptions {
            group: config.id.clone(),
            replica,
            members: members(config),
            snapshot_interval_entries: starting.snapshot_interval_entries,
            retain_entries: starting.retain_entries,
            log_limits: starting.log_limits,
            clocks: starting.clocks.clone(),
        };
        let group = self.group_manager.start_group(options, Arc::new(GroupMachine::new(machines.clone()))).await?;
        // The preferred leader's replica; it stands for election first.
        if may_bootstrap && config.replicas.first().is_some_and(|first| first.id == replica) {
            let (host, forming) = (self.group_manager.clone(), group.clone());
            group.tasks().spawn_until_done("bootstrap", move || bootstrap(host.clone(), forming.clone()));
        }
        let release = Arc::<str>::from(self.release.as_str());
        let shard = |(shard, machine): (&GroupShard<'_>, Arc<ShardMachine>)| {
            Arc::new(ShardReplica::new(shard, group.clone(), machine, starting.reads, Arc::clone(&release)))
        };
        let shards = shards.iter().zip(machines).map(shard).collect();
        let (sender, is_serving) = (self.outbox_sender.clone(), Arc::clone(&self.is_serving));
        let started = Replica::start(group, shards, may_bootstrap, sender, is_serving);
        if self.map().replica(replica).is_none() {
            started.decommission();
        }
        let started = Arc::new(started);
        self.replicas.write().insert(replica, Arc::clone(&started));
        Ok(started)
    }

    /// As above, for a replica's first start, unless it is poisoned. The replica is supervised from now on.
    pub(crate) async fn start_supervised_replica(
        self: &Arc<Self>,
        starting: &ReplicaOptions,
        place: ReplicaSpec<'_>,
    ) -> Result<(), ReplicationError> {
        let id = place.replica;
        if let Some(poison) = self.load_poison(id).await? {
            let shards = place.shards.iter().map(|shard| shard.shard.id.clone()).collect();
            self.mark_poisoned(&place.group.id, shards, id, poison);
            return Ok(());
        }
        self.start_replica(starting, place).await?;
        let weak = Arc::downgrade(self);
        self.tasks.spawn_until_done("replica", move || replica_supervisor::run(Weak::clone(&weak), id));
        Ok(())
    }

    /// Applies the next config: stores it durably, then puts it into effect. Repeating the current one changes nothing.
    pub(crate) async fn reconfigure(self: &Arc<Self>, next: ClusterConfig) -> Result<u64, ReconfigureError> {
        let _turn = self.config_lock.lock().await;
        let starting =
            self.replica_options.get().filter(|_| !self.is_stopping()).ok_or(ReconfigureError::NotRunning)?;
        let current = self.map();
        let (before, offered) = (current.config().version, next.version);
        if *current.config() == next {
            return Ok(before);
        }
        if offered <= before {
            let what = if offered == before { "another one" } else { "an earlier one" };
            return Err(ReconfigureError::NotNewer { current: before, offered, what });
        }
        current.config().check_transition(&next)?;
        let map = Arc::new(ShardMap::new(next)?);
        if let Some(data_dir) = &self.data_dir {
            stored_config::store(data_dir.clone(), map.config().clone()).await?;
        }
        self.group_manager.allow_rules(map.config().rules);
        self.group_manager.reconfigure(replica_ids(&map, &self.node_id), &peers(&map, &self.node_id)).await;
        self.outbox_sender.router().reconfigure(map.as_ref().clone());
        self.map.send_replace(Arc::clone(&map));
        for replica in self.replicas() {
            if let Some(config) = map.group(replica.group.id()) {
                replica.group.set_members(members(config));
            }
            if map.replica(replica.group.replica()).is_none() && !replica.is_decommissioned() {
                replica.decommission();
                self.decommission(replica.group.replica());
            }
        }
        let left_out: Vec<u64> = self.poisoned_replicas.read().keys().copied().collect();
        left_out.iter().filter(|id| map.replica(**id).is_none()).for_each(|id| self.decommission(*id));
        for place in map.replicas_of_node(&self.node_id) {
            let id = place.replica.id;
            if self.replica(id).is_none() && !left_out.contains(&id) {
                // The group of a new replica already exists, and its leader adds the replica, unless the group is new.
                let is_new_group = current.group(&place.group.id).is_none();
                self.start_supervised_replica(starting, replica_spec(&map, &place, is_new_group)).await?;
            }
        }
        tracing::info!(version = offered, before, "cluster config changed");
        Ok(offered)
    }

    /// Removes, in the background, data of replicas that left the config while this node was down.
    pub(crate) fn remove_stale_replicas(self: &Arc<Self>) {
        let map = self.map();
        for &replica in self.store.existing_replicas() {
            if map.replica(replica).is_none() {
                self.decommission(replica);
            }
        }
    }

    fn decommission(self: &Arc<Self>, replica: u64) {
        let weak = Arc::downgrade(self);
        self.tasks.spawn_until_done("decommission", move || decommission(Weak::clone(&weak), replica));
    }

    /// Returns true if every group has a leader and is as configured, so that none depends on that replica.
    async fn is_safe_to_remove(&self, replica: u64) -> bool {
        let looks = self.outbox_sender.router().node_statuses(Instant::now() + STATUS_TIMEOUT).await;
        let said = looks.iter().filter_map(|(_, said)| said.as_ref().ok());
        let replicas: Vec<&ReplicaStatus> = said.flat_map(|said| &said.replicas).collect();
        let map = self.map();
        // A group without shards has nothing to lose, and no status.
        let mut groups = map.config().groups.iter().filter(|group| !map.shards_of_group(&group.id).is_empty());
        map.replica(replica).is_none()
            && groups.all(|group| {
                let leaders = replicas.iter().filter(|one| one.group == group.id && one.leader == one.replica);
                leaders.max_by_key(|one| one.term).is_some_and(|leader| is_as_configured(leader, group))
            })
    }
}

fn is_as_configured(leader: &ReplicaStatus, group: &GroupConfig) -> bool {
    let mut voters = leader.voters.clone();
    voters.sort_unstable();
    let configured: Vec<u64> = members(group).into_keys().collect();
    voters == configured && leader.learners.is_empty()
}

/// Stops a replica and removes its data once its group works without it. Replica ids are never reused.
async fn decommission(shared: Weak<NodeInner>, id: u64) {
    let shared = loop {
        sleep(DECOMMISSION_POLL_INTERVAL).await;
        let Some(shared) = shared.upgrade().filter(|shared| !shared.is_stopping()) else { return };
        if shared.is_safe_to_remove(id).await {
            break shared;
        }
    };
    let replica = shared.replicas.write().remove(&id);
    shared.poisoned_replicas.write().remove(&id);
    if let Some(replica) = replica {
        shared.group_manager.stop_group(id).await;
        replica.shards.iter().for_each(|shard| metrics::reset_shard(&shard.id));
        let locations = replica.group.locations();
        let others = locations.iter().filter(|(other, _)| **other != id);
        metrics::reset_group(replica.group.id(), others.map(|(_, node)| node.as_str()));
    }
    match shared.store.replica(id).destroy().await {
        Ok(()) => tracing::info!(replica = id, "replica left its group; data removed"),
        Err(error) => tracing::error!(replica = id, %error, "data of departed replica not removed"),
    }
}

/// Applies configs that other nodes publish.
pub(crate) async fn apply_config_updates(
    shared: Weak<NodeInner>,
    mut later: watch::Receiver<Option<Arc<ClusterConfig>>>,
) {
    while later.changed().await.is_ok() {
        let Some(next) = later.borrow_and_update().clone() else { continue };
        let Some(shared) = shared.upgrade() else { return };
        if next.version <= shared.map().config().version {
            continue;
        }
        if let Err(error) = shared.reconfigure(next.as_ref().clone()).await {
            tracing::error!(version = next.version, %error, "later cluster config not applied");
        }
    }
}

/// Returns the start parameters of a configured replica.
pub(crate) fn replica_spec<'a>(map: &'a ShardMap, place: &ReplicaLocation<'a>, may_bootstrap: bool) -> ReplicaSpec<'a> {
    let shards = map.shards_of_group(&place.group.id);
    ReplicaSpec { group: place.group, shards, replica: place.replica.id, may_bootstrap }
}

async fn bootstrap(host: GroupManager, group: Group) {
    if let Err(error) = host.bootstrap(&group).await {
        tracing::error!(group = group.id(), %error, "group bootstrap failed");
    }
}

fn members(group: &GroupConfig) -> BTreeMap<u64, String> {
    group.replicas.iter().map(|replica| (replica.id, replica.node_id.clone())).collect()
}
