//! Sends calls to the shards.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use holdfast_auth::ServiceSigner;
use holdfast_cluster::{Application, ClusterConfig, GroupConfig, Node, ShardMap};
use holdfast_proto::internal::Update;
use holdfast_rpc::Identity;
use holdfast_supervise::{TaskOwner, TaskSet, spawn_temporary};
use holdfast_types::{
    AccountId, Acquire, AcquirePermits, AwaitCondition, Command, CommandError, ConditionCommand, LocksCommand,
    PermitCommand, Query, Reply, Revision, Rules, Topic, codec,
};
use metrics::{Counter, counter, describe_counter, describe_gauge};
use parking_lot::RwLock;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::yield_now;
use tokio::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

use crate::call::{CallOutcome, Destination, RoutedCall};
use crate::call_body::CallBody;
use crate::call_load::{AccountCalls, CallKind, LoadKey};
use crate::channel::{CallReply, NodeChannel, PendingCall};
use crate::connection::connected_gauge;
use crate::http::HttpCaller;
use crate::leader_cache::GroupRoute;
use crate::local_call::LocalNode;
use crate::subscription::{Publisher, Subscription};
use crate::{Dialer, RetryPolicy, RouteError, RoutedReply, RoutingOptions, acquire_wait, config_watch};

/// Bytes from which on a reply takes much of a millisecond to read, and as long before and after that.
const LARGE_REPLY_BYTES: usize = 64 << 10;

/// Sends commands and queries to the shards that own their keys. Cheap to clone.
#[derive(Clone)]
pub struct Router {
    inner: Arc<Inner>,
}

pub(super) struct Inner {
    /// First, so that tasks end before the state that they use.
    tasks: TaskSet,
    map: RwLock<Arc<ShardMap>>,
    /// By the id of the group. Has every group of the map: both change together.
    routes: RwLock<HashMap<String, Arc<GroupRoute>>>,
    channels: RwLock<Vec<(String, Arc<NodeChannel>)>>,
    options: RoutingOptions,
    caller: Arc<HttpCaller>,
    local: Option<LocalNode>,
    /// The latest config received from a node, if it is later than the current one.
    newer_config: watch::Sender<Option<Arc<ClusterConfig>>>,
    /// The attempts with a reply, by far the most: looking the metric up would cost more than counting.
    replies: Counter,
}

impl Router {
    /// Starts to connect to every node of the config but `local`, whose calls stay in this process. `signer` proves that
    /// this process belongs to the cluster; `caller_id` must differ at every start of the process. Needs a tokio runtime.
    pub fn start(
        map: ShardMap,
        signer: ServiceSigner,
        caller_id: String,
        dialer: Arc<dyn Dialer>,
        options: RoutingOptions,
        local: Option<LocalNode>,
    ) -> Self {
        describe_metrics();
        let identity = Arc::new(Identity::new(caller_id, 0, signer));
        let caller = Arc::new(HttpCaller { dialer, identity });
        let start = |node: &Node| {
            let channel = NodeChannel::start(&node.id, &node.address, &caller, &options, local.as_ref());
            (node.id.clone(), Arc::new(channel))
        };
        let channels: Vec<(String, Arc<NodeChannel>)> = map.config().nodes.iter().map(start).collect();
        let route = |group: &GroupConfig| (group.id.clone(), Arc::new(GroupRoute::new(group, map.config(), &channels)));
        let routes = RwLock::new(map.config().groups.iter().map(route).collect());
        let (newer_config, _) = watch::channel(None);
        let (map, channels) = (RwLock::new(Arc::new(map)), RwLock::new(channels));
        let tasks = TaskSet::new(TaskOwner::process());
        let replies = counter!("holdfast_routing_route_attempts_total", "outcome" => "reply");
        let inner = Arc::new(Inner { tasks, map, routes, channels, options, caller, local, newer_config, replies });
        for (node, link) in inner.channels.read().iter() {
            config_watch::start(&inner, node, link);
        }
        Self { inner }
    }

