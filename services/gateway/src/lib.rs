//! The frontends of Holdfast: REST, gRPC, WebSocket, the compatible frontends and the console.
//!
//! Purpose: accept connections, read each call into a request of the public API, execute it with the backend, and
//! render the outcome in the caller's protocol.
//!
//! Invariant: every frontend reads a call's credential and deadline in the same way, and presents one error by one
//! status. A frontend decides nothing that another one could decide differently.
//!
//! Deliberately unknown here: permissions, limits, shards, and how a call reaches them.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod args;
mod call_layer;
mod call_metrics;
mod connection_limiter;
mod console;
mod dlocks;
mod frontends;
mod grpc;
mod head;
mod locktopus;
mod public_pages;
mod rest;
mod server;
#[cfg(test)]
mod test_cluster;

#[doc(hidden)]
pub mod testing {
    //! Parsers of bytes from callers, for tests with damaged input.
    pub use crate::locktopus::read_message as read_locktopus_message;
    pub use crate::rest::fuzz_support::{read_body, read_session_message};
}

pub use args::FrontendArgs;
pub use frontends::Frontends;
pub use grpc::DescriptorsError;
