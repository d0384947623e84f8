//! What a leader tells of a session, as it happens.

use holdfast_core::{Effect, Reply, Response, codec};
use serde::Deserialize;

use crate::channel::{CallReply, PendingCall};

/// Something that happened to a session.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct SessionUpdate {
    /// The shard clock that it is of, in milliseconds.
    pub clock_ms: u64,
    /// What happened: `Settled`, `Revoked`, `SessionOpened` (somebody else resumed the session) or `SessionEnded`.
    pub effect: Effect,
}

/// The notices of one session, from one leader. Dropping it ends them.
pub struct Subscription {
    /// `Done`; or why the session is not followed: `SessionNotFound`, `Superseded`, `NamespaceNotFound`.
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

    /// The next notice. None when the leader is gone, or was not listened to for too long: follow again, and look what
    /// changed meanwhile.
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
