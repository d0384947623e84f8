//! Startup and shutdown of every program: listening, secrets and certificates, logging, and stopping on a signal.
//!
//! Invariant: no listener is reachable without encryption unless explicitly allowed, and secrets are read from files,
//! never from flags.
//!
//! Deliberately unknown here: what the program does in between.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod allocator;
mod executor;
mod file_limit;
mod listen;
mod memory;
mod secrets;
mod shutdown;
mod signing;
mod telemetry;
mod tls;

pub use executor::run_server;
pub use file_limit::max_client_connections;
pub use listen::ListenError;
pub use memory::MemoryArgs;
pub use secrets::SecretsArgs;
pub use shutdown::ShutdownArgs;
pub use signing::SigningArgs;
pub use telemetry::{TelemetryArgs, TelemetryError};
pub use tls::{ClusterTlsArgs, TlsArgs};
