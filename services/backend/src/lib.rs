//! The operations behind every frontend: authentication, permissions, and calls to shards.
//!
//! Purpose: check the caller and the request of every operation, call the shard that owns the data, and convert its
//! reply for the public API. Sessions, events, caches of accounts and namespaces, and the limits on rates and
//! concurrency belong to it.
//!
//! Invariant: an operation without a valid credential changes nothing. A call returns `UNAVAILABLE` only if it changed
//! nothing.
//!
//! Deliberately unknown here: HTTP, gRPC and WebSocket; Raft and storage; the current holds, since only the shards
//! decide them.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod access_watch;
mod account_connections;
mod account_rates;
mod admission;
mod auth;
mod auth_cache;
mod buffers;
mod config;
mod context;
mod directory;
mod events;
mod metrics;
mod ops;
mod rate_counter;
mod refusals;
mod route_error;
mod service;
pub mod session;
mod shard_call;
mod strangers;
mod view_builder;

pub use self::metrics::describe_metrics;
pub use account_connections::AccountConnections;
pub use auth::{AuthContext, TenantContext};
pub use buffers::AccountBuffers;
pub use config::{Backend, BackendOptions, StartError};
pub use context::{CallContext, CallReport, DEFAULT_DEADLINE};
pub use events::{EventStream, MAX_WATCHERS};
pub use refusals::count_refusal;
pub use service::Service;
pub use shard_call::is_not_opened;
