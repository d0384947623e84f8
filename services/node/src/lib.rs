//! A node: hosts the replicas that the cluster config gives it.
//!
//! Purpose: start and recover replicas, form new groups once, answer the calls of gateways, and do what only a leader
//! does: end what is due, deliver the outbox, keep sessions alive, hold back the answers of those who wait, tell those
//! who follow.
//!
//! Invariant: everything that a leader originates goes through the log; a duty ends with the leadership that began it,
//! and a new leader needs nothing but the state.
//!
//! Deliberately unknown here: tenants' keys, HTTP calls of tenants, openraft, RocksDB.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod acquire_wait;
mod admin_server;
mod admission;
mod call_handler;
mod calls;
mod connections;
mod cost_estimates;
mod credentials;
mod deferred;
mod error;
mod failure;
mod in_process;
mod leader;
mod machine;
mod memory;
mod metrics;
mod mutations;
mod node;
mod node_server;
mod options;
mod outbox_sender;
mod query;
mod reconfigure;
mod replica;
mod replica_supervisor;
mod restore;
#[cfg(test)]
mod rules_tests;
mod serve;
mod status;
mod stored_config;
mod subscribe;
mod tasks;
#[cfg(test)]
mod testing;

pub use error::NodeError;
pub use in_process::{InProcessDialer, InProcessListener, in_process};
pub use machine::{ApplyObserver, ShardMachine};
pub use node::Node;
pub use options::NodeOptions;
pub use restore::{RestoreError, restore};
pub use serve::{AdminEndpoints, IsOperator, MetricsText, serve};
