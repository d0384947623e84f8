//! The service in real processes: what it keeps and answers while they are killed, paused, cut off and started again.
//!
//! Cases with a cluster take turns: see `Cluster`. One file of them runs alone with its name as a filter:
//! `cargo test --release --workspace --test it -- --nocapture snapshots::`.

mod awaited_conditions;
mod duplicate_requests;
mod held_calls;
mod killed_holders;
mod killed_leader_scenario;
mod leadership_return;
mod long_queue;
mod many_sessions;
mod mixed_waiters;
mod namespaces;
mod node_crashes;
mod node_gateways;
mod observability;
mod operations;
mod partitions;
mod pipelined_sessions;
mod poison;
mod quorum_loss;
mod revocations;
mod sessions;
mod shutdown_and_pause;
mod snapshots;
mod soft_coordinators;
mod soft_tables;
mod waiting_acquires;
