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

mod config_news;
mod connection;
mod connector;
mod course;
mod following;
mod leaders;
mod link;
mod look;
mod operations;
mod origin;
mod outgoing;
mod router;
mod waiting;

use std::time::Duration;

use holdfast_core::Reply;

pub use connector::{ConnectError, Connector, TcpConnector, TlsConnector};
pub use following::{Following, Notice};
pub use operations::{OperationError, Operations};
pub use origin::on_behalf_of;
pub use router::Router;

/// Whether a command may be sent again when an attempt may have done it already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Repeat {
    /// To a later term: done twice it is as good as done once.
    InLaterTerm,
    /// Not at all: the caller is told that it may have been done.
    Never,
}

/// A reply, and how it was come by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routed {
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
    Damaged {
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
    pub doubt_after: Duration,
    /// How long a replica may take to say who leads.
    pub probe_timeout: Duration,
    /// Shortest pause before a call is sent again.
    pub min_pause: Duration,
    /// Longest pause before a call is sent again.
    pub max_pause: Duration,
    /// How long a connection may take to be made.
    pub connect_timeout: Duration,
    /// Longest pause between attempts to connect.
    pub max_reconnect_pause: Duration,
}

impl Default for RoutingOptions {
    fn default() -> Self {
        Self {
            max_without_leader: Duration::from_millis(2_500),
            doubt_after: Duration::from_millis(500),
            probe_timeout: Duration::from_millis(250),
            min_pause: Duration::from_millis(5),
            max_pause: Duration::from_millis(50),
            connect_timeout: Duration::from_secs(1),
            max_reconnect_pause: Duration::from_millis(500),
        }
    }
}

#[cfg(any(test, feature = "testing"))]
#[doc(hidden)]
pub mod fake_node;
#[cfg(test)]
mod held_tests;
#[cfg(test)]
mod tests;