    /// Returns a problem with the router's tasks, if any: with its own, or with those of its connection to a node.
    pub fn failing_task(&self) -> Option<String> {
        let of_channel = |(node, channel): &(String, Arc<NodeChannel>)| {
            Some(format!("connection to node {node}: {}", channel.tasks()?.unhealthy_reason()?))
        };
        let own = self.inner.tasks.unhealthy_reason();
        own.or_else(|| self.inner.channels.read().iter().find_map(of_channel))
    }

    /// Subscribes to the latest config received from a node; `None` while that is the current one.
    pub fn config_updates(&self) -> watch::Receiver<Option<Arc<ClusterConfig>>> {
        self.inner.newer_config.subscribe()
    }

    /// Applies every later config received from a node from now on. For processes that keep no replicas.
    pub fn follow_config_updates(&self) {
        let (later, weak) = (self.config_updates(), Arc::downgrade(&self.inner));
        self.inner.tasks.spawn_restarting("config", move || apply_config_updates(later.clone(), Weak::clone(&weak)));
        if let Some(node) = &self.inner.local {
            config_watch::start_local(&self.inner.tasks, &self.inner, node);
        }
    }

    /// Applies another config of the same shards; in-flight calls use the new replicas of their group. A version earlier
    /// than the current one is ignored.
    pub fn reconfigure(&self, next: ShardMap) {
        let inner = &self.inner;
        let mut map = inner.map.write();
        if next.config().version <= map.config().version {
            return;
        }
        let mut links = inner.channels.write();
        let mut before = std::mem::take(&mut *links);
        for node in &next.config().nodes {
            let stays = map.node(&node.id).is_some_and(|known| known.address == node.address);
            match before.iter().position(|(id, _)| stays && *id == node.id) {
                Some(at) => links.push(before.swap_remove(at)),
                None => {
                    let Inner { caller, options, local, .. } = &**inner;
                    let link = Arc::new(NodeChannel::start(&node.id, &node.address, caller, options, local.as_ref()));
                    config_watch::start(inner, &node.id, &link);
                    links.push((node.id.clone(), link));
                }
            }
        }
        inner.update_routes(&next, &links);
        tracing::info!(version = next.config().version, "cluster config applied");
        *map = Arc::new(next);
        let router = inner.options.router;
        let gone: Vec<_> = before.into_iter().map(|(id, link)| (map.node(&id).is_none(), id, link)).collect();
        drop((map, links));
        for (is_removed, node, link) in gone {
            spawn_temporary("connection_end", async move {
                link.shutdown().await;
                if is_removed {
                    // Neither connected nor disconnected: the node no longer exists.
                    connected_gauge(node, router).set(f64::NAN);
                }
            });
        }
    }

    /// Sends a command to the shard that owns the key.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] and [`RouteError::Limited`] only when nothing was done;
    /// [`RouteError::OutcomeUnknown`] when the command may have been applied.
    pub async fn command(
        &self,
        application: Application,
        key: u32,
        command: &Command,
        repeat: RetryPolicy,
        deadline: Instant,
    ) -> Result<RoutedReply, RouteError> {
        let bytes = Bytes::from(codec::encode(command));
        let to = self.destination(application, key, command.account()).with_kind(kind_of(command.is_urgent()));
        self.send(to, bytes, command.min_rules(), repeat, deadline).await
    }

    /// Sends an encoded command to a shard; `needs` are the lowest rules that include it.
    pub(super) async fn send(
        &self,
        to: Destination,
        command: Bytes,
        needs: Rules,
        repeat: RetryPolicy,
        deadline: Instant,
    ) -> Result<RoutedReply, RouteError> {
        let call = RoutedCall::new(self, to, CallBody::Command(command), repeat, deadline);
        let mut call = call.with_min_rules(needs);
        let reply = call.reply().await?;
        Ok(RoutedReply { reply, maybe_done_before: call.maybe_done_before(), term: call.called_in })
    }

    /// Sends a query to the shard that owns the key.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] when there is no reply in time.
    pub async fn query(
        &self,
        application: Application,
        key: u32,
        query: &Query,
        deadline: Instant,
    ) -> Result<Reply, RouteError> {
        let body = CallBody::Query(Bytes::from(codec::encode(query)));
        let to = self.destination(application, key, query.account()).with_kind(kind_of(query.is_urgent()));
        RoutedCall::new(self, to, body, RetryPolicy::LaterTerm, deadline).reply().await
    }

