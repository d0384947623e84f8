//! Following what the leader tells of a session, also when the leader changes.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::BoxFuture;
use holdfast_core::Refusal;
use holdfast_routing::{Following, Notice};
use tokio::time::{Instant, Sleep, sleep};

use super::place::Place;
use crate::error::{ApiError, ApiResult, Code};

/// Shortest and longest pause before the leader is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));
/// For so long beyond its time to live a session may be without a leader that can be followed.
const PATIENCE: Duration = Duration::from_secs(10);

/// What is heard.
#[derive(Debug)]
pub(super) enum Heard {
    /// From now on everything is heard. What happened before has to be asked for.
    Began,
    /// Something happened.
    Notice(Box<Notice>),
    /// The session is not there any more, or not this connection's.
    Refused(Refusal),
    /// No leader could be followed for too long.
    GaveUp(ApiError),
}

/// An ear on the leader.
pub(super) struct Ear {
    place: Arc<Place>,
    state: State,
    /// Since when nothing is heard.
    silent_since: Instant,
    pause: Duration,
}

enum State {
    Asking(BoxFuture<'static, ApiResult<Following>>),
    Listening(Box<Following>),
    Pausing(Pin<Box<Sleep>>),
}

impl Ear {
    pub(super) fn new(place: Arc<Place>) -> Self {
        let state = State::Asking(Arc::clone(&place).follow().boxed());
        Self { place, state, silent_since: Instant::now(), pause: PAUSES.0 }
    }

    /// What is heard next. Can be dropped and called again without losing anything.
    pub(super) async fn next(&mut self) -> Heard {
        loop {
            match &mut self.state {
                State::Asking(answer) => match answer.await {
                    Ok(following) => match following.reply.outcome.clone() {
                        Ok(_) => {
                            self.state = State::Listening(Box::new(following));
                            self.pause = PAUSES.0;
                            return Heard::Began;
                        }
                        Err(refusal) => {
                            self.be_silent_for(PAUSES.1);
                            return Heard::Refused(refusal);
                        }
                    },
                    Err(error) => {
                        self.be_silent_for(self.pause);
                        self.pause = (self.pause * 2).min(PAUSES.1);
                        if self.silent_since.elapsed() >= PATIENCE + Duration::from_millis(self.place.ttl_ms) {
                            let detail = format!("the session cannot be followed any more: {}", error.detail);
                            return Heard::GaveUp(ApiError::new(Code::Unavailable, detail));
                        }
                    }
                },
                State::Listening(following) => match following.next().await {
                    Some(notice) => return Heard::Notice(Box::new(notice)),
                    None => {
                        self.silent_since = Instant::now();
                        self.be_silent_for(self.pause);
                    }
                },
                State::Pausing(pause) => {
                    pause.await;
                    self.state = State::Asking(Arc::clone(&self.place).follow().boxed());
                }
            }
        }
    }

    /// What was heard cannot be relied on: after a pause it begins again.
    pub(super) fn listen_anew(&mut self) {
        if matches!(self.state, State::Listening(_)) {
            self.silent_since = Instant::now();
            self.be_silent_for(PAUSES.1);
        }
    }

    fn be_silent_for(&mut self, pause: Duration) {
        self.state = State::Pausing(Box::pin(sleep(pause)));
    }
}
