//! A node: hosts the replicas that the cluster config assigns to it.
//!
//! Purpose: start and recover replicas, bootstrap new groups once, serve gateways' calls, and run the leader tasks:
//! expire holds and waits, deliver the outbox, keep sessions alive, defer replies of waiting callers, notify
//! subscribers.
//!
//! Invariant: every change that a leader originates goes through the log; a leader task ends with its leadership, and a
//! new leader needs only the state.
//!
//! Deliberately unknown here: tenants' keys, HTTP calls of tenants, openraft, RocksDB.

#![cfg_attr(not(test), warn(clippy::disallowed_methods))]

mod acquire_wait;
mod admin_server;
mod admission;
mod batch;
mod busy_body;
mod call_handler;
mod cancel_queue;
mod cost_estimates;
mod deferred_query;
mod error;
mod failure;
mod group_machine;
mod keep_alives;
mod leader;
mod leadership_return;
mod lock_info;
mod machine;
mod memory;
mod metrics;
mod mutations;
mod node;
mod node_server;
mod open_calls;
mod options;
mod outbox_sender;
mod query;
mod reconfigure;
mod replica;
mod replica_supervisor;
mod restore;
#[cfg(test)]
mod rules_tests;
mod run_markers;
mod serve;
mod shard_health;
mod shard_rebuild;
mod soft_calls;
mod soft_deletes;
mod status;
mod stored_config;
mod subscribe;
mod table_waits;
mod tasks;
#[cfg(test)]
mod testing;

pub use error::NodeError;
pub use group_machine::GroupMachine;
pub use machine::{ApplyObserver, MAX_SLICE_COMMANDS, ShardMachine};
pub use node::Node;
pub use options::NodeOptions;
pub use restore::{RestoreError, restore};
pub use serve::{AdminEndpoints, IsOperator, MetricsText, serve, serve_connections};
