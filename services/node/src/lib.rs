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

mod admission;
mod answer;
mod asking;
mod caller;
mod calls;
mod connections;
mod credentials;
mod duties;
mod error;
mod failure;
mod figures;
mod following;
mod in_process;
mod leader;
mod machine;
mod memory;
mod node;
mod operations;
mod options;
mod planted;
mod replica;
mod restore;
mod revival;
mod router;
#[cfg(test)]
mod rules_tests;
mod serve;
mod service;
mod status;
mod stored_config;
#[cfg(test)]
mod testing;
mod topology;
mod waiting;

pub use error::NodeError;
pub use in_process::{InProcessConnector, InProcessListener, in_process};
pub use machine::{Observer, ShardMachine};
pub use node::Node;
pub use options::NodeOptions;
pub use restore::{RestoreError, restore};
pub use serve::{IsOperator, MetricsText, Probes, serve};
