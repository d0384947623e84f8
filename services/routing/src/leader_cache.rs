//! Caches the known leader of each group. One leader serves all shards of its group.

use std::sync::Arc;
use std::time::Duration;

use holdfast_cluster::{ClusterConfig, GroupConfig, Replica};
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::channel::{NodeChannel, ObservedRules};
use crate::keep_alives::KeepAliveQueue;

/// How long hints of a term lower than one seen before count as stale. Terms restart when a cluster is recreated under
/// a running gateway, which must find the new leaders all the same.
const STALE_HINT_WINDOW: Duration = Duration::from_secs(10);

/// A leading replica and its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Leader {
    pub(super) replica: u64,
    /// 0 when it answered a query as leader without naming its term.
    pub(super) term: u64,
}

/// A replica and the connection to its node.
#[derive(Clone)]
pub(super) struct ReplicaEndpoint {
    pub(super) replica: u64,
    pub(super) channel: Arc<NodeChannel>,
    /// Where clients reach the gateway in its node, if the node has one.
    gateway_address: Option<Arc<str>>,
}

/// One group: its replicas and its known leader. Shared by all calls to its shards.
pub(super) struct GroupRoute {
    id: String,
    pub(super) rules: ObservedRules,
    /// Keep-alives of sessions in its shards that wait for the next call.
    pub(super) keep_alives: KeepAliveQueue,
    /// Replaced when the config changes.
    endpoints: RwLock<Arc<[ReplicaEndpoint]>>,
    cache: Mutex<LeaderCache>,
    changed: Notify,
    /// When the call began that probes the replicas; the others wait for its result.
    probing: Mutex<Option<Instant>>,
}

#[derive(Default)]
struct LeaderCache {
    leader: Option<Leader>,
    /// The leader was not reached, or reported that it does not lead.
    is_suspected: bool,
    /// When a replica last named this leader, or was it.
    seen_at: Option<Instant>,
    /// The leader that a quorum including itself last agreed on, and when.
    confirmed: Option<(Leader, Instant)>,
}

impl GroupRoute {
    /// Makes the route to a group of the config.
    pub(super) fn new(group: &GroupConfig, config: &ClusterConfig, links: &[(String, Arc<NodeChannel>)]) -> Self {
        let endpoints = RwLock::new(endpoints_of(group, config, links));
        let rules = ObservedRules::default();
        Self {
            id: group.id.clone(),
            rules,
            keep_alives: KeepAliveQueue::default(),
            endpoints,
            cache: Mutex::default(),
            changed: Notify::new(),
            probing: Mutex::default(),
        }
    }

    /// Replaces the replicas, and the addresses of their nodes' gateways, after a config change.
    pub(super) fn update_replicas(
        &self,
        group: &GroupConfig,
        config: &ClusterConfig,
        links: &[(String, Arc<NodeChannel>)],
    ) {
        *self.endpoints.write() = endpoints_of(group, config, links);
    }

    /// Returns the replicas.
    pub(super) fn endpoints(&self) -> Arc<[ReplicaEndpoint]> {
        self.endpoints.read().clone()
    }

    pub(super) fn endpoint(&self, replica: u64) -> Option<ReplicaEndpoint> {
        self.endpoints.read().iter().find(|place| place.replica == replica).cloned()
    }

    pub(super) fn quorum(&self) -> usize {
        self.endpoints.read().len() / 2 + 1
    }

    /// Returns the leader, unless it is unknown or suspected.
    pub(super) fn leader(&self) -> Option<Leader> {
        let known = self.cache.lock();
        known.leader.filter(|_| !known.is_suspected)
    }

    /// Returns the address of the gateway in the leader's node; `None` if the leader is unknown or suspected, or if its
    /// node has no gateway.
    pub(super) fn leader_gateway(&self) -> Option<Arc<str>> {
        let leader = self.leader()?;
        let endpoints = self.endpoints.read();
        endpoints.iter().find(|endpoint| endpoint.replica == leader.replica)?.gateway_address.clone()
    }

