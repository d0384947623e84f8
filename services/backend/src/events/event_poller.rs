//! Event queries that several watchers share: the shard receives each query once.
//!
//! Watchers that keep up with a namespace are at the same position in its history, or were a moment ago. One query per
//! watcher would make every event cost the shard as much as there are watchers. History does not change, so a reply can
//! be reused; the cache keeps it until the last of them has probably fetched it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, WeakShared};
use holdfast_cluster::Application;
use holdfast_routing::{RouteError, Router};
use holdfast_types::{Claim, Event, Path, Query, Reply, Response as Told, codec};
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long the shard defers a query without events.
const LONG_POLL: Duration = Duration::from_secs(10);
/// How much longer a reply may take.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the cache keeps a reply.
const CACHE_TTL: Duration = Duration::from_secs(1);
/// Approximate bytes of all cached replies.
const MAX_CACHE_BYTES: u64 = 16 * 1024 * 1024;

type PollResult = Result<Arc<Reply>, RouteError>;
type InFlightPoll = WeakShared<BoxFuture<'static, PollResult>>;

/// Queries by their encoding. Clones are cheap.
#[derive(Clone)]
pub(crate) struct EventPoller {
    in_flight: Arc<Mutex<HashMap<Vec<u8>, InFlightPoll>>>,
    cache: Cache<Vec<u8>, Arc<Reply>>,
}

impl Default for EventPoller {
    fn default() -> Self {
        let bytes =
            |_: &Vec<u8>, reply: &Arc<Reply>| events_in(reply).iter().map(event_bytes).fold(0, u32::saturating_add);
        let cache = Cache::builder().max_capacity(MAX_CACHE_BYTES).weigher(bytes).time_to_live(CACHE_TTL).build();
        Self { in_flight: Arc::default(), cache }
    }
}

fn events_in(reply: &Reply) -> &[Event] {
    match &reply.outcome {
        Ok(Told::Events { events, .. }) => events,
        _ => &[],
    }
}

/// Returns the approximate size of an event in memory.
fn event_bytes(event: &Event) -> u32 {
    let of_path = |path: &Path| path.0.iter().map(|segment| size_of::<String>() + segment.len()).sum::<usize>();
    let claims = event.claims.iter().map(|claim| size_of::<Claim>() + of_path(&claim.path));
    u32::try_from(2 * size_of::<Event>() + claims.sum::<usize>()).unwrap_or(u32::MAX)
}

/// Removes a query once it has a reply, or when no watcher waits for it.
struct SharedPoll {
    poller: EventPoller,
    encoded_query: Vec<u8>,
}

impl EventPoller {
    /// Returns the next events of a namespace, or an empty reply if there are none for a while. Watchers that send the
    /// same query at the same time, or a moment later, share one reply.
    ///
    /// # Errors
    /// As of [`Router::long_poll`].
    pub(super) async fn poll(&self, router: &Router, key: u32, query: Query) -> PollResult {
        let question = codec::encode(&query);
        if let Some(reply) = self.cache.get(&question) {
            return Ok(reply);
        }
        let answer = {
            let mut asked = self.in_flight.lock();
            match asked.get(&question).and_then(WeakShared::upgrade) {
                Some(answer) => answer,
                None => {
                    let own = SharedPoll { poller: self.clone(), encoded_query: question.clone() };
                    let answer = own.run(router.clone(), key, query).boxed().shared();
                    asked.extend(answer.downgrade().map(|answer| (question, answer)));
                    answer
                }
            }
        };
        answer.await
    }
}

impl SharedPoll {
    async fn run(self, router: Router, key: u32, query: Query) -> PollResult {
        let deadline = Instant::now() + LONG_POLL + RESPONSE_TIMEOUT;
        let reply = router.long_poll(Application::Locks, key, &query, LONG_POLL, deadline).await.map(Arc::new);
        // A reply without events may be outdated the next moment.
        if let Some(reply) = reply.as_ref().ok().filter(|reply| !events_in(reply).is_empty()) {
            self.poller.cache.insert(self.encoded_query.clone(), Arc::clone(reply));
        }
        // Removes the query before any watcher receives the reply: a watcher's next query must not get this reply.
        drop(self);
        reply
    }
}

impl Drop for SharedPoll {
    fn drop(&mut self) {
        self.poller.in_flight.lock().remove(&self.encoded_query);
    }
}
