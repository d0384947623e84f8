//! The latest events of each watched namespace. One subscription serves all its watchers, whatever their prefixes.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use holdfast_api::ApiError;
use holdfast_cluster::Application;
use holdfast_routing::{Router, Subscription, SubscriptionError, Update};
use holdfast_supervise::spawn_temporary;
use holdfast_types::{AccountId, Claim, CommandError, Event, NamespaceRef, Path, Revision, Topic};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::Selection;
use super::cursor::MAX_WAIT;
use super::feed_memory::FeedMemory;
use crate::route_error::route_error;

/// Approximate bytes of the events of one namespace, besides its latest page: tens of thousands of small ones, such as
/// the end of many holds at once. Watchers that are further behind query the shard, each for itself.
const MAX_BYTES: usize = 8 << 20;
/// Approximate bytes of the events in a watcher's page, once it has one.
const MAX_PAGE_BYTES: usize = 256 << 10;
/// Between two pages where events come without end: each page wakes all watchers.
const PAGE_INTERVAL: Duration = Duration::from_millis(50);
/// A page of at least so many approximate bytes is worth a wake-up. It is not delayed, so that the feed is never slower
/// than the history that follows it.
const MIN_UNPACED_BYTES: usize = 64 << 10;
/// Pages that may follow one another without delay after a calm time.
const MAX_BURST: u32 = 200;

/// The feeds of all watched namespaces. Clones share them.
#[derive(Clone, Default)]
pub(crate) struct EventFeeds {
    feeds: Arc<Mutex<HashMap<NamespaceRef, watch::Sender<LatestEvents>>>>,
    memory: FeedMemory,
}

impl EventFeeds {
    /// Returns the latest events of a namespace, as they change. The feed ends with its last watcher.
    pub(super) fn watch(&self, router: &Router, key: u32, namespace: &NamespaceRef) -> watch::Receiver<LatestEvents> {
        let mut feeds = self.feeds.lock();
        if let Some(latest) = feeds.get(namespace) {
            return latest.subscribe();
        }
        let (latest, watched) = watch::channel(LatestEvents::new(self.memory.clone(), namespace.account));
        feeds.insert(namespace.clone(), latest.clone());
        let feed = Feed { feeds: self.clone(), namespace: namespace.clone(), latest };
        let topic = Topic::Events { namespace: namespace.clone() };
        let subscription = router.subscribe(Application::Locks, key, topic, None, MAX_WAIT);
        spawn_temporary("event_feed", feed.run(subscription));
        watched
    }
}

/// The latest events of a namespace.
pub(super) struct LatestEvents {
    /// Of all events from this revision on, none is missing; `None` before the first update.
    start: Option<Revision>,
    /// The revision of the next event, or less.
    next_revision: Revision,
    events: VecDeque<Event>,
    bytes: usize,
    memory: FeedMemory,
    /// Whose events they are.
    account: AccountId,
    /// Why no more follow.
    end: Option<ApiError>,
}

impl LatestEvents {
    fn new(memory: FeedMemory, account: AccountId) -> Self {
        Self { start: None, next_revision: 0, events: VecDeque::new(), bytes: 0, memory, account, end: None }
    }

    /// Returns up to `limit` events from a revision on that match the selection, and the revision to continue from.
    /// Returns `None` if there may be earlier events than these.
    ///
    /// # Errors
    /// The reason why no more follow.
    pub(super) fn page(
        &self,
        from: Revision,
        selection: &Selection,
        limit: usize,
    ) -> Result<Option<(Vec<Event>, Revision)>, ApiError> {
        if let Some(end) = &self.end {
            return Err(end.clone());
        }
        let Some(start) = self.start else { return Ok(Some((Vec::new(), from))) };
        if from < start {
            return Ok(None);
        }
        let first = self.events.partition_point(|event| event.revision < from);
        let (mut events, mut bytes) = (Vec::new(), 0);
        for event in self.events.range(first..).filter(|event| selection.matches(event)) {
            bytes += event_bytes(event);
            if events.len() == limit || !events.is_empty() && bytes > MAX_PAGE_BYTES {
                return Ok(Some((events, event.revision)));
            }
            events.push(event.clone());
        }
        Ok(Some((events, self.next_revision.max(from))))
    }

