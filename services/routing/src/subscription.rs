//! A subscription that survives its leaders: it finds the leader, and continues at the next one.

use std::marker::PhantomData;
use std::sync::{Arc, Weak};
use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use bytes::Bytes;
use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_cluster::Application;
use holdfast_proto::internal::Update as EncodedUpdate;
use holdfast_types::{CommandError, Revision, Subscribe, Topic, codec};
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::RouteError;
use crate::call_body::{CallAddress, CallBody};
use crate::call_load::CallKind;
use crate::channel::{CallReply, NodeChannel, ObservedRules, PendingCall};
use crate::router::Router;

/// How long a publisher may take for the first update, and beyond the heartbeat for a further one.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(3);
/// Shortest and longest delay before the publisher is called again.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// An update of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update<T> {
    /// The revision to continue from.
    pub next_revision: Revision,
    /// What changed, in order. For a topic without a history, an update without items says that this is another leader:
    /// earlier changes may be missing and need a query.
    pub items: Vec<T>,
}

/// Why there is no update.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscriptionError {
    /// The shard rejected the subscription, for example because its history begins after the revision.
    #[error(transparent)]
    Rejected(CommandError),
    /// No leader was reached for too long.
    #[error(transparent)]
    Unreachable(RouteError),
}

/// What publishes a topic.
pub(super) enum Publisher {
    /// The leader of the shard that owns the key.
    Shard(Router, Application, u32),
    /// A node, whichever groups it leads.
    Node(Weak<NodeChannel>, String),
}

/// Lets a start begin when its turn has come. Many subscriptions that lose a leader at once start in turns.
pub type StartGate = Arc<dyn Fn(SubscriptionStart) -> SubscriptionStart + Send + Sync>;

/// Begins a subscription at its publisher. Does nothing before it is polled.
pub type SubscriptionStart = BoxFuture<'static, StartOutcome>;

/// What came of a start.
pub struct StartOutcome(Started);

impl StartOutcome {
    /// The start had no turn, for this reason: it is tried again later.
    pub fn without_permit(reason: &str) -> Self {
        Self(Err(RouteError::Unavailable { shard: "of a subscription".to_owned(), reason: reason.to_owned() }))
    }
}

/// Receives the updates of a topic. Dropping it ends the subscription.
pub struct Subscription<T> {
    publisher: Publisher,
    topic: Topic,
    gate: Option<StartGate>,
    has_started: bool,
    from: Option<Revision>,
    max_wait: Duration,
    phase: Phase,
    /// Since when there is no publisher, or since when there is this one.
    since: Instant,
    backoff: ExponentialBackoff,
    items: PhantomData<fn() -> T>,
}

type Started = Result<Result<(EncodedUpdate, PendingCall), CommandError>, RouteError>;

enum Phase {
    Idle { until: Instant },
    Starting(SubscriptionStart),
    // The instant at which the next page was requested, if it was.
    Started(PendingCall, Option<Instant>),
}

impl<T: DeserializeOwned> Subscription<T> {
    pub(super) fn new(publisher: Publisher, topic: Topic, from: Option<Revision>, max_wait: Duration) -> Self {
        let now = Instant::now();
        let (phase, backoff) = (Phase::Idle { until: now }, backoff());
        Self {
            publisher,
            topic,
            gate: None,
            has_started: false,
            from,
            max_wait,
            phase,
            since: now,
            backoff,
            items: PhantomData,
        }
    }

    /// Has every start but the first go through a gate.
    pub fn with_gate(self, gate: StartGate) -> Self {
        Self { gate: Some(gate), ..self }
    }

    /// Returns the next update: the first one at once, a further one when something changed, or after the topic's
    /// heartbeat. With a heartbeat it includes every change before the call, unless an earlier call was dropped.
    /// Cancel-safe. The first poll sends the subscription, if the leader is known. After an error, the next call
    /// subscribes again.
    ///
    /// # Errors
    /// When the shard rejects the subscription, or no leader was reached for too long.
    pub async fn next(&mut self) -> Result<Update<T>, SubscriptionError> {
        loop {
            let update = match &mut self.phase {
                Phase::Idle { until } => {
                    // A timer would take a millisecond even for an instant that has passed.
                    if Instant::now() < *until {
                        sleep_until(*until).await;
                    }
                    self.phase = Phase::Starting(self.start());
                    continue;
                }
                Phase::Starting(starting) => {
                    let StartOutcome(started) = starting.await;
                    self.on_started(started)?
                }
                Phase::Started(call, requested_at) => {
                    let is_pull = self.topic.heartbeat().is_some();
                    let requested_at = *requested_at.get_or_insert_with(|| {
                        let now = Instant::now();
                        if is_pull {
                            call.request_page();
                        }
                        now
                    });
                    let silent_at = self.topic.heartbeat().map(|after| requested_at + after + RESPONSE_TIMEOUT);
                    let reply = next_reply(call, silent_at).await;
                    self.on_reply(reply)?
                }
            };
            if let Some(EncodedUpdate { next_revision, items }) = update {
                match codec::decode(&items) {
                    Ok(items) => {
                        self.from = self.topic.heartbeat().map(|_| next_revision);
                        return Ok(Update { next_revision, items });
                    }
                    Err(error) => {
                        tracing::error!(topic = ?self.topic, %error, "update decoding failed");
                        self.disconnect();
                    }
                }
            }
        }
    }