    /// As [`Router::query`], but the leader holds its reply back until that is final, or until `hold_until`. A reply
    /// that is not final may come sooner, at a change of leader. `deferred` is cancelled once the leader holds it back.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] when there is no reply in time.
    pub async fn deferred_query(
        &self,
        application: Application,
        key: u32,
        query: &Query,
        hold_until: Instant,
        deadline: Instant,
        deferred: CancellationToken,
    ) -> Result<Reply, RouteError> {
        let body = CallBody::DeferredQuery(Bytes::from(codec::encode(query)), hold_until);
        let to = self.destination(application, key, query.account()).with_kind(CallKind::Deferrable);
        let call = RoutedCall::new(self, to, body, RetryPolicy::LaterTerm, deadline);
        call.with_deferred_signal(deferred).reply().await
    }

    /// Subscribes to a topic of the shard that owns the key, from a revision or from now on. `T` is the type of the
    /// topic's items. The subscription fails after `max_wait` without a leader.
    pub fn subscribe<T: DeserializeOwned>(
        &self,
        application: Application,
        key: u32,
        topic: Topic,
        from: Option<Revision>,
        max_wait: Duration,
    ) -> Subscription<T> {
        Subscription::new(Publisher::Shard(self.clone(), application, key), topic, from, max_wait)
    }

    /// Sends a subscription to a shard. Returns its first update.
    pub(super) async fn start_subscription(
        &self,
        to: Destination,
        body: CallBody,
        deadline: Instant,
    ) -> Result<Result<(Update, PendingCall), CommandError>, RouteError> {
        let mut call = RoutedCall::new(self, to, body, RetryPolicy::LaterTerm, deadline);
        match call.run().await? {
            CallOutcome::Subscribed(update, attempt) => Ok(Ok((update, attempt))),
            CallOutcome::Reply(bytes, _) => match call.decode_reply(&bytes)?.outcome {
                Err(rejected) => Ok(Err(rejected)),
                Ok(_) => Err(call.unexpected_reply()),
            },
        }
    }

    /// Acquires with waiting, outside of a session's connection. The reply arrives when the request is granted, when
    /// its wait ends, or when `poll` has passed. In the last case the outcome is `Enqueued` with the current position,
    /// and the request stays queued for ten seconds. Dropping the future cancels the request or releases the grant.
    /// Survives failovers of the shard. `deferred` is cancelled once the request waits in the queue. The locks are kept
    /// from others for `at_least_ms` milliseconds at least.
    ///
    /// # Errors
    /// [`RouteError::Unavailable`] when nothing was done; [`RouteError::OutcomeUnknown`] when it may have been: the
    /// shard then cancels the request unless a caller repeats it soon.
    pub fn acquire(
        &self,
        key: u32,
        (acquire, at_least_ms): (Acquire, u64),
        poll: Option<Duration>,
        deadline: Instant,
        deferred: CancellationToken,
    ) -> impl Future<Output = Result<Reply, RouteError>> + use<> {
        let account = acquire.namespace.account;
        let command = LocksCommand::acquire(acquire, Vec::new(), at_least_ms);
        acquire_wait::Wait::new(key, account, command, poll, deadline, deferred).run(self.clone())
    }

    /// As [`Router::acquire`], for permits of a semaphore or members of a pool.
    ///
    /// # Errors
    /// As [`Router::acquire`].
    pub fn acquire_permits(
        &self,
        key: u32,
        acquire: AcquirePermits,
        poll: Option<Duration>,
        deadline: Instant,
        deferred: CancellationToken,
    ) -> impl Future<Output = Result<Reply, RouteError>> + use<> {
        let account = acquire.namespace.account;
        let command = LocksCommand::Permit(PermitCommand::Acquire(acquire));
        acquire_wait::Wait::new(key, account, command, poll, deadline, deferred).run(self.clone())
    }

