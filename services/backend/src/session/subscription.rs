//! A subscription to the leader's updates of a session that survives changes of leader.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_api::{ApiError, ApiResult, Code};
use holdfast_routing::{SessionUpdate, Subscription};
use holdfast_types::CommandError;
use tokio::time::{Instant, Sleep, sleep};

use super::handle::SessionHandle;

/// Shortest and longest delay before the connection calls the leader again.
const BACKOFF_RANGE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// How long beyond its time to live a session may be without a subscription to a leader.
const MAX_WAIT: Duration = Duration::from_secs(10);

/// An event of the subscription.
#[derive(Debug)]
pub(super) enum SubscriptionEvent {
    /// Every update arrives from now on. Earlier changes need a query.
    Started,
    /// The session changed.
    Update(Box<SessionUpdate>),
    /// The session no longer exists, or no longer belongs to this connection.
    Rejected(CommandError),
    /// No subscription to a leader succeeded for too long.
    Failed(ApiError),
}

/// A subscription to the leader.
pub(super) struct SessionSubscription {
    session: Arc<SessionHandle>,
    state: State,
    /// Since when there is no subscription.
    disconnected_since: Instant,
    backoff: Duration,
}

enum State {
    Subscribing(BoxFuture<'static, ApiResult<Subscription>>),
    Subscribed(Box<Subscription>),
    BackingOff(Pin<Box<Sleep>>),
}

impl SessionSubscription {
    pub(super) fn new(session: Arc<SessionHandle>) -> Self {
        let state = State::Subscribing(Arc::clone(&session).subscribe().boxed());
        Self { session, state, disconnected_since: Instant::now(), backoff: BACKOFF_RANGE.0 }
    }

    /// Returns the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> SubscriptionEvent {
        loop {
            match &mut self.state {
                State::Subscribing(answer) => match answer.await {
                    Ok(following) => match following.reply.outcome.clone() {
                        Ok(_) => {
                            self.state = State::Subscribed(Box::new(following));
                            self.backoff = BACKOFF_RANGE.0;
                            return SubscriptionEvent::Started;
                        }
                        Err(refusal) => {
                            self.back_off(BACKOFF_RANGE.1);
                            return SubscriptionEvent::Rejected(refusal);
                        }
                    },
                    Err(error) => {
                        self.back_off(self.backoff);
                        self.backoff = (self.backoff * 2).min(BACKOFF_RANGE.1);
                        if self.disconnected_since.elapsed() >= MAX_WAIT + Duration::from_millis(self.session.ttl_ms) {
                            let detail = format!("the session cannot be followed any more: {}", error.detail);
                            return SubscriptionEvent::Failed(ApiError::new(Code::Unavailable, detail));
                        }
                    }
                },
                State::Subscribed(following) => match following.next().await {
                    Some(notice) => return SubscriptionEvent::Update(Box::new(notice)),
                    None => {
                        self.disconnected_since = Instant::now();
                        self.back_off(self.backoff);
                    }
                },
                State::BackingOff(pause) => {
                    pause.await;
                    self.state = State::Subscribing(Arc::clone(&self.session).subscribe().boxed());
                }
            }
        }
    }

    /// Discards the current subscription, because its updates are unreliable, and subscribes again after a delay.
    pub(super) fn resubscribe(&mut self) {
        if matches!(self.state, State::Subscribed(_)) {
            self.disconnected_since = Instant::now();
            self.back_off(BACKOFF_RANGE.1);
        }
    }

    fn back_off(&mut self, pause: Duration) {
        self.state = State::BackingOff(Box::pin(sleep(pause)));
    }
}