    /// Adds a page, and makes room for it. Returns the approximate bytes of its events.
    fn push(&mut self, update: Update<Event>) -> usize {
        let Update { items, next_revision } = update;
        let latest = items.len();
        self.start.get_or_insert(items.first().map_or(next_revision, |event| event.revision));
        self.next_revision = next_revision;
        let added = items.iter().map(event_bytes).sum();
        self.resize(added, 0);
        self.events.extend(items);
        // All that keep up have read the earlier events by the time of a heartbeat.
        let is_heartbeat = latest == 0;
        while self.events.len() > latest
            && (is_heartbeat || self.bytes > MAX_BYTES || self.memory.is_short(self.account))
            && let Some(event) = self.events.pop_front()
        {
            self.resize(0, event_bytes(&event));
            self.start = Some(event.revision + 1);
        }
        added
    }

    /// Forgets everything; the next update is a new beginning.
    fn reset(&mut self) {
        self.resize(0, self.bytes);
        (self.start, self.events) = (None, VecDeque::new());
    }

    fn resize(&mut self, added: usize, removed: usize) {
        self.bytes = self.bytes + added - removed;
        self.memory.resize(self.account, added, removed);
    }
}

impl Drop for LatestEvents {
    fn drop(&mut self) {
        self.reset();
    }
}

/// Returns the approximate size of an event in memory.
fn event_bytes(event: &Event) -> usize {
    let of_path = |path: &Path| path.0.iter().map(|segment| size_of::<String>() + segment.len()).sum::<usize>();
    let claims = event.claims.iter().map(|claim| size_of::<Claim>() + of_path(&claim.path));
    2 * size_of::<Event>() + claims.sum::<usize>()
}

/// The task that receives the events of one namespace.
struct Feed {
    feeds: EventFeeds,
    namespace: NamespaceRef,
    latest: watch::Sender<LatestEvents>,
}

impl Feed {
    async fn run(self, mut subscription: Subscription<Event>) {
        // When pages in regular intervals would have reached the latest one.
        let mut paced_at = Instant::now();
        while self.is_watched() {
            let update = tokio::select! {
                update = subscription.next() => update,
                () = self.latest.closed() => continue,
            };
            match update {
                Ok(update) => {
                    let mut added = 0;
                    self.latest.send_modify(|latest| added = latest.push(update));
                    if (1..MIN_UNPACED_BYTES).contains(&added) {
                        paced_at = paced_at.max(Instant::now()) + PAGE_INTERVAL;
                        if let Some(next_at) = paced_at.checked_sub(MAX_BURST * PAGE_INTERVAL) {
                            sleep_until(next_at).await;
                        }
                    }
                }
                // The history no longer has what comes next. Each watcher learns it from the page that it asks for.
                Err(SubscriptionError::Rejected(CommandError::RevisionCompacted { .. })) => {
                    self.latest.send_modify(LatestEvents::reset);
                    subscription.restart(None);
                }
                Err(error) => return self.end(error),
            }
        }
    }

    /// Returns true if there are watchers. If not, no further ones find this feed.
    fn is_watched(&self) -> bool {
        let mut feeds = self.feeds.feeds.lock();
        let is_watched = self.latest.receiver_count() > 0;
        if !is_watched {
            feeds.remove(&self.namespace);
        }
        is_watched
    }

    fn end(&self, error: SubscriptionError) {
        let error = match error {
            SubscriptionError::Rejected(CommandError::NamespaceNotFound) => {
                ApiError::namespace_not_found(&self.namespace.name)
            }
            SubscriptionError::Rejected(rejected) => rejected.into(),
            SubscriptionError::Unreachable(error) => route_error(error),
        };
        self.latest.send_modify(|latest| {
            latest.reset();
            latest.end = Some(error);
        });
    }
}

/// Removes the feed however it ends, so that a later watcher starts another one.
impl Drop for Feed {
    fn drop(&mut self) {
        let mut feeds = self.feeds.feeds.lock();
        if feeds.get(&self.namespace).is_some_and(|latest| latest.same_channel(&self.latest)) {
            feeds.remove(&self.namespace);
        }
    }
}

#[cfg(test)]
#[path = "feed_tests.rs"]
mod tests;
