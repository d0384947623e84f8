//! Serves subscriptions until the subscriber leaves or the publisher ends. The outcome is the last answer.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_cluster::ShardMap;
use holdfast_core::{CommandError, NamespaceRef, Page, Query, Reply, Response, Revision, Subscribe, Topic, codec};
use holdfast_proto::internal::answer::Outcome;
use holdfast_proto::internal::{Lagged, Update};
use holdfast_rpc::ReplyHandle;
use tokio::sync::{mpsc, watch};
use tokio::time::{Duration, Instant, sleep_until};

use crate::call_handler::{not_here, not_leader, not_leader_outcome};
use crate::leader::{BufferedUpdate, SessionKey};
use crate::replica::ShardReplica;
use crate::{query, soft_calls};

/// Timeout of reading one page.
const READ_TIMEOUT: Duration = Duration::from_secs(2);

/// A subscription, and what can serve it on this node.
pub(crate) struct Subscription<'a> {
    pub(crate) shard: Option<&'a ShardReplica>,
    /// Whether the node has the addressed replica.
    pub(crate) has_replica: bool,
    /// `None` if the node is stopping.
    pub(crate) configs: Option<watch::Receiver<Arc<ShardMap>>>,
    pub(crate) caller: &'a ReplyHandle,
}

impl Subscription<'_> {
    /// Serves an encoded [`Subscribe`].
    pub(crate) async fn run(self, bytes: &[u8]) -> Outcome {
        let Self { shard, has_replica, configs, caller } = self;
        let Subscribe { topic, from } = match codec::decode(bytes) {
            Ok(subscribe) => subscribe,
            Err(error) => return Outcome::NotProposed(format!("the subscription can't be read: {error}")),
        };
        let history = match (&topic, configs, shard) {
            (Topic::ClusterConfig, Some(configs), _) => History::Configs(configs),
            (Topic::ClusterConfig, None, _) => return Outcome::NotProposed("the node is stopping".into()),
            (_, _, None) => return not_here(has_replica),
            (Topic::Session { namespace, session_id, epoch }, _, Some(shard)) => {
                return send_session_updates(shard, namespace, session_id, *epoch, caller).await;
            }
            (Topic::Events { .. } | Topic::AccountChanges, _, Some(shard)) => History::Shard(shard, &topic, None),
        };
        // Dropped after the history, with its place among the subscribers.
        let _registration = shard.map(|shard| Registration { shard, topic: &topic });
        tokio::select! {
            outcome = send_pages(history, &topic, from, caller) => outcome,
            () = caller.left() => Outcome::NotProposed("the subscriber left".into()),
        }
    }
}

/// The history of a topic.
enum History<'a> {
    Configs(watch::Receiver<Arc<ShardMap>>),
    /// Of a shard, and the changes since the last page was read.
    Shard(&'a ShardReplica, &'a Topic, Option<watch::Receiver<()>>),
}

impl History<'_> {
    /// Reads the page that begins at a revision.
    async fn page(&mut self, from: Option<Revision>) -> Result<Page, Outcome> {
        let (shard, topic, changes) = match self {
            Self::Configs(configs) => return Ok(config_page(&configs.borrow_and_update(), from)),
            Self::Shard(shard, topic, changes) => (*shard, *topic, changes),
        };
        // Before the page is read, so that no change is missed.
        *changes = Some(subscribe(shard, topic).ok_or_else(|| not_leader(shard))?);
        let Some(query) = topic.query(from) else { return Err(Outcome::NotProposed("the topic has no pages".into())) };
        soft_calls::wait_to_answer(shard, &query, Instant::now() + READ_TIMEOUT).await;
        // From now on: the wait may have taken all of its time.
        match query::evaluate(shard, &query, Instant::now() + READ_TIMEOUT).await {
            Ok(Some(reply)) => Page::of_reply(&reply).map_err(|error| match error {
                // The lock table in the leader's memory has not begun. The subscriber comes again.
                CommandError::Busy(reason) => Outcome::NotProposed(reason),
                error => rejection(&reply, error),
            }),
            Ok(None) => Err(not_leader(shard)),
            Err(error) => Err(not_leader_outcome(error)),
        }
    }

    /// Waits until there may be more than in the last page.
    async fn changed(&mut self) -> Result<(), Outcome> {
        match self {
            Self::Configs(configs) => {
                configs.changed().await.map_err(|_| Outcome::NotProposed("the node is stopping".into()))
            }
            Self::Shard(_, _, None) => Ok(()),
            Self::Shard(shard, _, Some(changes)) => changes.changed().await.map_err(|_| not_leader(shard)),
        }
    }
}

