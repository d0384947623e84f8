//! Updates of a session from its leader.

use holdfast_types::{Effect, Reply, Response, codec};
use serde::Deserialize;

use crate::channel::{CallReply, PendingCall};

/// An update of a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SessionUpdate {
    /// The shard clock of the update, in milliseconds.
    pub clock_ms: u64,
    /// The effect: `Settled`, `Revoked`, `SessionOpened` (another client resumed the session) or `SessionEnded`.
    pub effect: Effect,
}

/// The updates of one session, from one leader. Dropping it ends the subscription.
pub struct Subscription {
    /// `Done`, or why the subscription failed: `SessionNotFound`, `Superseded`, `NamespaceNotFound`.
    pub reply: Reply,
    attempt: Option<PendingCall>,
}

impl Subscription {
    pub(super) fn new(attempt: PendingCall) -> Self {
        let reply = Reply { outcome: Ok(Response::Done), clock_ms: 0, awaits: None };
        Self { reply, attempt: Some(attempt) }
    }

    pub(super) fn rejected(reply: Reply) -> Self {
        Self { reply, attempt: None }
    }

    /// Returns the next update. `None` when the leader is gone, or the reader was too slow: subscribe again, and check
    /// what changed meanwhile.
    pub async fn next(&mut self) -> Option<SessionUpdate> {
        let attempt = self.attempt.as_mut()?;
        let CallReply::Update(bytes) = attempt.next_reply().await else {
            self.attempt = None;
            return None;
        };
        match codec::decode(&bytes) {
            Ok(notice) => Some(notice),
            Err(error) => {
                tracing::error!(%error, "a notice of a session cannot be read");
                self.attempt = None;
                None
            }
        }
    }
}
