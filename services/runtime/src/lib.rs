//! What every program does at its start and end: listen, read its secrets and certificates, log, and stop when it is
//! told to.
//!
//! Invariant: nothing listens openly without encryption unless told to, and a secret is read from a file, never from a
//! flag.
//!
//! Deliberately unknown here: what the program does in between.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocator;
mod file_limit;
mod listen;
mod memory;
mod secrets;
mod shutdown;
mod signing;
mod telemetry;
mod tls;

pub use holdfast_telemetry::flush_traces;
pub use listen::{ListenError, bind, check_listen_address};
pub use memory::MemoryArgs;
pub use secrets::{SecretsArgs, SecretsError};
pub use shutdown::{ShutdownArgs, shutdown_signal};
pub use signing::SigningArgs;
pub use telemetry::{TelemetryArgs, TelemetryError};
pub use tls::{ClusterTlsArgs, TlsArgs};
