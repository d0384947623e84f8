//! The subscriptions that one connection has at a test peer.
#![allow(missing_docs, reason = "a test peer")]

use std::collections::HashMap;
use std::time::{Duration, Instant};

use holdfast_proto::internal::{Answer, Call, Update, answer::Outcome, call::Body};
use holdfast_types::{CommandError, Page, Reply, Subscribe, Topic, codec};

/// How often a test peer checks whether a page is due.
pub const TICK: Duration = Duration::from_millis(5);

#[derive(Default)]
pub struct Subscriptions(HashMap<u64, Subscription>);

struct Subscription {
    replica: u64,
    subscribe: Subscribe,
    /// When a page is due, even an empty one; `None` before the next credit.
    due_at: Option<Instant>,
}

/// The subscription that a call makes.
pub fn subscription_of(call: &Call) -> Option<Subscribe> {
    let Some(Body::Subscribe(bytes)) = &call.body else { return None };
    codec::decode(bytes).ok()
}

/// Whether a call is about the cluster config, which every process subscribes to at every node.
pub fn is_about_config(call: &Call) -> bool {
    subscription_of(call).is_some_and(|subscribe| subscribe.topic == Topic::ClusterConfig)
}

/// The last answer of a subscription that a shard rejects.
pub fn rejected(error: CommandError) -> Outcome {
    Outcome::Reply(codec::encode(&Reply { outcome: Err(error), clock_ms: 0, awaits: None }).into())
}

impl Subscriptions {
    pub fn open(&mut self, call: &Call, subscribe: Subscribe) {
        let due_at = Some(Instant::now());
        self.0.insert(call.id, Subscription { replica: call.replica, subscribe, due_at });
    }

    /// Makes a page due. Returns false if it is about the cluster config.
    pub fn credit(&mut self, id: u64) -> bool {
        let Some(Subscription { subscribe, due_at, .. }) = self.0.get_mut(&id) else { return true };
        *due_at = Some(Instant::now() + subscribe.topic.heartbeat().unwrap_or_default());
        subscribe.topic != Topic::ClusterConfig
    }

    pub fn close(&mut self, id: u64) {
        self.0.remove(&id);
    }

    /// Returns the answers that are due. `read` returns the page of a replica at a revision, or the last answer. The
    /// cluster config never changes.
    pub fn answers(&mut self, read: impl Fn(u64, &Subscribe) -> Result<Page, Outcome>) -> Vec<Answer> {
        let mut answers = Vec::new();
        self.0.retain(|id, Subscription { replica, subscribe, due_at }| {
            let Some(at) = *due_at else { return true };
            let page = match subscribe.topic {
                Topic::ClusterConfig => Ok(Page::new::<String>(&[], subscribe.from.unwrap_or(0))),
                _ => read(*replica, subscribe),
            };
            let goes_on = page.is_ok();
            let outcome = match page {
                Ok(page) if page.is_empty && Instant::now() < at => {
                    subscribe.from = Some(page.next_revision);
                    return true;
                }
                Ok(page) => {
                    (subscribe.from, *due_at) = (Some(page.next_revision), None);
                    Outcome::Update(Update { next_revision: page.next_revision, items: page.items.into() })
                }
                Err(last) => last,
            };
            answers.push(Answer { id: *id, outcome: Some(outcome), rules: 1, ..Answer::default() });
            goes_on
        });
        answers
    }
}
