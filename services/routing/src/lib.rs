//! The way to the shards: which replica leads, one connection to each node, and when a call may be sent again.
//!
//! Invariant: a command is addressed to a leader *and term*. It is sent again after a definite "not done", or, when the
//! outcome of an attempt is not known, to a later term only: what a deposed leader did not finish by then it never
//! will, and what it did finish the later leader knows. Queries change nothing and are sent again freely.
//!
//! Gateways use it for their callers, nodes to deliver their outbox.
//!
//! Deliberately unknown here: tenants, HTTP, Raft, what commands mean.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod acquire_wait;
mod admin_client;
mod call;
mod channel;
mod config_watch;
mod connection;
mod dialer;
mod frames;
mod leader_cache;
mod node_status;
mod request_context;
mod router;
mod subscription;

use std::time::Duration;

use holdfast_core::Reply;

pub use admin_client::{AdminClient, AdminError};
pub use dialer::{ConnectError, Dialer, TcpDialer, TlsDialer};
pub use request_context::with_request_id;
pub use router::Router;
pub use subscription::{SessionUpdate, Subscription};

/// Whether a command may be sent again when an attempt may have done it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryPolicy {
    /// To a later term: done twice it is as good as done once.
    LaterTerm,
    /// Not at all: the caller is told that it may have been done.
    Never,
}

/// A reply, and how it was come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RoutedReply {
    /// What the shard answered.
    pub reply: Reply,
    /// Whether an earlier attempt of the same call may have done it already, so that "not found" to a deletion may mean
    /// that it was done.
    pub maybe_done_before: bool,
}

/// Why a call has no reply.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// Nothing was done.
    #[error("shard {shard} cannot be reached: {reason}")]
    Unavailable {
        /// Which shard.
        shard: String,
        /// What the last attempt met.
        reason: String,
    },
    /// It may have been done, or still be.
    #[error("the outcome is not known, shard {shard} did not answer in time: {reason}")]
    OutcomeUnknown {
        /// Which shard.
        shard: String,
        /// What the last attempt met.
        reason: String,
    },
    /// The reply cannot be read.
    #[error("the reply of shard {shard} cannot be read: {reason}")]
    InvalidReply {
        /// Which shard.
        shard: String,
        /// What is wrong with it.
        reason: String,
    },
}

/// Times of routing. The defaults fit failovers of about two seconds.
#[derive(Clone, Debug)]
pub struct RoutingOptions {
    /// Without a leader that a quorum confirms, a call ends after this, however late its deadline: below the three
    /// seconds within which the minority side of a partition must answer.
    pub max_without_leader: Duration,
    /// A leader that does not answer for so long is doubted: the other replicas are asked for a later one while its
    /// answer is still awaited.
    pub suspect_after: Duration,
    /// How long a replica may take to say who leads.
    pub probe_timeout: Duration,
    /// Shortest pause before a call is sent again.
    pub min_backoff: Duration,
    /// Longest pause before a call is sent again.
    pub max_backoff: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// Longest pause between attempts to connect.
    pub max_reconnect_backoff: Duration,
}

impl Default for RoutingOptions {
    fn default() -> Self {
        Self {
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

#[cfg(test)]
mod deferred_tests;
#[cfg(test)]
mod fake_cluster;
#[cfg(test)]
mod tests;