    /// As [`Router::acquire`], for an owner that gives a lock up to await a condition of it.
    ///
    /// # Errors
    /// As [`Router::acquire`].
    pub fn await_condition(
        &self,
        key: u32,
        awaits: AwaitCondition,
        poll: Option<Duration>,
        deadline: Instant,
        deferred: CancellationToken,
    ) -> impl Future<Output = Result<Reply, RouteError>> + use<> {
        let account = awaits.namespace.account;
        let command = LocksCommand::Condition(ConditionCommand::Await(awaits));
        acquire_wait::Wait::new(key, account, command, poll, deadline, deferred).run(self.clone())
    }

    /// Returns the address (`host:port`) of the gateway in the node that leads the shard that owns the key. `None` if
    /// that leader is unknown or suspected, or if its node has no gateway. Sends nothing, and is cheap enough for every
    /// call.
    pub fn leader_gateway(&self, application: Application, key: u32) -> Option<Arc<str>> {
        self.destination(application, key, None).route.leader_gateway()
    }

    /// Returns the calls in progress of an account, besides those that may be held.
    pub fn calls_of_account(&self, account: AccountId) -> AccountCalls {
        let channels = self.inner.channels.read();
        let of_nodes = channels.iter().map(|(_, channel)| channel.calls_of(account));
        of_nodes.fold(AccountCalls::default(), AccountCalls::max)
    }

    /// Runs one acquire that may wait, from start to end. Returns the reply and its attempt number.
    pub(super) async fn acquire_and_wait(
        &self,
        wait: &acquire_wait::Wait,
        hold: Duration,
        gone: CancellationToken,
    ) -> Result<(Reply, u64), RouteError> {
        let to = self.destination(Application::Locks, wait.key, Some(wait.account)).with_kind(CallKind::Deferrable);
        let body = CallBody::Acquire(wait.command.clone(), hold);
        let call = RoutedCall::new(self, to, body, RetryPolicy::LaterTerm, wait.deadline);
        let call = call.with_min_rules(wait.min_rules).with_cancellation(gone);
        let mut call = call.with_deferred_signal(wait.deferred.clone());
        match call.run().await? {
            CallOutcome::Reply(bytes, attempt) => Ok((call.decode_reply(&bytes)?, attempt)),
            CallOutcome::Subscribed(..) => Err(call.unexpected_reply()),
        }
    }

    /// Closes the connections.
    pub async fn shutdown(&self) {
        self.inner.tasks.cancel();
        let links = self.inner.channels.read().clone();
        for (_, link) in links {
            link.shutdown().await;
        }
    }

    pub(super) fn map(&self) -> Arc<ShardMap> {
        self.inner.map.read().clone()
    }

    /// Counts an attempt of a call by its outcome.
    pub(super) fn count_attempt(&self, outcome: &CallReply) {
        let outcome = match outcome {
            CallReply::Reply(..) => return self.inner.replies.increment(1),
            CallReply::Deferred | CallReply::Update(_) | CallReply::Lagged => "notice",
            CallReply::NotLeader(_) => "not_leader",
            CallReply::NotProposed(_) => "not_proposed",
            CallReply::NotSent(_) => "not_sent",
            CallReply::Limited(_) => "limited",
            CallReply::Unknown(_) => "unknown",
        };
        counter!("holdfast_routing_route_attempts_total", "outcome" => outcome).increment(1);
    }

    pub(super) fn caller(&self) -> &HttpCaller {
        &self.inner.caller
    }

    pub(super) fn local(&self) -> Option<&LocalNode> {
        self.inner.local.as_ref()
    }

    pub(super) fn options(&self) -> &RoutingOptions {
        &self.inner.options
    }

    /// Returns where an account's calls to the shard go that owns the key; usual ones, unless another kind is set.
    pub(super) fn destination(&self, application: Application, key: u32, account: Option<AccountId>) -> Destination {
        let map = self.inner.map.read();
        let shard = map.shard_for(application, key);
        let route = Arc::clone(&self.inner.routes.read()[&shard.group]);
        let load = LoadKey { shard: Some((application, shard.lower_bound)), account, kind: CallKind::Usual };
        Destination { route, application, key, load }
    }
}

