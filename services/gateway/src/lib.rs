//! The front door of Holdfast: tenants, limits, and the way to the shards.
//!
//! Purpose: take calls over REST and gRPC, check who calls and what is asked, route each to the leader of the shard
//! that owns it, and show the answer.
//!
//! Invariant: a command is addressed to a leader *and term*; it is sent again only after a definite "not done", or to
//! a later term. `UNAVAILABLE` is answered only when nothing was done.
//!
//! Deliberately unknown here: Raft, storage, and what a lock *is*: which holds exist is decided by the shards alone.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod admission;
pub mod config;
mod console;
pub mod directory;
mod dlocks;
pub mod events;
mod grpc;
mod head;
pub mod health;
mod locktopus;
mod rest;
mod route_error;
pub mod server;
pub mod service;
mod session;
#[cfg(test)]
mod test_cluster;

#[doc(hidden)]
pub mod testing {
    //! What reads bytes from callers, for tests with damaged ones.
    pub use crate::locktopus::read_message as read_locktopus_message;
    pub use crate::rest::fuzz_support::{read_body, read_session_message};
}

pub use config::{Gateway, GatewayOptions, StartError};
pub use locktopus::{
    LocktopusAccount, LocktopusOptions, LocktopusOrigin, MalformedLocktopusAccount, MalformedLocktopusOrigin,
    serve_locktopus,
};
pub use service::{AuthContext, CallContext, Service};