/// Sends the first page at once, and a further page for each credit. A page without items waits for changes until the
/// heartbeat is due. It is read after the wait, so that it proves that the node still leads.
async fn send_pages(
    mut history: History<'_>,
    topic: &Topic,
    mut from: Option<Revision>,
    caller: &ReplyHandle,
) -> Outcome {
    let mut due_at = Instant::now();
    loop {
        let page = match history.page(from).await {
            Ok(page) => page,
            Err(outcome) => return outcome,
        };
        from = Some(page.next_revision);
        if page.is_empty && Instant::now() < due_at {
            tokio::select! {
                changed = history.changed() => if let Err(outcome) = changed { return outcome },
                () = sleep_until(due_at) => {}
            }
            continue;
        }
        if !caller.send_update(Update { next_revision: page.next_revision, items: page.items.into() }).await {
            return Outcome::NotProposed("the subscriber left".into());
        }
        caller.control.credit.notified().await;
        due_at = Instant::now() + topic.heartbeat().unwrap_or_default();
    }
}

/// Returns the namespace whose history the topic is; account changes have none.
fn namespace_of(topic: &Topic) -> Option<&NamespaceRef> {
    match topic {
        Topic::Events { namespace } => Some(namespace),
        _ => None,
    }
}

fn subscribe(shard: &ShardReplica, topic: &Topic) -> Option<watch::Receiver<()>> {
    let leads = (*shard.group.subscribe_leadership().borrow())?;
    shard.machine.with_leader_state(leads.term, |_, table| table.subscriptions.subscribe(namespace_of(topic)))
}

/// Removes the last subscriber of a history, since a deleted or idle namespace has no change that would.
struct Registration<'a> {
    shard: &'a ShardReplica,
    topic: &'a Topic,
}

impl Drop for Registration<'_> {
    fn drop(&mut self) {
        let Some(leads) = *self.shard.group.subscribe_leadership().borrow() else { return };
        let namespace = namespace_of(self.topic);
        self.shard.machine.with_leader_state(leads.term, |_, table| table.subscriptions.remove_unwatched(namespace));
    }
}

fn config_page(map: &ShardMap, from: Option<Revision>) -> Page {
    let (config, from) = (map.config(), from.unwrap_or(0));
    if config.version < from {
        return Page::new::<String>(&[], from);
    }
    Page::new(&[config.to_json()], config.version + 1)
}

fn rejection(reply: &Reply, error: CommandError) -> Outcome {
    let reply = Reply { outcome: Err(error), clock_ms: reply.clock_ms, awaits: None };
    Outcome::Reply(Bytes::from(codec::encode(&reply)))
}

/// Sends each update at once. The first one has no items, and says that the subscription began.
async fn send_session_updates(
    shard: &ShardReplica,
    namespace: &NamespaceRef,
    session_id: &str,
    epoch: u64,
    caller: &ReplyHandle,
) -> Outcome {
    let (key, deadline) = (SessionKey::of(namespace, session_id), Instant::now() + READ_TIMEOUT);
    let query = Query::Session { namespace: namespace.clone(), session_id: session_id.to_owned() };
    let start = |term| start_session(shard, term, &query, &key, epoch).map(|started| (term, started));
    let (term, mut updates) = match shard.group.read(shard.reads, deadline, |permit| start(permit.term)).await {
        Ok(Some((term, Ok(updates)))) => (term, updates),
        Ok(Some((_, Err(rejected)))) => return *rejected,
        Ok(None) => return not_leader(shard),
        Err(error) => return not_leader_outcome(error),
    };
    let mut items = Some(Bytes::from(Page::new::<()>(&[], 0).items));
    while let Some(update) = items.take() {
        if !caller.send_update(Update { next_revision: 0, items: update }).await {
            break;
        }
        items = tokio::select! {
            buffered = updates.recv() => buffered.map(|buffered| buffered.update),
            () = caller.left() => None,
        };
    }
    drop(updates);
    match shard.machine.with_leader_state(term, |_, table| table.subscriptions.remove_closed(&key)) {
        Some(()) => Outcome::Lagged(Lagged {}),
        None => not_leader(shard),
    }
}

