//! TLS of listeners and of connections, from PEM files that are read again when they change.
//!
//! Purpose: certificates are renewed while processes run, so new connections use the latest content of the files.
//!
//! Invariants:
//! - Unusable files never replace usable ones; the process continues with the old content and logs a warning.
//! - Whatever strangers open, handshakes are bounded in number and time, and those of others go on.
//!
//! Deliberately unknown here: the protocols over a connection, and which processes must use TLS.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod client;
mod error;
mod files;
mod handshake_limit;
mod listener;
mod port;
mod reload;
mod server;

pub use client::ClientTls;
pub use error::TlsError;
pub use files::IdentityFiles;
pub use listener::{Listener, PeerInfo, Stream, accept_one};
pub use port::{BusyGuard, ConnectionActivity, PortBound, PortConnection, PortConnections, PortLimits};
pub use server::{ClientAuth, ServerTls};
