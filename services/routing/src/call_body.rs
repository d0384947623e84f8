//! What is sent to a node in one call, and to which replica.

use std::time::Duration;

use bytes::Bytes;
use holdfast_cluster::Application;
use holdfast_proto::internal::{self, Call, call};
use tokio::time::Instant;

use crate::call_load::{CallKind, LoadKey};
use crate::leader_cache::Leader;
use crate::request_context;

/// The recipient of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CallAddress {
    /// A replica of a group.
    pub(super) leader: Leader,
    /// Which shard of the group: the one of the application that owns the key. `None` for the node itself.
    pub(super) shard: Option<(Application, u32)>,
    /// What the call counts for.
    pub(super) load: LoadKey,
}

impl CallAddress {
    /// A node, whichever replicas it has, for a subscription of this process itself.
    pub(super) const NODE: Self = Self { leader: Leader { replica: 0, term: 0 }, shard: None, load: LoadKey::FEED };
}

/// The body of a call.
#[derive(Clone, Debug)]
pub(super) enum CallBody {
    /// An encoded command.
    Command(Bytes),
    /// An encoded query.
    Query(Bytes),
    /// An encoded acquire, and how long its reply may be deferred.
    Acquire(Bytes, Duration),
    /// An encoded query, and until when its reply may be deferred.
    DeferredQuery(Bytes, Instant),
    /// An encoded subscription.
    Subscribe(Bytes),
}

impl CallBody {
    /// Returns true if the call changes nothing and may be retried freely.
    pub(super) fn is_query(&self) -> bool {
        !matches!(self, Self::Command(_) | Self::Acquire(..))
    }

    /// Returns the bytes of its content.
    pub(super) fn len(&self) -> usize {
        match self {
            Self::Command(bytes)
            | Self::Query(bytes)
            | Self::Acquire(bytes, _)
            | Self::DeferredQuery(bytes, _)
            | Self::Subscribe(bytes) => bytes.len(),
        }
    }

    /// Returns the same call without deferral.
    pub(super) fn to_immediate(&self) -> Self {
        match self {
            Self::Acquire(bytes, _) => Self::Command(bytes.clone()),
            Self::DeferredQuery(bytes, _) => Self::Query(bytes.clone()),
            other => other.clone(),
        }
    }

    /// Returns whether one reply comes, and before it perhaps the notice that it is deferred.
    pub(super) fn is_deferrable(&self) -> bool {
        matches!(self, Self::Acquire(..) | Self::DeferredQuery(..))
    }

    /// Returns the call to that address. Its deadline is set when it is sent.
    pub(super) fn into_call(self, to: CallAddress) -> Call {
        let (body, hold) = match self {
            Self::Command(bytes) => (call::Body::Command(bytes), Duration::ZERO),
            Self::Query(bytes) => (call::Body::Query(bytes), Duration::ZERO),
            Self::Acquire(bytes, hold) => (call::Body::Command(bytes), hold),
            Self::DeferredQuery(bytes, until) => (call::Body::Query(bytes), until.duration_since(Instant::now())),
            Self::Subscribe(bytes) => (call::Body::Subscribe(bytes), Duration::ZERO),
        };
        let (application, key) =
            to.shard.map_or((internal::Application::Unspecified, 0), |(application, key)| (to_proto(application), key));
        Call {
            id: 0,
            replica: to.leader.replica,
            term: to.leader.term,
            deadline_ms: 0,
            max_wait_ms: u32::try_from(hold.as_millis()).unwrap_or(u32::MAX),
            body: Some(body),
            request_id: request_context::request_id().as_deref().unwrap_or_default().to_owned(),
            trace_parent: holdfast_telemetry::trace_parent().unwrap_or_default(),
            application: application.into(),
            key,
            account: to.load.account.map_or(0, |account| account.0),
            is_urgent: to.load.kind == CallKind::Urgent,
        }
    }
}

fn to_proto(application: Application) -> internal::Application {
    match application {
        Application::Accounts => internal::Application::Accounts,
        Application::Namespaces => internal::Application::Namespaces,
        Application::Locks => internal::Application::Locks,
    }
}