/// Returns the kind of a call with one reply.
fn kind_of(is_urgent: bool) -> CallKind {
    if is_urgent { CallKind::Urgent } else { CallKind::Usual }
}

async fn apply_config_updates(mut later: watch::Receiver<Option<Arc<ClusterConfig>>>, inner: Weak<Inner>) {
    while later.changed().await.is_ok() {
        let Some(next) = later.borrow_and_update().clone() else { continue };
        let Some(inner) = inner.upgrade() else { return };
        match ShardMap::new(next.as_ref().clone()) {
            Ok(map) => Router { inner }.reconfigure(map),
            Err(error) => tracing::error!(%error, "later cluster config invalid"),
        }
    }
}

impl Inner {
    pub(super) fn map(&self) -> Arc<ShardMap> {
        self.map.read().clone()
    }

    /// Makes routes to the groups of the next map. Those that stay keep what is known of their leaders.
    fn update_routes(&self, next: &ShardMap, links: &[(String, Arc<NodeChannel>)]) {
        let mut routes = self.routes.write();
        routes.retain(|id, _| next.group(id).is_some());
        for group in &next.config().groups {
            match routes.get(&group.id) {
                Some(route) => route.update_replicas(group, next.config(), links),
                None => {
                    routes.insert(group.id.clone(), Arc::new(GroupRoute::new(group, next.config(), links)));
                }
            }
        }
    }

    /// Returns the current version, or a later one that was received.
    pub(super) fn known_version(&self) -> u64 {
        let later = self.newer_config.borrow().as_ref().map_or(0, |later| later.version);
        later.max(self.map().config().version)
    }

    /// Offers a config received from a node. Returns true if it is the latest so far.
    pub(super) fn offer_config(&self, config: ClusterConfig) -> bool {
        let in_use = self.map().config().version;
        self.newer_config.send_if_modified(|known| {
            let is_later = config.version > known.as_ref().map_or(in_use, |known| known.version.max(in_use));
            if is_later {
                *known = Some(Arc::new(config));
            }
            is_later
        })
    }
}

impl RoutedCall<'_> {
    /// Runs a call that has one reply.
    pub(super) async fn reply(&mut self) -> Result<Reply, RouteError> {
        match self.run().await? {
            CallOutcome::Reply(bytes, _) if bytes.len() > LARGE_REPLY_BYTES => Box::pin(self.large_reply(bytes)).await,
            CallOutcome::Reply(bytes, _) => self.decode_reply(&bytes),
            CallOutcome::Subscribed(..) => Err(self.unexpected_reply()),
        }
    }

    /// Reads a large reply. A node of this process may just have made it, and its caller makes as large an answer of
    /// it: others are served in between.
    async fn large_reply(&mut self, bytes: Bytes) -> Result<Reply, RouteError> {
        yield_now().await;
        let reply = self.decode_reply(&bytes);
        drop(bytes);
        yield_now().await;
        reply
    }

    fn decode_reply(&self, bytes: &[u8]) -> Result<Reply, RouteError> {
        codec::decode(bytes).map_err(|error| {
            let shard = self.shard_id();
            tracing::error!(%shard, %error, "reply decoding failed");
            RouteError::InvalidReply { shard, reason: error.to_string() }
        })
    }

    /// An update is only valid for a subscription, and a response for its own query.
    pub(super) fn unexpected_reply(&self) -> RouteError {
        let reason = "it is not an answer to what was asked".to_owned();
        RouteError::InvalidReply { shard: self.shard_id(), reason }
    }
}

/// Registers the metric descriptions of gateways, and of nodes, which call each other's shards.
fn describe_metrics() {
    describe_counter!("holdfast_routing_leader_changes_total", "New leaders of groups learned by this process.");
    describe_counter!("holdfast_routing_not_leader_total", "Calls that a node redirected to another leader.");
    counter!("holdfast_routing_not_leader_total").increment(0);
    describe_counter!("holdfast_routing_node_connections_total", "Connections to nodes, by event.");
    describe_gauge!("holdfast_routing_node_connected", "1 while the router of this process is connected to the node.");
    describe_counter!("holdfast_routing_route_attempts_total", "Attempts of calls to shards, by outcome.");
}