    /// Subscribes again, from another revision. A start from there that is under way goes on, with its turn.
    pub fn restart(&mut self, from: Option<Revision>) {
        let is_other = std::mem::replace(&mut self.from, from) != from;
        match self.phase {
            Phase::Started(..) => self.disconnect(),
            Phase::Starting(..) if !is_other => {}
            Phase::Idle { .. } | Phase::Starting(..) => self.back_off(),
        }
    }

    fn start(&mut self) -> SubscriptionStart {
        let subscribe = Subscribe { topic: self.topic.clone(), from: self.from };
        let body = CallBody::Subscribe(Bytes::from(codec::encode(&subscribe)));
        let start: SubscriptionStart = match &self.publisher {
            Publisher::Shard(router, application, key) => {
                let (router, application, key) = (router.clone(), *application, *key);
                let (account, kind) = (self.topic.account(), kind_of(&self.topic));
                async move {
                    let to = router.destination(application, key, account).with_kind(kind);
                    let deadline = Instant::now() + RESPONSE_TIMEOUT;
                    StartOutcome(router.start_subscription(to, body, deadline).await)
                }
                .boxed()
            }
            Publisher::Node(channel, node) => {
                let (channel, node) = (Weak::clone(channel), node.clone());
                async move {
                    let deadline = Instant::now() + RESPONSE_TIMEOUT;
                    StartOutcome(start_at_node(channel, node, body, deadline).await)
                }
                .boxed()
            }
        };
        match &self.gate {
            Some(gate) if std::mem::replace(&mut self.has_started, true) => gate(start),
            _ => start,
        }
    }

    fn on_started(&mut self, started: Started) -> Result<Option<EncodedUpdate>, SubscriptionError> {
        match started {
            Ok(Ok((update, call))) => {
                self.phase = Phase::Started(call, None);
                self.since = Instant::now();
                Ok(Some(update))
            }
            Ok(Err(rejected)) => Err(self.reject(rejected)),
            Err(error) => {
                tracing::debug!(topic = ?self.topic, %error, "subscription attempt failed");
                self.back_off();
                if self.since.elapsed() < self.max_wait {
                    return Ok(None);
                }
                self.since = Instant::now();
                Err(SubscriptionError::Unreachable(error))
            }
        }
    }

    fn on_reply(&mut self, reply: CallReply) -> Result<Option<EncodedUpdate>, SubscriptionError> {
        if let CallReply::Update(update) = reply {
            if let Phase::Started(_, requested_at) = &mut self.phase {
                *requested_at = None;
            }
            return Ok(Some(update));
        }
        tracing::debug!(topic = ?self.topic, ?reply, "subscription ended");
        self.disconnect();
        if let CallReply::Reply(bytes, _) = reply
            && let Ok(holdfast_types::Reply { outcome: Err(rejected), .. }) = codec::decode(&bytes)
        {
            return Err(self.reject(rejected));
        }
        Ok(None)
    }

    fn reject(&mut self, rejected: CommandError) -> SubscriptionError {
        self.phase = Phase::Idle { until: Instant::now() + BACKOFF_RANGE.1 };
        SubscriptionError::Rejected(rejected)
    }

    /// Ends the subscription at this publisher.
    fn disconnect(&mut self) {
        if self.since.elapsed() >= BACKOFF_RANGE.1 {
            self.backoff = backoff();
        }
        self.since = Instant::now();
        self.back_off();
    }

    fn back_off(&mut self) {
        // The delays are endless; if they ended, the longest one would apply.
        let delay = self.backoff.next().unwrap_or(BACKOFF_RANGE.1);
        self.phase = Phase::Idle { until: Instant::now() + delay };
    }
}

/// Returns the kind of the calls that subscribe to a topic.
fn kind_of(topic: &Topic) -> CallKind {
    match topic {
        Topic::Events { .. } => CallKind::Deferrable,
        Topic::Session { .. } => CallKind::Session,
        Topic::AccountChanges | Topic::ClusterConfig => CallKind::Feed,
    }
}

fn backoff() -> ExponentialBackoff {
    let delays = ExponentialBuilder::default().with_min_delay(BACKOFF_RANGE.0).with_max_delay(BACKOFF_RANGE.1);
    delays.with_factor(2.0).with_jitter().without_max_times().build()
}

/// Waits for the next reply; a publisher that is silent for too long counts as gone.
async fn next_reply(call: &mut PendingCall, silent_at: Option<Instant>) -> CallReply {
    match silent_at {
        None => call.next_reply().await,
        Some(at) => timeout_at(at, call.next_reply()).await.unwrap_or_else(|_| call.cancel("in time")),
    }
}

async fn start_at_node(channel: Weak<NodeChannel>, node: String, body: CallBody, deadline: Instant) -> Started {
    let unavailable = |reason| RouteError::Unavailable { shard: format!("of node {node}"), reason };
    let channel = channel.upgrade().ok_or_else(|| unavailable("it is no longer in the cluster".to_owned()))?;
    let mut call = channel.send(CallAddress::NODE, body, &ObservedRules::default(), deadline);
    drop(channel);
    match next_reply(&mut call, Some(deadline)).await {
        CallReply::Update(update) => Ok(Ok((update, call))),
        other => Err(unavailable(format!("{other:?}"))),
    }
}