/// Reads the session and subscribes in one step, so that no update is missed in between. Of a session that ended
/// lately, the only update is its end.
fn start_session(
    shard: &ShardReplica,
    term: u64,
    query: &Query,
    key: &SessionKey,
    epoch: u64,
) -> Option<Result<mpsc::Receiver<BufferedUpdate>, Box<Outcome>>> {
    shard.machine.with_leader_state(term, |core, table| {
        let reply = core.query(core.clock_ms(), query);
        let error = match &reply.outcome {
            Ok(Response::Session(session)) if session.epoch == epoch => match table.unreported(core, session.number) {
                Some(unreported) => unreported,
                None => return Ok(table.subscriptions.subscribe_session(key.clone(), epoch)),
            },
            Ok(Response::Session(session)) => CommandError::Superseded { epoch: session.epoch },
            Ok(_) => CommandError::Malformed("the reply has no session".to_owned()),
            Err(error @ CommandError::SessionNotFound(_)) => match table.subscriptions.end_of_session(key) {
                Some(end) => return Ok(end),
                None => error.clone(),
            },
            Err(error) => error.clone(),
        };
        Err(Box::new(rejection(&reply, error)))
    })
}

#[cfg(test)]
mod tests {
    use holdfast_cluster::ClusterConfig;
    use holdfast_proto::internal::Answer;
    use holdfast_rpc::{CallControl, QueuedReplies, ReplyQueue};
    use tokio::task::JoinHandle;
    use tokio_util::sync::CancellationToken;

    use super::*;

    /// The subscriber of a node's config.
    struct Subscriber {
        control: CallControl,
        answers: QueuedReplies,
        serving: JoinHandle<Outcome>,
    }

    impl Subscriber {
        fn new(configs: watch::Receiver<Arc<ShardMap>>, from: u64) -> Self {
            let (replies, answers) = ReplyQueue::new();
            let control = CallControl::default();
            let caller =
                ReplyHandle { call: 1, replies, control: control.clone(), disconnected: CancellationToken::new() };
            let subscribe = codec::encode(&Subscribe { topic: Topic::ClusterConfig, from: Some(from) });
            let serving = tokio::spawn(async move {
                Subscription { shard: None, has_replica: false, configs: Some(configs), caller: &caller }
                    .run(&subscribe)
                    .await
            });
            Self { control, answers, serving }
        }

        async fn next(&mut self) -> (Vec<String>, u64) {
            let Answer { outcome, .. } = self.answers.next().await;
            let Some(Outcome::Update(Update { next_revision, items })) = outcome else { panic!("{outcome:?}") };
            (codec::decode(&items).unwrap(), next_revision)
        }

        async fn end(self) -> String {
            match self.serving.await.unwrap() {
                Outcome::NotProposed(reason) => reason,
                other => panic!("{other:?}"),
            }
        }
    }

    fn map(version: u64) -> Arc<ShardMap> {
        let config = ClusterConfig::generate(vec![("nd_1".to_owned(), "127.0.0.1:7000".to_owned())], 1, 1).unwrap();
        Arc::new(ShardMap::new(ClusterConfig { version, ..config }).unwrap())
    }

    #[tokio::test(start_paused = true)]
    async fn a_page_is_read_after_its_credit_and_a_heartbeat_has_none() {
        let configs = watch::Sender::new(map(1));
        let mut subscriber = Subscriber::new(configs.subscribe(), 2);
        assert_eq!(subscriber.next().await, (vec![], 2), "the first page comes at once");
        configs.send_replace(map(2));
        configs.send_replace(map(3));
        tokio::time::advance(2 * Topic::ClusterConfig.heartbeat().unwrap()).await;
        assert!(subscriber.answers.try_next().is_none(), "it was not asked for");
        subscriber.control.credit.notify_one();
        assert_eq!(subscriber.next().await, (vec![map(3).config().to_json()], 4));

        let asked_at = Instant::now();
        subscriber.control.credit.notify_one();
        assert_eq!(subscriber.next().await, (vec![], 4));
        assert!(asked_at.elapsed() >= Topic::ClusterConfig.heartbeat().unwrap());
        subscriber.control.credit.notify_one();
        configs.send_replace(map(4));
        assert_eq!(subscriber.next().await.1, 5);
    }

    #[tokio::test]
    async fn a_subscription_ends_with_its_subscriber_and_with_the_node() {
        let configs = watch::Sender::new(map(1));
        let mut subscriber = Subscriber::new(configs.subscribe(), 1);
        assert_eq!(subscriber.next().await.1, 2);
        subscriber.control.cancelled.cancel();
        assert_eq!(subscriber.end().await, "the subscriber left");
        assert_eq!(configs.receiver_count(), 0);

        let mut subscriber = Subscriber::new(configs.subscribe(), 1);
        subscriber.next().await;
        subscriber.control.credit.notify_one();
        drop(configs);
        assert_eq!(subscriber.end().await, "the node is stopping");
    }
}
