//! Questions about events that several watchers ask: the shard is asked once for all of them.
//!
//! Watchers that keep up with a namespace are at the same place in its history, or were a moment ago. One question for
//! each of them would cost the shard with every event as much as there are watchers. History does not change, so an
//! answer may be told again; it is kept for as long as it takes the last of them to come for it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, WeakShared};
use holdfast_cluster::Application;
use holdfast_core::{Answer as Told, Claim, Event, Path, Query, Reply, codec};
use holdfast_routing::{RouteError, Router};
use moka::sync::Cache;
use parking_lot::Mutex;
use tokio::time::Instant;

/// How long the shard keeps a question to which there is no answer yet.
const HOLD: Duration = Duration::from_secs(10);
/// How much longer an answer may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer is kept.
const KEPT_FOR: Duration = Duration::from_secs(1);
/// Bytes of all answers that are kept, roughly.
const KEPT_BYTES: u64 = 16 * 1024 * 1024;

type Answer = Result<Arc<Reply>, RouteError>;
type Awaited = WeakShared<BoxFuture<'static, Answer>>;

/// Questions by their encoding. A cheap clone.
#[derive(Clone)]
pub(crate) struct Questions {
    asked: Arc<Mutex<HashMap<Vec<u8>, Awaited>>>,
    answered: Cache<Vec<u8>, Arc<Reply>>,
}

impl Default for Questions {
    fn default() -> Self {
        let bytes =
            |_: &Vec<u8>, reply: &Arc<Reply>| events_in(reply).iter().map(size_of_event).fold(0, u32::saturating_add);
        let answered = Cache::builder().max_capacity(KEPT_BYTES).weigher(bytes).time_to_live(KEPT_FOR).build();
        Self { asked: Arc::default(), answered }
    }
}

fn events_in(reply: &Reply) -> &[Event] {
    match &reply.outcome {
        Ok(Told::Events { events, .. }) => events,
        _ => &[],
    }
}

/// What an event takes in memory, roughly.
fn size_of_event(event: &Event) -> u32 {
    let of_path = |path: &Path| path.0.iter().map(|segment| size_of::<String>() + segment.len()).sum::<usize>();
    let claims = event.claims.iter().map(|claim| size_of::<Claim>() + of_path(&claim.path));
    u32::try_from(2 * size_of::<Event>() + claims.sum::<usize>()).unwrap_or(u32::MAX)
}

/// Forgets a question once it is answered, or nobody asks any more.
struct Asked {
    questions: Questions,
    question: Vec<u8>,
}

impl Questions {
    /// What comes next in a namespace; nothing new, if nothing does for a while. Whoever asks what others ask, or asked
    /// a moment ago, gets their answer.
    ///
    /// # Errors
    /// As of [`Router::watch`].
    pub(super) async fn ask(&self, router: &Router, key: u32, query: Query) -> Answer {
        let question = codec::encode(&query);
        if let Some(reply) = self.answered.get(&question) {
            return Ok(reply);
        }
        let answer = {
            let mut asked = self.asked.lock();
            match asked.get(&question).and_then(WeakShared::upgrade) {
                Some(answer) => answer,
                None => {
                    let own = Asked { questions: self.clone(), question: question.clone() };
                    let answer = own.answer(router.clone(), key, query).boxed().shared();
                    asked.extend(answer.downgrade().map(|answer| (question, answer)));
                    answer
                }
            }
        };
        answer.await
    }
}

impl Asked {
    async fn answer(self, router: Router, key: u32, query: Query) -> Answer {
        let deadline = Instant::now() + HOLD + ANSWER_WITHIN;
        let reply = router.watch(Application::Locks, key, &query, HOLD, deadline).await.map(Arc::new);
        // Without events there may be some the next moment.
        if let Some(reply) = reply.as_ref().ok().filter(|reply| !events_in(reply).is_empty()) {
            self.questions.answered.insert(self.question.clone(), Arc::clone(reply));
        }
        // Before anybody hears of it: who asks again wants to hear of more.
        drop(self);
        reply
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.questions.asked.lock().remove(&self.question);
    }
}
