//! TLS of listeners and of connections, from PEM files that are read again when they change.
//!
//! Purpose: certificates are renewed while processes run, so whoever accepts or opens a connection takes what the files
//! held last.
//!
//! Invariant: files that cannot be used never replace ones that could; the process goes on with what it had and says so.
//!
//! Deliberately unknown here: what is said over a connection, and who has to use TLS.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod client;
mod error;
mod files;
mod listener;
mod reload;
mod server;

pub use client::ClientTls;
pub use error::TlsError;
pub use files::IdentityFiles;
pub use listener::{Listener, PeerInfo, Stream};
pub use server::{ClientAuth, ServerTls};
