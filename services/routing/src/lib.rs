//! Routes calls to shards: finds the leading replica of the shard's group, maintains one connection to each node, and
//! decides when a call may be retried.
//!
//! Invariant: a command is addressed to a leader *and term*. The router retries it after a definite "not done". If the
//! outcome of an attempt is unknown, it retries in a later term only: a deposed leader never completes what it has not
//! completed by then, and the later leader knows what was completed. Queries change nothing and are retried freely.
//!
//! Gateways use it for their callers; nodes use it to deliver their outbox.
//!
//! Deliberately unknown here: API keys, the public API, Raft, what commands mean.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod acquire_wait;
mod admin_client;
mod call;
mod call_body;
mod call_load;
mod channel;
mod config_watch;
mod connection;
mod http;
mod keep_alives;
mod leader_cache;
mod local_call;
mod node_status;
mod request_context;
mod router;
mod subscription;

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBackoff, ExponentialBuilder};
use holdfast_types::Reply;
use holdfast_types::limit::Reached;

pub use admin_client::{AdminClient, AdminError, ComparedReplicas, Quarantined};
pub use call_load::AccountCalls;
pub use holdfast_rpc::{
    ByteBudget, ConnectError, Dialer, NestedBudget, NestedReservation, Reservation, TcpDialer, TlsDialer,
};
pub use local_call::LocalNode;
pub use request_context::with_request_id;
pub use router::Router;
pub use subscription::{StartGate, StartOutcome, Subscription, SubscriptionError, SubscriptionStart, Update};

/// Another replica of a group leads some twenty milliseconds after a leader's process ended. A doubling backoff would
/// add a gap of the same length.
const BACKOFF_FACTOR: f32 = 1.4;

/// Whether a command may be retried when an attempt may have been applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// Retry in a later term: the command is idempotent.
    LaterTerm,
    /// Don't retry: the caller learns that the command may have been applied.
    Never,
}

/// A reply and its history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedReply {
    /// The shard's reply.
    pub reply: Reply,
    /// Whether an earlier attempt of the same call may have been applied, so that "not found" for a deletion may mean
    /// success.
    pub maybe_done_before: bool,
    /// The term of the leader that executed a command; 0 for other calls.
    pub term: u64,
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Nothing was done.
    #[error("shard {shard} cannot be reached: {reason}")]
    Unavailable {
        /// The shard.
        shard: String,
        /// The result of the last attempt.
        reason: String,
    },
    /// Nothing was done: too many calls are in progress, here or at the node.
    #[error("shard {shard} cannot be called now: {limit}")]
    Limited {
        /// The shard.
        shard: String,
        /// The limit, and what it allows.
        limit: Reached,
    },
    /// The call may have been applied, or may still be.
    #[error("the outcome is not known, shard {shard} did not answer in time: {reason}")]
    OutcomeUnknown {
        /// The shard.
        shard: String,
        /// The result of the last attempt.
        reason: String,
    },
    /// The reply can't be decoded.
    #[error("the reply of shard {shard} cannot be read: {reason}")]
    InvalidReply {
        /// The shard.
        shard: String,
        /// The cause.
        reason: String,
    },
}

impl RouteError {
    /// Returns the same error of a call that another shard of the group shared.
    fn of_shard(self, shard: &str) -> Self {
        let shard = shard.to_owned();
        match self {
            Self::Unavailable { reason, .. } => Self::Unavailable { shard, reason },
            Self::Limited { limit, .. } => Self::Limited { shard, limit },
            Self::OutcomeUnknown { reason, .. } => Self::OutcomeUnknown { shard, reason },
            Self::InvalidReply { reason, .. } => Self::InvalidReply { shard, reason },
        }
    }
}

/// The name of a router, and its timing. The defaults are those of a gateway, and fit failovers of about two seconds.
#[derive(Clone, Debug)]
pub struct RoutingOptions {
    /// Whose calls the router sends, in metrics: `gateway` or `node`. A node with a gateway has one of each.
    pub router: &'static str,
    /// Without a leader confirmed by a quorum, a call ends after this time, however late its deadline: below the three
    /// seconds within which the minority side of a partition must answer.
    pub max_without_leader: Duration,
    /// A leader that does not respond for this long is suspected: the router probes the other replicas for a later one
    /// while it still waits for the response.
    pub suspect_after: Duration,
    /// Timeout of a leader probe.
    pub probe_timeout: Duration,
    /// Shortest delay before a retry.
    pub min_backoff: Duration,
    /// Longest delay before a retry.
    pub max_backoff: Duration,
    /// Timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// Longest delay between connection attempts.
    pub max_reconnect_backoff: Duration,
}

impl Default for RoutingOptions {
    fn default() -> Self {
        Self {
            router: "gateway",
            max_without_leader: Duration::from_millis(2_500),
            suspect_after: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(250),
            min_backoff: Duration::from_millis(5),
            max_backoff: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            max_reconnect_backoff: Duration::from_millis(500),
        }
    }
}

impl RoutingOptions {
    /// Returns the delays before the retries of a call.
    pub(crate) fn backoff(&self) -> ExponentialBackoff {
        ExponentialBuilder::default()
            .with_min_delay(self.min_backoff)
            .with_max_delay(self.max_backoff)
            .with_factor(BACKOFF_FACTOR)
            .without_max_times()
            .with_jitter()
            .build()
    }
}

#[cfg(test)]
mod deferred_tests;
#[cfg(test)]
mod fake_cluster;
#[cfg(test)]
mod group_tests;
#[cfg(test)]
mod subscription_tests;
#[cfg(test)]
mod tests;
