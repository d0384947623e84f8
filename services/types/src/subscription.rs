//! Subscriptions: how one process learns of changes in another.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{CommandError, Effect, Kinds, MAX_PAGE_SIZE, NamespaceRef, Path, Query, Reply, Response, Revision};
use crate::codec;

/// The subject of a subscription.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Topic {
    /// What happens to a session: items are [`SessionUpdate`]s. It has no history, so its updates begin now and are sent
    /// at once. Errors: `SessionNotFound`, `Superseded`, `NamespaceNotFound`.
    Session {
        /// The namespace.
        namespace: NamespaceRef,
        /// The session.
        session_id: String,
        /// The epoch of the subscribing connection: a connection with a lower epoch than the session's is superseded.
        epoch: u64,
    },
    /// The [`Event`](super::Event)s of a namespace. Errors: `RevisionCompacted`, `NamespaceNotFound`.
    Events {
        /// The namespace.
        namespace: NamespaceRef,
    },
    /// [`AccountChange`](super::AccountChange)s. Errors: `ChangesCompacted`.
    AccountChanges,
    /// The cluster config of a node, as JSON; its version is the revision. Served without a leader.
    ClusterConfig,
}

/// Subscribes to a topic.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Subscribe {
    /// The topic.
    pub topic: Topic,
    /// The first revision of interest; if absent, what happens from now on.
    pub from: Option<Revision>,
}

/// An update of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionUpdate {
    /// The shard clock of the update, in milliseconds.
    pub clock_ms: u64,
    /// The effect: `WaitResolved`, `PermitsResolved`, `Revoked`, `PermitsRevoked`, `ReleaseRequested`, `SessionOpened`
    /// (another client resumed the session) or `SessionEnded`.
    pub effect: Effect,
}

/// A page of a topic's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The revision to continue from.
    pub next_revision: Revision,
    /// The encoded list of items.
    pub items: Vec<u8>,
    /// Whether there are no items.
    pub is_empty: bool,
}

impl Topic {
    /// Returns after what time without changes a subscriber gets an empty page; `None` for a topic without a history.
    pub fn heartbeat(&self) -> Option<Duration> {
        match self {
            Self::Session { .. } => None,
            // Gateways date their knowledge of accounts by it.
            Self::AccountChanges => Some(Duration::from_millis(500)),
            Self::Events { .. } => Some(Duration::from_secs(10)),
            Self::ClusterConfig => Some(Duration::from_secs(20)),
        }
    }

    /// Returns the query of the page that begins at a revision; `None` if no shard has the topic's history.
    pub fn query(&self, from: Option<Revision>) -> Option<Query> {
        match self {
            Self::Events { namespace } => Some(Query::Events {
                namespace: namespace.clone(),
                from_revision: from,
                prefix: Path::default(),
                kinds: Kinds::ALL,
                limit: MAX_PAGE_SIZE,
            }),
            Self::AccountChanges => Some(Query::AccountChanges { after: from.unwrap_or(0).saturating_sub(1) }),
            Self::Session { .. } | Self::ClusterConfig => None,
        }
    }
}

impl Page {
    /// Returns the page with these items.
    pub fn new<T: Serialize>(items: &[T], next_revision: Revision) -> Self {
        Self { next_revision, items: codec::encode(&items), is_empty: items.is_empty() }
    }

    /// Returns the page in the reply to a [`Topic::query`], or the error.
    ///
    /// # Errors
    /// When the shard rejects the query.
    pub fn of_reply(reply: &Reply) -> Result<Self, CommandError> {
        match &reply.outcome {
            Ok(Response::Events { events, next_revision, .. }) => Ok(Self::new(events, *next_revision)),
            Ok(Response::AccountChanges { changes, now }) => Ok(Self::new(changes, now + 1)),
            Ok(_) => Err(CommandError::Malformed("the reply has no page of a history".to_owned())),
            Err(error) => Err(error.clone()),
        }
    }
}