    /// Records a leader named by a replica, or the replica itself. Hints of lower terms than known are stale.
    pub(super) fn learn(&self, hint: Leader) {
        if self.endpoint(hint.replica).is_none() {
            return;
        }
        let mut known = self.cache.lock();
        let is_news = match known.leader {
            None => true,
            Some(_) if hint.term == 0 => known.is_suspected,
            Some(leader) if hint.term < leader.term => {
                known.is_suspected && known.seen_at.is_none_or(|at| at.elapsed() > STALE_HINT_WINDOW)
            }
            Some(leader) => hint != leader || known.is_suspected,
        };
        if known.leader.is_some_and(|leader| hint.term < leader.term) && !is_news {
            return;
        }
        known.seen_at = Some(Instant::now());
        if !is_news {
            return;
        }
        if known.leader != Some(hint) {
            tracing::debug!(group = %self.id, replica = hint.replica, term = hint.term, "new leader learned");
            metrics::counter!("holdfast_routing_leader_changes_total").increment(1);
        }
        known.leader = Some(hint);
        known.is_suspected = false;
        drop(known);
        self.changed.notify_waiters();
    }

    /// Records that the leader was not reached, or does not lead; the next call probes the replicas.
    pub(super) fn suspect(&self, leader: Leader) {
        let mut known = self.cache.lock();
        if known.leader == Some(leader) {
            known.is_suspected = true;
        }
    }

    /// Records that a quorum including the leader itself agrees on it.
    pub(super) fn confirm(&self, leader: Leader) {
        self.cache.lock().confirmed = Some((leader, Instant::now()));
    }

    /// Returns when the leader was last confirmed.
    pub(super) fn confirmed_at(&self, leader: Leader) -> Option<Instant> {
        self.cache.lock().confirmed.filter(|(confirmed, _)| *confirmed == leader).map(|(_, at)| at)
    }

    /// Returns the permit to probe the replicas, unless another call got it less than `max_age` ago: a session that waits
    /// for its slow client does not go on with its call.
    pub(super) fn try_start_probe(&self, max_age: Duration) -> Option<ProbePermit<'_>> {
        let (mut probing, now) = (self.probing.lock(), Instant::now());
        if probing.is_some_and(|began| now.saturating_duration_since(began) < max_age) {
            return None;
        }
        *probing = Some(now);
        Some(ProbePermit { route: self, began: now })
    }

    /// Waits until a leader other than `before` is known, at most for `at_most`.
    pub(super) async fn wait_for_change(&self, before: Option<Leader>, at_most: Duration) {
        let changed = self.changed.notified();
        tokio::pin!(changed);
        // From here on no change is missed.
        changed.as_mut().enable();
        if self.leader() == before {
            // The caller checks again in either case.
            let _ = tokio::time::timeout(at_most, changed).await;
        }
    }
}

/// The permit to probe the replicas of a group, until it is dropped or too old.
pub(super) struct ProbePermit<'a> {
    route: &'a GroupRoute,
    began: Instant,
}

impl Drop for ProbePermit<'_> {
    fn drop(&mut self) {
        let mut probing = self.route.probing.lock();
        if *probing == Some(self.began) {
            *probing = None;
        }
    }
}

fn endpoints_of(
    group: &GroupConfig,
    config: &ClusterConfig,
    links: &[(String, Arc<NodeChannel>)],
) -> Arc<[ReplicaEndpoint]> {
    let endpoint_of = |replica: &Replica| {
        let (_, channel) = links.iter().find(|(id, _)| *id == replica.node_id)?;
        let gateway_address = config.node(&replica.node_id)?.gateway_address.as_deref().map(Arc::from);
        Some(ReplicaEndpoint { replica: replica.id, channel: Arc::clone(channel), gateway_address })
    };
    group.replicas.iter().filter_map(endpoint_of).collect()
}
